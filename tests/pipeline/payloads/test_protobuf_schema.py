"""Messages of Protobuf: what columns they become, and which are refused, in one sentence and before a job runs."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.struct_pb2 import DESCRIPTOR as STRUCT_FILE

from jsbackup.errors import UnsupportedError, UsageError
from jsbackup.pipeline.payloads import protobuf_schema
from jsbackup.pipeline.payloads.schema_files import avro_parser, protobuf_parser
from tests.pipeline.payloads.encoded import (
    ORDER_FILE,
    ORDER_ROW,
    ORDER_SET,
    REPEATED,
    F,
    class_of,
    descriptors,
    field,
    file_of,
    imported,
    map_entry,
    message,
    order,
    parsed,
    protobuf_file,
    protobuf_of,
)


def test_types_become_columns() -> None:
    text = protobuf_of().text
    assert text.startswith(
        "protobuf: int32 INT, int64 BIGINT, uint32 BIGINT, uint64 DECIMAL(20,0), sint32 INT, sint64 BIGINT, "
        "fixed32 BIGINT, fixed64 DECIMAL(20,0), sfixed32 INT, sfixed64 BIGINT, bool BOOLEAN, float FLOAT, "
        "double DOUBLE, string STRING, bytes BINARY, state STRING, maybe_int32 INT, "
    )
    for part in (
        "many_uint64 ARRAY<DECIMAL(20,0)>, ",
        "states ARRAY<STRING>, wrapped_Int32 INT, wrapped_UInt64 DECIMAL(20,0), wrapped_String STRING, ",
        "wraps ARRAY<STRING>, at STRUCT<time: TIMESTAMP, nanos: INT>, ",
        "item STRUCT<sku: STRING, count: BIGINT>, items ARRAY<STRUCT<sku: STRING, count: BIGINT>>, none BOOLEAN, ",
        "prices MAP<STRING, DOUBLE>, by_number MAP<DECIMAL(20,0), STRUCT<sku: STRING, count: BIGINT>>, ",
    ):
        assert part in text
    assert protobuf_of(name="shop.Item").text == "protobuf: sku STRING, count BIGINT"
    inner = file_of(message("A", field("x", 1, F.TYPE_BOOL), nested=(message("B", field("y", 1, F.TYPE_BYTES)),)))
    assert protobuf_of(descriptors(inner), "shop.A.B").schema == pa.struct([("y", pa.binary())])


def test_a_parser_has_only_the_files_that_it_needs() -> None:
    other = file_of(message("Other", field("x", 1, F.TYPE_INT32)))
    other.name = "other.proto"
    data = ORDER_SET + descriptors(other, imported(STRUCT_FILE))
    assert len(protobuf_of(data).files) == 3
    assert len(protobuf_of(data, "shop.Other").files) == 1
    again = pickle.loads(pickle.dumps(protobuf_of(data)))
    assert parsed(again, order(class_of(again)).SerializeToString()) == [(ORDER_ROW, None)]


def test_files_may_come_in_any_order() -> None:
    files = files_of(ORDER_SET)
    assert protobuf_of(descriptors(*reversed(files))).text == protobuf_of().text


def files_of(data: bytes) -> list[Any]:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    return list(FileDescriptorSet.FromString(data).file)


def test_without_protobuf_an_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_schema, "find_spec", lambda _name: None)
    with pytest.raises(UnsupportedError, match="take the package protobuf, which is not installed") as raised:
        protobuf_of()
    assert raised.value.exit_code == 13 and "jsbackup[protobuf]" in str(raised.value.hint)


def _of_itself() -> bytes:
    node = message("Node", field("next", 1, F.TYPE_MESSAGE, REPEATED, ".shop.Node"))
    return descriptors(file_of(node, message("Order", field("node", 1, F.TYPE_MESSAGE, of=".shop.Node"))))


def _deep(count: int, *, wide: bool) -> bytes:
    messages = [message("M0", field("x", 1, F.TYPE_INT32))]
    for number in range(1, count):
        names = ("a", "b") if wide else ("a",)
        fields = [field(name, at, F.TYPE_MESSAGE, of=f".shop.M{number - 1}") for at, name in enumerate(names, 1)]
        messages.append(message(f"M{number}", *fields))
    return descriptors(file_of(*messages))


def _in_a_circle() -> bytes:
    one, other = (
        file_of(message("A", field("x", 1, F.TYPE_INT32)), dependency=["b.proto"]),
        file_of(dependency=["order.proto"]),
    )
    other.name = "b.proto"
    return descriptors(one, other)


def _of_json() -> bytes:
    json = message("Order", field("json", 1, F.TYPE_MESSAGE, of=".google.protobuf.Struct"))
    return descriptors(imported(STRUCT_FILE), file_of(json, dependency=["google/protobuf/struct.proto"]))


REFUSED: list[tuple[bytes, str, str]] = [
    (b"", "shop.Order", "order.desc is not a descriptor set of Protobuf"),
    (b"\xff" * 20, "shop.Order", "order.desc is not a descriptor set of Protobuf"),
    (b'syntax = "proto3"; message Order {}', "Order", "order.desc is not a descriptor set of Protobuf"),
    (ORDER_SET, "Order", "order.desc has no message 'Order'"),
    (ORDER_SET, "shop.State", "order.desc has no message 'shop.State'"),
    (ORDER_SET, "shop.Oder", "order.desc has no message 'shop.Oder'"),
    (ORDER_SET, "shop.None", "the message shop.None has no fields"),
    (descriptors(ORDER_FILE), "shop.Order", "order.desc lacks google/protobuf/wrappers.proto"),
    (_in_a_circle(), "shop.A", "order.desc has files that import each other"),
    (_of_itself(), "shop.Node", "the field next of shop.Node is in a shop.Node that contains itself"),
    (_of_itself(), "shop.Order", "the field node.next of shop.Order is in a shop.Node that contains itself"),
    (_of_json(), "shop.Order", "that contains itself, which columns cannot express"),
    (_deep(60, wide=False), "shop.M59", "order.desc has more than 50 messages in one another"),
    (_deep(30, wide=True), "shop.M29", "order.desc would become more than 10,000 columns"),
    (
        descriptors(file_of(message("A", field("x", 1, F.TYPE_MESSAGE, of=".shop.Missing")))),
        "shop.A",
        "order.desc is not a sound descriptor set of Protobuf: ",
    ),
]


@pytest.mark.parametrize(("data", "name", "said"), REFUSED, ids=[said[:60] for _, _, said in REFUSED])
def test_what_columns_cannot_express_is_refused(data: bytes, name: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)) as raised:
        protobuf_of(data, name)
    assert raised.value.exit_code == 2 and raised.value.hint


def test_hints_name_the_message_that_was_meant() -> None:
    with pytest.raises(UsageError) as raised:
        protobuf_of(ORDER_SET, "shop.Oder")
    assert raised.value.hint == "Did you mean shop.Order?"


def test_a_map_of_a_message_is_no_array() -> None:
    entry = map_entry("XEntry", field("key", 1, F.TYPE_BOOL), field("value", 2, F.TYPE_BYTES))
    one = message("A", field("x", 1, F.TYPE_MESSAGE, REPEATED, ".shop.A.XEntry"), nested=(entry,))
    assert protobuf_of(descriptors(file_of(one)), "shop.A").text == "protobuf: x MAP<BOOLEAN, BINARY>"


def test_files_are_read_or_an_error_says_why(tmp_path: Path) -> None:
    path = protobuf_file(tmp_path)
    assert protobuf_parser(f"{path}:shop.Order") == protobuf_of()
    for given, said in (
        (f"{path}", "is given as FILE:MESSAGE"),
        (f"{path}:", "is given as FILE:MESSAGE"),
        (":shop.Order", "is given as FILE:MESSAGE"),
        (f"{tmp_path}/none:shop.Order", "cannot be read: no such file or directory"),
        (f"{tmp_path}:shop.Order", "cannot be read: is a directory"),
        (f"{path}\0:shop.Order", "cannot be read"),
    ):
        with pytest.raises(UsageError, match=re.escape(said)):
            protobuf_parser(given)
    with pytest.raises(UsageError, match="cannot be read: no such file or directory"):
        avro_parser(str(tmp_path / "none"))
