"""Backups, restores, plans and put-backs, as on the command line: two functions each, one of them for asyncio."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal, TypeAlias, Unpack

from jsbackup.api.arguments import (
    LOCK_TIMEOUT_SECONDS,
    AnyServer,
    MessageConditions,
    Moment,
    RestoreArguments,
    as_texts,
    asked_by,
    chosen_by,
    connection_to,
    edge_of,
    one_of,
    within,
)
from jsbackup.api.stored import Backup, BackupRepository, repository_of
from jsbackup.api.worker import OnProgress, Work, Worker, note_waiting, progress_to, twins
from jsbackup.config import Glob, parse_glob
from jsbackup.engine.backup.backup import run_backup
from jsbackup.engine.backup.lease_renewal import hold_lease, hold_to_read, lease_terms
from jsbackup.engine.backup.run import BackupOptions, BackupRun
from jsbackup.engine.read.increment import Incremental
from jsbackup.engine.restore.proof import ProofLevel
from jsbackup.engine.restore.restore import preview_restore, run_restore
from jsbackup.engine.restore.run import RestoredStream, RestoreRun, RestoreSettings
from jsbackup.errors import IncompleteError, JsBackupError, TargetConflict, UsageError
from jsbackup.failure import FailedProof, all_failed
from jsbackup.model import JsonObject
from jsbackup.planning.model import RestorePlan
from jsbackup.planning.preflight import refuse_if_refused
from jsbackup.planning.rules import Finding
from jsbackup.planning.selection.chosen_streams import needed_by, with_elsewhere
from jsbackup.planning.typed_options import keeping_obfuscated, restore_options
from jsbackup.putting_back.chosen import first_found, possible_streams
from jsbackup.putting_back.model import Fate, PutBackMessage, PutBackOptions, PutBackRun
from jsbackup.putting_back.run import run_put_back
from jsbackup.readable import format_count, in_sentences
from jsbackup.repository import layout
from jsbackup.repository.manifest import BackupResult
from jsbackup.repository.manifest_json import Needed
from jsbackup.repository.read.latest import BackupSearch, Choice, Wanted
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.locking import LockRequest
from jsbackup.stores.base import LockMode

__all__ = [
    "PlannedRestore",
    "PlannedTarget",
    "PutBackOutcome",
    "RestoreOutcome",
    "StreamOutcome",
    "backup",
    "backup_async",
    "plan",
    "plan_async",
    "put_back",
    "put_back_async",
    "restore",
    "restore_async",
]

_log = logging.getLogger(__name__)


# --- backups ---


def _backup(
    server: AnyServer,
    repository: BackupRepository,
    *,
    streams: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
    consumers: bool = True,
    config_only: bool = False,
    check: bool = False,
    salvage: bool = False,
    incremental: Literal["auto", "always", "never"] = "auto",
    lock_until: datetime | timedelta | None = None,
    lock_mode: Literal["governance", "compliance"] = "governance",
    allow_nothing: bool = False,
    jobs: int = 4,
    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
    progress: OnProgress | None = None,
) -> Work[Backup]:
    """Make a backup of streams, as `jsbackup backup` does, and return it.

    `server` is a URL, or the result of `jsbackup.connection`. `streams` and `exclude` are names or patterns; by default
    all streams of the account. `jobs` streams are read at the same time. The other arguments are the options of the
    command. `progress` is called with a `StreamProgress`, from other threads. Warnings go to the log.

    If it is interrupted (by Ctrl-C, or by cancelling the task), it leaves no backup (or, at its very end, a whole one),
    and raises the interruption.

    Raises:
        UsageError: an argument is wrong, or no stream has such a name.
        IncompleteError: the backup was made, and is partial; `result` is the backup.
        NatsError: the server does not answer or with an error, or all streams failed because of it.
        RepositoryLocked: another command, such as a prune, has locked the repository.
        KeyUnavailable: the repository is encrypted or signed, and the writer key was not given.
        StoreError: it cannot be stored.
    """
    repository, connection = repository_of(repository, "repository"), connection_to(server)
    for key, value in (tags or {}).items():
        if not (isinstance(key, str) and isinstance(value, str) and key and "=" not in key):
            raise UsageError(f"tags: not a tag: {key!r}: {value!r}", hint="Keys and values are texts.")
    options = BackupOptions(
        streams=tuple(map(parse_glob, as_texts(streams))),
        exclude=tuple(map(parse_glob, as_texts(exclude))),
        tags=dict(tags or {}),
        allow_nothing=allow_nothing,
        consumers=consumers,
        config_only=config_only,
        check=check,
        salvage=salvage,
        incremental=one_of("incremental", Incremental, incremental),
        lock=_lock_request(lock_until, one_of("lock_mode", LockMode, lock_mode)),
        jobs=within("jobs", jobs, 64),
    )
    watcher = progress_to(progress)

    def work(worker: Worker) -> Backup:
        opened = repository._opened()
        opened.documents.ensure_writable()
        with hold_lease(
            opened.store,
            lease_terms("backup"),
            wait_seconds=lock_timeout_seconds,
            waiting=note_waiting,
            sleep=worker.sleep,
        ) as lease:
            report = worker.complete(run_backup(BackupRun(connection, opened, options, watcher), lease))
        for note in report.notes:
            _log.warning("%s", note)
        manifest = report.manifest
        if manifest is None:
            raise all_failed([failure.error for failure in report.failures])
        made = Backup(repository, manifest.id, manifest=manifest)
        if manifest.result is not BackupResult.COMPLETE:
            reasons = in_sentences((failure.name, failure.error.message) for failure in report.failures)
            reasons += [
                f"stream {part.stream.name}: {', '.join(part.stream.remarks) or 'something of it is missing'}"
                for part in report.streams
                if part.incomplete
            ]
            raise IncompleteError(f"backup {manifest.id} is partial: {'; '.join(reasons)}", result=made)
        return made

    return work


backup, backup_async = twins(_backup)


def _lock_request(until: datetime | timedelta | None, mode: LockMode) -> LockRequest | None:
    if isinstance(until, datetime):
        if until.utcoffset() is None:
            raise UsageError("lock_until: a time without a zone")
        return LockRequest(mode, until_seconds=until.timestamp())
    return None if until is None else LockRequest(mode, for_seconds=until.total_seconds())


# --- restores ---


StreamOutcome: TypeAlias = RestoredStream
"""A stream that was restored. `messages` and `bytes` are at the server; `lost_messages` were missing in the repository.

