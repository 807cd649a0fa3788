"""The columns of the rows that the data source reads: those of `columns.py`, and of parsed payloads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
from pyspark.sql.types import DataType, StructType

from jsbackup.errors import UsageError
from jsbackup.pipeline.messages.bounds import Bounds
from jsbackup.pipeline.messages.columns import CONSTANT, check_types
from jsbackup.pipeline.messages.segment_rows import segment_rows
from jsbackup.pipeline.payloads.json_payload import JsonParser
from jsbackup.pipeline.payloads.json_spark import has_not_null, of_spark, parsed_type
from jsbackup.pipeline.payloads.parsing import CORRUPT, PAYLOAD, PayloadParser
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.repository import Repository

__all__ = ["RowColumns"]

_PARSED = (PAYLOAD, CORRUPT)


@dataclass(frozen=True, slots=True)
class RowColumns:
    """Names of columns, in order, and how payloads are parsed if `payload` is one of them."""

    names: tuple[str, ...]
    parser: PayloadParser | None = None

    @classmethod
    def of(cls, schema: StructType, given: str | PayloadParser | None) -> Self:
        """Return those of a schema that Spark has, of us or of a user. `given` is what parses payloads: JSON by the
        type of the column, whatever the text is; or a parser; None if they are not parsed.

        Raises:
            UsageError: it has other columns or types than there are.
        """
        kinds = {field.name: field.dataType for field in schema.fields}
        if given is None and (wrong := [name for name in _PARSED if name in kinds]):
            hint = "The options 'json', 'avro' and 'protobuf' add it."
            raise UsageError(f"there is no column {wrong[0]!r}", hint=hint)
        parsed = {name: kinds.pop(name) for name in _PARSED if name in kinds}
        types = {name: kind.simpleString() for name, kind in kinds.items()}
        if not parsed:
            return cls(check_types(types))
        if types:
            check_types(types)
        if isinstance(payload := parsed.get(PAYLOAD), StructType) and has_not_null(payload):
            raise UsageError(f"the column {PAYLOAD} has fields that are NOT NULL, and any of them may be missing")
        if isinstance(given, PayloadParser):
            parser = given
        elif isinstance(payload, StructType):
            parser = JsonParser(of_spark(payload))
        else:
            raise UsageError(f"the column {PAYLOAD} is not a struct, or is missing beside {CORRUPT}")
        for field in parsed_type(parser):
            _check(field.name, parsed.get(field.name, field.dataType), field.dataType)
        return cls(tuple(schema.names), parser)

    @property
    def are_constant(self) -> bool:
        """Whether each is the same for all messages of a stream."""
        return self.parser is None and CONSTANT.issuperset(self.names)

    def rows(
        self, repository: Repository, ref: SegmentRef, bounds: Bounds, *, stream: str, backup: str
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a segment within `bounds`, as `segment_rows`. Raises the same errors."""
        read = self.names if self.parser is None else self._read()
        for batch in segment_rows(repository, ref, read, bounds, stream=stream, backup=backup):
            yield batch if self.parser is None else self._with_payloads(batch, self.parser)

    def _read(self) -> tuple[str, ...]:
        names = tuple(name for name in self.names if name not in _PARSED)
        return names if "data" in names else (*names, "data")

    def _with_payloads(self, batch: pa.RecordBatch, parser: PayloadParser) -> pa.RecordBatch:
        parsed = parser.parse(batch.column("data"))
        arrays = [(parsed.field(name) if name in _PARSED else batch.column(name)) for name in self.names]
        return pa.RecordBatch.from_arrays(arrays, list(self.names))


def _check(name: str, given: DataType, wanted: DataType) -> None:
    # The texts, which do not say what may be null: nothing that is given is NOT NULL.
    if (told := given.simpleString()) != (right := wanted.simpleString()):
        raise UsageError(f"the column {name} has the type {right[:200]}, not {told[:200]}")
