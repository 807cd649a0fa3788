"""Write an `index.db` (format: `index_db.py`) for our archives.

A server uses the index if it fits the last block; otherwise it reads every block to rebuild the state. That is slower,
and worse on encrypted 2.10 and 2.11 servers: while they encrypt a block they iterate from sequence 0 to the block's
first one, keep four bytes for each, and count them as deleted until the next restart. So an index is written if that is
cheap, and left out otherwise or if a server would not accept it, because it is never required.

The version is the lowest that holds what the config allows (TTLs 2, schedules 3), because servers read all versions up
to their own and 2.10 reads version 1 only. The number of messages with a TTL or a schedule in a block only matters as
zero or not: the server checks for itself then, so all are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

import pyarrow as pa

from jsbackup.formats import kernels

if TYPE_CHECKING:
    from jsbackup.model import JsonObject

__all__ = ["IndexWriter"]

# Beyond these an index is not worth its memory and time: about 50 MB each for subjects and nodes, a second for gaps.
_MAX_SUBJECTS = 200_000
_MAX_NODES = 100_000
_MAX_GAPS = 1_000_000

# Measured: up to this number Python counts nearly as fast as Arrow, which takes 40 ms to import (`compute.py`).
_FEW_ROWS = 16384

_NODE_BITS = 2048
_U64 = (1 << 64) - 1


@dataclass(slots=True)
class _Block:
    index: int
    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    first_ns: int = 0
    last_seq: int = 0
    last_ns: int = 0
    deleted: int = 0
    nodes: dict[int, int] = field(default_factory=dict)  # bitmaps of deleted sequences by sequence // 2048

    def mark(self, first: int, last: int) -> None:
        """Note a gap."""
        self.deleted += last - first + 1
        for number in range(first // _NODE_BITS, last // _NODE_BITS + 1):
            low, high = max(first - number * _NODE_BITS, 0), min(last - number * _NODE_BITS, _NODE_BITS - 1)
            self.nodes[number] = self.nodes.get(number, 0) | ((1 << high - low + 1) - 1) << low


@dataclass(slots=True)
class _Subject:
    messages: int
    first_block: int
    last_block: int


class IndexWriter:
    """Watches the messages of an archive, block after block; `encode` returns the index, if there can be one."""

    def __init__(self, stream: str, config: JsonObject) -> None:
        self._key = sha256(stream.encode()).digest()
        self._version = 3 if config.get("allow_msg_schedules") else 2 if config.get("allow_msg_ttl") else 1
        self._given_up = False
        self._gaps = self._nodes = 0
        self._subjects: dict[str, _Subject] = {}
        self._uncounted: list[pa.Array] = []  # subjects of the last block; once for each block is cheaper
        self._blocks: list[_Block] = []

    def begin_block(self, index: int) -> None:
        self._count_subjects()
        self._blocks.append(_Block(index))

    def add(self, sequences: memoryview, timestamps: memoryview, subjects: pa.Array, size: int) -> None:
        """Add messages, at least one, whose records have `size` bytes, to the last block."""
        if self._given_up:
            return
        block = self._blocks[-1]
        if block.messages == 0:
            block.first_seq, block.first_ns = sequences[0], timestamps[0]
            last = sequences[0] - 1
        else:
            last = block.last_seq
        block.messages += len(sequences)
        block.bytes += size
        block.last_seq, block.last_ns = sequences[-1], timestamps[-1]
        self._add_gaps(block, last, sequences)
        self._uncounted.append(subjects)

    def end(self, last_seq: int, last_ns: int) -> None:
        """Note that the last block only has the tombstone of the stream's last sequence."""
        block = self._blocks[-1]
        block.first_seq, block.last_seq, block.last_ns = last_seq + 1, last_seq, last_ns

    def encode(self, last_checksum: bytes) -> bytes | None:
        """Return the index, given the last eight bytes of the last block; None if there cannot be one."""
        self._count_subjects()
        if self._given_up or not self._blocks:
            return None
        with_messages = [block for block in self._blocks if block.messages]
        end = self._blocks[-1]
        first_seq, first_ns = (
            (with_messages[0].first_seq, with_messages[0].first_ns) if with_messages else (end.first_seq, 0)
        )
        out = bytearray((11, self._version))
        _unsigned(out, sum(block.messages for block in with_messages))
        _unsigned(out, sum(block.bytes for block in with_messages))
        _unsigned(out, first_seq)
        _signed(out, first_ns)
        _unsigned(out, end.last_seq)
        _signed(out, end.last_ns)
        _unsigned(out, len(self._subjects))
        for name, subject in self._subjects.items():
            encoded = name.encode()
            _unsigned(out, len(encoded))
            out += encoded
            _unsigned(out, subject.messages)
            _unsigned(out, subject.first_block)
            if subject.messages > 1:
                _unsigned(out, subject.last_block)
        # An empty first block makes the server write its own index soon. Otherwise an encrypted server keeps ours,
        # which is plaintext, and rebuilds everything at its next start.
        blocks = [_Block(0, first_seq=1), *self._blocks]
        _unsigned(out, len(blocks))
        for block in blocks:
            self._encode_block(out, block, first_ns)
        _unsigned(out, end.index)
        out += last_checksum
        hasher = kernels.HighwayHash(self._key)
        hasher.update(out)
        return bytes(out) + hasher.digest64()

    def _add_gaps(self, block: _Block, last: int, sequences: memoryview) -> None:
        if sequences[-1] - last == len(sequences):
            return
        self._nodes -= len(block.nodes)
        for sequence in sequences:
            if sequence != last + 1:
                block.mark(last + 1, sequence - 1)
                self._gaps += 1
            last = sequence
        self._nodes += len(block.nodes)
        if self._gaps > _MAX_GAPS or self._nodes > _MAX_NODES:
            self._give_up()

    def _count_subjects(self) -> None:
        """Add the subjects of the last block."""
        subjects, self._uncounted = self._uncounted, []
        if self._given_up or not subjects:
            return
        if any(one.type != pa.string() for one in subjects):
            self._give_up()  # the server refuses an index with subjects that are not UTF-8
            return
        block = self._blocks[-1].index
        known = self._subjects
        for name, count in _counted(pa.chunked_array(subjects, pa.string())):
            subject = known.get(name)
            if subject is None:
                known[name] = _Subject(count, block, block)
            else:
                subject.messages += count
                subject.last_block = block
        if len(known) > _MAX_SUBJECTS or "" in known:
            self._give_up()

    def _give_up(self) -> None:
        self._given_up = True
        self._subjects.clear()
        self._uncounted.clear()
        self._blocks.clear()

    def _encode_block(self, out: bytearray, block: _Block, base_ns: int) -> None:
        _unsigned(out, block.index)
        _unsigned(out, block.bytes)
        _unsigned(out, block.first_seq)
        _signed(out, block.first_ns - base_ns)
        _unsigned(out, block.last_seq)
        _signed(out, block.last_ns - base_ns)
        _unsigned(out, block.deleted)
        for _ in range(self._version - 1):
            _unsigned(out, block.messages)
        if block.deleted:
            out += bytes((22, 2))
            out += len(block.nodes).to_bytes(4, "little")
            out += block.deleted.to_bytes(4, "little")
            numbers = sorted(block.nodes)
            _encode_nodes(out, block.nodes, numbers, 0, stop=len(numbers))


