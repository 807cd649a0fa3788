"""Payloads in a binary encoding with a given schema, as values: what Avro and Protobuf have in common.

A payload that is damaged, or has a value that its type cannot hold, is kept in `_corrupt_record` byte for byte. None
takes much more memory than it has bytes: counts are compared with what is left of a payload before anything is made of
them, and one of more than 8 million values is kept as a corrupt one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

import pyarrow as pa

from jsbackup.pipeline.payloads.json_types import as_ddl
from jsbackup.pipeline.payloads.parsing import CORRUPT, PAYLOAD, DoesNotFit, PayloadParser, parts_of
from jsbackup.pipeline.payloads.payload_tally import PayloadTally
from jsbackup.pipeline.payloads.value_columns import StructColumn

__all__ = ["FIRST_DAY", "FIRST_US", "LAST_DAY", "LAST_US", "MICROSECONDS", "MOST_TYPES", "BinaryParser", "PayloadRoom"]

MICROSECONDS: Final = pa.timestamp("us", "UTC")

# Dates and times that every reader has are those of the years 1 to 9999.
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_DAY, LAST_DAY = date.min.toordinal() - _EPOCH_DAY, date.max.toordinal() - _EPOCH_DAY
FIRST_US = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
LAST_US = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)

# Of a schema. A type that many fields have counts for each of them: each becomes columns of its own.
MOST_TYPES: Final = 10_000

# Values become objects of Python: so many bytes and values at a time, unless a single payload has more.
_MOST_BYTES: Final = 1 << 20
_MOST_AT_ONCE: Final = 1 << 20
_MOST_VALUES: Final = 1 << 23


class PayloadRoom:
    """How many more values may come of a payload, without those that each has."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = _MOST_VALUES

    def take(self, count: int) -> None:
        """Raises DoesNotFit if these are too many."""
        self.left -= count
        if self.left < 0:
            raise DoesNotFit


@dataclass(frozen=True, slots=True)
class BinaryParser(PayloadParser):
    """Parses payloads of one encoding; corrupt ones are kept as bytes."""

    @property
    def corrupt(self) -> pa.DataType:
        return pa.binary()

    @property
    def text(self) -> str:
        return f"{self.encoding}: {as_ddl(self.schema)}"

    @property
    @abstractmethod
    def encoding(self) -> str:
        """The encoding, as `encoding_of` returns it."""

    @property
    @abstractmethod
    def takes_empty(self) -> bool:
        """Whether an empty payload is one with values."""

    @abstractmethod
    def reading(self, column: StructColumn, room: PayloadRoom, tally: PayloadTally) -> Callable[[bytes], None]:
        """Return what appends a payload to a column; it takes room for the items of lists.

        It raises DoesNotFit, ValueError or IndexError for a payload that is damaged, and may have appended a part then.
        In `tally` it says whether payloads are `known`.
        """

    def parse(self, payloads: pa.Array, tally: PayloadTally | None = None) -> pa.StructArray:
        """Return a struct of two fields for each payload: the parsed one, and the bytes of those that do not parse.

        Both are null for null, and for an empty payload unless that has values.
        """
        tally = PayloadTally() if tally is None else tally
        slices = parts_of(payloads, _MOST_BYTES)
        parts = [parsed for part in slices for parsed in self._parsed(part.to_pylist(), tally)]
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def _parsed(self, payloads: list[bytes | None], tally: PayloadTally) -> Iterator[pa.StructArray]:
        """Yield at least one array."""
        column, room = StructColumn(self.schema), PayloadRoom()
        read, corrupt = self.reading(column, room, tally), list[bytes | None]()
        takes_empty, values = self.takes_empty, 0
        for payload in payloads:
            if values >= _MOST_AT_ONCE:
                yield _both(column, corrupt)
                column.cut(0)
                corrupt, values = [], 0
            bad = None
            room.left = _MOST_VALUES
            if payload:
                tally.payloads += 1
            if payload or (payload is not None and takes_empty):
                try:
                    read(payload)
                except (DoesNotFit, ValueError, IndexError):
                    column.cut(len(corrupt))
                    bad = payload
                    tally.misfits += 1
            if len(column.values) == len(corrupt):
                column.null()
            corrupt.append(bad)
            values += column.width + _MOST_VALUES - room.left
        yield _both(column, corrupt)


def _both(column: StructColumn, corrupt: list[bytes | None]) -> pa.StructArray:
    return pa.StructArray.from_arrays([column.array(), pa.array(corrupt, pa.binary())], [PAYLOAD, CORRUPT])
