"""Payloads as columns, in whatever encoding: what all parsers have in common. Spark is not needed.

A parser makes two columns of payloads: `payload`, a struct, and `_corrupt_record`, which keeps what does not parse or
does not fit the types. No value is changed. Executors get parsers pickled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from jsbackup.pipeline.payloads.payload_tally import PayloadTally

__all__ = ["CORRUPT", "PAYLOAD", "DoesNotFit", "PayloadParser", "encoding_of", "parts_of"]

PAYLOAD = "payload"
CORRUPT = "_corrupt_record"

# Of the text of a schema that is none of JSON. No schema of JSON begins so as text: a name has no colon behind it.
_ENCODINGS = ("avro", "protobuf")


class DoesNotFit(Exception):
    """A value is not one of its type, or would be changed by it."""


@dataclass(frozen=True, slots=True)
class PayloadParser(ABC):
    """Parses payloads as structs of the type `schema`."""

    schema: pa.StructType

    @property
    @abstractmethod
    def corrupt(self) -> pa.DataType:
        """The type of `_corrupt_record`."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The columns in Spark's syntax, behind the encoding (`avro: …`) unless it is JSON."""

    @abstractmethod
    def parse(self, payloads: pa.Array, tally: PayloadTally | None = None) -> pa.StructArray:
        """Return a struct of two fields for each payload: the parsed one, and what of those that do not parse is kept.

        Both are null for null. What is parsed is counted in `tally`.
        """

    def unseen(self, tally: PayloadTally) -> tuple[str, ...]:
        """Return the fields of the schema that no payload has; none of encodings that do not have their names."""
        return ()

    @property
    def fields(self) -> list[pa.Field]:
        """The two columns that payloads become."""
        return [pa.field(PAYLOAD, self.schema), pa.field(CORRUPT, self.corrupt)]

    def with_payloads(self, batch: pa.RecordBatch, tally: PayloadTally | None = None) -> pa.RecordBatch:
        """Return a batch that has the column `data` with the two columns behind the others."""
        parsed, schema = self.parse(batch.column("data"), tally), batch.schema
        for field in self.fields:
            schema = schema.append(field)
        arrays = [*batch.columns, parsed.field(PAYLOAD), parsed.field(CORRUPT)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def encoding_of(text: str) -> str:
    """Return the encoding that `PayloadParser.text` says: `json`, `avro` or `protobuf`."""
    return next((one for one in _ENCODINGS if text.startswith(f"{one}: ")), "json")


def parts_of(payloads: pa.Array, most_bytes: int) -> list[pa.Array]:
    """Return slices of up to so many bytes, or of one payload; at least one slice."""
    found, start, size = [], 0, 0
    for row, length in enumerate(pc.binary_length(payloads).to_pylist()):
        if size and size + (length or 0) > most_bytes:
            found.append(payloads.slice(start, row - start))
            start, size = row, 0
        size += length or 0
    return [*found, payloads.slice(start)]
