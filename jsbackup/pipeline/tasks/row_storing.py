"""Store rows as segments, in order of their sequences: in a task on Spark, or in this process.

What rows have to be like to become messages, and what is said of those that are stored.

Servers store more than clients can read, in headers and in subjects. A table of somebody's is refused for such, as it
is likely a mistake. What a server had is stored as it was, counted, and said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from jsbackup.errors import FormatError, JsBackupError, UsageError
from jsbackup.formats.archive.archive_items import refuse_too_large
from jsbackup.formats.batch import BATCH_SCHEMA, BINARY_SUBJECT_SCHEMA
from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened
from jsbackup.repository.write.segment_writer import SegmentWriter, StoredSegments

__all__ = [
    "NO_COUNTS",
    "OddRows",
    "RowCounts",
    "SinkRules",
    "StoredPartition",
    "as_messages",
    "count_rows",
    "store_messages",
]

# What ends a subject on the wire (nats-server `server/parser.go`). Measured: 2.15.1 takes all other bytes.
_SEPARATORS = r"[ \t\n]"
# Measured: nats-py is cut off by a message with any of these in its subject; nats.go by the last.
_CUTTING = r"[\x0b\x0c\r]"
# Which servers match with nothing.
_EMPTY_TOKEN = r"(^|\.)(\.|$)"
# What all clients write around headers. A server stores any bytes as headers, but clients that read others stop
# reading (nats-py, measured), or drop the headers (nats.go).
_HEADERS_BEGIN, _HEADERS_STATUS, _HEADERS_END = b"NATS/1.0\r\n", b"NATS/1.0 ", b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class SinkRules:
    """What is asked of rows: for `any_headers` see `as_messages`. Messages whose subjects are not among `subjects` are
    counted; these are literal, or end with `>`. Without `stores`, rows are only looked at, in any order, if not
    `in_order`.
    """

    any_headers: bool = False
    subjects: tuple[str, ...] = ()
    stores: bool = True
    in_order: bool = True


@dataclass(frozen=True, slots=True)
class OddRows:
    """How many messages are odd in some way, and the sequence of the first, 0 without any."""

    messages: int = 0
    first: int = 0

    def __add__(self, other: OddRows) -> OddRows:
        return OddRows(self.messages + other.messages, min(self.first or other.first, other.first or self.first))


_NONE = OddRows()


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Counts of stored messages: `others` have other subjects than those of the rules, if there are any; clients may
    not read the `headers` or `subjects` of others.
    """

    others: int = 0
    headers: OddRows = _NONE
    subjects: OddRows = _NONE

    def __add__(self, other: RowCounts) -> RowCounts:
        return RowCounts(self.others + other.others, self.headers + other.headers, self.subjects + other.subjects)


NO_COUNTS = RowCounts()


def count_rows(messages: pa.RecordBatch, rules: SinkRules) -> RowCounts:
    """Count among messages what is to be said of them."""
    sequences, subjects = messages.column("sequence"), messages.column("subject")
    headers = _odd(sequences, _unreadable_headers(messages.column("headers"))) if rules.any_headers else _NONE
    return RowCounts(_others(subjects, rules.subjects), headers, _odd(sequences, _unreadable_subjects(subjects)))


def _odd(sequences: pa.Array, which: pa.Array) -> OddRows:
    count = pc.sum(which).as_py() or 0
    return OddRows(count, sequences.filter(which)[0].as_py()) if count else _NONE


def _unreadable_subjects(subjects: pa.Array) -> pa.Array:
    """Return which subjects clients may not read: those with certain blanks, or that are not UTF-8."""
    unreadable = pc.match_substring_regex(subjects.view(pa.binary()), _CUTTING)
    if subjects.type == pa.binary():
        unreadable = pc.or_(unreadable, pa.array([not _is_text(subject) for subject in subjects.to_pylist()]))
    return unreadable


def _is_text(subject: bytes) -> bool:
    try:
        subject.decode()
    except UnicodeDecodeError:
        return False
    return True


def _others(subjects: pa.Array, among: Sequence[str]) -> int:
    """Return how many subjects match none of these as a server matches them, 0 if there are none to match."""
    if not among:
        return 0
    raw = subjects.view(pa.binary())
    others = pa.repeat(False, len(raw))
    for pattern in among:
        text = pattern.removesuffix(">").encode()
        others = pc.or_(others, pc.starts_with(raw, text) if pattern.endswith(".>") else pc.equal(raw, text))
    return int(pc.sum(pc.invert(pc.and_not(others, pc.match_substring_regex(raw, _EMPTY_TOKEN)))).as_py())


