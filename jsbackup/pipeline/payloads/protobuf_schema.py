"""Messages of Protobuf as columns. The package protobuf reads a descriptor set, which `protoc` makes.

    bool, string, bytes                      BOOLEAN, STRING, BINARY
    int32, sint32, sfixed32                  INT
    int64, sint64, sfixed64                  BIGINT
    uint32, fixed32                          BIGINT
    uint64, fixed64                          DECIMAL(20, 0), which has all of them
    float, double                            FLOAT, DOUBLE
    enum                                     STRING, the name
    repeated, map                            ARRAY, MAP
    message                                  STRUCT; without fields BOOLEAN: true where it is there
    google.protobuf.Timestamp                STRUCT<time: TIMESTAMP, nanos: INT>
    google.protobuf.Int32Value and the like  the type of their value; null where they are missing

A field of a oneof, an optional one, and a message are null where they are missing. Other fields have their defaults
then, as messages do not say whether they are there. Refused are messages that contain themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Final

import pyarrow as pa

from jsbackup.config import nearest
from jsbackup.errors import UnsupportedError, UsageError
from jsbackup.pipeline.payloads.binary_payload import MICROSECONDS, MOST_TYPES

__all__ = ["ProtobufField", "ProtobufKind", "ProtobufSchema", "ProtobufType", "message_class", "read_descriptor_set"]

_MOST_DEPTH: Final = 50  # of messages in one another
_MAKE: Final = "Make it with protoc --include_imports --descriptor_set_out=FILE."
_ITSELF: Final = "The column data has these payloads as they are."
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)


class ProtobufKind(Enum):
    """How values of a type become those of a column."""

    PLAIN = auto()
    UNSIGNED = auto()
    ENUM = auto()
    LIST = auto()
    MAP = auto()
    MESSAGE = auto()
    PRESENCE = auto()
    TIMESTAMP = auto()
    WRAPPER = auto()


@dataclass(frozen=True, slots=True)
class ProtobufType:
    """A type: what is read, and the column that it becomes. Pure data, which needs no protobuf.

    `fields` are those of a message, or the value of a wrapper. `parts` are the item of a list, or the key and the value
    of a map. `names` are those of an enum, by number.
    """

    kind: ProtobufKind
    column: pa.DataType
    fields: tuple[ProtobufField, ...] = ()
    parts: tuple[ProtobufType, ...] = ()
    names: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProtobufField:
    """A field by its number. `default` is its value where it is missing, None for null."""

    name: str
    number: int
    type: ProtobufType
    default: Any


@dataclass(frozen=True, slots=True)
class ProtobufSchema:
    """A message, by its full name, and the files that declare it: each behind those that it imports, serialized."""

    name: str
    files: tuple[bytes, ...]
    message: ProtobufType


def read_descriptor_set(data: bytes, message: str, shown: str) -> ProtobufSchema:
    """Return the message of this full name in a descriptor set; `shown` is the name of its file, for errors.

    Raises:
        UnsupportedError: protobuf is not installed.
        UsageError: it is no descriptor set, or not complete, has no such message, or columns cannot express it.
    """
    _require_protobuf()
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        found = FileDescriptorSet.FromString(data)
    except DecodeError:
        found = FileDescriptorSet()
    if not found.file:
        raise UsageError(f"{shown} is not a descriptor set of Protobuf", hint=_MAKE)
    files = {file.name: file for file in found.file}
    home = next((file for file in found.file if message in _messages_of(file)), None)
    if home is None:
        names = [name for file in found.file for name in _messages_of(file)]
        raise UsageError(
            f"{shown} has no message {message[:120]!r}",
            hint=nearest(message, names) or f"Give its full name, such as {names[0]}." if names else _MAKE,
        )
    needed = tuple(file.SerializeToString() for file in _ordered(files, home.name, shown))
    try:
        descriptor = message_class(needed, message).DESCRIPTOR
    except (KeyError, TypeError, ValueError) as error:
        why = " ".join(str(error).split())[:200]
        raise UsageError(f"{shown} is not a sound descriptor set of Protobuf: {why}", hint=_MAKE) from error
    found_type = _Types(shown).message(descriptor, "", 0)
    if found_type.kind is ProtobufKind.PRESENCE:
        raise UsageError(f"the message {message} has no fields, which would become columns", hint=_ITSELF)
    return ProtobufSchema(message, needed, found_type)


@lru_cache(maxsize=8)
def message_class(files: tuple[bytes, ...], name: str) -> Any:
    """Return the class of a message. Raises TypeError or KeyError if the files do not declare it.

    Executors make it once for all of their batches.
    """
    _require_protobuf()
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    pool: Any = DescriptorPool()
    for file in files:
        pool.AddSerializedFile(file)
    return GetMessageClass(pool.FindMessageTypeByName(name))


def _require_protobuf() -> None:
    try:
        missing = find_spec("google.protobuf") is None
    except ModuleNotFoundError:  # not even its namespace
        missing = True
    if missing:
        raise UnsupportedError(
            "payloads of Protobuf take the package protobuf, which is not installed",
            hint="Install it with `pip install 'jsbackup[protobuf]'`.",
        )


def _messages_of(file: Any) -> list[str]:
    """Return the full names of the messages that a file declares."""

    def names(messages: Iterable[Any], before: str) -> Iterator[str]:
        for one in messages:
            yield f"{before}{one.name}"
            yield from names(one.nested_type, f"{before}{one.name}.")

    return list(names(file.message_type, f"{file.package}." if file.package else ""))


def _ordered(files: Mapping[str, Any], wanted: str, shown: str) -> list[Any]:
    """Return a file and all that it imports, each behind those that it imports."""
    ordered: dict[str, Any] = {}
    entered: set[str] = set()
    waiting = [wanted]
    while waiting:
        name = waiting[-1]
        if name not in files:
            raise UsageError(f"{shown} lacks {name[:120]}, which another file in it imports", hint=_MAKE)
        missing = [one for one in files[name].dependency if one not in ordered]
        if name in ordered or not missing:
            ordered.setdefault(name, files[name])
            waiting.pop()
        elif name in entered:
            raise UsageError(f"{shown} has files that import each other: {name[:120]}", hint=_MAKE)
        else:
            entered.add(name)
            waiting += missing
    return list(ordered.values())


class _Types:
    """Converts descriptors of one set, which Protobuf has read."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._open: list[str] = []  # the messages around what is converted
        self._count = 0

    def message(self, descriptor: Any, where: str, depth: int) -> ProtobufType:
        """Return the type of a message; `where` is the path of its field, `depth` how many messages are around it."""
        name = descriptor.full_name
        if name in self._open:
            raise UsageError(
                f"the field {where[:120]} of {self._open[0][:120]} is in a {name[:120]} that contains itself, which "
                "columns cannot express",
                hint=_ITSELF,
            )
        if depth > _MOST_DEPTH:
            raise UsageError(f"{self._shown} has more than {_MOST_DEPTH} messages in one another", hint=_ITSELF)
        if not descriptor.fields:
            self._counted()
            return ProtobufType(ProtobufKind.PRESENCE, pa.bool_())
        self._open.append(name)
        fields = []
        for one in sorted(descriptor.fields, key=lambda one: one.index):
            kind = self._field(one, f"{where}.{one.name}" if where else one.name, depth)
            fields.append(ProtobufField(one.name, one.number, kind, self._default(one, kind)))
        self._open.pop()
        column = pa.struct([(one.name, one.type.column) for one in fields])
        return ProtobufType(ProtobufKind.MESSAGE, column, tuple(fields))

    def _counted(self) -> None:
        self._count += 1
        if self._count > MOST_TYPES:
            raise UsageError(f"{self._shown} would become more than {MOST_TYPES:,} columns", hint=_ITSELF)

    def _default(self, one: Any, kind: ProtobufType) -> Any:
        if kind.kind is ProtobufKind.MAP:
            return {}
        if kind.kind is ProtobufKind.LIST:
            return ()
        return None if one.has_presence else one.default_value

    def _field(self, one: Any, where: str, depth: int) -> ProtobufType:
        if not one.is_repeated:
            return self._value(one, where, depth)
        self._counted()
        if one.message_type is not None and one.message_type.GetOptions().map_entry:
            key, value = (self._value(one.message_type.fields_by_name[of], where, depth) for of in ("key", "value"))
            return ProtobufType(ProtobufKind.MAP, pa.map_(key.column, value.column), parts=(key, value))
        item = self._value(one, where, depth)
        return ProtobufType(ProtobufKind.LIST, pa.list_(item.column), parts=(item,))

    def _value(self, one: Any, where: str, depth: int) -> ProtobufType:
        """Return the type of a single value of a field."""
        self._counted()
        if one.message_type is not None:
            return self._of_message(one.message_type, where, depth)
        if one.cpp_type == one.CPPTYPE_ENUM:
            names: dict[int, str] = {}
            for value in one.enum_type.values:
                names.setdefault(value.number, value.name)  # of several names of a number the first
            return ProtobufType(ProtobufKind.ENUM, pa.string(), names=names)
        if one.cpp_type == one.CPPTYPE_UINT64:
            return ProtobufType(ProtobufKind.UNSIGNED, pa.decimal128(20, 0))
        if one.type == one.TYPE_BYTES:
            return ProtobufType(ProtobufKind.PLAIN, pa.binary())
        columns = {
            one.CPPTYPE_BOOL: pa.bool_(),
            one.CPPTYPE_INT32: pa.int32(),
            one.CPPTYPE_INT64: pa.int64(),
            one.CPPTYPE_UINT32: pa.int64(),
            one.CPPTYPE_FLOAT: pa.float32(),
            one.CPPTYPE_DOUBLE: pa.float64(),
            one.CPPTYPE_STRING: pa.string(),
        }
        return ProtobufType(ProtobufKind.PLAIN, columns[one.cpp_type])

    def _of_message(self, descriptor: Any, where: str, depth: int) -> ProtobufType:
        name, numbers = descriptor.full_name, [one.number for one in descriptor.fields]
        if name == _TIMESTAMP and sorted(numbers) == [1, 2]:
            column = pa.struct([("time", MICROSECONDS), ("nanos", pa.int32())])
            return ProtobufType(ProtobufKind.TIMESTAMP, column)
        if name in _WRAPPERS and numbers == [1]:
            of = descriptor.fields[0]
            value = self._value(of, where, depth)
            inner = ProtobufField(of.name, of.number, value, of.default_value)
            return ProtobufType(ProtobufKind.WRAPPER, value.column, (inner,))
        return self.message(descriptor, where, depth + 1)
