"""Restores and plans, as on the command line: two functions each, one of them for asyncio."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal, Unpack

from jsbackup.api.arguments import (
    LOCK_TIMEOUT_SECONDS,
    checked_jobs,
    not_opened,
    one_of,
)
from jsbackup.api.connecting import AnyServer, connection_to
from jsbackup.api.restore_arguments import RestoreArguments, asked_by
from jsbackup.api.stored import Backup, BackupRepository
from jsbackup.api.telling import OnProgress, note_waiting, progress_to
from jsbackup.api.worker import Work, Worker, twins
from jsbackup.engine.backup.lease_renewal import hold_to_read
from jsbackup.engine.restore.partial_proof import ProofLevel
from jsbackup.engine.restore.preview import preview_restore
from jsbackup.engine.restore.restore import RestoreReport, run_restore
from jsbackup.engine.restore.restored_stream import RestoredStream
from jsbackup.engine.restore.run import RestoreRun, RestoreSettings
from jsbackup.errors import IncompleteError, JsBackupError
from jsbackup.failure import FailedProof, all_failed
from jsbackup.model import JsonObject
from jsbackup.planning.elsewhere import with_elsewhere
from jsbackup.planning.model import Action, RestoreOptions, RestorePlan
from jsbackup.planning.preflight import refuse_if_refused
from jsbackup.planning.rules import Finding
from jsbackup.planning.selection.chosen_streams import needed_by
from jsbackup.planning.typed_options import keeping_obfuscated, restore_options
from jsbackup.readable import format_count, in_sentences
from jsbackup.repository import layout
from jsbackup.repository.read.latest import Choice, Wanted
from jsbackup.repository.read.search import BackupSearch
from jsbackup.repository.repository import Repository

__all__ = [
    "PlannedRestore",
    "PlannedTarget",
    "RestoreOutcome",
    "StreamOutcome",
    "plan",
    "plan_async",
    "restore",
    "restore_async",
]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StreamOutcome:
    """A stream that was restored. `messages` and `bytes` are at the server; `lost_messages` were missing in the
    repository.

    `verified`: every message was compared. `proof` says how much was: `full`, `sample`, `quick` or `none`.
    """

    name: str
    as_name: str
    messages: int
    bytes: int
    verified: bool
    proof: str
    seconds: float
    lost_messages: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RestoreOutcome:
    """The result of a restore. `streams` and `failed` are by their names in the backup.

    `skipped` and `missing` say which streams were not restored, and why; `warnings` are of the plan, `notes` about the
    choice of the backup.
    """

    backup: Backup
    streams: Mapping[str, StreamOutcome]
    failed: Mapping[str, JsBackupError]
    skipped: tuple[Finding, ...]
    missing: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    notes: tuple[str, ...]


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


@dataclass(frozen=True, slots=True)
class PlannedRestore:
    """What a restore would do, and what blocks it. `streams` are by their names in the backup."""

    backup: Backup
    streams: Mapping[str, PlannedTarget]
    refusals: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    skipped: tuple[Finding, ...]
    missing: tuple[Finding, ...]
    notes: tuple[str, ...]
    _plan: RestorePlan

    @property
    def ok(self) -> bool:
        """Whether a restore could begin, and everything requested is in the backup."""
        return not self.refusals and not self.missing

    def check(self) -> None:
        """Raise what a restore would raise: PlanRefused or TargetConflict, or IncompleteError for missing streams."""
        refuse_if_refused(self._plan)
        if self.missing:
            sentences = in_sentences((one.stream, one.reason) for one in self.missing)
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
    repository = _repository_of(source)
    asked = asked_by("restore", how)
    connection, options = connection_to(server), restore_options(asked)
    options.reshape.masks.check_secret(mask_key)
    settings = RestoreSettings(
        jobs=checked_jobs(jobs),
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
            search = _search(opened, source, options)
            report = worker.complete(run_restore(RestoreRun(connection, options, settings, watcher), opened, search))
        report = replace(report, plan=with_elsewhere(report.plan, search.choice))
        outcome = _outcome(repository, search.choice, report)
        if report.failures and not report.streams:
            usable = any(isinstance(failure, FailedProof) for failure in report.failures)
            raise all_failed([failure.error for failure in report.failures], "verified" if usable else "restored")
        if report.code:
            raise IncompleteError(f"not all was restored: {'; '.join(_lacking(report))}", result=outcome)
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
    repository = _repository_of(source)
    connection, options = connection_to(server), restore_options(asked_by("plan", how))
    if mask_key:
        options.reshape.masks.check_secret(mask_key)

    def work(worker: Worker) -> PlannedRestore:
        opened = repository._opened()
        with _reading(opened, "plan", worker, lock_timeout_seconds):
            search = _search(opened, source, options)
            preview = worker.complete(preview_restore(connection, opened, search, options, now_ns=time.time_ns))
        choice = search.choice
        made = with_elsewhere(preview.plan, choice)
        return PlannedRestore(
            backup=Backup(repository, choice.manifest.id, manifest=choice.manifest),
            streams={action.entry.name: _planned(action) for action in made.actions},
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


def _search(repository: Repository, source: Backup | BackupRepository, options: RestoreOptions) -> BackupSearch:
    if isinstance(source, Backup):
        return BackupSearch(repository, source.id, known=Choice(source._manifest))
    wanted = Wanted(options.streams, options.exclude)
    return BackupSearch(repository, layout.LATEST, wanted, needed=needed_by(options))


def _repository_of(source: Backup | BackupRepository) -> BackupRepository:
    if not isinstance(source, Backup | BackupRepository):
        raise not_opened("source", source)
    return source.repository if isinstance(source, Backup) else source


def _outcome(repository: BackupRepository, choice: Choice, report: RestoreReport) -> RestoreOutcome:
    return RestoreOutcome(
        backup=Backup(repository, choice.manifest.id, manifest=choice.manifest),
        streams={one.name: _restored(one) for one in report.streams},
        failed={failure.name: failure.error for failure in report.failures},
        skipped=report.plan.skipped,
        missing=tuple(report.plan.missing),
        warnings=_warnings(report.plan),
        notes=choice.notes,
    )


def _restored(stream: RestoredStream) -> StreamOutcome:
    return StreamOutcome(
        name=stream.name,
        as_name=stream.as_name,
        messages=stream.messages,
        bytes=stream.bytes,
        verified=stream.verified,
        proof=stream.proof.value,
        seconds=stream.seconds,
        lost_messages=sum(problem.messages for problem in stream.lost),
        notes=stream.notes,
    )


def _planned(action: Action) -> PlannedTarget:
    return PlannedTarget(
        name=action.entry.name,
        as_name=action.name,
        config=action.config,
        messages=action.entry.captured.messages,
        counted=action.counted,
        replaces=action.replaces,
        seconds=action.seconds,
    )


def _warnings(made: RestorePlan) -> tuple[Finding, ...]:
    return (*made.warnings, *(found for action in made.actions for found in action.warnings))


def _lacking(report: RestoreReport) -> list[str]:
    """Return why a restore is incomplete, in half sentences."""
    found = in_sentences((failure.name, failure.error.message) for failure in report.failures)
    found += in_sentences((one.stream, one.reason) for one in (*report.plan.missing, *report.plan.skipped))
    for stream in report.streams:
        lost = sum(problem.messages for problem in stream.lost)
        found += [f"stream {stream.name}: lacks {format_count(lost, 'message')}"] if lost else []
        found += [f"stream {stream.name}: {', '.join(stream.notes)}"] if stream.incomplete and not lost else []
    return found
