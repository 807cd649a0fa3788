"""Rising sequences of messages, packed: a fraction of a byte each where they are dense, a byte or two where not."""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from typing import NamedTuple

import pyarrow as pa

from jsbackup import compute as pc

__all__ = ["RisingSequences"]

_CHUNK = 1 << 16
_UNPACKED = 4  # chunks; batches are asked for in order


class _Chunk(NamedTuple):
    first: int
    last: int
    before: int  # members of earlier chunks
    count: int  # type: ignore[assignment]  # hides tuple.count
    steps: bytes  # from each member to the next, packed; b"" if all are 1


class RisingSequences:
    """A growing set of sequences. It can be pickled."""

    __slots__ = ("_chunks", "_firsts", "_unpacked")

    def __init__(self, chunks: list[_Chunk] | None = None) -> None:
        self._chunks = chunks or []
        self._firsts = [chunk.first for chunk in self._chunks]
        self._unpacked: dict[int, pa.Int64Array] = {}

    def __reduce__(self) -> tuple[type[RisingSequences], tuple[list[_Chunk]]]:
        return RisingSequences, (self._chunks,)

    @classmethod
    def of(cls, rising: pa.Int64Array) -> RisingSequences:
        """Return the set of these, which rise."""
        made = cls()
        made.add(rising)
        return made

    def __len__(self) -> int:
        return self._chunks[-1].before + self._chunks[-1].count if self._chunks else 0

    def __contains__(self, sequence: object) -> bool:
        return isinstance(sequence, int) and self.rank(sequence) > self.rank(sequence - 1)

    def add(self, rising: pa.Int64Array) -> None:
        """Add sequences above all members."""
        for start in range(0, len(rising), _CHUNK):
            part = rising.slice(start, _CHUNK)
            first, last = part[0].as_py(), part[-1].as_py()
            steps = b""
            if last - first + 1 != len(part):
                whole = pc.subtract(part.slice(1), part.slice(0, len(part) - 1))
                steps = zlib.compress(memoryview(whole.buffers()[1])[: 8 * len(whole)], 1)
            self._chunks.append(_Chunk(first, last, len(self), len(part), steps))
            self._firsts.append(first)

    def rows(self, column: pa.Int64Array) -> pa.BooleanArray:
        """Return for each of these sequences, which rise, whether it is a member."""
        if not len(column):
            return column.cast(pa.bool_())
        return pc.is_in(column, value_set=self.within(column[0].as_py(), column[-1].as_py()).array())

    def within(self, first: int, last: int) -> RisingSequences:
        """Return the members from `first` to `last`, both included."""
        part = RisingSequences()
        at = max(0, bisect_right(self._firsts, first) - 1)
        while at < len(self._chunks) and self._chunks[at].first <= last:
            chunk = self._chunks[at]
            if first <= chunk.first and chunk.last <= last:
                part._chunks.append(chunk._replace(before=len(part)))
                part._firsts.append(chunk.first)
            elif chunk.last >= first:
                whole = self._unpack(at)
                start, stop = _place(whole, first), _place(whole, last + 1)
                part.add(whole.slice(start, max(0, stop - start)))
            at += 1
        return part

    def array(self) -> pa.Int64Array:
        """Return all members, eight bytes each."""
        if len(self._chunks) == 1:
            return self._unpack(0)
        return pa.concat_arrays([pc.int64_array([]), *(self._unpack(at) for at in range(len(self._chunks)))])

    def rank(self, sequence: int) -> int:
        """Return how many members there are up to this sequence, itself included."""
        at = bisect_right(self._firsts, sequence) - 1
        if at < 0:
            return 0
        chunk = self._chunks[at]
        if sequence >= chunk.last:
            return chunk.before + chunk.count
        return chunk.before + _place(self._unpack(at), sequence + 1)

    def at(self, number: int) -> int:
        """Return the member with this number, counted from 1. Raises IndexError if there is none."""
        if not 0 < number <= len(self):
            raise IndexError(number)
        where = bisect_left(self._chunks, number, key=lambda chunk: chunk.before) - 1
        chunk = self._chunks[where]
        sequence: int = self._unpack(where)[number - chunk.before - 1].as_py()
        return sequence

    def _unpack(self, at: int) -> pa.Int64Array:
        chunk = self._chunks[at]
        sequences = self._unpacked.get(at)
        if sequences is None:
            if chunk.steps:
                steps = pa.Array.from_buffers(
                    pa.int64(), chunk.count - 1, [None, pa.py_buffer(zlib.decompress(chunk.steps))]
                )
            else:
                steps = pa.repeat(pc.int64_array([1])[0], chunk.count - 1)
            sequences = pc.cumulative_sum(pa.concat_arrays([pc.int64_array([chunk.first]), steps]))
            if len(self._unpacked) >= _UNPACKED:
                del self._unpacked[next(iter(self._unpacked))]
            self._unpacked[at] = sequences
        return sequences


def _place(rising: pa.Int64Array, sequence: int) -> int:
    """Return how many are below the sequence."""
    return bisect_left(rising, sequence, key=lambda scalar: scalar.as_py())
