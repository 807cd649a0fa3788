"""The least and greatest values of the rows of a file, by which readers of tables skip it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["BoundsOfRows", "FileBounds"]


@dataclass(frozen=True, slots=True)
class FileBounds:
    """Ranges of columns, both ends included. `no_headers` is the number of rows without a header block."""

    sequence: tuple[int, int]
    timestamp_ns: tuple[int, int]
    subject: tuple[bytes, bytes]
    no_headers: int


class BoundsOfRows:
    """Collects the bounds of batches; `rows` counts their rows."""

    def __init__(self) -> None:
        self.rows = 0
        self._found: FileBounds | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        subject = batch.column("subject")
        added = FileBounds(
            _ends(batch.column("sequence")),
            _ends(batch.column("timestamp_ns")),
            _ends(subject.view(pa.binary()) if subject.type == pa.string() else subject),
            batch.column("headers").null_count,
        )
        self._found = added if self._found is None else _joined(self._found, added)

    def found(self) -> FileBounds | None:
        """Return the bounds; None without rows."""
        return self._found


def _joined(one: FileBounds, other: FileBounds) -> FileBounds:
    return FileBounds(
        (min(one.sequence[0], other.sequence[0]), max(one.sequence[1], other.sequence[1])),
        (min(one.timestamp_ns[0], other.timestamp_ns[0]), max(one.timestamp_ns[1], other.timestamp_ns[1])),
        (min(one.subject[0], other.subject[0]), max(one.subject[1], other.subject[1])),
        one.no_headers + other.no_headers,
    )


def _ends(column: pa.Array) -> tuple[Any, Any]:
    found = pc.min_max(column)
    return found["min"].as_py(), found["max"].as_py()
