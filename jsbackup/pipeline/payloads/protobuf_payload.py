"""Payloads of Protobuf as values: each is one message of a given type (`protobuf_schema.py`).

Protobuf has no names and few types in its bytes, so it ignores what it does not know: fields of a newer version. What
it ignores although the message has a field of that number is taken for damage here: bytes of another type, and a number
that its closed enum does not have. So is a number that an open enum has no name for.

An empty payload is a message, all of whose fields have their defaults, unless one is required. Of a key that a map has
twice the last value counts, as Protobuf says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Self

import pyarrow as pa

from jsbackup.pipeline.payloads.binary_payload import FIRST_US, LAST_US, BinaryParser, PayloadRoom
from jsbackup.pipeline.payloads.parsing import DoesNotFit
from jsbackup.pipeline.payloads.payload_tally import PayloadTally
from jsbackup.pipeline.payloads.protobuf_schema import ProtobufKind, ProtobufSchema, ProtobufType, message_class
from jsbackup.pipeline.payloads.value_columns import ListColumn, MapColumn, StructColumn, ValueColumn

__all__ = ["ProtobufParser"]

_Write = Callable[[Any], None]
"""Appends a value of Protobuf to a column."""

_SECOND_US: Final = 1_000_000
_SECOND_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ProtobufParser(BinaryParser):
    """Parses payloads of Protobuf. `name` is the full name of the message, `files` declare it."""

    name: str
    files: tuple[bytes, ...]
    message: ProtobufType

    @classmethod
    def of(cls, schema: ProtobufSchema) -> Self:
        return cls(schema.message.column, schema.name, schema.files, schema.message)

    @property
    def encoding(self) -> str:
        return "protobuf"

    @property
    def takes_empty(self) -> bool:
        """An empty message with a field that is required is none: the payload says that there is no message."""
        kind = message_class(self.files, self.name)
        return bool(kind.IsInitialized(kind()))

    def reading(self, column: StructColumn, room: PayloadRoom, tally: PayloadTally) -> Callable[[bytes], None]:
        kind = message_class(self.files, self.name)
        from google.protobuf.message import DecodeError
        from google.protobuf.unknown_fields import UnknownFieldSet

        write = _writer(self.message, column, room)

        def read_payload(data: bytes) -> None:
            try:
                message = kind.FromString(data)
            except DecodeError as error:
                raise DoesNotFit from error
            if not kind.IsInitialized(message):  # a field that is required is missing
                raise DoesNotFit
            write(message)
            # One that has fields, and none that the message knows, is perhaps of another message.
            if data and not tally.known and (kind.ListFields(message) or not len(UnknownFieldSet(message))):
                tally.known = True

        return read_payload


def _writer(kind: ProtobufType, column: ValueColumn, room: PayloadRoom) -> _Write:
    if kind.kind is ProtobufKind.PLAIN:
        return _text(column) if kind.column == pa.string() else column.values.append
    if kind.kind is ProtobufKind.UNSIGNED:
        return _unsigned(column)
    if kind.kind is ProtobufKind.ENUM:
        return _enum(column, kind.names)
    if kind.kind is ProtobufKind.PRESENCE:
        return _presence(column)
    if kind.kind is ProtobufKind.WRAPPER:
        return _wrapper(kind, column, room)
    if kind.kind is ProtobufKind.MAP:
        assert isinstance(column, MapColumn)
        return _map(kind, column, room)
    if kind.kind is ProtobufKind.LIST:
        assert isinstance(column, ListColumn)
        return _list(kind, column, room)
    assert isinstance(column, StructColumn)
    return _timestamp(column) if kind.kind is ProtobufKind.TIMESTAMP else _message(kind, column, room)


def _fields_of(*numbers: int) -> Callable[[Any], dict[int, Any]]:
    """Return what returns the fields of a message that are there, by number; `numbers` are all that it has.

    That raises DoesNotFit if one of them could not be read.
    """
    from google.protobuf.unknown_fields import UnknownFieldSet

    known = frozenset(numbers)

    def fields_of(message: Any) -> dict[int, Any]:
        for one in UnknownFieldSet(message):
            if one.field_number in known:
                raise DoesNotFit
        # Of the class: a field could have the name of the method.
        return {descriptor.number: value for descriptor, value in type(message).ListFields(message)}

    return fields_of


def _text(column: ValueColumn) -> _Write:
    append = column.values.append

    def write(value: str | bytes) -> None:
        if type(value) is not str:  # not UTF-8, which the oldest syntax does not check
            raise DoesNotFit
        append(value)

    return write


def _unsigned(column: ValueColumn) -> _Write:
    append = column.values.append

    def write(value: int) -> None:
        append(Decimal(value))

    return write


def _enum(column: ValueColumn, names: Mapping[int, str]) -> _Write:
    append = column.values.append

    def write(number: int) -> None:
        name = names.get(number)
        if name is None:
            raise DoesNotFit
        append(name)

    return write


def _presence(column: ValueColumn) -> _Write:
    append = column.values.append

    def write(_message: Any) -> None:
        append(True)

    return write


def _wrapper(kind: ProtobufType, column: ValueColumn, room: PayloadRoom) -> _Write:
    (inner,) = kind.fields
    fields_of, write_value = _fields_of(inner.number), _writer(inner.type, column, room)

    def write(message: Any) -> None:
        write_value(fields_of(message).get(inner.number, inner.default))

    return write


def _timestamp(column: StructColumn) -> _Write:
    fields_of = _fields_of(1, 2)
    times, nanos_of = column.fields

    def write(message: Any) -> None:
        found = fields_of(message)
        seconds, nanos = found.get(1, 0), found.get(2, 0)
        time_us = seconds * _SECOND_US + nanos // 1000
        if not 0 <= nanos < _SECOND_NS or not FIRST_US <= time_us <= LAST_US:
            raise DoesNotFit
        times.values.append(time_us)
        nanos_of.values.append(nanos)
        column.values.append(True)

    return write


def _message(kind: ProtobufType, column: StructColumn, room: PayloadRoom) -> _Write:
    fields_of = _fields_of(*(field.number for field in kind.fields))
    writers = [
        (field.number, field.default, of, _writer(field.type, of, room))
        for field, of in zip(kind.fields, column.fields, strict=True)
    ]
    append = column.values.append

    def write(message: Any) -> None:
        found = fields_of(message)
        for number, default, of, write_value in writers:
            value = found.get(number, default)
            if value is None:
                of.null()
            else:
                write_value(value)
        append(True)

    return write


def _list(kind: ProtobufType, column: ListColumn, room: PayloadRoom) -> _Write:
    write_item, width = _writer(kind.parts[0], column.items, room), column.items.width

    def write(values: Any) -> None:
        room.take(len(values) * width)
        column.begin()
        for value in values:
            write_item(value)

    return write


def _map(kind: ProtobufType, column: MapColumn, room: PayloadRoom) -> _Write:
    key, value = kind.parts
    write_key, write_value = _writer(key, column.keys, room), _writer(value, column.items, room)
    width = column.keys.width + column.items.width

    def write(values: Any) -> None:
        room.take(len(values) * width)
        column.begin()
        try:
            names = sorted(values)  # Protobuf says nothing about the order
        except TypeError as error:  # one is text, another one is not UTF-8
            raise DoesNotFit from error
        for name in names:
            write_key(name)
            write_value(values[name])

    return write
