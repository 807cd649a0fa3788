"""`msgs/index.db`: the server's index of a whole stream, the last of the stream's files in archive v1.

nats-server `server/filestore.go` (_writeFullState, recoverFullState) and `server/avl/seqset.go`; plaintext, as
snapshots hold it. Integers are Go varints (u unsigned, i zigzag) unless a width is given, which is little endian:

    magic u8 = 11 · version u8
    messages u · bytes u · first_seq u · first time i · last_seq u · last time i
    number of subjects u · for each: length u · subject · messages u · first block u [· last block u]
    number of blocks u · for each:
        index u · bytes u · first_seq u · first time i · last_seq u · last time i · number of deleted u
        [version 2: · messages with a TTL u] [version 3: · schedules u]
        [deleted > 0: · set]
    last block's index u · checksum of its last record, 8 bytes
    HighwayHash-64 of all before it, keyed with SHA-256 of the stream's name

The last block of a subject is there in version 4, before only where it has more than one message. Servers 2.10 write
version 1, 2.11 version 2, 2.12 version 3, from 2.14 on 4. A set of deleted sequences is: magic u8 = 22 · version u8 ·
number of nodes u32 · number of sequences u32 · for each node: base u64 · bitmap of 2048 bits (version 1: 4096), bit 0
of byte 0 is `base` · height u16.

A message lives if a block's range from first_seq to last_seq has it and that block's set does not: a block's head moves
up without a trace in its set. A block without messages has last_seq = first_seq - 1.

The file may be huge (an entry for each subject), so it is parsed incrementally and only the result is kept.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterable
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from jsbackup.errors import FormatError, UnsupportedError
from jsbackup.formats import kernels
from jsbackup.formats.archive.archive_items import IndexState
from jsbackup.formats.sequences import GivenSequences, sequence_set
from jsbackup.formats.varints import unzigzag, uvarint
from jsbackup.server_state import MAX_SEQUENCE

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["IndexBlock", "IndexParser", "IndexReader"]

_MAGIC = 11
_NEWEST = 4
_HASH_BYTES = 8
_SET_MAGIC = 22
_SET_BITMAP_BYTES = {1: 512, 2: 256}
_WHAT = "stream index"

# The parser yields to request bytes.
_Steps = Generator[None, None, IndexState]


class IndexBlock(NamedTuple):
    """The block of this number, according to the index. Without messages, `last_seq` is below `first_seq`."""

    number: int
    bytes: int
    first_seq: int
    last_seq: int


class IndexParser:
    """Takes an `index.db` of `size` bytes in pieces. Raises `FormatError`, and `UnsupportedError` for a version that
    this tool does not know.

    What is derived from this gets the parts of the index that it needs.
    """

    __slots__ = ("_at", "_buffer", "_hash", "_parser", "_result", "_unhashed")

    def __init__(self, stream: str, size: int) -> None:
        if size < _HASH_BYTES:
            raise FormatError(f"{_WHAT}: too short")
        self._hash = kernels.HighwayHash(sha256(stream.encode()).digest())
        self._unhashed = size - _HASH_BYTES
        self._buffer = bytearray()
        self._at = 0
        self._result: IndexState | None = None
        self._parser = self._parse()

    def feed(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        hashed = view[: self._unhashed]
        self._hash.update(hashed)
        self._unhashed -= len(hashed)
        self._buffer += view
        if self._result is None:
            try:
                next(self._parser)
            except StopIteration as end:
                self._result = end.value
        del self._buffer[: self._at]
        self._at = 0

    def finish(self) -> IndexState:
        if self._result is None or self._unhashed or len(self._buffer) != _HASH_BYTES:
            raise FormatError(f"{_WHAT}: cut short, or more after its end")
        if self._hash.digest64() != self._buffer:
            raise FormatError(f"{_WHAT}: wrong checksum")
        return self._result

    def _parse(self) -> _Steps:
        magic, version = yield from self._take(2)
        if magic != _MAGIC or version == 0:
            raise FormatError(f"{_WHAT}: unknown format")
        if version > _NEWEST:
            raise UnsupportedError(f"{_WHAT}: version {version} is not supported")
        messages = yield from self._unsigned()
        size = yield from self._unsigned()
        first_seq = yield from self._sequence()
        first_ns = yield from self._signed()
        last_seq = yield from self._sequence()
        last_ns = yield from self._signed()
        yield from self._subjects(version)
        yield from self._blocks(version)
        block = yield from self._unsigned()
        checksum = yield from self._take(8)
        self._end(block, checksum)
        return IndexState(version, messages, size, first_seq, first_ns, last_seq, last_ns)

    # --- what it says, for those that need it ---

    def _block(self, block: IndexBlock) -> None:
        """Get the next block."""

    def _node(self, block: IndexBlock, base: int, bitmap: bytes) -> None:
        """Get a part of the deleted sequences of the last block."""

    def _end(self, block: int, checksum: bytes) -> None:
        """Get the number of the block that was written last, and the checksum of its last record."""

    # --- its parts ---

    def _subjects(self, version: int) -> Generator[None, None, None]:
        count = yield from self._unsigned()
        while count:
            self._at, count = kernels.skip_index_subjects(self._buffer, self._at, count, version)
            if count:
                yield

    def _blocks(self, version: int) -> Generator[None, None, None]:
        count = yield from self._unsigned()
        for _ in range(count):
            index = yield from self._unsigned()
            size = yield from self._unsigned()
            first = yield from self._sequence()
            yield from self._signed()
            last = yield from self._sequence()
            yield from self._signed()
            deleted = yield from self._unsigned()
            for _ in range(min(version, 3) - 1):
                yield from self._unsigned()
            block = IndexBlock(index, size, first, last)
            self._block(block)
            if deleted:
                yield from self._set(block)

    def _set(self, block: IndexBlock) -> Generator[None, None, None]:
        magic, version, *rest = yield from self._take(10)
        width = _SET_BITMAP_BYTES.get(version)
        if magic != _SET_MAGIC or width is None:
            raise FormatError(f"{_WHAT}: unknown format of a set")
        for _ in range(int.from_bytes(rest[:4], "little")):
            node = yield from self._take(8 + width + 2)
            self._node(block, int.from_bytes(node[:8], "little"), node[8 : 8 + width])

    def _take(self, count: int) -> Generator[None, None, bytes]:
        while len(self._buffer) - self._at < count:
            yield
        start, self._at = self._at, self._at + count
        return bytes(self._buffer[start : self._at])

    def _unsigned(self) -> Generator[None, None, int]:
        while True:
            value, end = uvarint(self._buffer, self._at, _WHAT)
            if end:
                self._at = end
                return value
            yield

    def _signed(self) -> Generator[None, None, int]:
        return unzigzag((yield from self._unsigned()))

    def _sequence(self) -> Generator[None, None, int]:
        sequence = yield from self._unsigned()
        if sequence > MAX_SEQUENCE:
            raise FormatError(f"{_WHAT}: sequence {sequence} out of range")
        return sequence


class IndexReader(IndexParser):
    """Finds out what an `index.db` says about the messages already yielded."""

    __slots__ = ("_alive_to", "_given", "_removed")

    def __init__(self, stream: str, size: int, given: GivenSequences) -> None:
        super().__init__(stream, size)
        self._given = given
        self._removed = array("Q")
        self._alive_to = 0

    def finish(self) -> IndexState:
        state = super().finish()
        self._remove(self._given.within(self._alive_to + 1, state.last_seq))
        return replace(state, removed=sequence_set(self._removed))

    def _block(self, block: IndexBlock) -> None:
        if block.last_seq >= block.first_seq > 0:
            self._remove(self._given.within(self._alive_to + 1, block.first_seq - 1))
            self._alive_to = max(self._alive_to, block.last_seq)

    def _node(self, block: IndexBlock, base: int, bitmap: bytes) -> None:
        first, last = max(base, block.first_seq), min(base + 8 * len(bitmap) - 1, block.last_seq)
        self._remove(
            sequence
            for sequence in self._given.within(first, last)
            if bitmap[sequence - base >> 3] >> (sequence - base & 7) & 1
        )

    def _remove(self, sequences: Iterable[int]) -> None:
        self._removed.extend(sequences)
        if len(self._removed) > len(self._given):
            raise FormatError(f"{_WHAT}: a sequence is deleted twice")
