"""What the `index.db` of a store says (`formats/archive/index_db.py` has the format): which messages there were, of
which subjects, when it was written. Servers write it every two minutes and when they stop.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from jsbackup.errors import FormatError
from jsbackup.formats import kernels
from jsbackup.formats.archive.archive_items import IndexState
from jsbackup.formats.archive.index_db import IndexBlock, IndexParser
from jsbackup.formats.server_store.ciphers import AssetKey

__all__ = ["MAX_INDEX_BYTES", "StoreIndex", "read_index"]

# It is held in memory. Servers do not write one for more than a million subjects, unless they stop.
MAX_INDEX_BYTES = 1 << 30
_HASH_BYTES = 8
_MAGIC = b"\x0b"
_MOST_SUBJECTS = 2_000_000
_MOST_SUBJECT_BYTES = 0xFFFF


@dataclass(frozen=True, slots=True)
class StoreIndex:
    """`blocks` with messages, in order. `last_checksum` is that of the last record of the block `last_block`.

    `subjects` has how many messages each had; None if there are too many to be held, or if these are not all messages
    (some servers lost count).
    """

    state: IndexState
    blocks: Sequence[IndexBlock]
    last_block: int
    last_checksum: bytes
    subjects: Mapping[bytes, int] | None
    _deleted: Mapping[int, Sequence[tuple[int, bytes]]] = field(default_factory=dict)

    def dead_among(self, sequences: Sequence[int]) -> list[int]:
        """Return those of rising sequences, up to the index's last one, that had been deleted."""
        dead: list[int] = []
        stop = bisect_right(sequences, self.state.last_seq)
        at = 0
        blocks = self.blocks
        number = bisect_left(blocks, sequences[0], key=lambda block: block.last_seq) if stop else len(blocks)
        while at < stop and number < len(blocks):
            block = blocks[number]
            head, tail = bisect_left(sequences, block.first_seq, at, stop), stop
            tail = bisect_right(sequences, block.last_seq, head, stop)
            dead.extend(sequences[at:head])
            if head < tail:
                dead.extend(self._deleted_among(block, sequences[head:tail]))
            at, number = tail, number + 1
        dead.extend(sequences[at:stop])
        return dead

    def _deleted_among(self, block: IndexBlock, sequences: Sequence[int]) -> Iterator[int]:
        for base, bitmap in self._deleted.get(block.number, ()):
            part = sequences[bisect_left(sequences, base) : bisect_left(sequences, base + 8 * len(bitmap))]
            yield from (sequence for sequence in part if bitmap[sequence - base >> 3] >> (sequence - base & 7) & 1)

    def alive(self, block: IndexBlock) -> Iterator[tuple[int, int]]:
        """Yield the ranges of sequences in a block that had not been deleted."""
        at = block.first_seq
        for base, bitmap in self._deleted.get(block.number, ()):
            bits = int.from_bytes(bitmap, "little")
            while bits:
                lowest = bits & -bits
                removed = base + lowest.bit_length() - 1
                bits ^= lowest
                if removed > block.last_seq:
                    break
                if removed > at:
                    yield at, removed - 1
                at = max(at, removed + 1)
        if at <= block.last_seq:
            yield at, block.last_seq


def read_index(data: bytes, stream: str, key: AssetKey | None) -> StoreIndex:
    """Decode the content of the file. `key` is the stream's, None for a store that is not encrypted.

    Raises:
        FormatError: it is damaged.
        UnsupportedError: it has a later version.
    """
    if len(data) < _HASH_BYTES:
        raise FormatError("it is cut short")
    hasher = kernels.HighwayHash(sha256(stream.encode("utf-8", "surrogateescape")).digest())
    hasher.update(memoryview(data)[:-_HASH_BYTES])
    if hasher.digest64() != data[-_HASH_BYTES:]:
        raise FormatError("it fails its checksum")
    if key is not None:
        try:
            data = _in_plain_text(key.open(data[:-_HASH_BYTES]), stream)
        except FormatError:
            # A restored stream has an index in plain text until the server writes its own.
            if data[:1] != _MAGIC:
                raise
    reader = _StoreIndexReader(stream, len(data))
    reader.feed(data)
    return reader.index()


def _in_plain_text(content: bytes, stream: str) -> bytes:
    hasher = kernels.HighwayHash(sha256(stream.encode("utf-8", "surrogateescape")).digest())
    hasher.update(content)
    return content + hasher.digest64()


class _StoreIndexReader(IndexParser):
    __slots__ = ("_blocks_found", "_checksum", "_last_block", "_nodes", "_subject_counts")

    def __init__(self, stream: str, size: int) -> None:
        super().__init__(stream, size)
        self._blocks_found: list[IndexBlock] = []
        self._nodes: dict[int, list[tuple[int, bytes]]] = {}
        self._subject_counts: dict[bytes, int] | None = {}
        self._last_block = 0
        self._checksum = b""

    def index(self) -> StoreIndex:
        state = self.finish()
        nodes = {number: sorted(numbers) for number, numbers in self._nodes.items()}
        counts = self._subject_counts
        if counts is not None and sum(counts.values()) != state.messages:
            counts = None
        return StoreIndex(state, self._blocks_found, self._last_block, self._checksum, counts, nodes)

    def _block(self, block: IndexBlock) -> None:
        if not block.last_seq >= block.first_seq > 0:
            return
        if self._blocks_found and self._blocks_found[-1].last_seq >= block.first_seq:
            raise FormatError("its blocks overlap")
        self._blocks_found.append(block)

    def _node(self, block: IndexBlock, base: int, bitmap: bytes) -> None:
        self._nodes.setdefault(block.number, []).append((base, bitmap))

    def _end(self, block: int, checksum: bytes) -> None:
        self._last_block, self._checksum = block, checksum

    def _subjects(self, version: int) -> Generator[None, None, None]:
        if self._subject_counts is None:
            yield from super()._subjects(version)
            return
        counts: dict[bytes, int] = {}
        number = yield from self._unsigned()
        for _ in range(number):
            size = yield from self._unsigned()
            if size > _MOST_SUBJECT_BYTES:
                raise FormatError("a subject in it is too long")
            if not size:
                continue
            subject = yield from self._take(size)
            total = yield from self._unsigned()
            for _ in range(2 if total > 1 or version >= 4 else 1):
                yield from self._unsigned()
            if len(counts) < _MOST_SUBJECTS:
                counts[subject] = counts.get(subject, 0) + total
        self._subject_counts = counts if number <= _MOST_SUBJECTS else None
