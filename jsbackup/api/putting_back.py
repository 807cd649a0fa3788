"""Put messages, keys or a file back into a stream that is in use, as on the command line."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from jsbackup.api.arguments import (
    LOCK_TIMEOUT_SECONDS,
    Moment,
    as_texts,
    moment_text,
    not_opened,
    to_datetime,
    typed_filters,
)
from jsbackup.api.connecting import AnyServer, connection_to
from jsbackup.api.stored import Backup, BackupRepository
from jsbackup.api.telling import OnProgress, note_waiting, progress_to
from jsbackup.api.worker import Work, Worker, twins
from jsbackup.config import Glob
from jsbackup.engine.backup.lease_renewal import hold_to_read
from jsbackup.errors import IncompleteError, TargetConflict, UsageError
from jsbackup.putting_back.chosen import FirstFound, possible_streams
from jsbackup.putting_back.model import PutBackOptions, PutBackReport
from jsbackup.putting_back.publishing import WritingRun
from jsbackup.putting_back.run import PutBackRun, run_put_back
from jsbackup.repository import layout
from jsbackup.repository.read.latest import Choice, Wanted
from jsbackup.repository.read.search import BackupSearch
from jsbackup.repository.repository import Repository
from jsbackup.times import format_time
from jsbackup.transforms.cut import Cut, parse_edge
from jsbackup.transforms.filters.newest import NewestRule

__all__ = ["PutBackMessage", "PutBackOutcome", "put_back", "put_back_async"]

_log = logging.getLogger(__name__)
_LACKING = "not everything was put back: "


@dataclass(frozen=True, slots=True)
class PutBackMessage:
    """A chosen message. `name` is the key or the file, "" for other messages.

    `action` is `written` (as `as_sequence`), `there` (it had been already), `left out`, `refused`, `duplicate` (the
    server knows its message id, or will), `conflict` (something else was written meanwhile), or `write` in a dry run;
    `reason` says why.
    """

    sequence: int
    time: datetime
    subject: str
    name: str
    action: str
    reason: str
    as_sequence: int | None


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
        return sum(1 for one in self.messages if one.action == "written")


def _put_back(
    source: Backup | BackupRepository,
    server: AnyServer,
    stream: str,
    *,
    subject: str | Sequence[str] = (),
    exclude_subject: str | Sequence[str] = (),
    header: str | Sequence[str] = (),
    payload_match: str | Sequence[str] = (),
    last_per_subject: int | None = None,
    sequences: int | Sequence[int | tuple[int, int]] = (),
    since: Moment | None = None,
    until: Moment | None = None,
    key: str | Sequence[str] = (),
    at: Moment | None = None,
    file: str | None = None,
    to: str | None = None,
    overwrite: bool = False,
    partial: bool = False,
    dry_run: bool = False,
    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
    progress: OnProgress | None = None,
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
    if not isinstance(source, Backup | BackupRepository):
        raise not_opened("source", source)
    repository = source.repository if isinstance(source, Backup) else source
    now_ns = time.time_ns()
    moment = moment_text("at", at)
    options = PutBackOptions(
        stream=stream,
        to=to,
        filters=typed_filters(
            subject=subject,
            exclude_subject=exclude_subject,
            header=header,
            payload_match=payload_match,
        ),
        newest=NewestRule.of(last_per_subject, False),
        sequences=_ranges(sequences),
        cut=Cut.parse(moment_text("since", since), moment_text("until", until), now_ns),
        keys=as_texts(key),
        at=None if moment is None else parse_edge("at", moment, now_ns),
        object_name=file,
        overwrite=overwrite,
        partial=partial,
    )
    options.check()
    connection, watcher = connection_to(server), progress_to(progress)

    def work(worker: Worker) -> PutBackOutcome:
        opened = repository._opened()
        around = isinstance(source, BackupRepository)
        run = PutBackRun(connection, options, dry_run, around, progress=WritingRun(watcher))
        with hold_to_read(
            opened,
            "put-back",
            wait_seconds=lock_timeout_seconds,
            waiting=note_waiting,
            note=_log.warning,
            sleep=worker.sleep,
        ):
            report = worker.complete(run_put_back(run, opened, _search(opened, source, options)))
        outcome = _outcome(repository, report)
        if dry_run:
            return outcome
        if (refusal := report.plan.refusal()) is not None:
            raise refusal
        lacking = "; ".join(f"{one.name or one.sequence}: {one.reason}" for one in outcome.messages if _lacks(one))
        if report.code == TargetConflict.exit_code:
            raise TargetConflict(f"nothing was written: {lacking}")
        if report.code:
            notes = report.notes if report.twice or report.dropped else ()
            raise IncompleteError(
                "; ".join(filter(None, (_LACKING + lacking if lacking else "", *notes))), result=outcome
            )
        return outcome

    return work


put_back, put_back_async = twins(_put_back)


def _ranges(sequences: int | Sequence[int | tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    given = [sequences] if isinstance(sequences, int) else sequences
    found = [(one, one) if isinstance(one, int) else (one[0], one[1]) for one in given]
    for first, last in found:
        if not 0 < first <= last < 1 << 63:
            raise UsageError(f"sequences: not a range: {first} to {last}")
    return tuple(found)


def _search(
    repository: Repository, source: Backup | BackupRepository, options: PutBackOptions
) -> BackupSearch | FirstFound:
    if isinstance(source, Backup):
        return BackupSearch(repository, source.id, known=Choice(source._manifest))
    names = ("".join(f"[{c}]" if c in "*?[" else c for c in name) for name in possible_streams(options))
    return FirstFound(tuple(BackupSearch(repository, layout.LATEST, Wanted((Glob(name),))) for name in names))


def _lacks(one: PutBackMessage) -> bool:
    return one.action in ("refused", "duplicate", "conflict")


def _outcome(repository: BackupRepository, report: PutBackReport) -> PutBackOutcome:
    plan = report.plan
    messages = [
        PutBackMessage(
            one.message.sequence,
            to_datetime(format_time(one.message.timestamp_ns)),
            one.message.subject,
            one.message.name,
            one.action,
            one.reason,
            one.as_sequence,
        )
        for one in report.results()
    ]
    return PutBackOutcome(
        backup=Backup(repository, plan.manifest.id, manifest=plan.manifest),
        stream=plan.entry.name,
        to=plan.target.name,
        messages=tuple(messages),
        notes=(*plan.notes, *report.notes),
    )
