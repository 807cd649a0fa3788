"""Write archive v1 (see `archive_v1_reader.py`), which every server from 2.10 on restores, under any stream name.

`index.db` may be left out, and the server then rebuilds its state from the blocks, checking
every record; the archive means the same either way. What that requires, found by restoring to 2.10.26, 2.11.11, 2.12.8,
2.14.6 and 2.15.1:

- A gap between records is a run of deleted messages. Inside a block the server keeps each in a set (and walks the gap
  to get there), between blocks they cost nothing, so a block is ended before a large gap.
- A deleted tail is a separate block with only the tombstone of the last sequence: a tombstone only counts for the last
  sequence in a block without messages. Its timestamp becomes the stream's last time. An emptied stream is that block
  alone: the first sequence follows from it. 2.10 looks at the lowest tombstone of a block, later servers at the
  highest, so there is one.
- A block whose first record has the length 0x??706d63 starts like a compressed one ("cmp") and would be lost; a
  tombstone of sequence 0, which all servers ignore, is put before it.
- Records of more than 32 MiB are damage to every server: a stream with such a message cannot be written as v1.

Two limits of servers: servers before 2.10.28, and 2.11.0 and 2.11.1, empty a stream whenever they load it if its
first message has the sequence of the config's `first_seq` (restore with a config without it), and no server takes over
the state of a consumer kept in memory.

`sources.db`: where the sources of a stream continue, as nats-server 2.15 stores it beside the messages.

    01 · number of sources u64 · sequence up to which it is valid, plus one, u64
    for each source: key length uvarint · key · sequence uvarint · identity length uvarint · identity

Little endian. A server that finds it valid up to the stream's end does not look for marks in messages. It lies in the
stream's folder; the restore of an archive v1 unpacks all files into that, and 2.15 writes no archive v1, so no archive
of a server has one. Earlier servers do not know the file.

Write an `index.db` (format: `index_db.py`) for our archives.

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
from struct import Struct, pack
from typing import TYPE_CHECKING

import pyarrow as pa

from jsbackup.errors import FormatError
from jsbackup.formats import kernels
from jsbackup.formats.archive.archive_items import asset_name_is_sound, refuse_too_large
from jsbackup.formats.archive.consumer_state import encode_state
from jsbackup.formats.archive.tar import TAR_END, tar_header, tar_padding
from jsbackup.formats.batch import Columns, columns_from_batch
from jsbackup.formats.varints import append_uvarint, zigzag
from jsbackup.strict_json import write_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from jsbackup.model import ArchivedConsumer, JsonObject, StreamState

__all__ = ["NAME", "ArchiveV1Writer", "IndexWriter", "encode_sources"]

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
        append_uvarint(out, sum(block.messages for block in with_messages))
        append_uvarint(out, sum(block.bytes for block in with_messages))
        append_uvarint(out, first_seq)
        _signed(out, first_ns)
        append_uvarint(out, end.last_seq)
        _signed(out, end.last_ns)
        append_uvarint(out, len(self._subjects))
        for name, subject in self._subjects.items():
            encoded = name.encode()
            append_uvarint(out, len(encoded))
            out += encoded
            append_uvarint(out, subject.messages)
            append_uvarint(out, subject.first_block)
            if subject.messages > 1:
                append_uvarint(out, subject.last_block)
        # An empty first block makes the server write its own index soon. Otherwise an encrypted server keeps ours,
        # which is plaintext, and rebuilds everything at its next start.
        blocks = [_Block(0, first_seq=1), *self._blocks]
        append_uvarint(out, len(blocks))
        for block in blocks:
            self._encode_block(out, block, first_ns)
        append_uvarint(out, end.index)
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
        if any(subject.type != pa.string() for subject in subjects):
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
        append_uvarint(out, block.index)
        append_uvarint(out, block.bytes)
        append_uvarint(out, block.first_seq)
        _signed(out, block.first_ns - base_ns)
        append_uvarint(out, block.last_seq)
        _signed(out, block.last_ns - base_ns)
        append_uvarint(out, block.deleted)
        for _ in range(self._version - 1):
            append_uvarint(out, block.messages)
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


def _signed(out: bytearray, value: int) -> None:
    """Append it modulo 2^64, as the server adds and subtracts times."""
    append_uvarint(out, zigzag((value + (1 << 63) & _U64) - (1 << 63)))


NAME = "sources.db"


def encode_sources(last_seq: int, sources: Iterable[tuple[str, int, str]]) -> bytes:
    """Return the file for a stream that ends at `last_seq`: key, sequence and identity ("" for any) of each source."""
    entries = list(sources)
    out = bytearray(pack("<BQQ", 1, len(entries), last_seq + 1))
    for key, sequence, identity in entries:
        _text(out, key)
        append_uvarint(out, sequence)
        _text(out, identity)
    return bytes(out)


def _text(out: bytearray, text: str) -> None:
    data = text.encode("utf-8", "surrogateescape")
    append_uvarint(out, len(data))
    out += data


# The size of a server's blocks, unless one message is larger.
_BLOCK_BYTES = 8 << 20
# Deleted sequences that one block may have; a server needs about 50 ms and 130 KB for that many.
_BLOCK_DELETIONS = 1 << 20

_TOMBSTONE = 1 << 62
_EMPTY_RECORD = Struct("<IQqH")
_EMPTY_RECORD_BYTES = _EMPTY_RECORD.size + 8


class ArchiveV1Writer:
    """Encodes batches as an archive: `begin`, `write` for each batch, `finish`, in that order.

    `config["name"]` is the name that the stream will have, and `created` (RFC 3339) its creation time, None for now. Of
    `state` only `last_seq` and `last_ns` matter: they are the stream's last sequence and time even if that message is
    deleted; the first sequence is that of the first message, or follows from `last_seq` if there is none. If the end is
    not known in advance, `extend` moves it. A consumer without a state starts as its config says. Holds at most one
    block. All errors are `FormatError`.
    """

    def __init__(
        self, config: JsonObject, created: str | None, state: StreamState, consumers: Iterable[ArchivedConsumer] = ()
    ) -> None:
        name = config.get("name")
        if not isinstance(name, str) or not asset_name_is_sound(name):
            raise FormatError("archive v1: bad stream name")
        if state.last_seq < 0:
            raise FormatError(f"archive v1: last sequence {state.last_seq} out of range")
        refuse_too_large(state.last_seq, "archive v1: ")
        self._stream = name
        self._config = config
        self._created = created
        self._sources: tuple[tuple[str, int, str], ...] = ()
        self._consumers: tuple[ArchivedConsumer, ...] = ()
        self.set_consumers(consumers)
        self._end_seq = state.last_seq
        self._end_ns = state.last_ns
        self._last_seq = 0
        self._last_ns = 0
        self._last_checksum = b""
        self._index = 0  # of the present or last block
        self._key = b""
        self._block: list[bytes] = []
        self._block_bytes = 0
        self._block_deletions = 0
        self._index_db = IndexWriter(name, config)

    def set_consumers(self, consumers: Iterable[ArchivedConsumer]) -> None:
        """Replace the consumers: they are written last, and may not be known earlier."""
        self._consumers = tuple(consumers)
        names = {consumer.name for consumer in self._consumers}
        if len(names) != len(self._consumers) or not all(map(asset_name_is_sound, names)):
            raise FormatError("archive v1: bad consumer names")

    def set_sources(self, sources: Iterable[tuple[str, int, str]]) -> None:
        """Set where sources continue: key, sequence and identity of each (for 2.15 and later)."""
        self._sources = tuple(sources)

    def extend(self, last_seq: int) -> None:
        """Move the end of the stream to `last_seq`, unless it is later."""
        refuse_too_large(last_seq, "archive v1: ")
        self._end_seq = max(self._end_seq, last_seq)

    def begin(self) -> list[bytes]:
        meta = _json({**self._config, "Created": self._created} if self._created else self._config)
        return _files("", meta, self._stream)

    def write(self, batch: pa.RecordBatch) -> list[bytes]:
        """Add messages; return the blocks that are full by now, often none."""
        if batch.num_rows == 0:
            return []
        columns = columns_from_batch(batch)
        sequences = memoryview(columns.sequences).cast("B").cast("q")
        if not self._last_seq < sequences[0] <= sequences[-1] <= self._end_seq:
            raise FormatError(f"archive v1: sequences {sequences[0]} to {sequences[-1]} are out of order or range")
        out: list[bytes] = []
        for start, stop, deletions in self._stretches(sequences):
            if deletions is None:
                out += self._end_block()
            else:
                self._block_deletions += deletions
                out += self._append(batch.slice(start, stop - start))
        self._last_seq = sequences[-1]
        self._last_ns = memoryview(columns.timestamps).cast("B").cast("q")[-1]
        return out

    def finish(self) -> list[bytes]:
        """Return the last blocks, the consumers and the end of the archive."""
        out = self._end_block()
        if self._last_seq < self._end_seq:
            time_ns = self._end_ns or self._last_ns
            self._begin_block()
            self._add(self._tombstone(self._end_seq, time_ns))
            self._index_db.end(self._end_seq, time_ns)
            out += self._end_block()
        index = self._index_db.encode(self._last_checksum)
        if index is not None:
            out += _member("msgs/index.db", [index])
        if self._sources:
            out += _member(NAME, [encode_sources(self._end_seq, self._sources)])
        for consumer in self._consumers:
            folder = f"obs/{consumer.name}/"
            meta: JsonObject = {**consumer.config, "Name": consumer.name}
            if consumer.created:
                meta["Created"] = consumer.created
            out += _files(folder, _json(meta), f"{self._stream}/{consumer.name}")
            if consumer.state is not None:
                out += _member(f"{folder}o.dat", [encode_state(consumer.state)])
        out.append(TAR_END)
        return out

    def _stretches(self, sequences: memoryview) -> Iterator[tuple[int, int, int | None]]:
        """Yield rows that may share a block, with the deletions among them; None where a block must end."""
        last = self._last_seq if self._block else sequences[0] - 1
        deletions = sequences[-1] - last - len(sequences)
        if self._block_deletions + deletions <= _BLOCK_DELETIONS:
            yield 0, len(sequences), deletions
            return
        start, deletions, before = 0, 0, self._block_deletions
        for row, sequence in enumerate(sequences):
            gap = sequence - last - 1
            if before + deletions + gap > _BLOCK_DELETIONS:
                if start < row:
                    yield start, row, deletions
                yield row, row, None
                start, deletions, before = row, 0, 0
            else:
                deletions += gap
            last = sequence
        yield start, len(sequences), deletions

    def _append(self, batch: pa.RecordBatch) -> list[bytes]:
        columns = columns_from_batch(batch)
        sequences = memoryview(columns.sequences).cast("B").cast("q")
        timestamps = memoryview(columns.timestamps).cast("B").cast("q")
        subjects = batch.column(2)
        out: list[bytes] = []
        row = 0
        while row < columns.count:
            start = row
            if self._block and self._block_bytes + _record_bytes(columns, row) > _BLOCK_BYTES:
                out += self._end_block()
            if not self._block:
                self._begin_block()
            records, row = kernels.encode_records(columns, row, self._key, max(1, _BLOCK_BYTES - self._block_bytes))
            if not self._block and records.startswith(b"cmp"):
                self._add(self._tombstone(0, 0))
            self._add(records)
            self._index_db.add(
                sequences[start:row], timestamps[start:row], subjects.slice(start, row - start), len(records)
            )
        return out

    def _begin_block(self) -> None:
        self._index += 1
        self._key = sha256(f"{self._stream}-{self._index}".encode()).digest()
        self._index_db.begin_block(self._index)

    def _add(self, records: bytes) -> None:
        self._block.append(records)
        self._last_checksum = records[-8:]
        self._block_bytes += len(records)

    def _end_block(self) -> list[bytes]:
        if not self._block:
            return []
        out = _member(f"msgs/{self._index}.blk", self._block)
        self._block = []
        self._block_bytes = self._block_deletions = 0
        return out

    def _tombstone(self, sequence: int, time_ns: int) -> bytes:
        head = _EMPTY_RECORD.pack(_EMPTY_RECORD_BYTES, sequence | _TOMBSTONE, time_ns, 0)
        return head + _checksum(self._key, head[4:20])


def _record_bytes(columns: Columns, row: int) -> int:
    """Return the size of a row's record."""
    subject, headers, data = (
        offsets[row + 1] - offsets[row]
        for offsets in (
            memoryview(offsets).cast("B").cast("i")
            for offsets in (columns.subject_offsets, columns.header_offsets, columns.data_offsets)
        )
    )
    return _EMPTY_RECORD_BYTES + subject + headers + data + (4 if headers else 0)


def _checksum(key: bytes, data: bytes) -> bytes:
    hasher = kernels.HighwayHash(key)
    hasher.update(data)
    return hasher.digest64()


def _json(value: JsonObject) -> bytes:
    return write_json(value, "archive v1: a config", ascii_only=True)


def _files(folder: str, meta: bytes, key: str) -> list[bytes]:
    checksum = _checksum(sha256(key.encode()).digest(), meta).hex().encode()
    return _member(f"{folder}meta.inf", [meta]) + _member(f"{folder}meta.sum", [checksum])


def _member(name: str, content: list[bytes]) -> list[bytes]:
    size = sum(map(len, content))
    return [tar_header(name, size), *content, tar_padding(size)]
