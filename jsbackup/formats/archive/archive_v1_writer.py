"""Write archive v1 (see `archive_v1_reader.py`), which every server from 2.10 on restores, under any stream name.

`index.db` may be left out (see `index_db_writer.py`), and the server then rebuilds its state from the blocks, checking
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
"""

from __future__ import annotations

from hashlib import sha256
from struct import Struct
from typing import TYPE_CHECKING

from jsbackup.errors import FormatError
from jsbackup.formats import kernels
from jsbackup.formats.archive import sources_db
from jsbackup.formats.archive.archive_items import asset_name_is_sound, refuse_too_large
from jsbackup.formats.archive.consumer_state import encode_state
from jsbackup.formats.archive.index_db_writer import IndexWriter
from jsbackup.formats.archive.tar import TAR_END, tar_header, tar_padding
from jsbackup.formats.batch import Columns, columns_from_batch
from jsbackup.strict_json import write_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from jsbackup.model import ArchivedConsumer, JsonObject, StreamState

__all__ = ["ArchiveV1Writer"]

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
        """Set where sources continue: key, sequence and identity of each (see `sources_db.py`; for 2.15 and later)."""
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
            out += _member(sources_db.NAME, [sources_db.encode_sources(self._end_seq, self._sources)])
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