`verified`: every message was compared. `proof` says how much was: `full`, `sample`, `quick` or `none`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """What a plan says of a backup: `skipped` and `missing` are the streams that are not restored, and why; `notes` are
    about the choice of the backup.
    """

    backup: Backup
    skipped: tuple[Finding, ...]
    missing: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOutcome(_Planned):
    """The result of a restore. `streams` and `failed` are by their names in the backup.

    `skipped` and `missing` say which streams were not restored, and why; `warnings` are of the plan, `notes` about the
    choice of the backup.
    """

    streams: Mapping[str, StreamOutcome]
    failed: Mapping[str, JsBackupError]


@dataclass(frozen=True, slots=True)
class PlannedTarget:
    """A stream as it would be restored. `replaces`: a stream with its name exists, and would be removed.

    `config` is its configuration. `messages` is an upper bound if `counted` is False.
    """

    name: str
    as_name: str
    config: JsonObject
    messages: int
    counted: bool
    replaces: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRestore(_Planned):
    """What a restore would do, and what blocks it. `streams` are by their names in the backup."""

    streams: Mapping[str, PlannedTarget]
    refusals: tuple[Finding, ...]
    _plan: RestorePlan

    @property
    def ok(self) -> bool:
        """Whether a restore could begin, and everything requested is in the backup."""
        return not self.refusals and not self.missing

    def check(self) -> None:
        """Raise what a restore would raise: PlanRefused or TargetConflict, or IncompleteError for missing streams."""
        refuse_if_refused(self._plan)
        if self.missing:
            sentences = in_sentences((miss.stream, miss.reason) for miss in self.missing)
            raise IncompleteError("; ".join(sentences), result=self)


