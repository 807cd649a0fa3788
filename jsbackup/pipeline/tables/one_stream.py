"""Notice in a task that the rows of a table are of several streams. What Spark reads is checked by `table_files.py`."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["OneStream"]


class OneStream:
    """Watches the column `stream` of the batches of a table, if there is one with texts."""

    def __init__(self) -> None:
        self._found: set[str] = set()

    def check(self, batch: pa.RecordBatch) -> None:
        """Raise ValueError if rows so far name several streams; those that name none count for any."""
        at = batch.schema.get_field_index("stream")
        if at < 0 or batch.schema.types[at] not in (pa.string(), pa.large_string()):
            return
        self._found.update(name for name in pc.unique(batch.column(at)).to_pylist() if name is not None)
        if len(self._found) > 1:
            raise ValueError(f"rows of several streams: {sorted(self._found)[:2]}")
