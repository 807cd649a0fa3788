"""Compare a backup's messages with those of a server, one by one.

Only used if the digests differ, to find out where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa

__all__ = ["Comparison", "Missing"]

# How many differences of each kind are kept; more are only counted.
_KEPT = 100

_Row = tuple[int, int, bytes, bytes, bytes]


@dataclass(frozen=True, slots=True)
class Missing:
    """A message of the backup that the server does not have."""

    sequence: int
    timestamp_ns: int
    subject: bytes
    headers: bytes


S = TypeVar("S", int, Missing)


@dataclass(slots=True)
class Comparison:
    """A sink for the server's messages that compares them with the backup's. Call `finish` at the end.

    `missing`, `added` and `changed` keep the first differences of each kind; all are counted. Missing messages that are
    `excused` are only counted in `gone`.
    """

    ours: Iterable[pa.RecordBatch]
    last_seq: int  # later messages of the server are not compared: they arrived after the restore
    excused: Callable[[Missing], bool] = lambda _missing: False
    missing: list[Missing] = field(default_factory=list)
    added: list[int] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)
    missing_count: int = 0
    added_count: int = 0
    changed_count: int = 0
    gone: int = 0
    _rows: Iterator[_Row] = field(init=False)
    _next: _Row | None = field(init=False)

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
            if row[0] > self.last_seq:
                return
            while self._next is not None and self._next[0] < row[0]:
                self._miss()
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

    def _miss(self) -> None:
        assert self._next is not None
        missing = Missing(*self._next[:4])
        if self.excused(missing):
            self.gone += 1
        else:
            self.missing_count += 1
            _keep(self.missing, missing)
        self._next = next(self._rows, None)


def _keep(found: list[S], item: S) -> None:
    if len(found) < _KEPT:
        found.append(item)


def _rows_of(batch: pa.RecordBatch) -> Iterator[_Row]:
    for sequence, timestamp, subject, headers, data in zip(*(c.to_pylist() for c in batch.columns), strict=True):
        yield sequence, timestamp, subject.encode() if isinstance(subject, str) else subject, headers or b"", data