def as_messages(batch: pa.RecordBatch, *, any_headers: bool = False) -> pa.RecordBatch:
    """Convert a batch of a DataFrame to messages. With `any_headers`, these may be any block that a server stores, and
    subjects any that it takes.

    Raises `UsageError` if a row lacks a required value, has a subject that no server could have, or a subject or
    headers that no client writes.
    """
    arrays = []
    for field in BATCH_SCHEMA:
        array = batch.column(batch.schema.get_field_index(field.name))
        if array.null_count and not field.nullable:
            raise UsageError(f"a message without {field.name} cannot be stored")
        arrays.append(array)
    _refuse_unsendable(arrays[0], arrays[2])
    if not any_headers:
        _refuse_cutting(arrays[0], arrays[2])
        _refuse_unreadable(arrays[0], arrays[3])
    schema = BATCH_SCHEMA
    try:
        arrays[2].validate(full=True)
    except pa.ArrowInvalid:
        schema = BINARY_SUBJECT_SCHEMA
        arrays[2] = arrays[2].view(pa.binary())
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _refuse_unsendable(sequences: pa.Array, subjects: pa.Array) -> None:
    """Refuse subjects that break the protocol between servers and clients: whoever gets such a message is cut off."""
    raw = subjects.view(pa.binary())
    refused = pc.or_(pc.equal(pc.binary_length(raw), 0), pc.match_substring_regex(raw, _SEPARATORS))
    if pc.any(refused).as_py():
        sequence, subject = (array.filter(refused)[0].as_py() for array in (sequences, raw))
        shown = subject.decode(errors="replace")[:80]
        raise UsageError(
            f"message {sequence} has the subject {shown!r}, which no server takes: it must not be empty, or have "
            "spaces, tabs or line breaks"
        )


def _refuse_cutting(sequences: pa.Array, subjects: pa.Array) -> None:
    refused = pc.match_substring_regex(subjects.view(pa.binary()), _CUTTING)
    if pc.any(refused).as_py():
        sequence, subject = sequences.filter(refused)[0], subjects.view(pa.binary()).filter(refused)[0].as_py()
        raise UsageError(
            f"message {sequence} has the subject {subject.decode(errors='replace')[:80]!r}, which cuts clients off: it "
            "must not have carriage returns, vertical tabs or form feeds",
            hint="If a server had it so, import what export wrote, or JSON lines.",
        )


def _refuse_unreadable(sequences: pa.Array, headers: pa.Array) -> None:
    """Refuse header blocks that do not begin or end as those of all clients.

    What is between is not looked at: old and careless clients have sent lines without a colon, and others read on.
    """
    refused = _unreadable_headers(headers)
    if pc.any(refused).as_py():
        sequence, block = (array.filter(refused)[0].as_py() for array in (sequences, headers))
        lacks = "end with '\\r\\n\\r\\n'"
        if not block.startswith((_HEADERS_BEGIN, _HEADERS_STATUS)):
            lacks = "begin with 'NATS/1.0\\r\\n'"
        raise UsageError(
            f"message {sequence} has headers that do not {lacks}: {block[:60]!r}",
            hint="Clients cannot read such headers. If a server had them so, import JSON lines with headers_base64.",
        )


def _unreadable_headers(headers: pa.Array) -> pa.Array:
    """Return which header blocks clients may not read. No bytes are no headers, as for servers."""
    if headers.null_count == len(headers):
        return pa.repeat(False, len(headers))
    begins = pc.or_(pc.starts_with(headers, _HEADERS_BEGIN), pc.starts_with(headers, _HEADERS_STATUS))
    sound = pc.or_(pc.and_(begins, pc.ends_with(headers, _HEADERS_END)), pc.equal(pc.binary_length(headers), 0))
    return pc.fill_null(pc.invert(sound), False)


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """What was stored of a partition."""

    segments: StoredSegments
    counts: RowCounts = NO_COUNTS


def store_messages(
    place: RepositoryRef, folder: str, batches: Iterator[pa.RecordBatch], rules: SinkRules
) -> StoredPartition | JsBackupError:
    """Store rows in order of their sequences, in a task. Return our error, if there is one, as Spark retries others."""
    try:
        if not rules.stores:
            _look_at(batches, rules)
            return StoredPartition(StoredSegments())
        writer = SegmentWriter(opened(place).objects, folder)
        last, counts = 0, NO_COUNTS
        try:
            for batch in batches:
                if batch.num_rows:
                    messages = as_messages(batch, any_headers=rules.any_headers)
                    last = _rising(messages.column("sequence"), last)
                    counts += count_rows(messages, rules)
                    writer.add(messages)
            return StoredPartition(writer.finish_all(), counts)
        finally:
            writer.close()
    except JsBackupError as error:
        return error


def _look_at(batches: Iterator[pa.RecordBatch], rules: SinkRules) -> None:
    """Raise the errors of rows that cannot be stored. Of rows in no order, those that are there twice may be missed."""
    last = 0
    for batch in batches:
        if batch.num_rows:
            sequences = as_messages(batch, any_headers=rules.any_headers).column("sequence")
            last = _rising(sequences, last) if rules.in_order else 0
            if not rules.in_order:
                _rising(sequences.take(pc.sort_indices(sequences)), 0)


def _rising(sequences: pa.Array, last: int) -> int:
    """Return the last of sequences in order after `last`. Raises FormatError for a repeated or an invalid one."""
    first, end = sequences[0].as_py(), sequences[-1].as_py()
    if first < 1:
        raise FormatError(f"{first} is not a sequence: sequences start at 1")
    try:
        refuse_too_large(end)
    except FormatError as error:
        raise error.with_hint("The messages need other sequences: a backup of these could not be restored.") from None
    again = sequences[1:].filter(pc.equal(sequences[1:], sequences[:-1]))
    if first == last or len(again):
        raise FormatError(f"sequence {first if first == last else again[0].as_py()} is there twice")
    return int(end)
