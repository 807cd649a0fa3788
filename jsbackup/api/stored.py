"""Repositories, their backups, and the streams in them. Only `latest` may connect to a server."""

from __future__ import annotations

import copy
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import pyarrow as pa

from jsbackup.api.arguments import (
    AnyServer,
    File,
    Moment,
    WantedMessages,
    as_texts,
    chosen_by,
    connection_to,
    edge_of,
)
from jsbackup.api.worker import blocking
from jsbackup.config import Glob, environment, key_secrets, nearest, parse_glob, s3_settings
from jsbackup.errors import JsBackupError, UnsupportedError, UsageError
from jsbackup.formats.batch import BATCH_SCHEMA
from jsbackup.formats.digest import MessageBatch
from jsbackup.look.buckets.bucket import KeyRevision, KeyValueBucket
from jsbackup.look.buckets.object_bucket import ObjectBucket, ObjectEntry
from jsbackup.look.message import LookedUp, MessageFilter
from jsbackup.look.stream import check_newest, message_at, newest_messages, refs_within, wanted_rows, with_messages
from jsbackup.model import JsonObject
from jsbackup.names import BUCKET_STREAM, OBJECT_STREAM
from jsbackup.pipeline.messages.followed import all_messages
from jsbackup.pipeline.queries.query import backup_streams, ranged_streams, run_query
from jsbackup.pipeline.queries.segment_source import SegmentSource
from jsbackup.pipeline.session.repository_ref import RepositoryRef, place_of
from jsbackup.repository import layout
from jsbackup.repository.crypto.access import GivenKeys
from jsbackup.repository.crypto.keys import read_keys
from jsbackup.repository.descriptor import in_a_folder
from jsbackup.repository.keep.retention import TagRule
from jsbackup.repository.manifest import BackupResult, BackupSummary, Manifest, StreamBackup, summary_of
from jsbackup.repository.objects import Objects
from jsbackup.repository.origin import origin_of
from jsbackup.repository.read.latest import Wanted
from jsbackup.repository.read.sources import counts
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.late_repository import open_or_make, open_unless_vacant
from jsbackup.times import datetime_of, format_time, parse_time
from jsbackup.tool import TOOL
from jsbackup.transforms.reshape import Reshape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "Backup",
    "BackupRepository",
    "Consumer",
    "Revision",
    "StoredFile",
    "Stream",
    "StreamMessage",
    "open",
    "repository_of",
]

_log = logging.getLogger(__name__)

StreamMessage: TypeAlias = LookedUp
"""A message. `time` is when the server stored it, to the microsecond; `headers` is the header block as bytes."""

Revision: TypeAlias = KeyRevision
"""A revision of a key, stored at `time`. `operation` is `put`, `delete` or `purge`; `value` is empty unless it was put.
"""

StoredFile: TypeAlias = ObjectEntry
"""A file of an object store, stored at `time`. `link` says what it is a link to, None if it is not a link."""


def open(
    location: str | PathLike[str],
    *,
    create: bool = False,
    writer_key: File | None = None,
    identity: File | None = None,
    passphrase: str | None = None,
    expect_signer: str | None = None,
    s3_endpoint: str | None = None,
    s3_region: str | None = None,
    s3_profile: str | None = None,
    s3_path_style: bool | None = None,
    s3_ca: str | PathLike[str] | None = None,
    s3_sse: str | None = None,
    s3_sse_kms_key: str | None = None,
    s3_storage_class: str | None = None,
) -> BackupRepository:
    """Return the repository at `location`: a folder, or `s3://bucket/prefix`.

    With `create` the location may be empty: a backup then creates a repository there, which is not encrypted (for
    others use `jsbackup init`).

    `writer_key` and `identity` are paths of key files, or their content as bytes; `passphrase` is the passphrase
    itself; `expect_signer` is the public key that must have made all signatures. Values not given come from the
    variables of the command line (such as JSBACKUP_IDENTITY_FILE, AWS_… for S3).

    Raises:
        RepositoryNotFound: there is none.
        KeyUnavailable: the given key does not fit.
        UsageError: an argument is wrong, or a file does not contain a key.
        IntegrityError: the repository's descriptor is lost or damaged, or not the one that the keys belong to.
        UnsupportedError: it needs a newer version.
        StoreError: the store does not answer.
    """
    files = {
        "writer_key": writer_key,
        "identity": identity,
        "passphrase_file": None if passphrase is None else passphrase.encode(),
        "expect_signer": expect_signer,
    }
    contents = {name: value for name, value in files.items() if isinstance(value, bytes)}
    paths = {name: fspath(file) for name, file in files.items() if file is not None and name not in contents}
    variables = environment()
    secrets = key_secrets({**paths, **contents}, variables)
    keys = read_keys(secrets.writer_key, secrets.identity, secrets.passphrase, secrets.expect_signer)
    s3 = {
        "s3_endpoint": s3_endpoint,
        "s3_region": s3_region,
        "s3_profile": s3_profile,
        "s3_path_style": s3_path_style,
        "s3_ca": None if s3_ca is None else fspath(s3_ca),
        "s3_sse": s3_sse,
        "s3_sse_kms_key": s3_sse_kms_key,
        "s3_storage_class": s3_storage_class,
    }
    place = place_of(fspath(location), s3_settings(s3, variables), paths)
    return BackupRepository(place, keys, create=create, in_memory=bool(contents))


