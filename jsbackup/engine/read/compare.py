"""Compare a backup's messages with those of a server, one by one.

Only used if the digests differ, to find out where.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from jsbackup.engine.read.removals import KEPT, Discarded, Discards, Missing, Row, Taken
from jsbackup.protocol.info import ConsumerInfo, StreamInfo
from jsbackup.transforms.removal import Cause

__all__ = ["Comparison"]


@dataclass(slots=True)
class Comparison:
    """A sink for the server's messages that compares them with the backup's. Call `finish` at the end.

    `missing`, `added` and `changed` keep the sequences of the first differences of each kind; all are counted. Missing
    messages that are `excused` are only counted in `gone`, by the cause, and so are those that the stream has discarded
    or its consumers have taken: that is for `decide` to find out after `finish`, if it is `undecided`.
    """

    ours: Iterable[pa.RecordBatch]
    last_seq: int  # later messages of the server are not compared: they arrived after the restore
    excused: Callable[[Missing], Cause | None] = lambda _missing: None
    discards: Discards | None = None
    taken: Taken | None = None
    missing: list[int] = field(default_factory=list)
    added: list[int] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)
    missing_count: int = 0
    added_count: int = 0
    changed_count: int = 0
    gone: Counter[Cause] = field(default_factory=Counter)
    discarded: Discarded = field(default_factory=Discarded)
    _undecided: int = 0
    _rows: Iterator[Row] = field(init=False)
    _next: Row | None = field(init=False)

    def __post_init__(self) -> None:
        self._rows = (row for batch in self.ours for row in _rows_of(batch))
        self._next = next(self._rows, None)

    @property
    def count(self) -> int:
        """The number of all differences."""
        return self.missing_count + self.added_count + self.changed_count

    def add(self, batch: pa.RecordBatch) -> None:
        """Add messages of the server, in order."""
        for row in _rows_of(batch):
            if row[0] > self.last_seq and self.discards is None:
                return
            while self._next is not None and self._next[0] < row[0]:
                self._miss()
            if self.discards is not None:
                self.discards.has(row)
            if row[0] > self.last_seq:
                continue
            if self._next is None or self._next[0] > row[0]:
                self.added_count += 1
                _keep(self.added, row[0])
                continue
            if self._next != row:
                self.changed_count += 1
                _keep(self.changed, row[0])
            self._next = next(self._rows, None)

    def finish(self) -> None:
        """Count the rest of the backup as missing: the server has no more messages."""
        while self._next is not None:
            self._miss()

    @property
    def undecided(self) -> bool:
        """Whether the stream may have discarded missing messages, or its consumers may have taken them."""
        return self._undecided > 0

    def decide(self, info: StreamInfo, consumers: Mapping[str, ConsumerInfo]) -> None:
        """Count what the stream has discarded, or its consumers have taken, as `gone`, the rest as missing. `info` and
        `consumers` describe it after it was read.
        """
        taken, wrong = 0, list[int]()
        if self.discards is not None:
            self.discarded, wrong = self.discards.decide(info)
        if self.taken is not None:
            taken, _, more = self.taken.decide(consumers)
            wrong = [*wrong, *more]
        # Some may be explained in both ways: then it is enough if both together explain all of them.
        explained = min(self._undecided, self.discarded.messages + taken)
        self.gone[Cause.DISCARDED] += (discarded := min(explained, self.discarded.messages))
        self.gone[Cause.TAKEN] += explained - discarded
        self.missing_count += self._undecided - explained
        if explained < self._undecided:
            self.missing = sorted({*self.missing, *wrong})[:KEPT]

    def _miss(self) -> None:
        assert self._next is not None
        missing = Missing(*self._next[:4])
        cause = self.excused(missing)
        discarded = self.discards is not None and self.discards.lacks(self._next, excused=cause is not None)
        taken = cause is None and self.taken is not None and self.taken.may_have(missing)
        if cause is not None:
            self.gone[cause] += 1
        elif discarded or taken:
            self._undecided += 1
        else:
            self.missing_count += 1
            _keep(self.missing, self._next[0])
        self._next = next(self._rows, None)


def _keep(found: list[int], sequence: int) -> None:
    if len(found) < KEPT:
        found.append(sequence)


def _rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    for sequence, timestamp, subject, headers, data in zip(*(c.to_pylist() for c in batch.columns), strict=True):
        yield sequence, timestamp, subject.encode() if isinstance(subject, str) else subject, headers or b"", data
