"""Payloads of Avro and Protobuf for tests: schemas with all types, and values with the rows that they become.

The packages fastavro and protobuf encode them.
"""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.timestamp_pb2 import DESCRIPTOR as TIMESTAMP_FILE
from google.protobuf.wrappers_pb2 import DESCRIPTOR as WRAPPERS_FILE

from jsbackup.pipeline.payloads.avro_payload import AvroParser
from jsbackup.pipeline.payloads.avro_schema import read_avro_schema
from jsbackup.pipeline.payloads.parsing import PayloadParser
from jsbackup.pipeline.payloads.protobuf_payload import ProtobufParser
from jsbackup.pipeline.payloads.protobuf_schema import read_descriptor_set

Parsed = list[tuple[Any, bytes | None]]


def parsed(parser: PayloadParser, *payloads: bytes | None) -> Parsed:
    """Payloads and corrupt records."""
    array = parser.parse(pa.array(payloads, pa.binary()))
    array.validate(full=True)
    assert array.type == pa.struct(parser.fields) and len(array) == len(payloads)
    rows = in_utc(array.to_pylist(maps_as_pydicts="strict"))
    return [(row["payload"], row["_corrupt_record"]) for row in rows]


def in_utc(value: Any) -> Any:
    """A value with all times in Python's own UTC, so that it has one representation."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, dict):
        return {name: in_utc(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [in_utc(one) for one in value]
    return value


# --- Avro ---


def record(*fields: tuple[str, Any], name: str = "shop.All") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": of, "type": kind} for of, kind in fields]}


def logical(kind: str, of: str, **others: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": of, **others}


ALL: dict[str, Any] = record(
    ("flag", "boolean"),
    ("int", "int"),
    ("id", "long"),
    ("ratio", "float"),
    ("total", "double"),
    ("raw", "bytes"),
    ("name", "string"),
    ("four", {"type": "fixed", "name": "Four", "size": 4}),
    ("state", {"type": "enum", "name": "State", "symbols": ["OPEN", "PAID"]}),
    ("list", {"type": "array", "items": "long"}),
    ("lists", {"type": "array", "items": ["null", {"type": "array", "items": ["null", "string"]}]}),
    ("map", {"type": "map", "values": ["double", "null"]}),
    ("note", ["null", "string"]),
    ("at", ["null", record(("x", "double"), ("tags", {"type": "array", "items": "string"}), name="At")]),
    ("ats", {"type": "array", "items": ["null", "At"]}),
    ("price", logical("bytes", "decimal", precision=10, scale=2)),
    ("whole", logical("bytes", "decimal", precision=38)),
    ("cents", logical("fixed", "decimal", name="Cents", size=8, precision=12, scale=2)),
    ("day", logical("int", "date")),
    ("millis", logical("long", "timestamp-millis")),
    ("micros", logical("long", "timestamp-micros")),
    ("uuid", logical("string", "uuid")),
    ("key", logical("fixed", "uuid", name="Key", size=16)),
    ("clock", logical("int", "time-millis")),
    ("local", logical("long", "local-timestamp-micros")),
    ("one", ["int"]),
)

_ID = "6f1d3c2e-0000-4000-8000-0123456789ab"

# What fastavro is given; the row is the same but for logical types.
FULL: dict[str, Any] = {
    "flag": True,
    "int": -(1 << 31),
    "id": (1 << 63) - 1,
    "ratio": 0.5,
    "total": -1e-7,
    "raw": b"\x00\xff",
    "name": "é😀\0",
    "four": b"abcd",
    "state": "PAID",
    "list": [0, -1, 1 << 40],
    "lists": [[], None, ["a", None]],
    "map": {"b": 1.5, "": None, "a": float("inf")},
    "note": "n",
    "at": {"x": 1.0, "tags": ["t", ""]},
    "ats": [{"x": 2.0, "tags": []}, None, {"x": 3.0, "tags": ["u"]}],
    "price": Decimal("-12345678.90"),
    "whole": Decimal("12345678901234567890123456789012345678"),
    "cents": Decimal("9999999999.99"),
    "day": date(2026, 11, 21),
    "millis": datetime(2026, 11, 21, 14, 2, 0, 7000, UTC),
    "micros": datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
    "uuid": _ID.upper(),
    "key": bytes.fromhex(_ID.replace("-", "")),
    "clock": 86_399_999,
    "local": -1,
    "one": 7,
}
FULL_ROW: dict[str, Any] = FULL | {"key": _ID}

LEAST: dict[str, Any] = FULL | {
    "flag": False,
    "int": 0,
    "id": -(1 << 63),
    "raw": b"",
    "name": "",
    "state": "OPEN",
    "list": [],
    "lists": [],
    "map": {},
    "note": None,
    "at": None,
    "ats": [],
    "price": Decimal("0.00"),
    "whole": Decimal(-1),
    "cents": Decimal("-0.01"),
    "day": date.min,
    "millis": datetime.min.replace(tzinfo=UTC),
    "micros": datetime.max.replace(tzinfo=UTC),
    "uuid": "not one",
}
LEAST_ROW: dict[str, Any] = LEAST | {"key": _ID}


def avro(value: Any, schema: Any = ALL) -> bytes:
    """A value, encoded by fastavro."""
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), value)
    return file.getvalue()


def avro_of(schema: Any = ALL) -> AvroParser:
    return AvroParser.of(read_avro_schema(json.dumps(schema).encode(), "order.avsc"))


def avro_file(folder: Path, schema: Any = ALL) -> Path:
    path = folder / "order.avsc"
    path.write_text(json.dumps(schema))
    return path


# --- Protobuf ---

F = FieldDescriptorProto
SINGLE, REPEATED, REQUIRED = F.LABEL_OPTIONAL, F.LABEL_REPEATED, F.LABEL_REQUIRED


def field(name: str, number: int, kind: int, label: int = SINGLE, of: str = "", **others: Any) -> Any:
    return F(name=name, number=number, type=kind, label=label, type_name=of or None, **others)


def message(name: str, *fields: Any, nested: tuple[Any, ...] = (), **others: Any) -> Any:
    return DescriptorProto(name=name, field=fields, nested_type=nested, **others)


def map_entry(name: str, key: Any, value: Any) -> Any:
    found = message(name, key, value)
    found.options.map_entry = True
    return found


def file_of(*messages: Any, enums: tuple[Any, ...] = (), syntax: str = "proto3", **others: Any) -> Any:
    return FileDescriptorProto(
        name="order.proto", package="shop", syntax=syntax, message_type=messages, enum_type=enums, **others
    )


def descriptors(*files: Any) -> bytes:
    return bytes(FileDescriptorSet(file=files).SerializeToString())


def imported(descriptor: Any) -> Any:
    found = FileDescriptorProto()
    descriptor.CopyToProto(found)
    return found


STATE = {"name": "State", "value": [{"name": "OPEN", "number": 0}, {"name": "PAID", "number": 5}]}
_INTS = ("int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32", "sfixed64")
_PLAIN = (*_INTS, "bool", "float", "double", "string", "bytes")
_WRAPPED = ("Int32", "UInt64", "String", "Bool", "Double", "Bytes")


def _types(name: str) -> int:
    found: int = F.Type.Value(f"TYPE_{name.upper()}")
    return found


def _order() -> Any:
    """A message with each type alone, optional, repeated and wrapped; in maps, in a oneof, and in messages."""
    fields = [field(name, number, _types(name)) for number, name in enumerate(_PLAIN, 1)]
    fields.append(field("state", 20, F.TYPE_ENUM, of=".shop.State"))
    oneofs = []
    for number, name in enumerate(_PLAIN, 30):
        oneofs.append({"name": f"_maybe_{name}"})
        fields.append(
            field(f"maybe_{name}", number, _types(name), proto3_optional=True, oneof_index=len(oneofs))  # behind `kind`
        )
    fields += [field(f"many_{name}", number, _types(name), REPEATED) for number, name in enumerate(_PLAIN, 50)]
    fields.append(field("states", 70, F.TYPE_ENUM, REPEATED, ".shop.State"))
    for number, name in enumerate(_WRAPPED, 80):
        fields.append(field(f"wrapped_{name}", number, F.TYPE_MESSAGE, of=f".google.protobuf.{name}Value"))
    fields += [
        field("wraps", 90, F.TYPE_MESSAGE, REPEATED, ".google.protobuf.StringValue"),
        field("at", 91, F.TYPE_MESSAGE, of=".google.protobuf.Timestamp"),
        field("times", 92, F.TYPE_MESSAGE, REPEATED, ".google.protobuf.Timestamp"),
        field("item", 93, F.TYPE_MESSAGE, of=".shop.Item"),
        field("items", 94, F.TYPE_MESSAGE, REPEATED, ".shop.Item"),
        field("none", 95, F.TYPE_MESSAGE, of=".shop.None"),
        field("card", 96, F.TYPE_STRING, oneof_index=0),
        field("cash", 97, F.TYPE_MESSAGE, of=".shop.None", oneof_index=0),
        field("prices", 98, F.TYPE_MESSAGE, REPEATED, ".shop.Order.PricesEntry"),
        field("by_number", 99, F.TYPE_MESSAGE, REPEATED, ".shop.Order.ByNumberEntry"),
        field("ListFields", 100, F.TYPE_INT32),  # the name of a method
        field("from", 101, F.TYPE_INT32),
    ]
    entries = (
        map_entry("PricesEntry", field("key", 1, F.TYPE_STRING), field("value", 2, F.TYPE_DOUBLE)),
        map_entry("ByNumberEntry", field("key", 1, F.TYPE_UINT64), field("value", 2, F.TYPE_MESSAGE, of=".shop.Item")),
    )
    return message("Order", *fields, nested=entries, oneof_decl=[{"name": "kind"}, *oneofs])


ITEM = message(
    "Item",
    field("sku", 1, F.TYPE_STRING),
    field("count", 2, F.TYPE_UINT32, proto3_optional=True, oneof_index=0),
    oneof_decl=[{"name": "_count"}],
)
ORDER_FILE = file_of(
    _order(),
    ITEM,
    message("None"),
    enums=(STATE,),
    dependency=["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"],
)
ORDER_SET = descriptors(imported(TIMESTAMP_FILE), imported(WRAPPERS_FILE), ORDER_FILE)


def protobuf_of(data: bytes = ORDER_SET, name: str = "shop.Order") -> ProtobufParser:
    return ProtobufParser.of(read_descriptor_set(data, name, "order.desc"))


def protobuf_file(folder: Path, data: bytes = ORDER_SET) -> Path:
    path = folder / "order.desc"
    path.write_bytes(data)
    return path


def class_of(parser: ProtobufParser) -> Any:
    from jsbackup.pipeline.payloads.protobuf_schema import message_class

    return message_class(parser.files, parser.name)


_VALUES: dict[str, Any] = {name: -3 for name in _INTS if "u" not in name and not name.startswith("fixed")}
_VALUES |= {"uint32": (1 << 32) - 1, "fixed32": 1 << 31, "uint64": (1 << 64) - 1, "fixed64": 1 << 63}
_VALUES |= {"bool": True, "float": 0.1, "double": -0.0, "string": "é\0", "bytes": b"\xff\0"}
_FLOAT = 0.10000000149011612  # what a float of 0.1 is


def _column(name: str, value: Any) -> Any:
    if name in ("uint64", "fixed64", "UInt64"):
        return Decimal(value)
    return _FLOAT if name == "float" and value else value


def order(kind: Any) -> Any:
    """A message in which everything is set."""
    found = kind()
    for name, value in _VALUES.items():
        setattr(found, name, value)
        setattr(found, f"maybe_{name}", type(value)())
        getattr(found, f"many_{name}").extend([value, type(value)()])
    found.state = 5
    found.states.extend([5, 0])
    for name, value in (("Int32", 0), ("UInt64", 1 << 63), ("String", "x"), ("Bool", False)):
        getattr(found, f"wrapped_{name}").value = value
    found.wrapped_Int32.SetInParent()
    found.wrapped_Bool.SetInParent()
    found.wraps.add(value="a")
    found.wraps.add()
    found.at.seconds, found.at.nanos = 1_000_000_000, 123_456_789
    found.times.add(seconds=-1, nanos=999_999_999)
    found.times.add()
    found.item.sku, found.item.count = "s", 0
    found.items.add(sku="a")
    found.items.add(count=2)
    found.none.SetInParent()
    found.cash.SetInParent()
    found.prices["b"], found.prices["a"] = 1.5, 0.0
    found.by_number[(1 << 64) - 1].sku = "last"
    found.by_number[0].sku = "first"
    setattr(found, "from", 9)
    return found


def _time(seconds: int, microseconds: int, nanos: int) -> dict[str, Any]:
    return {"time": datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds), "nanos": nanos}


def _row(*, full: bool) -> dict[str, Any]:
    zeros = {name: type(value)() for name, value in _VALUES.items()}
    values = _VALUES if full else zeros
    row: dict[str, Any] = {name: _column(name, values[name]) for name in _PLAIN}
    row["state"] = "PAID" if full else "OPEN"
    row |= {f"maybe_{name}": _column(name, zeros[name]) if full else None for name in _PLAIN}
    for name in _PLAIN:
        row[f"many_{name}"] = [_column(name, one) for one in (values[name], zeros[name])] if full else []
    row["states"] = ["PAID", "OPEN"] if full else []
    row |= dict.fromkeys([f"wrapped_{name}" for name in _WRAPPED])
    if full:
        row |= {"wrapped_Int32": 0, "wrapped_UInt64": Decimal(1 << 63), "wrapped_String": "x", "wrapped_Bool": False}
    nothing: dict[str, Any] = {
        "wraps": [],
        "at": None,
        "times": [],
        "item": None,
        "items": [],
        "none": None,
        "card": None,
        "cash": None,
        "prices": {},
        "by_number": {},
        "ListFields": 0,
        "from": 0,
    }
    if not full:
        return row | nothing
    return row | nothing | {
        "wraps": ["a", ""],
        "at": _time(1_000_000_000, 123_456, 123_456_789),
        "times": [_time(-1, 999_999, 999_999_999), _time(0, 0, 0)],
        "item": {"sku": "s", "count": 0},
        "items": [{"sku": "a", "count": None}, {"sku": "", "count": 2}],
        "none": True,
        "cash": True,
        "prices": {"a": 0.0, "b": 1.5},
        "by_number": {
            Decimal(0): {"sku": "first", "count": None}, Decimal((1 << 64) - 1): {"sku": "last", "count": None},
        },
        "from": 9,
    }  # fmt: skip


ORDER_ROW, EMPTY_ROW = _row(full=True), _row(full=False)
