"""Repositories and their backups. Only `latest` may connect to a server."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from jsbackup.api.arguments import as_texts, to_datetime
from jsbackup.api.connecting import AnyServer, connection_to
from jsbackup.api.streams import Stream
from jsbackup.api.worker import blocking
from jsbackup.config import Glob, nearest, parse_glob
from jsbackup.errors import UnsupportedError, UsageError
from jsbackup.pipeline.session.repository_ref import RepositoryRef
from jsbackup.repository import layout
from jsbackup.repository.crypto.access import GivenKeys
from jsbackup.repository.keep.retention import TagRule
from jsbackup.repository.location import in_a_folder
from jsbackup.repository.manifest import Manifest, Result
from jsbackup.repository.origin import origin_of
from jsbackup.repository.read.sources import Wanted, counts
from jsbackup.repository.repository import Repository
from jsbackup.repository.summary import BackupSummary, summary_of
from jsbackup.repository.write.late_repository import open_or_make, open_unless_vacant
from jsbackup.times import format_time
from jsbackup.tool import TOOL

if TYPE_CHECKING:
    from pyarrow import RecordBatchReader
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Backup", "BackupRepository"]

_log = logging.getLogger(__name__)


class BackupRepository:
    """A repository. Created by `jsbackup.open`. May be used from several threads."""

    def __init__(self, place: RepositoryRef, keys: GivenKeys, *, create: bool, in_memory: bool) -> None:
        self._place = place
        self._keys = keys
        self._create = create
        self._in_memory = in_memory  # whether a key was given that only this process has
        self._store = place.store()
        self._found: Repository | None = None
        self._found = self._look()

    @property
    def location(self) -> str:
        """The absolute path or URL of the repository."""
        return self._place.location

    def backups(self, *, origin: str | None = None, tags: Mapping[str, str] | None = None) -> list[Backup]:
        """Return all backups, oldest first; or those of an origin, and with all of these tags.

        `origin` is a cluster, an account or a domain, or a pattern of them. Backups whose manifests cannot be read are
        always included: anything except their `id` raises the error.

        Raises:
            KeyUnavailable: nothing can be read without a key that was not given.
            StoreError: the store does not answer.
        """
        inventory = self._opened().inventory()
        for warning in inventory.warnings:
            _log.warning("%s", warning)
        rules, origins = _tag_rules(tags), _origins(origin)
        found = {one.id: Backup(self, one.id, one) for one in inventory.summaries if counts(one, rules, origins)}
        found |= {one.id: Backup(self, one.id) for one in inventory.unreadable}
        return [found[name] for name in sorted(found)]

    def latest(
        self,
        *,
        streams: str | Sequence[str] = (),
        origin: str | None = None,
        tags: Mapping[str, str] | None = None,
        server: AnyServer | None = None,
    ) -> Backup:
        """Return the backup that `latest` means on the command line: the newest suitable one of one source.

        `streams` are names or patterns that it must have. With a `server` it is of that source, if there are such
        backups. Why a newer backup is not suitable is logged as a warning.

        Raises:
            UsageError: there is none, or there are several sources.
            NatsError: the server does not answer, or with an error.
            IntegrityError, KeyUnavailable, UnsupportedError: a newer backup cannot be read.
            StoreError: the store does not answer.
        """
        source = None
        if server is not None:
            from jsbackup.engine.link.source import read_source  # the rest of this module needs no server

            connection = connection_to(server)
            source = blocking(lambda worker: worker.complete(read_source(connection)))
        wanted = Wanted(
            streams=tuple(map(parse_glob, as_texts(streams))),
            origin=None if source is None else origin_of(source),
            origins=_origins(origin),
            tags=_tag_rules(tags),
        )
        choice = self._opened().choose(layout.LATEST, wanted, source)
        for note in choice.notes:
            _log.warning("latest is %s: %s", choice.manifest.id, note)
        return Backup(self, choice.manifest.id, manifest=choice.manifest)

    def __getitem__(self, backup: str) -> Backup:
        """Return the backup with that id, or whose id begins with it.

        Raises:
            UsageError: there is no such backup, or several.
            IntegrityError, UnsupportedError, KeyUnavailable: its manifest cannot be read.
            StoreError: the store does not answer.
        """
        if backup == layout.LATEST:
            return self.latest()
        manifest = self._opened().find(backup)
        return Backup(self, manifest.id, manifest=manifest)

    def query(self, sql: str, *, origin: str | None = None) -> Any:
        """Run SQL by DuckDB over all backups of one source, and return the result as an Arrow table (`pyarrow.Table`).

        Each message that any of them has is there once. Views and columns are those of `jsbackup help query`; with
        `origin` of a cluster or account.

        Raises:
            UnsupportedError: DuckDB is not installed.
            UsageError: DuckDB does not understand it, or there is no such stream; or there are several sources.
            IntegrityError, KeyUnavailable, StoreError: messages cannot be read.
            JsBackupError: the query fails.
        """
        from jsbackup.pipeline.messages.followed import all_messages
        from jsbackup.pipeline.queries.query import ranged_streams, run_query

        repository = self._opened()
        streams = ranged_streams(all_messages(repository, origins=_origins(origin)))
        return run_query(repository.objects, streams, sql, as_table=True).table

    def history(self, name: str, *, columns: str | Sequence[str] = (), origin: str | None = None) -> RecordBatchReader:
        """Return a reader of all messages of a stream that any backup of one source has, each once
        (`pyarrow.RecordBatchReader`), one segment in memory at a time.

        The columns are `sequence`, `time`, `timestamp_ns`, `subject`, `headers`, `data`, and `incarnation`, `life` and
        `backup`, the first that has it: incarnation, life and sequence identify a message.

        Raises UsageError if no backup has messages of the stream, and the errors of `query`, also while it is read.
        """
        from jsbackup.pipeline.messages.followed import all_messages
        from jsbackup.pipeline.queries.segment_source import SegmentSource

        repository = self._opened()
        ranges = all_messages(repository, [name], _origins(origin))
        if not ranges:
            raise UsageError(f"no backup has messages of stream {name[:200]}")
        return SegmentSource(repository.objects, lambda _bounds: ranges).reader(as_texts(columns))

    def __repr__(self) -> str:
        return f"<jsbackup repository {self.location}>"

    def _look(self) -> Repository | None:
        if self._create:
            return open_unless_vacant(self._store, self._keys)
        with in_a_folder():
            return Repository.open(self._store, self._keys)

    def _opened(self) -> Repository:
        """Return the repository; if it does not exist yet, one that is created when something is stored in it."""
        if self._found is None:
            self._found = self._look()
        return self._found or open_or_make(
            self._store,
            self._keys,
            repository_id=os.urandom(16).hex(),
            created=format_time(time.time_ns()),
            tool=TOOL,
            making=_log.info,
        )


class Backup:
    """A backup, and its streams by their names: `backup["ORDERS"]`, `for name in backup`, `len(backup)`."""

    def __init__(
        self,
        repository: BackupRepository,
        backup: str,
        summary: BackupSummary | None = None,
        *,
        manifest: Manifest | None = None,
    ) -> None:
        self.repository = repository
        self.id = backup
        if summary is not None:
            self._summary = summary
        if manifest is not None:
            self._manifest = manifest

    @cached_property
    def _manifest(self) -> Manifest:
        return self.repository._opened().manifest(self.id)

    @cached_property
    def _summary(self) -> BackupSummary:
        return summary_of(self._manifest)

    @cached_property
    def _streams(self) -> dict[str, Stream]:
        return {one.name: Stream(self, one) for one in self._manifest.streams}

    @property
    def created(self) -> datetime:
        """When it was begun, in UTC, to the microsecond."""
        return to_datetime(self._summary.created)

    @property
    def complete(self) -> bool:
        """Whether nothing is missing. Otherwise `skipped` and the `warnings` of streams say what."""
        return self._summary.result is Result.COMPLETE

    @property
    def tags(self) -> dict[str, str]:
        """Its tags."""
        return dict(self._summary.tags)

    @property
    def message_count(self) -> int:
        """Number of messages in all of its streams."""
        return self._summary.messages

    @property
    def byte_count(self) -> int:
        """Bytes of these messages, uncompressed."""
        return self._summary.bytes

    @property
    def cluster(self) -> str:
        """The cluster that was backed up, or the server if it is single; "" if unknown."""
        return self._summary.cluster

    @property
    def account(self) -> str:
        """The account that was backed up; "" if unknown."""
        return self._summary.account

    @property
    def skipped(self) -> dict[str, str]:
        """Streams that should be in it and are not, with the reasons."""
        return {one.name: one.reason for one in self._manifest.skipped}

    def __getitem__(self, stream: str) -> Stream:
        """Return the stream with this name. Raises UsageError if there is none."""
        found = self._streams.get(stream)
        if found is None:
            reason = self.skipped.get(stream)
            raise UsageError(
                f"backup {self.id} has no stream {stream}" + (f": {reason}" if reason else ""),
                hint=nearest(stream, sorted(self._streams)),
            )
        return found

    def __contains__(self, stream: object) -> bool:
        return stream in self._streams

    def __iter__(self) -> Iterator[str]:
        return iter(self._streams)

    def __len__(self) -> int:
        return len(self._streams)

    def query(self, sql: str) -> Any:
        """Run SQL by DuckDB over its messages, as `BackupRepository.query`, and with the same errors."""
        from jsbackup.pipeline.queries.query import backup_streams, run_query

        entries = self._manifest.streams
        streams = backup_streams((one for one in entries if one.archive_format.has_messages), self.id)
        objects, folder = self.repository._opened().objects, self.repository._place.folder
        return run_query(objects, streams, sql, folder=folder, all_streams=entries, as_table=True).table

    def spark(
        self,
        session: SparkSession,
        streams: str | Sequence[str] = (),
        *,
        columns: Sequence[str] = (),
    ) -> DataFrame:
        """Return its messages as a DataFrame of Spark, unordered: those of all streams, or of some by names or
        patterns, with all columns or some. For the columns see `jsbackup help spark`.

        A stream that is stored in an unknown archive format is left out, unless it is named.

        Raises:
            UnsupportedError: Spark is not installed, or a named stream is in an unknown archive format.
            UsageError: there is no such stream or column; or keys were given as bytes or as a passphrase, which
                executors do not have.
            KeyUnavailable: the messages are encrypted, and no key that reads them was given.
        """
        if find_spec("pyspark") is None:
            raise UnsupportedError("Spark is not installed", hint="Install it with `pip install 'jsbackup[spark]'`.")
        from jsbackup.pipeline.messages.backup_frames import open_backup
        from jsbackup.pipeline.messages.columns import COLUMNS

        if self.repository._in_memory:
            raise UsageError(
                "executors of Spark cannot have keys that were given in memory",
                hint="Name key files, or set JSBACKUP_IDENTITY or JSBACKUP_PASSPHRASE where they run.",
            )
        frames = open_backup(session, self.repository._place, self.id)
        patterns, names = as_texts(streams), as_texts(columns) or COLUMNS
        from jsbackup.pipeline.messages.source_options import one_sentence

        with one_sentence():  # as the data source says it
            return frames.messages(patterns, names)

    def __repr__(self) -> str:
        return f"<jsbackup backup {self.id}>"


def _origins(origin: str | None) -> tuple[Glob, ...]:
    return () if origin is None else (Glob(origin),)


def _tag_rules(tags: Mapping[str, str] | None) -> tuple[TagRule, ...]:
    return tuple(TagRule(key, value) for key, value in (tags or {}).items())
