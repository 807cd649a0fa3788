"""Join short batches of messages: each has some cost, whatever its length, and short segments have short ones.

Measured, 20,000 segments of four messages: statistics take 47 seconds of a processor, and 12 with joined batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

__all__ = ["gathered"]

# As many rows as a batch for Spark has. A batch with so many bytes is long enough.
_MOST_ROWS, _MOST_BYTES = 10_000, 2 << 20


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `batches`, in order, in fewer batches. Long ones come as they are, and so do those of another
    schema than their neighbours. Batches without rows do not come.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        more_rows, more_bytes = batch.num_rows, batch.nbytes
        if not more_rows:
            continue
        fits = rows + more_rows <= _MOST_ROWS and size + more_bytes <= _MOST_BYTES
        if waiting and not (fits and batch.schema == waiting[0].schema):
            yield from _joined(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows, size = rows + more_rows, size + more_bytes
    yield from _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if len(batches) < 2:
        yield from batches
    else:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()
