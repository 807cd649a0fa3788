"""A run of messages that a writer holds until it is known where it goes."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from jsbackup.formats.batch import columns_from_batch
from jsbackup.formats.compressed_batch import PackedBatch
from jsbackup.formats.digest import EncodedRows, MessageBatch
from jsbackup.formats.gaps import GapDigest
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.write.reuse import SegmentExtent, extent_of

__all__ = ["HeldRun"]


class HeldRun:
    """Messages that are kept until it is known where they go. `ref` is their segment, if they have one."""

    def __init__(self, *, digest: bool = False) -> None:
        self.extent = SegmentExtent(0, 0, 0, 0)
        self.ref: SegmentRef | None = None
        self._sha256 = hashlib.sha256() if digest else None
        self._gaps = GapDigest()
        self._pieces: deque[PackedBatch] = deque()

    @property
    def packed_bytes(self) -> int:
        """The memory it takes."""
        return sum(piece.size for piece in self._pieces)

    @classmethod
    def of(cls, runs: Sequence[HeldRun]) -> HeldRun:
        """Join several runs."""
        whole = cls()
        whole.extent = runs[0].extent
        for run in runs[1:]:
            whole.extent += run.extent
        whole._pieces.extend(piece for run in runs for piece in run._pieces)
        return whole

    def add(self, batch: MessageBatch, rows: EncodedRows) -> None:
        first, last = batch.column("sequence")[0].as_py(), batch.column("sequence")[-1].as_py()
        added = SegmentExtent(first, last, batch.num_rows, rows.size)
        self.extent = self.extent + added if self.extent.messages else added
        if self._sha256 is not None:
            self._sha256.update(rows.encoded)
            self._gaps.update(memoryview(columns_from_batch(batch).sequences).cast("B").cast("q"))
        self._pieces.append(PackedBatch(batch))

    def is_still(self, ref: SegmentRef) -> bool:
        """Return whether these are the messages of the stored segment."""
        same = self.extent == extent_of(ref)
        return same and self._sha256 is not None and self._sha256.hexdigest() == ref.digest

    def named(self, ref: SegmentRef) -> SegmentRef:
        """Return the segment of these messages. An older jsbackup did not record the missing sequences."""
        return ref if ref.gaps else replace(ref, gaps=self._gaps.hex)

    def take(self) -> Iterator[MessageBatch]:
        """Yield the messages; each batch is released when it is yielded."""
        while self._pieces:
            yield self._pieces.popleft().unpack()
