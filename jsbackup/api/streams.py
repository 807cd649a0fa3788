"""A stream in a backup: its messages, its configuration, its consumers."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

from jsbackup.api.arguments import Moment, WantedMessages, as_texts, moment_text, to_datetime, typed_filters
from jsbackup.errors import JsBackupError, UnsupportedError, UsageError
from jsbackup.formats.batch import BATCH_SCHEMA
from jsbackup.model import JsonObject
from jsbackup.planning.selection.newest_pass import with_newest
from jsbackup.planning.selection.subset import segments_within
from jsbackup.repository.manifest import ConsumerBackup, SegmentRef, StreamBackup
from jsbackup.repository.segments import SegmentReader
from jsbackup.times import format_time
from jsbackup.transforms.cut import Cut, Edge, parse_edge
from jsbackup.transforms.filters.filters import Filters
from jsbackup.transforms.filters.newest import NewestRule
from jsbackup.transforms.rename import StreamKind, kinds_of
from jsbackup.transforms.reshape import Reshape

if TYPE_CHECKING:
    from pyarrow import RecordBatchReader
    from pyspark.sql import DataFrame, SparkSession

    from jsbackup.api.stored import Backup
    from jsbackup.formats.digest import MessageBatch
    from jsbackup.look.buckets.bucket import KeyValueBucket
    from jsbackup.look.buckets.object_bucket import ObjectBucket
    from jsbackup.repository.objects import Objects

__all__ = ["Consumer", "Revision", "StoredFile", "Stream", "StreamMessage"]


class Stream:
    """A stream in a backup."""

    def __init__(self, backup: Backup, entry: StreamBackup) -> None:
        self.backup = backup
        self._entry = entry

    @property
    def name(self) -> str:
        return self._entry.name

    @property
    def config(self) -> JsonObject:
        """Its configuration in the form of the JetStream API; a copy."""
        return copy.deepcopy(self._entry.config)

    @property
    def created(self) -> datetime:
        """When the server created it, in UTC, to the microsecond."""
        return to_datetime(self._entry.created)

    @property
    def first_seq(self) -> int:
        """Sequence of the first stored message, 0 without messages."""
        return self._entry.captured.first_seq

    @property
    def last_seq(self) -> int:
        """Sequence of the last stored message, 0 without messages."""
        return self._entry.captured.last_seq

    @property
    def message_count(self) -> int:
        """Number of stored messages."""
        return self._entry.captured.messages

    @property
    def byte_count(self) -> int:
        """Bytes of these messages, uncompressed."""
        return self._entry.captured.bytes

    @property
    def digest(self) -> str:
        """Digest of these messages, in hex: equal messages at equal sequences have equal digests."""
        return self._entry.digest.hex

    @property
    def consumers(self) -> dict[str, Consumer]:
        """Its consumers, by their names."""
        return {one.name: _consumer(one) for one in self._entry.consumers}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is missing or uncertain, in sentences."""
        return self._entry.warnings

    def files(self) -> list[str]:
        """Return the paths of the Parquet files of its messages, in rising sequence, for other readers; in S3 their
        URLs. The columns are those of `messages`.

        Raises:
            UnsupportedError: the messages are encrypted, or in an archive format that this version does not know.
            UsageError: the backup has only the configuration of the stream.
            IntegrityError, StoreError: the list of files cannot be read.
        """
        from jsbackup.look.stream import with_messages

        entry = with_messages(self.backup._manifest, self._entry)
        if self._objects.sealing.suffix:
            raise UnsupportedError("no other reader opens the files: they are encrypted", hint="scan() reads them.")
        location = self.backup.repository.location.removesuffix("/")
        return [f"{location}/{ref.key}" for ref in entry.segments]

    def scan(
        self,
        columns: str | Sequence[str] = (),
        subject: str | Sequence[str] | None = None,
        **wanted: Unpack[WantedMessages],
    ) -> RecordBatchReader:
        """Return a reader of its messages (`pyarrow.RecordBatchReader`) for DuckDB, Polars and others, with all columns
        or some; only these are decoded. Columns and filters are those of `messages`, but that a subject which is not
        UTF-8 has escapes (`\\xff`).

        Raises UsageError for a column that there is not, and the errors of `messages`.
        """
        import pyarrow as pa

        names = as_texts(columns) or tuple(BATCH_SCHEMA.names)
        if unknown := [name for name in names if name not in BATCH_SCHEMA.names]:
            raise UsageError(f"there is no column {unknown[0]!r}", hint=f"Choose from {', '.join(BATCH_SCHEMA.names)}.")
        schema = pa.schema([BATCH_SCHEMA.field(name) for name in names])
        batches = self._columns(list(names), subject, wanted)
        return pa.RecordBatchReader.from_batches(schema, (_with_text(one.select(names), schema) for one in batches))

    def _columns(
        self, names: Sequence[str], subject: str | Sequence[str] | None, wanted: WantedMessages
    ) -> Iterator[MessageBatch]:
        """Yield at least these columns of the wanted messages."""
        from jsbackup.look.message_filter import MessageFilter
        from jsbackup.look.segments import heads, refs_within
        from jsbackup.look.stream import with_messages

        if wanted.get("last_per_subject") is not None or wanted.get("kv_compact"):
            return self.messages(subject, **wanted)  # which look at all messages first
        found = MessageFilter.of(*_conditions(subject, wanted))
        refs = refs_within(with_messages(self.backup._manifest, self._entry).segments, found)
        read = [name for name in BATCH_SCHEMA.names if name in names or name in found.columns]
        return (batch for ref in refs for batch in heads(self._objects, ref, found, read))

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
        from jsbackup.look.stream import with_messages

        entry = with_messages(self.backup._manifest, self._entry)
        cut, filters = _conditions(subject, wanted)
        kv_compact = wanted.get("kv_compact", False)
        reshape = Reshape(cut, filters, newest=NewestRule.of(wanted.get("last_per_subject"), kv_compact))
        if kv_compact and StreamKind.KEY_VALUE not in kinds_of(self.name, entry.config):
            raise UsageError(f"kv_compact: stream {self.name} is not a key-value bucket")
        return self._reshaped(entry, reshape) if reshape else self._read(segments_within(entry, cut))

    def _reshaped(self, entry: StreamBackup, reshape: Reshape) -> Iterator[MessageBatch]:
        reshape = with_newest(self._objects, entry, reshape)
        yield from reshape.apply(self._read(segments_within(entry, reshape.cut)), stream=self.name)

    def message(self, sequence: int) -> StreamMessage:
        """Return one message. Raises JsBackupError if the backup does not have it, and as `messages`."""
        from jsbackup.look.stream import message_at, with_messages

        manifest = self.backup._manifest
        found = message_at(self._objects, manifest, with_messages(manifest, self._entry), sequence)
        time_of = to_datetime(format_time(found.timestamp_ns))
        return StreamMessage(found.sequence, time_of, found.subject, found.headers, found.data)

    def value(self, key: str, at: Moment | None = None) -> bytes:
        """Return the value that a key of this bucket had at a moment or revision; by default, when it was backed up.

        Raises:
            JsBackupError: the key had no value: it did not exist, or was deleted.
            IncompleteError: the backup cannot say, because older revisions may be gone.
            UsageError: this is not a bucket, or the moment is after the backup.
            IntegrityError, KeyUnavailable, StoreError: as `messages`.
        """
        return self._bucket.value(key, _edge(at)).value

    def keys(self, pattern: str = ">", *, at: Moment | None = None) -> dict[str, int]:
        """Return the keys of this bucket that had a value, with their revisions. Raises as `value`; IncompleteError,
        whose `result` has those that are known, if there may have been others, or it is not known of some.
        """
        edge, bucket = _edge(at), self._bucket
        listed = bucket.keys(edge, pattern)
        found = {state.key: state.revision for state in listed.keys}
        if not listed.certain:
            raise bucket.incomplete(listed, edge, found)
        return found

    def revisions(self, key: str, *, at: Moment | None = None) -> list[Revision]:
        """Return the revisions of a key of this bucket, oldest first. Raises as `value`."""
        return [
            Revision(
                one.revision,
                to_datetime(format_time(one.timestamp_ns)),
                one.operation,
                one.value if one.operation == "put" else None,
            )
            for one in self._bucket.revisions(key, _edge(at))
        ]

    def objects(self) -> list[StoredFile]:
        """Return the files of this object store, without deleted ones. Raises as `value`."""
        return [
            StoredFile(one.name, one.size, to_datetime(format_time(one.modified_ns)), str(one.link or ""))
            for one in self._object_store.entries()[0]
        ]

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
        from jsbackup.look.buckets.bucket import KeyValueBucket
        from jsbackup.names import BUCKET_STREAM

        self._check_kind(BUCKET_STREAM, "bucket")
        return KeyValueBucket(self._objects, self.backup._manifest, self._entry)

    @property
    def _object_store(self) -> ObjectBucket:
        from jsbackup.look.buckets.object_bucket import ObjectBucket
        from jsbackup.names import OBJECT_STREAM

        self._check_kind(OBJECT_STREAM, "object store")
        return ObjectBucket(self._objects, self.backup._manifest, self._entry)

    def _check_kind(self, prefix: str, kind: str) -> None:
        from jsbackup.look.stream import with_messages

        if not self.name.startswith(prefix):
            raise UsageError(f"stream {self.name} is not a {kind}", hint=f"Their names begin with {prefix}.")
        with_messages(self.backup._manifest, self._entry)

    def _read(self, segments: Sequence[SegmentRef]) -> Iterator[MessageBatch]:
        # Without the memory budget of a run: a thread that reads two streams side by side would wait for itself.
        reader = SegmentReader(self.backup.repository._opened().objects)
        for ref in segments:
            yield from reader.read(ref)

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


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """A message. `time` is when the server stored it, to the microsecond; `headers` is the header block as bytes."""

    sequence: int
    time: datetime
    subject: str
    headers: bytes | None
    data: bytes


