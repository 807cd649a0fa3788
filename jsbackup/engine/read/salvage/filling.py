"""Put messages between those of stored segments."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import pyarrow as pa

from jsbackup.engine.link.threads import in_thread
from jsbackup.engine.read.salvage.around_damage import merged
from jsbackup.formats.batch import columns_from_batch
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.segments import SegmentReader, SegmentWriter

__all__ = ["fill_in"]


async def fill_in(
    writer: SegmentWriter,
    segments: Sequence[SegmentRef],
    batches: AsyncGenerator[pa.RecordBatch, None],
    reader: SegmentReader,
) -> list[SegmentRef]:
    """Return the segments with the messages of `batches`, which come in order and are in none of them.

    `writer` continues the `segments`. One is read again only if messages come within it. Raises the errors of both.
    """
    more = _Ahead(batches)
    for ref in segments:
        for batch in await more.up_to(ref.first_seq - 1):
            await in_thread(writer.add, batch)
        within = await more.up_to(ref.last_seq)
        if within:
            stored = await in_thread(_read, reader, ref)
            await in_thread(writer.add, merged([*stored, *within]))
        else:
            await in_thread(writer.keep, ref)
    while rest := await more.next():
        await in_thread(writer.add, rest)
    return await in_thread(writer.finish)


def _read(reader: SegmentReader, ref: SegmentRef) -> list[pa.RecordBatch]:
    return list(reader.read(ref))


class _Ahead:
    """Batches, cut where they are needed."""

    def __init__(self, batches: AsyncGenerator[pa.RecordBatch, None]) -> None:
        self._batches = batches
        self._batch: pa.RecordBatch | None = None

    async def next(self) -> pa.RecordBatch | None:
        """Return the next batch, or the rest of one."""
        batch, self._batch = self._batch, None
        return batch if batch is not None else await anext(self._batches, None)

    async def up_to(self, last: int) -> list[pa.RecordBatch]:
        """Return what comes up to the sequence `last`."""
        found: list[pa.RecordBatch] = []
        while (batch := await self.next()) is not None:
            sequences = memoryview(columns_from_batch(batch).sequences).cast("B").cast("q")
            count = sum(1 for one in sequences if one <= last) if sequences[-1] > last else len(sequences)
            if count:
                found.append(batch.slice(0, count))
            if count < len(sequences):
                self._batch = batch.slice(count)
                break
        return found
