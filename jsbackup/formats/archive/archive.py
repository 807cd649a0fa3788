"""Decode the S2 stream of a snapshot to messages, for all server versions; and make one that servers restore.

Servers up to 2.14 send and accept v1 (`archive_v1_reader.py`, `archive_v1_writer.py`); those from 2.15 on send v2
(`archive_v2.py`) and accept both. Only the first decoded bytes show which one it is: eight bytes of magic for v2, a tar
header (512 bytes, checksum included) of `meta.inf` for v1, which may be that of the PAX records before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from jsbackup.errors import FormatError, JsBackupError, UnknownArchiveFormat
from jsbackup.formats.archive.archive_items import (
    ArchiveEnd,
    ArchiveItem,
    ArchiveReader,
    IndexState,
    LateDeletions,
    SealedBlock,
    StreamMeta,
    late_deletions,
)
from jsbackup.formats.archive.archive_v2 import MAGIC, ArchiveV2Reader, ArchiveV2Writer
from jsbackup.formats.archive.tar import TAR_BLOCK_BYTES, header_name
from jsbackup.formats.s2 import S2Decoder, S2Encoder

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from jsbackup.formats.archive.archive_v1_reader import ArchiveV1Reader
    from jsbackup.formats.archive.archive_v1_writer import ArchiveV1Writer
    from jsbackup.formats.digest import MessageBatch
    from jsbackup.formats.sequences import SequenceSet

__all__ = [
    "ArchiveDecoder",
    "ArchiveEnd",
    "ArchiveItem",
    "ArchiveV2Reader",
    "ArchiveV2Writer",
    "IndexState",
    "LateDeletions",
    "SealedBlock",
    "StreamMeta",
    "archive_batches",
    "late_deletions",
]


class ArchiveDecoder:
    """Takes an S2 stream in pieces of any size and yields the items of its archive, see `archive_items.py`.

    `first_seq` (from the state in the answer to the snapshot request) and `deleted` (from stream info before that)
    allow omitting deleted messages of v1 archives at once. `lenient` is as for `ArchiveV1Reader`. Raises `FormatError`
    for anything that is not proved, `UnknownArchiveFormat` or `UnsupportedError` for what a newer tool might read;
    further calls raise the same error.
    """

    def __init__(self, first_seq: int = 0, deleted: SequenceSet | None = None, *, lenient: bool = False) -> None:
        self._lenient = lenient
        self._first_seq = first_seq
        self._deleted = deleted
        self._s2 = S2Decoder()
        self._start = b""  # the first bytes, until they are enough to recognize the format
        self._reader: ArchiveReader | None = None
        self._v1: ArchiveV1Reader | None = None  # the same, where it is one
        self._refusal: JsBackupError | None = None

    def feed(self, chunk: Buffer) -> Iterator[ArchiveItem]:
        """Yield the items that are complete with `chunk`, lazily: iterate to the end before the next call."""
        if self._refusal is not None:
            raise self._refusal
        return self._items(self._s2.feed(chunk))

    def finish(self) -> tuple[list[ArchiveItem], ArchiveEnd]:
        """Return the last items, and the end, once the whole stream has been fed."""
        if self._refusal is not None:
            raise self._refusal
        self._s2.finish()
        if self._reader is None:
            raise FormatError(f"archive: cut short after {len(self._start)} bytes")
        return self._reader.finish()

    @property
    def flaws(self) -> Sequence[str]:
        """What a lenient reader left out."""
        return () if self._v1 is None else self._v1.flaws

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
        """Return the reader for an archive with this beginning; None if it is too short."""
        if start[: len(MAGIC)] == MAGIC[: len(start)]:
            return ArchiveV2Reader() if len(start) >= len(MAGIC) else None
        if len(start) < TAR_BLOCK_BYTES:
            return None
        name = header_name(start[:TAR_BLOCK_BYTES]) or ""
        if name.rpartition("/")[2] not in ("meta.inf", "errors.txt"):
            raise UnknownArchiveFormat(start)
        # With what it needs it takes longer to import than all other formats, and servers from 2.15 on send no v1.
        from jsbackup.formats.archive.archive_v1_reader import ArchiveV1Reader

        self._v1 = ArchiveV1Reader(self._first_seq, self._deleted, lenient=self._lenient)
        return self._v1


def archive_batches(
    batches: Iterable[MessageBatch],
    writer: ArchiveV1Writer | ArchiveV2Writer,
    advance: Callable[[int, int], None],
    encoder: S2Encoder | None = None,
) -> Iterator[bytes]:
    """Yield the archive that `writer` makes of these messages, in the frames of a new `encoder`.

    Raises FormatError, and the errors of `batches`.
    """
    encoder = encoder or S2Encoder()
    for piece in writer.begin():
        yield from encoder.feed(piece)
    for batch in batches:
        for piece in writer.write(batch):
            yield from encoder.feed(piece)
        advance(batch.nbytes, batch.num_rows)
    for piece in writer.finish():
        yield from encoder.feed(piece)
    yield from encoder.finish()