@dataclass(frozen=True, slots=True)
class Revision:
    """A revision of a key. `operation` is `put`, `delete` or `purge`; `value` is None unless it was put."""

    revision: int
    time: datetime
    operation: str
    value: bytes | None


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of an object store. `time` is when it was stored; `link` says what it is a link to, "" if it is not a
    link."""

    name: str
    size: int
    time: datetime
    link: str


def _conditions(subject: str | Sequence[str] | None, wanted: WantedMessages) -> tuple[Cut, Filters]:
    since, until = moment_text("since", wanted.get("since")), moment_text("until", wanted.get("until"))
    filters = typed_filters(
        subject=subject or (),
        exclude_subject=wanted.get("exclude_subject", ()),
        header=wanted.get("header", ()),
        payload_match=wanted.get("payload_match", ()),
    )
    return Cut.parse(since, until, time.time_ns()), filters


def _with_text(batch: MessageBatch, schema: Any) -> MessageBatch:
    """Return a batch with subjects as text."""
    import pyarrow as pa

    if batch.schema == schema:
        return batch
    texts = [one.decode(errors="backslashreplace") for one in batch.column("subject").to_pylist()]
    return batch.set_column(batch.schema.get_field_index("subject"), "subject", pa.array(texts, pa.string())).cast(
        schema
    )


def _edge(at: Moment | None) -> Edge | None:
    text = moment_text("at", at)
    return None if text is None else parse_edge("at", text, time.time_ns())


def _consumer(entry: ConsumerBackup) -> Consumer:
    state = entry.state
    return Consumer(
        entry.name,
        copy.deepcopy(entry.config),
        None if state is None else state.delivered.stream,
        None if state is None else state.ack_floor.stream,
        entry.fidelity == "exact",
        entry.reason,
    )
