"""The columns of the rows that the data source reads: those of `columns.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
from pyspark.sql.types import StructType

from jsbackup.pipeline.messages.bounds import Bounds
from jsbackup.pipeline.messages.columns import CONSTANT, check_types
from jsbackup.pipeline.messages.segment_rows import segment_rows
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.repository import Repository

__all__ = ["RowColumns"]


@dataclass(frozen=True, slots=True)
class RowColumns:
    """Names of columns, in order."""

    names: tuple[str, ...]

    @classmethod
    def of(cls, schema: StructType) -> Self:
        """Return those of a schema that Spark has, of us or of a user. Raises UsageError for other columns or types."""
        return cls(check_types({field.name: field.dataType.simpleString() for field in schema.fields}))

    @property
    def are_constant(self) -> bool:
        """Whether each is the same for all messages of a stream."""
        return CONSTANT.issuperset(self.names)

    def rows(
        self, repository: Repository, ref: SegmentRef, bounds: Bounds, *, stream: str, backup: str
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a segment within `bounds`, as `segment_rows`. Raises the same errors."""
        yield from segment_rows(repository, ref, self.names, bounds, stream=stream, backup=backup)
