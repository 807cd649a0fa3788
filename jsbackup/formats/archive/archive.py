"""Archives: from the S2 stream of a snapshot to messages, whatever the server's version, and who writes which format.

Servers up to 2.14 send and take v1 (`archive_v1_reader.py`, `archive_v1_writer.py`); those from 2.15 on send v2
(`archive_v2.py`) and take both. Nothing but the first decoded bytes says which one it is: eight bytes of magic for v2,
a tar header (512 bytes, checksum included) of `meta.inf` for v1, which may be that of the PAX records before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jsbackup.errors import FormatError, JsBackupError, UnknownArchiveFormat
from jsbackup.formats.archive.archive_items import ArchiveEnd, ArchiveItem, ArchiveReader, IndexState, StreamMeta
from jsbackup.formats.archive.archive_v1_reader import ArchiveV1Reader, LateDeletions, late_deletions
from jsbackup.formats.archive.archive_v2 import MAGIC, ArchiveV2Reader, ArchiveV2Writer
from jsbackup.formats.archive.tar import BLOCK_BYTES, header_name
from jsbackup.formats.s2 import S2Decoder

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from jsbackup.formats.sequences import SequenceSet

__all__ = [
    "ArchiveDecoder",
    "ArchiveEnd",
    "ArchiveItem",
    "ArchiveV1Reader",
    "ArchiveV2Reader",
    "ArchiveV2Writer",
    "IndexState",
    "LateDeletions",
    "StreamMeta",
    "late_deletions",
]


class ArchiveDecoder:
    """Takes an S2 stream in pieces of any size and gives what its archive holds, see `archive_items.py`.

    `first_seq` (the state's, as the server answered the snapshot request) and `deleted` (as stream info listed them
    before) are what v1 archives need to leave out deleted messages at once. Raises `FormatError` for anything that is
    not proved, `UnknownArchiveFormat` or `UnsupportedError` for what a newer tool might read; it stays refused then.
    """

    def __init__(self, first_seq: int = 0, deleted: SequenceSet | None = None) -> None:
        self._first_seq = first_seq
        self._deleted = deleted
        self._s2 = S2Decoder()
        self._start = b""  # what is there while it is not enough to tell the format
        self._reader: ArchiveReader | None = None
        self._refusal: JsBackupError | None = None

    def feed(self, chunk: Buffer) -> Iterator[ArchiveItem]:
        """Give the items that are complete with `chunk`, lazily: iterate to the end before the next call."""
        if self._refusal is not None:
            raise self._refusal
        return self._items(self._s2.feed(chunk))

    def finish(self) -> tuple[list[ArchiveItem], ArchiveEnd]:
        """The last items, and the end, once the whole stream has been fed."""
        if self._refusal is not None:
            raise self._refusal
        self._s2.finish()
        if self._reader is None:
            raise FormatError(f"archive: cut short after {len(self._start)} bytes")
        return self._reader.finish()

    def _items(self, blocks: Iterator[bytes]) -> Iterator[ArchiveItem]:
        try:
            for block in blocks:
                if self._reader is None:
                    block = self._start + block
                    self._reader = self._sniff(block)
                    if self._reader is None:
                        self._start = block
                        continue
                yield from self._reader.feed(block)
        except JsBackupError as error:
            self._refusal = error
            raise

    def _sniff(self, start: bytes) -> ArchiveReader | None:
        """The reader for what starts like this; None if there is too little to tell."""
        if start[: len(MAGIC)] == MAGIC[: len(start)]:
            return ArchiveV2Reader() if len(start) >= len(MAGIC) else None
        if len(start) < BLOCK_BYTES:
            return None
        name = header_name(start[:BLOCK_BYTES]) or ""
        if name.rpartition("/")[2] not in ("meta.inf", "errors.txt"):
            raise UnknownArchiveFormat(start)
        return ArchiveV1Reader(self._first_seq, self._deleted)