def _encode_nodes(out: bytearray, nodes: dict[int, int], numbers: list[int], start: int, *, stop: int) -> int:
    """Append the nodes as a balanced tree, root first: the server links them in this order without balancing.

    Returns the tree's height.
    """
    if start == stop:
        return 0
    middle = (start + stop) // 2
    number = numbers[middle]
    out += (number * _NODE_BITS).to_bytes(8, "little")
    out += nodes[number].to_bytes(_NODE_BITS // 8, "little")
    at = len(out)
    out += bytes(2)
    height = 1 + max(
        _encode_nodes(out, nodes, numbers, start, stop=middle),
        _encode_nodes(out, nodes, numbers, middle + 1, stop=stop),
    )
    out[at : at + 2] = height.to_bytes(2, "little")
    return height


def _counted(subjects: pa.ChunkedArray) -> Iterable[tuple[str, int]]:
    """Return each subject with its number of messages."""
    if len(subjects) <= _FEW_ROWS:
        return Counter(subjects.to_pylist()).items()
    counts = subjects.value_counts()
    return zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True)


def _unsigned(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _signed(out: bytearray, value: int) -> None:
    """Append it modulo 2^64, as the server adds and subtracts times."""
    value = (value + (1 << 63) & _U64) - (1 << 63)
    _unsigned(out, value << 1 if value >= 0 else (-value << 1) - 1)
