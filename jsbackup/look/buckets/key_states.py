"""The newest revisions of keys, and what each did to its key.

A bucket is a stream `KV_<bucket>` with a message on `$KV.<bucket>.<key>` for each revision (nats.go `kv.go`, ADR-8):
a value, or a marker that the key was deleted or purged, by a client (header `KV-Operation`) or by the server when a
value expired (`Nats-Marker-Reason`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.look.message import MessageFilter, headers_of, subject_text
from jsbackup.look.stream import heads, in_parallel, refs_within
from jsbackup.look.subject_counts import Groups, joined_column
from jsbackup.repository.manifest import Manifest, SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.transforms.cut import Cut
from jsbackup.transforms.filters.key_marker import KeyOperation, operation_of
from jsbackup.transforms.removal import RemovalLimits, is_queue

__all__ = [
    "Continued",
    "KeyRecord",
    "KeyState",
    "KeyVerdict",
    "Removals",
    "Unknown",
    "key_of",
    "read_records",
    "state_since",
    "state_then",
]


_COLUMNS = ("sequence", "timestamp_ns", "subject", "headers")


@dataclass(frozen=True, slots=True)
class KeyState:
    """A revision of a key, without its value. `expires`: it has a time to live of its own (`Nats-TTL`)."""

    key: str
    revision: int
    timestamp_ns: int
    operation: KeyOperation
    expires: bool = False


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What a backup has of a key: the `last` revision up to a moment, the `first_later` one after it, and how many of
    each kind there are.
    """

    last: KeyState | None = None
    count: int = 0
    first_later: KeyState | None = None
    later: int = 0


def key_of(subject: str) -> str:
    """Return the key of a message of a bucket."""
    return subject.split(".", 2)[-1]


def read_records(objects: Objects, stream: StreamBackup, wanted: MessageFilter, until: Cut) -> dict[str, KeyRecord]:
    """Return what there is of each key among the wanted revisions, before and after a moment. Needs memory for all of
    them.

    Raises IntegrityError, KeyUnavailable and StoreError.
    """

    def read(ref: SegmentRef) -> tuple[list[pa.Table], list[pa.Table]]:
        """Return the last row of each subject up to the moment in a segment, and the first one after it."""
        earlier: list[pa.Table] = []
        later: list[pa.Table] = []
        for batch in heads(objects, ref, wanted, _COLUMNS):
            rows, is_earlier = _comparable(batch), until.rows(batch)
            earlier = _picked([*earlier, rows.filter(is_earlier)])
            later = _picked([*later, rows.filter(pc.invert(is_earlier))], first=True)
        return earlier, later

    earlier: list[pa.Table] = []
    later: list[pa.Table] = []
    for some_earlier, some_later in in_parallel(read, refs_within(stream.segments, wanted)):
        earlier = _picked([*earlier, *some_earlier])
        later = _picked([*later, *some_later], first=True)
    before = {state.key: (state, count) for table in earlier for state, count in _states(table)}
    after = {state.key: (state, count) for table in later for state, count in _states(table)}
    nothing = (None, 0)
    return {key: KeyRecord(*before.get(key, nothing), *after.get(key, nothing)) for key in before | after}


def _comparable(batch: pa.RecordBatch) -> pa.Table:
    """Return the rows with subjects as bytes, as they are where one is not UTF-8, and a count of 1 for each."""
    sequences, times, subjects, headers = batch.columns
    ones = pa.repeat(pc.int64_array([1])[0], batch.num_rows)
    return pa.table([sequences, times, subjects.cast(pa.binary()), headers, ones], names=[*_COLUMNS, "count"])


def _picked(tables: Iterable[pa.Table], *, first: bool = False) -> list[pa.Table]:
    """Return a table with the last (or the `first`) row of each subject, and with the sum of its counts; none without
    rows. The rows of a subject are in rising sequence, over all tables.
    """
    picked: list[pa.Table] = []
    for table in tables:
        whole = pa.concat_tables([*picked, table])
        if not whole.num_rows:
            continue
        groups = Groups(joined_column(whole, "subject"))
        counts = groups.sums(joined_column(whole, "count"))
        kept = whole.take(groups.first_rows if first else groups.last_rows)
        picked = [kept.set_column(kept.schema.get_field_index("count"), "count", counts).combine_chunks()]
    return picked