def _restore(
    source: Backup | BackupRepository,
    server: AnyServer,
    *,
    partial: bool = False,
    verify: Literal["full", "sample", "quick", "none"] = "full",
    mask_key: bytes = b"",
    jobs: int = 4,
    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
    progress: OnProgress | None = None,
    **how: Unpack[RestoreArguments],
) -> Work[RestoreOutcome]:
    """Restore streams of a backup into a server, as `jsbackup restore` does: nothing is changed unless all can be.

    `source` is a backup, or a repository: then it is the `latest` backup of the source that `server` leads to. `server`
    is a URL, or the result of `jsbackup.connection`. `verify` says what is compared afterwards: `full` every message,
    `sample` a random tenth of them, `quick` the server's counts, `none` nothing.

    `how` are the options of the command:

    - `streams`, `exclude`: names or patterns
    - `if_exists`: `fail`, `skip` or `replace`; `replace_with_part`
    - `since`, `until`, `subject`: which messages, as in `Stream.messages`
    - `exclude_subject`, `header` (`NAME` or `NAME:VALUE`), `payload_match` (regular expressions of RE2),
      `last_per_subject`, `kv_compact`: which of them
    - `renumber`: number the kept messages from 1
    - `rename` (old to new, also `{"*": "test_*"}`), `map_subject` (`orders.*=>old.orders.$1`)
    - `mask`, `unmaskable`, and `mask_key`, the key for hashes
    - `obfuscate`, and `obfuscation_key`, the path of the key file, which is made if it does not exist
    - `config` (fields of streams, None to leave one out; the `--set` of the command, also `"GLOB:FIELD"`), `replicas`,
      `consumers` (`all`, `config`, `none`)
    - `adapt`, `resume_sources`, `allow_nothing`, `partial`

    If it is interrupted (by Ctrl-C, or by cancelling the task), it removes incomplete streams, and raises the
    interruption.

    Raises:
        UsageError: an argument is wrong, or names something that does not exist.
        PlanRefused, TargetConflict: something blocks it; nothing was changed.
        IntegrityError: something that is needed is lost or damaged; nothing of its stream was restored.
        KeyUnavailable: messages are encrypted, and no key that reads them was given.
        IncompleteError: not everything requested was restored; `result` is the outcome.
        NatsError: the server does not answer, or with an error. Any error of its streams, if none was restored.
        StoreError: the repository cannot be read.
    """
    repository, asked = repository_of(source), asked_by("restore", how)
    connection, options = connection_to(server), restore_options(asked)
    options.reshape.masks.check_secret(mask_key)
    settings = RestoreSettings(
        jobs=within("jobs", jobs, 64),
        proof=one_of("verify", ProofLevel, verify),
        partial=partial,
        mask_secret=mask_key,
    )
    watcher = progress_to(progress)

    def work(worker: Worker) -> RestoreOutcome:
        opened = repository._opened()
        with (
            _reading(opened, "restore", worker, lock_timeout_seconds),
            keeping_obfuscated(asked.obfuscation_key, options.reshape),
        ):
            search = _search(opened, source, Wanted(options.streams, options.exclude), needed_by(options))
            report = worker.complete(run_restore(RestoreRun(connection, options, settings, watcher), opened, search))
        choice = search.choice
        report = replace(report, plan=with_elsewhere(report.plan, choice))
        outcome = RestoreOutcome(
            backup=Backup(repository, choice.manifest.id, manifest=choice.manifest),
            streams={stream.name: stream for stream in report.streams},
            failed={failure.name: failure.error for failure in report.failures},
            skipped=report.plan.skipped,
            missing=tuple(report.plan.missing),
            warnings=_warnings(report.plan),
            notes=choice.notes,
        )
        if report.failures and not report.streams:
            usable = any(isinstance(failure, FailedProof) for failure in report.failures)
            raise all_failed([failure.error for failure in report.failures], "verified" if usable else "restored")
        if report.code:
            lacking = in_sentences((failure.name, failure.error.message) for failure in report.failures)
            lacking += in_sentences(
                (problem.stream, problem.reason) for problem in (*report.plan.missing, *report.plan.skipped)
            )
            for stream in report.streams:
                if stream.lost or stream.incomplete:
                    lacks = (
                        f"lacks {format_count(stream.lost_messages, 'message')}"
                        if stream.lost
                        else ", ".join(stream.notes)
                    )
                    lacking.append(f"stream {stream.name}: {lacks}")
            raise IncompleteError(f"not all was restored: {'; '.join(lacking)}", result=outcome)
        return outcome

    return work


