"""Payloads of Avro as values: each is one datum in Avro's binary encoding, of a given schema (`avro_schema.py`).

A payload in the single-object encoding has a header before the datum: a mark and the fingerprint of the schema. It is
recognized by all of its ten bytes, so that no other payload is taken for one.

The decoder is our own and strict, because nothing may be changed or lost silently. fastavro 1.x takes a text that ends
early for a shorter one, one of negative length for the rest of the payload, the symbol -1 for the last one, and what
follows the datum for nothing; it rounds decimals, and makes 2^60 nulls of an array that claims so many.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import partial
from typing import Any, Final, Self
from uuid import UUID

import pyarrow as pa

from jsbackup.pipeline.payloads.avro_schema import AvroKind, AvroSchema, AvroType
from jsbackup.pipeline.payloads.binary_payload import FIRST_DAY, FIRST_US, LAST_DAY, LAST_US, BinaryParser, PayloadRoom
from jsbackup.pipeline.payloads.parsing import DoesNotFit
from jsbackup.pipeline.payloads.payload_tally import PayloadTally
from jsbackup.pipeline.payloads.value_columns import ListColumn, MapColumn, StructColumn, ValueColumn

__all__ = ["AvroParser"]

_Read = Callable[[bytes, int], int]
"""Appends the value at an offset of a payload to a column, and returns the offset behind it."""

_Take = Callable[[bytes, int], tuple[bytes, int]]
"""Returns the bytes of a value at an offset, and the offset behind it."""

_INT, _LONG = 1 << 31, 1 << 63
_MOST_SHIFT: Final = 63
_EXACT: Final = Context(prec=50)

# Kinds that are an integer, with the least and the greatest, and what they are multiplied by.
_INTEGERS: Final = {
    AvroKind.INT: (-_INT, _INT - 1, 1),
    AvroKind.LONG: (-_LONG, _LONG - 1, 1),
    AvroKind.DATE: (FIRST_DAY, LAST_DAY, 1),
    AvroKind.MILLISECONDS: (-(-FIRST_US // 1000), LAST_US // 1000, 1000),
    AvroKind.MICROSECONDS: (FIRST_US, LAST_US, 1),
}
_FLOATS: Final = {AvroKind.FLOAT: struct.Struct("<f"), AvroKind.DOUBLE: struct.Struct("<d")}


@dataclass(frozen=True, slots=True)
class AvroParser(BinaryParser):
    """Parses payloads of Avro. `record` is what they are, `header` that of the single-object encoding."""

    record: AvroType
    header: bytes

    @classmethod
    def of(cls, schema: AvroSchema) -> Self:
        return cls(schema.record.column, schema.record, schema.header)

    @property
    def encoding(self) -> str:
        return "avro"

    @property
    def takes_empty(self) -> bool:
        return False  # no record that has fields is empty

    def reading(self, column: StructColumn, room: PayloadRoom, tally: PayloadTally) -> Callable[[bytes], None]:
        read, header = _reader(self.record, column, room), self.header

        def read_payload(data: bytes) -> None:
            if read(data, len(header) if data.startswith(header) else 0) != len(data):
                raise DoesNotFit
            tally.known = True  # a record has all of its fields

        return read_payload


def _reader(kind: AvroType, column: ValueColumn, room: PayloadRoom) -> _Read:
    if kind.kind in _INTEGERS:
        least, most, times = _INTEGERS[kind.kind]
        return _integer(column, least, most, times)
    if kind.kind in _FLOATS:
        return _float(column, _FLOATS[kind.kind])
    if kind.kind is AvroKind.BOOLEAN:
        return _boolean(column)
    if kind.kind is AvroKind.ENUM:
        return _enum(column, kind.symbols)
    if kind.kind is AvroKind.UNION:
        return _union(column, _reader(kind.parts[0], column, room), kind.size)
    if kind.kind is AvroKind.RECORD:
        assert isinstance(column, StructColumn)
        return _record(column, [_reader(one, of, room) for one, of in zip(kind.parts, column.fields, strict=True)])
    if kind.kind is AvroKind.MAP:
        assert isinstance(column, MapColumn)
        return _map(column, _reader(kind.parts[0], column.items, room), room)
    if kind.kind is AvroKind.ARRAY:
        assert isinstance(column, ListColumn)
        return _array(column, _reader(kind.parts[0], column.items, room), room)
    take: _Take = partial(_fixed, kind.size) if kind.size else _block
    return _bytes(column, take, _conversion(kind))


# --- values of bytes ---


def _long(data: bytes, at: int) -> tuple[int, int]:
    """Return the integer at an offset, and the offset behind it."""
    byte = data[at]
    number, shift = byte & 0x7F, 7
    while byte & 0x80:
        at += 1
        if shift > _MOST_SHIFT:
            raise DoesNotFit
        byte = data[at]
        number |= (byte & 0x7F) << shift
        shift += 7
    if number >> 64:
        raise DoesNotFit
    return (number >> 1) ^ -(number & 1), at + 1


def _fixed(size: int, data: bytes, at: int) -> tuple[bytes, int]:
    end = at + size
    if size < 0 or end > len(data):
        raise DoesNotFit
    return data[at:end], end


def _block(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _long(data, at)
    return _fixed(size, data, at)


def _as_it_is(data: bytes) -> bytes:
    return data


def _uuid(data: bytes) -> str:
    return str(UUID(bytes=data))


def _decimal(precision: int, scale: int) -> Callable[[bytes], Decimal]:
    limit = 10**precision

    def convert(data: bytes) -> Decimal:
        unscaled = int.from_bytes(data, "big", signed=True)
        if not data or not -limit < unscaled < limit:
            raise DoesNotFit
        return Decimal(unscaled).scaleb(-scale, _EXACT)

    return convert


def _conversion(kind: AvroType) -> Callable[[bytes], Any]:
    if kind.kind is AvroKind.STRING:
        return bytes.decode  # what is not UTF-8 is a ValueError
    if kind.kind is AvroKind.UUID:
        return _uuid
    if kind.kind is AvroKind.DECIMAL:
        assert isinstance(kind.column, pa.Decimal128Type)
        return _decimal(kind.column.precision, kind.column.scale)
    return _as_it_is


def _bytes(column: ValueColumn, take: _Take, convert: Callable[[bytes], Any]) -> _Read:
    append = column.values.append

    def read(data: bytes, at: int) -> int:
        value, at = take(data, at)
        append(convert(value))
        return at

    return read


# --- other values ---


def _boolean(column: ValueColumn) -> _Read:
    append = column.values.append

    def read(data: bytes, at: int) -> int:
        byte = data[at]
        if byte > 1:
            raise DoesNotFit
        append(byte == 1)
        return at + 1

    return read


def _integer(column: ValueColumn, least: int, most: int, times: int) -> _Read:
    append = column.values.append

    def read(data: bytes, at: int) -> int:
        number, at = _long(data, at)
        if not least <= number <= most:
            raise DoesNotFit
        append(number * times)
        return at

    return read


def _float(column: ValueColumn, form: struct.Struct) -> _Read:
    append, size, unpack = column.values.append, form.size, form.unpack_from

    def read(data: bytes, at: int) -> int:
        if at + size > len(data):
            raise DoesNotFit
        append(unpack(data, at)[0])
        return at + size

    return read


def _enum(column: ValueColumn, symbols: tuple[str, ...]) -> _Read:
    append = column.values.append

    def read(data: bytes, at: int) -> int:
        number, at = _long(data, at)
        if number < 0:
            raise DoesNotFit
        append(symbols[number])  # beyond the last one it is an IndexError
        return at

    return read


def _union(column: ValueColumn, read_other: _Read, null: int) -> _Read:
    other = 1 if null == 0 else 0

    def read(data: bytes, at: int) -> int:
        branch, at = _long(data, at)
        if branch == other:
            return read_other(data, at)
        if branch < 0 or branch != null:
            raise DoesNotFit
        column.null()
        return at

    return read


def _record(column: StructColumn, fields: list[_Read]) -> _Read:
    append = column.values.append

    def read(data: bytes, at: int) -> int:
        for read_field in fields:
            at = read_field(data, at)
        append(True)
        return at

    return read


# --- arrays and maps ---


def _blocks(data: bytes, at: int, read_items: Callable[[int, int], int], *, room: PayloadRoom, width: int) -> int:
    """Read the blocks of an array or a map; `read_items` reads so many items at an offset. Returns the offset behind.
    `width` is how many values an item takes.
    """
    while True:
        count, at = _long(data, at)
        if not count:
            return at
        size = -1
        if count < 0:
            count = -count
            size, at = _long(data, at)
            if size < 0:
                raise DoesNotFit
        if count > len(data) - at:  # each item takes a byte or more
            raise DoesNotFit
        room.take(count * width)
        end = read_items(count, at)
        if size >= 0 and end != at + size:
            raise DoesNotFit
        at = end


def _array(column: ListColumn, read_item: _Read, room: PayloadRoom) -> _Read:
    width = column.items.width

    def read(data: bytes, at: int) -> int:
        def read_items(count: int, at: int) -> int:
            for _ in range(count):
                at = read_item(data, at)
            return at

        column.begin()
        return _blocks(data, at, read_items, room=room, width=width)

    return read


def _map(column: MapColumn, read_value: _Read, room: PayloadRoom) -> _Read:
    width, append = 1 + column.items.width, column.keys.values.append

    def read(data: bytes, at: int) -> int:
        seen: set[str] = set()

        def read_items(count: int, at: int) -> int:
            for _ in range(count):
                raw, at = _block(data, at)
                key = raw.decode()
                if key in seen:
                    raise DoesNotFit
                seen.add(key)
                append(key)
                at = read_value(data, at)
            return at

        column.begin()
        return _blocks(data, at, read_items, room=room, width=width)

    return read