def _states(table: pa.Table) -> Iterator[tuple[KeyState, int]]:
    """Yield the revision in each row, and its count."""
    for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
        sequence, time_ns, subject, headers, count = row
        key, expires = key_of(subject_text(subject)), _expires(headers)
        yield KeyState(key, sequence, time_ns, operation_of(headers), expires), count


def _expires(block: bytes | None) -> bool:
    return bool(block) and any(header.name.lower() == "nats-ttl" for header in headers_of(block))


# --- key moment ---
#
# What key a bucket had at a moment, judged by what backups have. Pure.
#
# A backup has the messages that were there when it was made. So each of them was there at any moment since it was
# stored, and no time to live needs to be computed. But one that was there at the moment may be gone since: pushed out
# by newer ones (`max_msgs_per_subject`), purged, expired, or deleted. All that is left of it is a missing sequence. So
#
# - a key without a revision up to the moment did not exist only if no sequence up to the moment is missing;
# - the last revision up to the moment was the value if no later one can be gone: if none is missing after it; or if the
#   server removes the oldest of a key first (no TTLs of messages, no single message deleted); or if the key has as many
#   revisions as its bucket keeps, because one more would have pushed out the oldest.
#
# If a backup from before the moment is known too, and the later one has all messages that came in between, then the
# state is that of the earlier backup with these messages applied.
#
# A bucket whose `max_msgs_per_subject` was lowered after a value with a TTL had expired is judged by the lower number:
# nothing in it tells of the other one.


class Unknown(Enum):
    """It cannot be said."""

    UNKNOWN = "unknown"


KeyVerdict: TypeAlias = KeyState | Unknown | None
"""The revision that the key had, a value or a marker; None if it had none."""


@dataclass(frozen=True, slots=True)
class Removals:
    """How the messages of a bucket may have been removed.

    `history` is the number of revisions of a key above which the oldest goes, 0 if there is no limit, or messages come
    from another stream (`copied`). `oldest_first`: of each key the oldest went first. `max_age_ns` is 0 without one.
    `by_size`: the oldest of the stream went where it had too many.
    """

    history: int
    oldest_first: bool
    max_age_ns: int
    by_size: bool
    copied: bool

    @classmethod
    def of(cls, manifest: Manifest, stream: StreamBackup) -> Removals:
        config, limits = stream.config, RemovalLimits.of(stream.config)
        copied = bool(config.get("mirror") or config.get("sources") or manifest.source.transformed is not None)
        by_ttl, by_hand = bool(config.get("allow_msg_ttl")), not config.get("deny_delete")
        return cls(
            history=0 if copied else limits.per_subject,
            oldest_first=not (copied or by_ttl or by_hand or is_queue(config)),
            max_age_ns=limits.age_ns,
            by_size=bool(limits.messages or limits.bytes),
            copied=copied,
        )


def state_then(record: KeyRecord, removals: Removals, last_gap: int) -> KeyVerdict:
    """Return the state of a key by one backup, of which `last_gap` is the last missing sequence up to the moment."""
    last = record.last
    if last is None:
        return Unknown.UNKNOWN if last_gap else None
    if last.revision > last_gap or removals.oldest_first or 0 < removals.history <= record.count:
        return last
    return Unknown.UNKNOWN


@dataclass(frozen=True, slots=True)
class Continued:
    """That a later backup has all that was written from an earlier one up to the moment, which is at `moment_ns`, or
    earlier. `first_seq` is the first sequence that the later backup has.
    """

    moment_ns: int
    first_seq: int


def state_since(
    record: KeyRecord, removals: Removals, last_gap: int, *, base: KeyState | None, earlier: Continued | None
) -> KeyVerdict:
    """Return the state of a key that had the state `base` when an earlier backup was made; the rest is by the later."""
    verdict = state_then(record, removals, last_gap)
    if verdict is not Unknown.UNKNOWN or earlier is None:
        return verdict
    # The later backup has all that came in between, and none of it is of this key.
    if base is None or base.operation is not KeyOperation.PUT or base == record.last:
        return base
    # It is gone since. That must have come after the moment.
    pushed_out = 0 < removals.history <= record.later
    purged = record.first_later is not None and record.first_later.operation is KeyOperation.PURGE
    too_old = base.expires or 0 < removals.max_age_ns <= earlier.moment_ns - base.timestamp_ns
    dropped = removals.by_size and base.revision < earlier.first_seq
    return base if (pushed_out or purged) and not (too_old or dropped) else Unknown.UNKNOWN
