"""Backups, as on the command line: two functions, one of them for asyncio."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal

from jsbackup.api.arguments import (
    LOCK_TIMEOUT_SECONDS,
    as_texts,
    checked_jobs,
    not_opened,
    one_of,
)
from jsbackup.api.connecting import AnyServer, connection_to
from jsbackup.api.stored import Backup, BackupRepository
from jsbackup.api.telling import OnProgress, note_waiting, progress_to
from jsbackup.api.worker import Work, Worker, twins
from jsbackup.config import parse_glob
from jsbackup.engine.backup.backup import run_backup
from jsbackup.engine.backup.lease_renewal import hold_lease, lease_terms
from jsbackup.engine.backup.options import BackupOptions
from jsbackup.engine.backup.run import BackupRun
from jsbackup.engine.read.increment import Incremental
from jsbackup.errors import IncompleteError, UsageError
from jsbackup.failure import all_failed
from jsbackup.readable import in_sentences
from jsbackup.repository.manifest import Result
from jsbackup.repository.write.locking import LockRequest
from jsbackup.stores.base import LockMode

__all__ = ["backup", "backup_async"]

_log = logging.getLogger(__name__)


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
    if not isinstance(repository, BackupRepository):
        raise not_opened("repository", repository)
    connection = connection_to(server)
    options = BackupOptions(
        streams=tuple(map(parse_glob, as_texts(streams))),
        exclude=tuple(map(parse_glob, as_texts(exclude))),
        tags=_checked_tags(tags or {}),
        allow_nothing=allow_nothing,
        consumers=consumers,
        config_only=config_only,
        check=check,
        salvage=salvage,
        incremental=one_of("incremental", Incremental, incremental),
        lock=_lock_request(lock_until, one_of("lock_mode", LockMode, lock_mode)),
        jobs=checked_jobs(jobs),
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
        if not report.streams and not report.failures:
            _log.warning("no stream was backed up: there are none, or all are left out")
        manifest = report.manifest
        if manifest is None:
            raise all_failed([failure.error for failure in report.failures])
        made = Backup(repository, manifest.id, manifest=manifest)
        if manifest.result is not Result.COMPLETE:
            reasons = in_sentences((failure.name, failure.error.message) for failure in report.failures)
            reasons += [
                f"stream {one.stream.name}: {', '.join(one.stream.warnings) or 'something of it is missing'}"
                for one in report.streams
                if one.incomplete
            ]
            raise IncompleteError(f"backup {manifest.id} is partial: {'; '.join(reasons)}", result=made)
        return made

    return work


backup, backup_async = twins(_backup)


def _checked_tags(tags: Mapping[str, str]) -> dict[str, str]:
    for key, value in tags.items():
        if not (isinstance(key, str) and isinstance(value, str) and key and "=" not in key):
            raise UsageError(f"tags: not a tag: {key!r}: {value!r}", hint="Keys and values are texts.")
    return dict(tags)


def _lock_request(until: datetime | timedelta | None, mode: LockMode) -> LockRequest | None:
    if until is None:
        return None
    if isinstance(until, timedelta):
        return LockRequest(mode, for_seconds=until.total_seconds())
    if until.utcoffset() is None:
        raise UsageError("lock_until: a time without a zone")
    return LockRequest(mode, until_seconds=until.timestamp())
