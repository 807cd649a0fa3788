"""Schemas of Avro: what columns they become, and which are refused, in one sentence and before a job runs."""

from __future__ import annotations

import json
import pickle
import sys
from typing import Any

import pyarrow as pa
import pytest

from jsbackup.errors import UnsupportedError, UsageError
from jsbackup.pipeline.payloads import avro_schema
from jsbackup.pipeline.payloads.avro_schema import read_avro_schema
from tests.pipeline.payloads.encoded import ALL, FULL, FULL_ROW, avro, avro_of, logical, parsed, record


def test_types_become_columns() -> None:
    assert avro_of().text == (
        "avro: flag BOOLEAN, int INT, id BIGINT, ratio FLOAT, total DOUBLE, raw BINARY, name STRING, four BINARY, "
        "state STRING, list ARRAY<BIGINT>, lists ARRAY<ARRAY<STRING>>, map MAP<STRING, DOUBLE>, note STRING, "
        "at STRUCT<x: DOUBLE, tags: ARRAY<STRING>>, ats ARRAY<STRUCT<x: DOUBLE, tags: ARRAY<STRING>>>, "
        "price DECIMAL(10,2), whole DECIMAL(38,0), cents DECIMAL(12,2), day DATE, millis TIMESTAMP, micros TIMESTAMP, "
        "uuid STRING, key STRING, clock INT, local BIGINT, one INT"
    )
    assert avro_of().schema.field("millis").type == pa.timestamp("us", "UTC")


def test_executors_need_no_fastavro(monkeypatch: pytest.MonkeyPatch) -> None:
    content, payload = pickle.dumps(avro_of()), avro(FULL)
    monkeypatch.setitem(sys.modules, "fastavro", None)
    assert parsed(pickle.loads(content), payload) == [(FULL_ROW, None)]


def test_without_fastavro_an_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_schema, "find_spec", lambda _name: None)
    with pytest.raises(UnsupportedError, match="take the package fastavro, which is not installed") as raised:
        avro_of()
    assert raised.value.exit_code == 13 and "jsbackup[avro]" in str(raised.value.hint)


def test_the_fingerprint_is_that_of_the_specification() -> None:
    # Of the tests of Apache Avro: "int" is 7275d51a3f395c8f, and a header has the lowest byte first.
    from fastavro.schema import fingerprint

    assert fingerprint('"int"', "CRC-64-AVRO") == "8f5c393f1ad57572"
    header = avro_of(record(("a", "int"))).header
    assert header[:2] == b"\xc3\x01" and len(header) == 10
    same = {"doc": "text", "namespace": "shop", **record(("a", {"type": "int"}), name="All")}
    assert avro_of(same).header == header
    assert avro_of(record(("b", "int"))).header != header


_NODE: dict[str, Any] = record(("next", ["null", "Node"]), name="Node")
_TWICE = {"type": "record", "name": "A", "fields": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("int", "is not a record"),
        ([record(("a", "int")), "null"], "is not a record"),
        ({"type": "map", "values": "int"}, "is not a record"),
        (_NODE, "the field next of order.avsc is in a Node that contains itself"),
        (record(("a", {"type": "array", "items": _NODE})), "the field a[].next of order.avsc is in a shop.Node that"),
        (
            record(("a", ["int", "string"])),
            "the field a of order.avsc is a union of other types than null and one more",
        ),
        (record(("a", ["null", "int", "string"])), "is a union of other types"),
        (record(("a", ["null"])), "is a union of other types"),
        (record(("a", "null")), "the field a of order.avsc is always null"),
        (record(("a", {"type": "array", "items": "null"})), "the field a[] of order.avsc is always null"),
        (record(), "is a record without fields"),
        (record(("a", {"type": "array", "items": record(name="Empty")})), "is a record without fields, "),
        (record(("a", {"type": "fixed", "name": "Z", "size": 0})), "is a fixed of 0 bytes"),
        (record(("a", logical("bytes", "decimal", precision=39))), "is a decimal of 39 digits"),
        (record(("a", logical("bytes", "decimal"))), "is a decimal with a precision of None"),
        (_TWICE, "the field 'a' twice"),
        (record(("a b", "int")), "a field without a name of Avro: 'a b'"),
        (record(("a", "Missing")), "order.avsc is not a schema of Avro"),
        (record(("a", {"type": ["int"]})), "order.avsc is not a schema of Avro"),
        ({"type": "record", "name": "A"}, "order.avsc"),
        ({"fields": []}, "order.avsc is not a schema of Avro"),
        ({"type": "record", "fields": [{}]}, "order.avsc is not a schema of Avro"),
        (7, "order.avsc is not a schema of Avro"),
        (None, "order.avsc is not a schema of Avro"),
        ({**ALL, "fields": 3}, "order.avsc is not a schema of Avro"),
    ],
    ids=lambda one: json.dumps(one)[:60],
)
def test_what_columns_cannot_express_is_refused(schema: Any, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        avro_of(schema)
    assert said in raised.value.message and raised.value.exit_code == 2


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff", b"record", b"[" * 100_000, b'"\\ud800"', b'{"type": "record", "type": 1}']
)
def test_what_is_no_schema_is_one_sentence(content: bytes) -> None:
    with pytest.raises(UsageError, match=r"order\.avsc"):
        read_avro_schema(content, "order.avsc")


def test_a_schema_that_says_that_it_was_parsed_is_parsed() -> None:
    schema = record(("a", "int")) | {"__fastavro_parsed": True, "__named_schemas": {"x": 1}}
    assert avro_of(schema).text == "avro: a INT"


def test_a_small_schema_of_endless_columns_is_refused() -> None:
    kind: Any = "int"
    for number in range(30):
        inner = kind
        kind = record(("a", inner), ("b", inner if isinstance(inner, str) else inner["name"]), name=f"R{number}")
    with pytest.raises(UsageError, match="more than 10,000 columns"):
        avro_of(kind)
    deep: Any = "int"
    for _ in range(60):
        deep = {"type": "array", "items": deep}
    with pytest.raises(UsageError, match="more than 50 types in one another"):
        avro_of(record(("a", deep)))
