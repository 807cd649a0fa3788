"""Archive v1: what servers up to 2.14 send, a tar of a file store's files. Reader.

nats-server `server/filestore.go` (streamSnapshot; unchanged from 2.10 to 2.15). Members, in this order:

    meta.inf            JSON: the stream's config and `Created`
    meta.sum            HighwayHash-64 of meta.inf in hex, keyed with SHA-256 of the stream's name
    msgs/<n>.blk        message blocks, n rising, decrypted and decompressed (records: `_kernels_py.py`); checksums of
                        records are keyed with SHA-256 of `<stream>-<n>`
    msgs/index.db       see `index_db.py`; missing where the server failed to write one
    obs/<name>/meta.inf JSON: the consumer's config, `Created` and `Name`
    obs/<name>/meta.sum keyed with SHA-256 of `<stream>/<name>`
    obs/<name>/o.dat    see `consumer_state.py`
    errors.txt          anywhere: the server failed here; 2.12.5 to 2.14 still report success

Servers that encrypt their store send a block encrypted if they have not read it since they started (2.10 and 2.11;
`SealedBlock`).

Deletions: a message that a client deleted or acknowledged has a tombstone in the same block or a later one. One removed
by a limit (messages per subject, age, size) has none: a removal at the head only moves the stream's first sequence, any
other is only in `index.db`, which comes last. And 2.10 overwrites tombstones when it erases the message before them. So
the reader uses what is known in advance (`first_seq` from the answer to the snapshot request, `deleted` from stream
info), yields messages as they come, and reports at the end which of them are deleted.

Memory consumers of a file stream, and direct ones, are not in the archive; neither are consumers of another node.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from jsbackup.errors import FormatError, UnsupportedError
from jsbackup.formats import kernels
from jsbackup.formats.archive.archive_items import (
    ITEM_BYTES,
    ArchiveEnd,
    ArchiveItem,
    IndexState,
    SealedBlock,
    StreamMeta,
    asset_name_is_sound,
)
from jsbackup.formats.archive.consumer_state import decode_state
from jsbackup.formats.archive.index_db import IndexReader
from jsbackup.formats.archive.tar import TarPiece, TarReader
from jsbackup.formats.batch import batch_from_columns, columns_from_batch
from jsbackup.formats.paged import PagedFile
from jsbackup.formats.segment import drop_sequences
from jsbackup.formats.sequences import GivenSequences, SequenceSet, sequence_set
from jsbackup.formats.server_store.block_messages import misplaced_headers, read_region
from jsbackup.formats.server_store.records import walk
from jsbackup.model import ArchivedConsumer
from jsbackup.strict_json import UINT64, read_object

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

__all__ = ["MAX_BLOCK_MEMBER_BYTES", "ArchiveV1Reader"]

# Servers make blocks of at most 8 MiB, or one message. Streams that 2.2 created may still have blocks of 64 MiB.
MAX_BLOCK_MEMBER_BYTES = 128 << 20
_MAX_META_BYTES = 16 << 20
_MAX_STATE_BYTES = 64 << 20
_MAX_SUM_BYTES = 16
_MAX_ERRORS_BYTES = 64 << 10
# Tombstones are looked up once there are this many, so that a stream of tombstones cannot fill the memory.
_MANY_TOMBSTONES = 1 << 18

_BLOCK_NAME = re.compile(r"msgs/(0|[1-9][0-9]{0,9})\.blk", re.ASCII)
_CONSUMER_NAME = re.compile(r"obs/([^/]+)/(meta\.inf|meta\.sum|o\.dat)")
_OLD_NAME = re.compile(r"msgs/[0-9]+\.(idx|fss)", re.ASCII)

# The parts of the archive, in their order.
_META, _SUM, _MESSAGES, _CONSUMERS = range(4)


class ArchiveV1Reader:
    """Takes a decoded archive in pieces of any size; yields `StreamMeta`, batches, then consumers (`ArchiveReader`).

    Messages below `first_seq` or in `deleted` are left out. If it is `lenient`, what is damaged in a block is left out,
    and so is what the server gave up; `flaws` say what. Raises `FormatError`; `UnsupportedError` for an unknown
    `index.db` or unknown files.
    """

    def __init__(self, first_seq: int = 0, deleted: SequenceSet | None = None, *, lenient: bool = False) -> None:
        self.flaws: list[str] = []
        self._lenient = lenient
        self._first_seq = first_seq
        self._deleted = SequenceSet() if deleted is None else deleted
        self._hidden = self._deleted.within(0, UINT64)
        self._tar = TarReader()
        self._member = PagedFile(0)  # for a member that is needed as a whole
        self._stage = _META
        self._meta = b""
        self._stream = ""
        self._block = -1
        self._last_seq = 0
        self._proved = max(0, first_seq - 1)
        self._given = GivenSequences()
        self._tombstones: set[int] = set()
        self._buried = array("Q")
        self._index_reader: IndexReader | None = None
        self._index: IndexState | None = None
        self._consumer: _ConsumerFiles | None = None
        self._failure: str | None = None

    def feed(self, data: Buffer) -> Iterator[ArchiveItem]:
        """Yield the items that are complete with `data`. Iterate to the end before the next call."""
        for piece in self._tar.feed(data):
            if self._is_streamed(piece):
                continue
            if piece.size > (most := self._most_bytes(piece.name)):
                raise FormatError(
                    f"archive v1: {_shown(piece.name)} has {piece.size} bytes, at most {most} are allowed"
                )
            if piece.offset == 0:
                self._member.start_again(piece.size)
            self._member.write(piece.data)
            if piece.is_last:
                yield from self._take(piece.name, self._member.content())

    def finish(self) -> tuple[list[ArchiveItem], ArchiveEnd]:
        """Return no more items, and the end. Raises `FormatError` if the archive is incomplete or the server failed."""
        if self._failure is not None:
            problem = f"the server gave up: {self._failure}"
            if not self._lenient or self._stage < _MESSAGES:
                raise FormatError(f"archive v1: {problem}")
            self.flaws.append(problem)
            self._consumer = None
        self._tar.finish()
        if self._stage < _MESSAGES or self._consumer is not None:
            raise FormatError("archive v1: files are missing at its end")
        self._look_up_tombstones()
        return [], ArchiveEnd(
            format="v1",
            messages=len(self._given),
            last_seq=self._proved,
            tombstoned=sequence_set(self._buried),
            index=self._index,
        )

    def _is_streamed(self, piece: TarPiece) -> bool:
        """Handle the one member that may be too large to hold."""
        if piece.name != "msgs/index.db":
            return False
        if self._index_reader is None:
            if self._stage != _MESSAGES:
                raise self._misplaced(piece.name)
            self._stage = _CONSUMERS
            self._index_reader = IndexReader(self._stream, piece.size, self._given)
        elif piece.offset == 0:
            raise self._misplaced(piece.name)
        try:
            self._index_reader.feed(piece.data)
            if piece.is_last:
                self._index = self._index_reader.finish()
        except FormatError as error:
            if not self._lenient:
                raise
            if piece.is_last:
                self.flaws.append(f"index.db cannot be used: {error.message}")
        return True

    def _most_bytes(self, name: str) -> int:
        if _BLOCK_NAME.fullmatch(name):
            return MAX_BLOCK_MEMBER_BYTES
        if name == "errors.txt":
            return _MAX_ERRORS_BYTES
        file = name if name in ("meta.inf", "meta.sum") else (_CONSUMER_NAME.fullmatch(name) or ("", "", ""))[2]
        most = {"meta.inf": _MAX_META_BYTES, "meta.sum": _MAX_SUM_BYTES, "o.dat": _MAX_STATE_BYTES}.get(file)
        if most is not None:
            return most
        if _OLD_NAME.fullmatch(name):
            raise UnsupportedError("archive v1: made by a server older than 2.10")
        raise FormatError(f"archive v1: unexpected file {_shown(name)}")

    def _take(self, name: str, content: memoryview) -> Iterator[ArchiveItem]:
        if name == "errors.txt":
            self._failure = _shown(bytes(content).decode(errors="replace").strip())
        elif name == "meta.inf":
            self._expect(_META, name)
            self._meta = bytes(content)
        elif name == "meta.sum":
            self._expect(_SUM, name)
            yield self._stream_meta(bytes(content))
        elif block := _BLOCK_NAME.fullmatch(name):
            if self._stage != _MESSAGES or int(block[1]) <= self._block:
                raise self._misplaced(name)
            self._block = int(block[1])
            yield from self._batches(content)
        elif part := _CONSUMER_NAME.fullmatch(name):
            yield from self._consumer_part(part[1], part[2], bytes(content))

    def _expect(self, stage: int, name: str) -> None:
        if self._stage != stage:
            raise self._misplaced(name)
        self._stage += 1

    def _misplaced(self, name: str) -> FormatError:
        return FormatError(f"archive v1: {_shown(name)} is out of place")

    def _stream_meta(self, checksum: bytes) -> StreamMeta:
        config = read_object(self._meta, "archive v1: meta.inf")
        self._stream = _name(config.get("name"), "stream")
        _check_sum(self._meta, checksum, self._stream)
        created = config.pop("Created", None)
        return StreamMeta(config=config, created=created if isinstance(created, str) else None)

    def _batches(self, block: memoryview) -> Iterator[pa.RecordBatch]:
        key = sha256(f"{self._stream}-{self._block}".encode()).digest()
        offset = 0
        while offset < len(block):
            try:
                columns, tombstones, offset, self._last_seq = kernels.decode_records(
                    block, key, offset, ITEM_BYTES, self._first_seq, self._last_seq, self._hidden
                )
            except FormatError as error:
                if self._lenient:
                    yield from self._around_damage(bytes(block[offset:]), key, offset)
                    return
                raise self._damage(block, key, offset, error) from error
            self._given.append(memoryview(columns.sequences).cast("B").cast("q"))
            self._bury(array("Q", tombstones))
            if columns.count:
                yield batch_from_columns(columns)

    def _damage(self, block: memoryview, key: bytes, offset: int, error: FormatError) -> FormatError:
        where = f"archive v1: msgs/{self._block}.blk"
        if offset or not block.tobytes().strip(b"\0") or walk(bytes(block), key, self._last_seq).runs:
            return FormatError(f"{where}: {error.message}")
        return SealedBlock(f"{where}: nothing in it is a record: {error.message}")

    def _around_damage(self, rest: bytes, key: bytes, offset: int) -> Iterator[pa.RecordBatch]:
        """Yield what is proved in the rest of a damaged block."""
        read = read_region(rest, key, self._last_seq)
        for hole in read.holes:
            place = f"bytes {offset + hole.start} to {offset + hole.stop - 1}"
            self.flaws.append(f"msgs/{self._block}.blk is damaged at {place}: {hole.problem}")
        self._bury(read.tombstones)
        self._last_seq = read.last_seq
        for batch in read.batches:
            sequences = memoryview(columns_from_batch(batch).sequences).cast("B").cast("q")
            deleted = self._deleted.within(max(sequences[0], 0), sequences[-1])
            below = [sequence for sequence in sequences if sequence < self._first_seq]
            kept = drop_sequences(batch, [*below, *deleted, *misplaced_headers(batch)])
            if kept.num_rows:
                self._given.append(memoryview(columns_from_batch(kept).sequences).cast("B").cast("q"))
                yield kept

    def _bury(self, tombstones: array[int]) -> None:
        """Keep the tombstones that may be new. Most are of messages deleted long ago."""
        if not tombstones:
            return
        lowest, highest = min(tombstones), max(tombstones)
        self._proved = max(self._proved, highest)
        if highest < self._first_seq:
            return
        news = set(tombstones).difference(self._deleted.within(lowest, highest))
        self._tombstones.update(sequence for sequence in news if sequence >= self._first_seq)
        if len(self._tombstones) > _MANY_TOMBSTONES:
            self._look_up_tombstones()

    def _look_up_tombstones(self) -> None:
        # A tombstone is younger than its message, so those that match no message by now never will.
        self._proved = max(self._proved, self._last_seq)
        self._buried.extend(self._given.intersection(self._tombstones))
        self._tombstones.clear()

    def _consumer_part(self, name: str, file: str, content: bytes) -> Iterator[ArchivedConsumer]:
        if self._stage not in (_MESSAGES, _CONSUMERS):
            raise self._misplaced(f"obs/{name}/{file}")
        self._stage = _CONSUMERS
        begun = self._consumer
        if file == "meta.inf" and begun is None:
            self._consumer = _ConsumerFiles(_name(name, "consumer"), content, None)
        elif file == "meta.sum" and begun is not None and begun.name == name and begun.checksum is None:
            self._consumer = begun._replace(checksum=content)
        elif file == "o.dat" and begun is not None and begun.name == name and begun.checksum is not None:
            self._consumer = None
            yield begun.decode(self._stream, content)
        else:
            raise self._misplaced(f"obs/{name}/{file}")


class _ConsumerFiles(NamedTuple):
    name: str
    meta: bytes
    checksum: bytes | None

    def decode(self, stream: str, state: bytes) -> ArchivedConsumer:
        _check_sum(self.meta, self.checksum or b"", f"{stream}/{self.name}")
        config = read_object(self.meta, f"archive v1: meta.inf of consumer {self.name}")
        created = config.pop("Created", None)
        # An ephemeral consumer that was restored has no name in its file.
        if config.pop("Name", "") not in ("", self.name):
            raise FormatError(f"archive v1: meta.inf of consumer {self.name} is of another one")
        try:
            decoded = decode_state(state)
        except FormatError as error:
            raise FormatError(f"archive v1: consumer {self.name}: {error.message}") from error
        return ArchivedConsumer(self.name, config, decoded, created if isinstance(created, str) else None)


def _check_sum(meta: bytes, checksum: bytes, key: str) -> None:
    hasher = kernels.HighwayHash(sha256(key.encode()).digest())
    hasher.update(meta)
    if hasher.digest64().hex().encode() != checksum:
        raise FormatError(f"archive v1: wrong checksum of the meta.inf of {_shown(key)}")


def _name(value: object, what: str) -> str:
    """Return a valid name: part of a path, a subject and a hash key."""
    if not isinstance(value, str) or not asset_name_is_sound(value):
        raise FormatError(f"archive v1: bad {what} name")
    return value


def _shown(text: str) -> str:
    """Return at most a line of the text, safe for any terminal."""
    line = "".join(letter if letter.isprintable() else "?" for letter in text[:200])
    return line + "…" if len(text) > 200 else line