class BackupRepository:
    """A repository. Created by `jsbackup.open`. May be used from several threads."""

    def __init__(self, place: RepositoryRef, keys: GivenKeys, *, create: bool, in_memory: bool) -> None:
        self._place = place
        self._keys = keys
        self._in_memory = in_memory  # whether a key was given that only this process has
        self._store = place.store()
        self._found = open_unless_vacant(self._store, keys) if create else None
        if not create:
            with in_a_folder():
                self._found = Repository.open(self._store, keys)

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
        listed = {
            summary.id: Backup(self, summary.id, summary)
            for summary in inventory.summaries
            if counts(summary, rules, origins)
        }
        listed |= {broken.id: Backup(self, broken.id) for broken in inventory.unreadable}
        return [listed[name] for name in sorted(listed)]

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
        repository = self._opened()
        streams = ranged_streams(all_messages(repository, origins=_origins(origin)))
        return run_query(repository.objects, streams, sql, as_table=True).table

    def history(
        self, name: str, *, columns: str | Sequence[str] = (), origin: str | None = None
    ) -> pa.RecordBatchReader:
        """Return a reader of all messages of a stream that any backup of one source has, each once
        (`pyarrow.RecordBatchReader`), one segment in memory at a time.

        The columns are `sequence`, `time`, `timestamp_ns`, `subject`, `headers`, `data`, and `incarnation`, `life` and
        `backup`, the first that has it: incarnation, life and sequence identify a message.

        Raises UsageError if no backup has messages of the stream, and the errors of `query`, also while it is read.
        """
        repository = self._opened()
        ranges = all_messages(repository, [name], _origins(origin))
        if not ranges:
            raise UsageError(f"no backup has messages of stream {name[:200]}")
        return SegmentSource(repository.objects, lambda _bounds: ranges).reader(as_texts(columns))

    def __repr__(self) -> str:
        return f"<jsbackup repository {self.location}>"

    def _opened(self) -> Repository:
        """Return the repository; if it does not exist yet, one that is created when something is stored in it."""
        if self._found is None:
            self._found = open_unless_vacant(self._store, self._keys)
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
        return {stream.name: Stream(self, stream) for stream in self._manifest.streams}

    @property
    def created(self) -> datetime:
        """When it was begun, in UTC, to the microsecond."""
        return datetime_of(parse_time(self._summary.created))

    @property
    def complete(self) -> bool:
        """Whether nothing is missing. Otherwise `skipped` and the `warnings` of streams say what."""
        return self._summary.result is BackupResult.COMPLETE

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
        return {skip.name: skip.reason for skip in self._manifest.skipped}

    def __getitem__(self, stream: str) -> Stream:
        """Return the stream with this name. Raises UsageError if there is none."""
        stream_backup = self._streams.get(stream)
        if stream_backup is None:
            reason = self.skipped.get(stream)
            raise UsageError(
                f"backup {self.id} has no stream {stream}" + (f": {reason}" if reason else ""),
                hint=nearest(stream, sorted(self._streams)),
            )
        return stream_backup

    def __contains__(self, stream: object) -> bool:
        return stream in self._streams

    def __iter__(self) -> Iterator[str]:
        return iter(self._streams)

    def __len__(self) -> int:
        return len(self._streams)

    def query(self, sql: str) -> Any:
        """Run SQL by DuckDB over its messages, as `BackupRepository.query`, and with the same errors."""
        entries = self._manifest.streams
        streams = backup_streams((entry for entry in entries if entry.archive_format.has_messages), self.id)
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
            UnsupportedError: a named stream is in an unknown archive format.
            UsageError: there is no such stream or column; or keys were given as bytes or as a passphrase, which
                executors do not have.
            KeyUnavailable: the messages are encrypted, and no key that reads them was given.
        """
        from jsbackup.pipeline.messages.backup_frames import open_backup
        from jsbackup.pipeline.messages.columns import COLUMNS
        from jsbackup.pipeline.messages.source_options import one_sentence

        if self.repository._in_memory:
            raise UsageError(
                "executors of Spark cannot have keys that were given in memory",
                hint="Name key files, or set JSBACKUP_IDENTITY or JSBACKUP_PASSPHRASE where they run.",
            )
        frames = open_backup(session, self.repository._place, self.id)
        with one_sentence():  # as the data source says it
            return frames.messages(as_texts(streams), as_texts(columns) or COLUMNS)

    def __repr__(self) -> str:
        return f"<jsbackup backup {self.id}>"


class Stream:
    """A stream in a backup.

    `created` is when the server created it, in UTC, to the microsecond. `first_seq` and `last_seq` are sequences of
    stored messages, 0 without messages; `message_count` is their number, and `byte_count` their bytes, uncompressed.
    `digest` is theirs, in hex: equal messages at equal sequences have equal digests. `warnings` say what is missing or
    uncertain, in sentences.
    """

    def __init__(self, backup: Backup, entry: StreamBackup) -> None:
        self.backup = backup
        self._entry = entry
        self.name, self.warnings, self.digest = entry.name, entry.remarks, entry.digest.hex
        self.created = datetime_of(parse_time(entry.created))
        self.first_seq, self.last_seq = entry.captured.first_seq, entry.captured.last_seq
        self.message_count, self.byte_count = entry.captured.messages, entry.captured.bytes

    @property
    def config(self) -> JsonObject:
        """Its configuration in the form of the JetStream API; a copy."""
        return copy.deepcopy(self._entry.config)

    @property
    def consumers(self) -> dict[str, Consumer]:
        """Its consumers, by their names."""
        return {
            consumer.name: Consumer(
                consumer.name,
                copy.deepcopy(consumer.config),
                None if consumer.state is None else consumer.state.delivered.stream,
                None if consumer.state is None else consumer.state.ack_floor.stream,
                consumer.fidelity == "exact",
                consumer.reason,
            )
            for consumer in self._entry.consumers
        }

    def files(self) -> list[str]:
        """Return the paths of the Parquet files of its messages, in rising sequence, for other readers; in S3 their
        URLs. The columns are those of `messages`.

        Raises:
            UnsupportedError: the messages are encrypted, or in an archive format that this version does not know.
            UsageError: the backup has only the configuration of the stream.
            IntegrityError, StoreError: the list of files cannot be read.
        """
        self._check_messages()
        if self._objects.sealing.suffix:
            raise UnsupportedError("no other reader opens the files: they are encrypted", hint="scan() reads them.")
        location = self.backup.repository.location.removesuffix("/")
        return [f"{location}/{ref.key}" for ref in self._entry.segments]

    def scan(
        self,
        columns: str | Sequence[str] = (),
        subject: str | Sequence[str] | None = None,
        **wanted: Unpack[WantedMessages],
    ) -> pa.RecordBatchReader:
        """Return a reader of its messages (`pyarrow.RecordBatchReader`) for DuckDB, Polars and others, with all columns
        or some; only these are decoded. Columns and filters are those of `messages`, but that a subject which is not
        UTF-8 has escapes (`\\xff`).

        Raises UsageError for a column that there is not, and the errors of `messages`.
        """
        names = as_texts(columns) or tuple(BATCH_SCHEMA.names)
        if unknown := [name for name in names if name not in BATCH_SCHEMA.names]:
            raise UsageError(f"there is no column {unknown[0]!r}", hint=f"Choose from {', '.join(BATCH_SCHEMA.names)}.")
        schema = pa.schema([BATCH_SCHEMA.field(name) for name in names])
        batches = self._batches(names, self._chosen("scan", subject, wanted))
        return pa.RecordBatchReader.from_batches(schema, (_with_text(batch, schema) for batch in batches))

    def messages(
        self, subject: str | Sequence[str] | None = None, **wanted: Unpack[WantedMessages]
    ) -> Iterator[MessageBatch]:
        """Yield its messages in rising sequence, as Arrow record batches of some MiB.

        The columns are `sequence` (int64), `timestamp_ns` (int64, nanoseconds since 1970 in UTC), `subject` (string; in
        a batch with a subject that is not UTF-8, binary), `headers` (the header block as bytes, null without one) and
        `data` (bytes).

        `subject` is a subject with wildcards, or several of them, of which one must match; messages are from `since` to
        `until`, both included. `header` is `NAME` or `NAME:VALUE`, `payload_match` a regular expression of RE2; of
        several one must hold, and none of what is excluded. `last_per_subject` keeps the newest messages of each
        subject, `kv_compact` the newest revisions of the keys of a bucket that are not deleted; both take a pass before
        the first batch.

        Only stored objects that may have such messages are read, one after the other: one is in memory at a time, with
        at most 32 MiB of messages (or a single larger one). Each is checked against its SHA-256 first.

        Raises, with the first batch or a later one:
            IntegrityError: messages are missing or damaged; also if the backup was forgotten meanwhile.
            KeyUnavailable: they are encrypted, and no key that reads them was given.
            StoreError: they cannot be read.

        Raises at once:
            UsageError: an argument is wrong, or the backup has only the configuration of the stream.
            UnsupportedError: they are in an archive format that this version does not know.
        """
        return self._batches(BATCH_SCHEMA.names, self._chosen("messages", subject, wanted))

    def _chosen(self, called: str, subject: str | Sequence[str] | None, wanted: WantedMessages) -> Reshape:
        self._check_messages()
        reshape = chosen_by(called, subject, wanted, WantedMessages)
        check_newest(self.backup._manifest, self._entry, reshape.newest)
        return reshape

    def _batches(self, names: Sequence[str], chosen: Reshape) -> Iterator[MessageBatch]:
        """Yield some columns of the chosen messages."""
        wanted = MessageFilter.of(chosen.cut, chosen.filters)
        wanted = newest_messages(self._objects, self._entry, wanted, chosen.newest)
        columns = [name for name in BATCH_SCHEMA.names if name in {*names, *wanted.columns}]
        for ref in refs_within(self._entry.segments, wanted):
            # Without the memory budget of a run: a thread that reads two streams side by side would wait for itself.
            for batch in wanted_rows(self._objects.fetch(ref), wanted, columns):
                yield batch.select(list(names))

    def message(self, sequence: int) -> StreamMessage:
        """Return one message. Raises JsBackupError if the backup does not have it, and as `messages`."""
        self._check_messages()
        return message_at(self._objects, self.backup._manifest, self._entry, sequence)

    def value(self, key: str, at: Moment | None = None) -> bytes:
        """Return the value that a key of this bucket had at a moment or revision; by default, when it was backed up.

        Raises:
            JsBackupError: the key had no value: it did not exist, or was deleted.
            IncompleteError: the backup cannot say, because older revisions may be gone.
            UsageError: this is not a bucket, or the moment is after the backup.
            IntegrityError, KeyUnavailable, StoreError: as `messages`.
        """
        return self._bucket.value(key, edge_of(at)).value

    def keys(self, pattern: str = ">", *, at: Moment | None = None) -> dict[str, int]:
        """Return the keys of this bucket that had a value, with their revisions. Raises UsageError, IntegrityError,
        KeyUnavailable, StoreError; IncompleteError, whose `result` has those that are known, if there may have been
        others, or it is not known of some.
        """
        edge, bucket = edge_of(at), self._bucket
        listed = bucket.keys(edge, pattern)
        revisions = {state.key: state.revision for state in listed.keys}
        if not listed.certain:
            raise bucket.incomplete(listed, edge, revisions)
        return revisions

    def revisions(self, key: str, *, at: Moment | None = None) -> list[Revision]:
        """Return the revisions of a key of this bucket, oldest first.

        Raises UsageError, IncompleteError, IntegrityError, KeyUnavailable, StoreError.
        """
        return list(self._bucket.revisions(key, edge_of(at)))

    def objects(self) -> list[StoredFile]:
        """Return the files of this object store, without deleted ones.

        Raises UsageError, IncompleteError, IntegrityError, KeyUnavailable, StoreError.
        """
        return self._object_store.entries()[0]

    def read_object(self, name: str) -> Iterator[bytes]:
        """Yield the content of a file of this object store, in pieces. A link is not followed.

        With the last piece, size and digest have been compared with those that were stored.

        Raises:
            JsBackupError: there is no such file, or it is a link.
            IntegrityError: it is not whole, or has another digest.
            UsageError, KeyUnavailable, StoreError: as `value`.
        """
        store = self._object_store
        entry = store.entry(name)
        if entry.link is not None:
            raise JsBackupError(f"object {name} is a link to {entry.link}")
        return store.content(entry)

    @property
    def _objects(self) -> Objects:
        return self.backup.repository._opened().objects

    @property
    def _bucket(self) -> KeyValueBucket:
        self._check_messages(BUCKET_STREAM, "bucket")
        return KeyValueBucket(self._objects, self.backup._manifest, self._entry)

    @property
    def _object_store(self) -> ObjectBucket:
        self._check_messages(OBJECT_STREAM, "object store")
        return ObjectBucket(self._objects, self.backup._manifest, self._entry)

    def _check_messages(self, prefix: str = "", kind: str = "") -> None:
        if not self.name.startswith(prefix):
            raise UsageError(f"stream {self.name} is not a {kind}", hint=f"Their names begin with {prefix}.")
        with_messages(self.backup._manifest, self._entry)

    def table(self, subject: str | Sequence[str] | None = None, **wanted: Unpack[WantedMessages]) -> Any:
        """Return the same messages as one Arrow table (`pyarrow.Table`), all in memory. Raises the same errors as
        `messages`.
        """
        return self.scan((), subject, **wanted).read_all()

    def spark(self, session: SparkSession, *, columns: Sequence[str] = ()) -> DataFrame:
        """Return its messages as a DataFrame of Spark, with all columns or some. Errors are those of `Backup.spark`."""
        return self.backup.spark(session, self.name, columns=columns)

    def __repr__(self) -> str:
        return f"<jsbackup stream {self.name} of backup {self.backup.id}>"


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer in a backup. Sequences are those of the stream.

    `delivered_seq` is the last one delivered, `ack_floor_seq` the one up to which all are acknowledged; None if only
    the configuration is known. `exact`: its state is known to the last message; if not, `reason` says why.
    """

    name: str
    config: JsonObject
    delivered_seq: int | None
    ack_floor_seq: int | None
    exact: bool
    reason: str


def repository_of(source: Backup | BackupRepository, name: str = "source") -> BackupRepository:
    """Return the repository. Raises TypeError for anything else; `name` is that of the argument."""
    if not isinstance(source, Backup | BackupRepository):
        raise TypeError(f"{name}: not a {type(source).__name__}, but the result of jsbackup.open")
    return source.repository if isinstance(source, Backup) else source


def _origins(origin: str | None) -> tuple[Glob, ...]:
    return () if origin is None else (Glob(origin),)


def _tag_rules(tags: Mapping[str, str] | None) -> tuple[TagRule, ...]:
    return tuple(TagRule(key, value) for key, value in (tags or {}).items())


def _with_text(batch: MessageBatch, schema: Any) -> MessageBatch:
    """Return a batch with subjects as text."""
    if batch.schema == schema:
        return batch
    texts = [subject.decode(errors="backslashreplace") for subject in batch.column("subject").to_pylist()]
    return batch.set_column(batch.schema.get_field_index("subject"), "subject", pa.array(texts, pa.string())).cast(
        schema
    )