restore, restore_async = twins(_restore)


def _plan(
    source: Backup | BackupRepository,
    server: AnyServer,
    *,
    mask_key: bytes = b"",
    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
    **how: Unpack[RestoreArguments],
) -> Work[PlannedRestore]:
    """Return what `restore` would do with the same arguments, and what blocks it. Changes nothing.

    Raises:
        UsageError: an argument is wrong, or names something that does not exist.
        NatsError: the server does not answer, or with an error.
        KeyUnavailable, IntegrityError: messages that it has to examine cannot be read.
        StoreError: the repository cannot be read.
    """
    repository = repository_of(source)
    connection, options = connection_to(server), restore_options(asked_by("plan", how))
    if mask_key:
        options.reshape.masks.check_secret(mask_key)

    def work(worker: Worker) -> PlannedRestore:
        opened = repository._opened()
        with _reading(opened, "plan", worker, lock_timeout_seconds):
            search = _search(opened, source, Wanted(options.streams, options.exclude), needed_by(options))
            preview = worker.complete(preview_restore(connection, opened, search, options, now_ns=time.time_ns))
        choice = search.choice
        made = with_elsewhere(preview.plan, choice)
        return PlannedRestore(
            backup=Backup(repository, choice.manifest.id, manifest=choice.manifest),
            streams={
                action.entry.name: PlannedTarget(
                    name=action.entry.name,
                    as_name=action.name,
                    config=action.config,
                    messages=action.entry.captured.messages,
                    counted=action.counted,
                    replaces=action.replaces,
                    seconds=action.seconds,
                )
                for action in made.actions
            },
            refusals=made.refusals,
            warnings=_warnings(made),
            skipped=made.skipped,
            missing=tuple(made.missing),
            notes=choice.notes,
            _plan=made,
        )

    return work


plan, plan_async = twins(_plan)


def _reading(
    repository: Repository, purpose: str, worker: Worker, lock_timeout_seconds: float
) -> AbstractContextManager[object]:
    """Hold a lease for reading, as `hold_to_read` does; what it waits for goes to the log."""
    return hold_to_read(
        repository,
        purpose,
        wait_seconds=lock_timeout_seconds,
        waiting=note_waiting,
        note=_log.warning,
        sleep=worker.sleep,
    )


def _search(
    repository: Repository, source: Backup | BackupRepository, wanted: Wanted, needed: Needed = ()
) -> BackupSearch:
    if isinstance(source, Backup):
        return BackupSearch(repository, source.id, known=Choice(source._manifest))
    return BackupSearch(repository, layout.LATEST, wanted, needed=needed)


def _warnings(made: RestorePlan) -> tuple[Finding, ...]:
    return (*made.warnings, *(finding for action in made.actions for finding in action.warnings))


# --- put-backs ---


@dataclass(frozen=True, slots=True)
class PutBackOutcome:
    """What came of `put_back`. `to` is the stream that was written to; `notes` say what else follows from it."""

    backup: Backup
    stream: str
    to: str
    messages: tuple[PutBackMessage, ...]
    notes: tuple[str, ...]

    @property
    def written(self) -> int:
        """How many messages were written."""
        return sum(1 for message in self.messages if message.action == "written")


