"""A key-value bucket as it was at a moment: its keys, their values, and their revisions.

A bucket is a stream `KV_<bucket>` with a message on `$KV.<bucket>.<key>` for each revision (nats.go `kv.go`, ADR-8).
The last message up to the moment is the key's state: a value, or a marker that it was deleted or purged, by a client
(header `KV-Operation`) or by the server when it expired (`Nats-Marker-Reason`).

A backup has the messages that were there when it was made. So all of them were there at any moment since they were
stored, and no time to live needs to be computed. But a revision that was there at the moment may be gone since: pushed
out by newer ones (`max_msgs_per_subject`), purged, or expired. Where that cannot be ruled out, and no older revision is
left, the backup cannot say what the key was, and this is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import islice

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.errors import IncompleteError, JsBackupError, UsageError
from jsbackup.look.message import LookedUp, headers_of, subject_text
from jsbackup.look.message_filter import MessageFilter
from jsbackup.look.moment import check_known
from jsbackup.look.segments import heads, in_parallel, refs_within
from jsbackup.look.stream import find_stream, last_messages, messages_of, with_messages
from jsbackup.names import is_subject
from jsbackup.repository.manifest import Manifest, SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.times import format_time
from jsbackup.transforms.cut import Cut, Edge
from jsbackup.transforms.subjects import check_pattern

__all__ = [
    "BUCKET_STREAM",
    "KeyOperation",
    "KeyRevision",
    "KeyState",
    "KeyValueBucket",
    "check_key",
    "find_bucket",
    "key_subjects",
    "operation_of",
]

BUCKET_STREAM = "KV_"
_PREFIX = "$KV."
_COLUMNS = ("sequence", "timestamp_ns", "subject", "headers")


class KeyOperation(StrEnum):
    """What a revision did to its key."""

    PUT = "put"
    DELETE = "delete"
    PURGE = "purge"  # with all earlier revisions; also if it expired


@dataclass(frozen=True, slots=True)
class KeyState:
    """The newest revision of a key, without its value."""

    key: str
    revision: int
    timestamp_ns: int
    operation: KeyOperation


@dataclass(frozen=True, slots=True)
class KeyRevision:
    """A revision of a key; `value` is empty unless it was put."""

    key: str
    revision: int
    timestamp_ns: int
    operation: KeyOperation
    value: bytes


def operation_of(block: bytes | None) -> KeyOperation:
    """Return what the message with this header block did."""
    if not block:
        return KeyOperation.PUT
    headers = {header.name.lower(): header.value for header in reversed(headers_of(block))}
    said = headers.get("kv-operation") or headers.get("nats-marker-reason")
    if said in ("DEL", "Remove"):
        return KeyOperation.DELETE
    return KeyOperation.PURGE if said in ("PURGE", "MaxAge", "Purge") else KeyOperation.PUT


def find_bucket(objects: Objects, manifest: Manifest, name: str) -> KeyValueBucket:
    """Return the bucket; `name` may also be that of its stream.

    Raises:
        UsageError: the backup has none, or only its configuration.
        UnsupportedError: it is in an archive format that is not known here.
    """
    names = {stream.name for stream in manifest.streams}
    if name in names and name.startswith(BUCKET_STREAM) and BUCKET_STREAM + name not in names:
        name = name.removeprefix(BUCKET_STREAM)
    return KeyValueBucket(objects, manifest, with_messages(manifest, find_stream(manifest, BUCKET_STREAM + name)))


def key_subjects(stream: StreamBackup, key: str) -> tuple[str, ...]:
    """Return the subjects that a key, or a pattern of keys, has in a bucket. A mirror has those of its origin."""
    config = stream.config
    subjects = config.get("subjects") or ()
    mirror = config.get("mirror")
    origin = mirror.get("name") if isinstance(mirror, dict) else None
    buckets = [one.removeprefix(_PREFIX).removesuffix(".>") for one in subjects if _is_of_a_bucket(one)]
    if isinstance(origin, str) and origin.startswith(BUCKET_STREAM):
        buckets.append(origin.removeprefix(BUCKET_STREAM))
    if not buckets or config.get("sources"):
        buckets = ["*"]
    return tuple(f"{_PREFIX}{bucket}.{key}" for bucket in buckets)


def _is_of_a_bucket(subject: object) -> bool:
    return isinstance(subject, str) and subject.startswith(_PREFIX) and subject.endswith(".>")


def _key_of(subject: str) -> str:
    return subject.split(".", 2)[-1]


class KeyValueBucket:
    """A bucket in a backup. `at` is a moment or a revision: the state then; None: when the backup was made.

    All methods raise UsageError for an `at` that the backup does not know, and the errors of `matching`.
    """

    def __init__(self, objects: Objects, manifest: Manifest, stream: StreamBackup) -> None:
        self.manifest = manifest
        self.stream = stream
        self._objects = objects

    @property
    def name(self) -> str:
        return self.stream.name.removeprefix(BUCKET_STREAM)

    def keys(self, at: Edge | None = None, pattern: str = ">") -> list[KeyState]:
        """Return the keys that had a value, sorted. Needs memory for all keys that match."""
        wanted = self._wanted(check_pattern("KEY", pattern), at)
        refs = refs_within(self.stream.segments, wanted)
        found = _last_rows(row for rows in in_parallel(partial(self._newest, wanted), refs) for row in rows)
        states = (state for table in found for state in _states(table))
        return sorted((one for one in states if one.operation is KeyOperation.PUT), key=lambda state: state.key)

    def _newest(self, wanted: MessageFilter, ref: SegmentRef) -> list[pa.Table]:
        """Return the last row of each subject in a segment."""
        return _last_rows(map(_comparable, heads(self._objects, ref, wanted, _COLUMNS)))

    def revisions(self, key: str, at: Edge | None = None) -> Iterator[KeyRevision]:
        """Yield the revisions of a key, oldest first."""
        for message in messages_of(self._objects, self.stream, self._wanted(check_key(key), at)):
            yield _revision(message)

    def value(self, key: str, at: Edge | None = None) -> KeyRevision:
        """Return the revision that was the key's value.

        Raises:
            JsBackupError: it had none: it did not exist, or was deleted.
            IncompleteError: the backup cannot say.
        """
        wanted = self._wanted(check_key(key), at)
        message = next(last_messages(self._objects, self.stream, wanted), None)
        if message is None:
            raise self._absent(key, at)
        found = _revision(message)
        if found.operation is not KeyOperation.PUT:
            raise JsBackupError(
                f"key {key} of bucket {self.name} had no value{_at(at)} in backup {self.manifest.id}: "
                f"revision {found.revision} of {format_time(found.timestamp_ns)} is a {found.operation}",
                hint=self._elsewhere(key),
            )
        return found

    def _wanted(self, key: str, at: Edge | None) -> MessageFilter:
        check_known(self.manifest, self.stream, at)
        return MessageFilter(Cut(until=at), key_subjects(self.stream, key))

    def _absent(self, key: str, at: Edge | None) -> JsBackupError:
        nothing = f"bucket {self.name} has no revision of key {key} in backup {self.manifest.id}"
        if at is None:
            return JsBackupError(nothing, hint=self._elsewhere(key))
        limit = max(self._limit("max_msgs_per_subject"), 0)
        later = list(islice(self.revisions(key), limit or 1))
        if not later and (self._is_whole() or not self._expires()):
            return JsBackupError(nothing, hint=self._elsewhere(key))
        if not later:
            return IncompleteError(f"{nothing}, and older ones may have expired", hint=self._elsewhere(key))
        first = later[0]
        begins = f"revision {first.revision} of {format_time(first.timestamp_ns)}"
        pushed_out = bool(limit) and len(later) >= limit
        purged = first.operation is KeyOperation.PURGE
        if self._is_whole() or not (pushed_out or purged or self._expires()):
            return JsBackupError(f"key {key} of bucket {self.name} did not exist{_at(at)}: its first is {begins}")
        return IncompleteError(
            f"backup {self.manifest.id} cannot say what key {key} of bucket {self.name} was{_at(at)}: its oldest there "
            f"is {begins}, and older ones may be gone",
            hint=self._elsewhere(key),
        )

    def _elsewhere(self, key: str) -> str:
        return f"Other backups may have more: see 'jsbackup history {self.stream.name} {key}'."

    def _is_whole(self) -> bool:
        """Return whether no message was ever removed."""
        captured = self.stream.captured
        last_seq = max(captured.last_seq, self.stream.state.last_seq)
        return captured.first_seq <= 1 and captured.messages == last_seq

    def _expires(self) -> bool:
        """Return whether the server may have removed messages by other limits than that of each key."""
        config = self.stream.config
        by_size = config.get("discard") != "new" and (self._limit("max_msgs") > 0 or self._limit("max_bytes") > 0)
        return self._limit("max_age") > 0 or bool(config.get("allow_msg_ttl")) or by_size

    def _limit(self, name: str) -> int:
        value = self.stream.config.get(name)
        return value if isinstance(value, int) else 0


def _comparable(batch: pa.RecordBatch) -> pa.Table:
    """Return the rows with subjects as bytes, as they are where one is not UTF-8."""
    sequences, times, subjects, headers = batch.columns
    return pa.table([sequences, times, subjects.cast(pa.binary()), headers], names=list(_COLUMNS))


def _last_rows(tables: Iterable[pa.Table]) -> list[pa.Table]:
    """Return a table with the row with the highest sequence of each subject; none without rows."""
    newest: list[pa.Table] = []
    for table in tables:
        whole = pa.concat_tables([*newest, table])
        last = whole.group_by("subject", use_threads=False).aggregate([("sequence", "max")]).column("sequence_max")
        newest = [whole.filter(pc.is_in(whole.column("sequence"), value_set=last)).combine_chunks()]
    return newest


def _states(table: pa.Table) -> Iterator[KeyState]:
    for sequence, time_ns, subject, headers in zip(*(column.to_pylist() for column in table.columns), strict=True):
        yield KeyState(_key_of(subject_text(subject)), sequence, time_ns, operation_of(headers))


def check_key(key: str) -> str:
    """Return `key` if it can be one. Raises UsageError otherwise."""
    if not is_subject(key):
        raise UsageError(f"not a key: {key[:80]!r}", hint="Keys are tokens joined by dots, without wildcards.")
    return key


def _revision(message: LookedUp) -> KeyRevision:
    operation = operation_of(message.headers)
    value = message.data if operation is KeyOperation.PUT else b""
    return KeyRevision(_key_of(message.subject), message.sequence, message.timestamp_ns, operation, value)


def _at(at: Edge | None) -> str:
    return "" if at is None else f" at {at}"
