"""Compare two sequences of messages: counts, ranges of sequences, and the first few messages of each kind.

There are two sides, A and B. A message that only A has was *removed*; one that only B has was *added*; one that both
have, with a different time, subject, headers or payload, was *changed*. Missing headers equal an empty header block, as
in digests.

Batches are compared as columns; only messages that differ are handled one by one. Memory: one batch of each side, up to
`MOST_RANGES` ranges, and the listed messages.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.errors import FormatError
from jsbackup.formats.batch import BATCH_SCHEMA, columns_from_batch
from jsbackup.formats.digest import MessageBatch

__all__ = [
    "EQUAL",
    "MOST_RANGES",
    "Change",
    "DifferenceTally",
    "Example",
    "Merger",
    "MessageDiff",
    "Range",
    "cut_at",
    "example_of",
]

# A stream that lost every other message has as many ranges as messages: more than anybody reads.
MOST_RANGES = 1000

_COLUMNS = {"timestamp_ns": "time", "subject": "subject", "headers": "headers", "data": "payload"}
_OURS, _THEIRS = pc.int64_array([2, 3])
_NONE = pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in BATCH_SCHEMA], schema=BATCH_SCHEMA)


class Change(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Range:
    """Messages with the same change, with no other message of either side between them."""

    change: Change
    first_seq: int
    last_seq: int
    messages: int


@dataclass(frozen=True, slots=True)
class Example:
    """A message that differs. Time and subject are those of A if it has the message. `what` lists the changed parts."""

    change: Change
    sequence: int
    timestamp_ns: int
    subject: str
    what: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MessageDiff:
    """The result of a comparison. `ranges` are in order; `ranges_left_out` more are not listed."""

    added: int = 0
    removed: int = 0
    changed: int = 0
    ranges: tuple[Range, ...] = ()
    ranges_left_out: int = 0
    examples: tuple[Example, ...] = ()

    @property
    def equal(self) -> bool:
        return not (self.added or self.removed or self.changed)


EQUAL = MessageDiff()


class DifferenceTally:
    """Collects differences in rising order of sequences; lists up to `named` messages of each kind."""

    def __init__(self, named: int) -> None:
        self._named = named
        self._counts = dict.fromkeys(Change, 0)
        self._ranges: list[Range] = []
        self._left_out = 0
        self._open: Range | None = None  # the range that the next difference may extend
        self._examples: dict[Change, list[Example]] = {change: [] for change in Change}

    def same(self) -> None:
        """Note messages that are equal."""
        ended, self._open = self._open, None
        if ended is not None and len(self._ranges) < MOST_RANGES:
            self._ranges.append(ended)
        elif ended is not None:
            self._left_out += 1

    def note(self, change: Change, first_seq: int, last_seq: int, messages: int) -> None:
        """Note a change of all messages of both sides from `first_seq` to `last_seq`."""
        self._counts[change] += messages
        before = self._open
        if before is not None and before.change is change:
            first_seq, messages = before.first_seq, before.messages + messages
        else:
            self.same()
        self._open = Range(change, first_seq, last_seq, messages)

    def wants(self, change: Change) -> int:
        """Return how many more messages of this kind are to be listed."""
        return self._named - len(self._examples[change])

    def show(self, example: Example) -> None:
        self._examples[example.change].append(example)

    def result(self) -> MessageDiff:
        self.same()
        examples = sorted((e for some in self._examples.values() for e in some), key=lambda e: e.sequence)
        return MessageDiff(
            self._counts[Change.ADDED],
            self._counts[Change.REMOVED],
            self._counts[Change.CHANGED],
            tuple(self._ranges),
            self._left_out,
            tuple(examples),
        )


class Merger:
    """Compares the messages of one side (`ours`) with those of the other, which are added in order; then call `finish`.

    `ours_alone` is the change if only ours has a message: REMOVED if ours is A, ADDED if it is B.
    """

    def __init__(self, ours: Iterable[MessageBatch], tally: DifferenceTally, ours_alone: Change) -> None:
        self._ours = iter(ours)
        self._tally = tally
        self._ours_alone = ours_alone
        self._theirs_alone = Change.ADDED if ours_alone is Change.REMOVED else Change.REMOVED
        self._current = _NONE
        self._our_last = self._their_last = 0

    def add(self, theirs: MessageBatch) -> None:
        """Add messages of the other side. Raises FormatError if sequences do not rise, and the errors of `ours`."""
        if theirs.num_rows:
            self._their_last = _rising(theirs, self._their_last)
        while theirs.num_rows:
            bound = _last(theirs)
            if self._pull():
                bound = min(bound, _last(self._current))
            ours, self._current = cut_at(self._current, bound)
            part, theirs = cut_at(theirs, bound)
            self._compare(ours, part)

    def finish(self) -> None:
        """Compare the rest of ours: the other side has no more messages."""
        while self._pull():
            ours, self._current = self._current, _NONE
            self._compare(ours, _NONE)

    def _pull(self) -> bool:
        while not self._current.num_rows:
            batch = next(self._ours, None)
            if batch is None:
                return False
            if batch.num_rows:
                self._our_last = _rising(batch, self._our_last)
            self._current = batch
        return True

    def _compare(self, ours: MessageBatch, theirs: MessageBatch) -> None:
        """Compare all messages of both sides within a range of sequences."""
        if _are_equal(ours, theirs):
            self._tally.same()
            return
        sequences = pc.unique(pa.concat_arrays([ours.column("sequence"), theirs.column("sequence")]))
        sequences = sequences.take(pc.sort_indices(sequences))
        our_rows, their_rows = (pc.index_in(sequences, value_set=side.column("sequence")) for side in (ours, theirs))
        changed = _differing(ours.take(our_rows), theirs.take(their_rows))
        kinds = pc.if_else(our_rows.is_valid(), pc.if_else(their_rows.is_valid(), changed, _OURS), _THEIRS)
        runs = pc.run_end_encode(kinds)
        changes = [None, Change.CHANGED, self._ours_alone, self._theirs_alone]
        at = 0
        for end, kind in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
            change = changes[kind]
            if change is None:
                self._tally.same()
            else:
                self._tally.note(change, sequences[at].as_py(), sequences[end - 1].as_py(), end - at)
                for sequence in sequences[at : min(end, at + self._tally.wants(change))].to_pylist():
                    self._tally.show(self._example(change, sequence, ours, theirs))
            at = end

    def _example(self, change: Change, sequence: int, ours: MessageBatch, theirs: MessageBatch) -> Example:
        a, b = (ours, theirs) if self._ours_alone is Change.REMOVED else (theirs, ours)
        row = _row(b if change is Change.ADDED else a, sequence)
        if change is not Change.CHANGED:
            return example_of(change, row)
        other = _row(b, sequence)
        names = (name for column, name in _COLUMNS.items() if not _plain(row, column).equals(_plain(other, column)))
        return example_of(change, row, tuple(names))


def cut_at(batch: MessageBatch, last: int) -> tuple[MessageBatch, MessageBatch]:
    """Split a batch into the messages up to sequence `last` and those beyond."""
    row = bisect_right(_sequences(batch), last)
    return batch.slice(0, row), batch.slice(row)


def example_of(change: Change, row: MessageBatch, what: tuple[str, ...] = ()) -> Example:
    """Return the first message of a batch as an example."""
    subject = row.column("subject")[0].as_py()
    if isinstance(subject, bytes):
        subject = subject.decode("utf-8", "backslashreplace")
    return Example(change, row.column("sequence")[0].as_py(), row.column("timestamp_ns")[0].as_py(), subject, what)


def _sequences(batch: MessageBatch) -> memoryview[int]:
    return memoryview(columns_from_batch(batch).sequences).cast("B").cast("q")


def _last(batch: MessageBatch) -> int:
    return _sequences(batch)[-1]


def _rising(batch: MessageBatch, last: int) -> int:
    """Return the last sequence of a batch that must begin after `last`. The batch itself is known to rise."""
    sequences = _sequences(batch)
    if sequences[0] <= last:
        raise FormatError(f"sequence {sequences[0]} after {last}")
    return sequences[-1]


def _row(batch: MessageBatch, sequence: int) -> MessageBatch:
    return batch.slice(bisect_left(_sequences(batch), sequence), 1)


def _plain(batch: MessageBatch, column: str) -> pa.Array:
    """Return a column as digests see it: subjects as bytes, missing headers as empty ones."""
    array = batch.column(column)
    if column == "subject":
        return array.cast(pa.binary())
    return array.fill_null(b"") if column == "headers" else array


def _are_equal(ours: MessageBatch, theirs: MessageBatch) -> bool:
    return ours.num_rows == theirs.num_rows and all(
        _plain(ours, name).equals(_plain(theirs, name)) for name in ("sequence", *_COLUMNS)
    )


def _differing(ours: MessageBatch, theirs: MessageBatch) -> pa.Array:
    """Return for messages with the same sequences 1 for each that differs, 0 for the others."""
    differing = reduce(pc.or_, (pc.not_equal(_plain(ours, name), _plain(theirs, name)) for name in _COLUMNS))
    return differing.cast(pa.int64())