def _put_back(
    source: Backup | BackupRepository,
    server: AnyServer,
    stream: str,
    *,
    subject: str | Sequence[str] = (),
    sequences: int | Sequence[int | tuple[int, int]] = (),
    key: str | Sequence[str] = (),
    at: Moment | None = None,
    file: str | None = None,
    to: str | None = None,
    overwrite: bool = False,
    partial: bool = False,
    dry_run: bool = False,
    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
    progress: OnProgress | None = None,
    **conditions: Unpack[MessageConditions],
) -> Work[PutBackOutcome]:
    """Put messages, keys or a file of a backup back into a stream that is in use, as `jsbackup put-back` does.

    `source` and `server` are as for `restore`. `stream` is the name of a stream, bucket or object store. What is put
    back are messages (`sequences` as numbers and pairs of the first and the last, and the conditions of
    `Stream.messages`: all must hold), or the values of keys (`key`, names or patterns, as of `at`), or the `file` of an
    object store. The other arguments are the options of the command. `progress` is called with a `StreamProgress`, from
    other threads.

    What the stream still has is not written again. Nothing is written if something is refused, unless `partial` is set.

    Raises:
        UsageError: an argument is wrong, or the backup does not have the stream.
        JsBackupError: no message of the backup matches, or a key had no value.
        PlanRefused: the stream cannot take it; nothing was written.
        TargetConflict: something newer would be replaced, or there is no room. Or another `put_back` is writing
            messages into the stream; nothing was written.
        IncompleteError: some of it was not written, or twice because others wrote it too, or limits of the stream
            dropped something for it; `result` is the outcome. Also if the backup cannot say what a key was.
        NatsError: the server does not answer, or with an error. The message says what was written.
        IntegrityError, KeyUnavailable, StoreError: the backup cannot be read.
    """
    repository, chosen = repository_of(source), chosen_by("put_back", subject, conditions, MessageConditions)
    given = [sequences] if isinstance(sequences, int) else sequences
    ranges = tuple((span, span) if isinstance(span, int) else (span[0], span[1]) for span in given)
    for first, last in ranges:
        if not 0 < first <= last < 1 << 63:
            raise UsageError(f"sequences: not a range: {first} to {last}")
    options = PutBackOptions(
        stream=stream,
        to=to,
        filters=chosen.filters,
        newest=chosen.newest,
        sequences=ranges,
        cut=chosen.cut,
        keys=as_texts(key),
        at=edge_of(at),
        object_name=file,
        overwrite=overwrite,
        partial=partial,
    )
    connection, watcher = connection_to(server), progress_to(progress)

    def work(worker: Worker) -> PutBackOutcome:
        opened = repository._opened()
        run = PutBackRun(connection, options, dry_run, isinstance(source, BackupRepository), watcher)
        names = ("".join(f"[{c}]" if c in "*?[" else c for c in name) for name in possible_streams(options))
        find = first_found([_search(opened, source, Wanted((Glob(name),))) for name in names])
        with _reading(opened, "put-back", worker, lock_timeout_seconds):
            report = worker.complete(run_put_back(run, opened, find))
        plan = report.plan
        outcome = PutBackOutcome(
            backup=Backup(repository, plan.manifest.id, manifest=plan.manifest),
            stream=plan.entry.name,
            to=plan.target.name,
            messages=report.messages,
            notes=(*plan.notes, *report.notes),
        )
        if dry_run:
            return outcome
        if (refusal := plan.refusal()) is not None:
            raise refusal
        lacks = report.of(Fate.REFUSED, Fate.DUPLICATE, Fate.CONFLICT)
        lacking = "; ".join(f"{lack.name or lack.sequence}: {lack.reason}" for lack in lacks)
        if report.code == TargetConflict.exit_code:
            raise TargetConflict(f"nothing was written: {lacking}")
        if report.code:
            notes = (*plan.unknown, *(report.notes if report.twice or report.dropped else ()))
            said = [f"not everything was put back: {lacking}"] if lacking else []
            raise IncompleteError("; ".join([*said, *notes]), result=outcome)
        return outcome

    return work


put_back, put_back_async = twins(_put_back)
