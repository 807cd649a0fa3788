"""Payloads of JSON: what a schema takes is what `json.loads` gives, and all else is kept as text."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql import types as T

from jsbackup.errors import UsageError
from jsbackup.pipeline.payloads import json_payload
from jsbackup.pipeline.payloads.json_payload import JsonParser
from jsbackup.pipeline.payloads.json_spark import of_spark
from jsbackup.pipeline.payloads.parsing import PayloadParser

FIELDS: dict[str, T.DataType] = {
    "flag": T.BooleanType(),
    "tiny": T.ByteType(),
    "int": T.IntegerType(),
    "id": T.LongType(),
    "total": T.DoubleType(),
    "price": T.DecimalType(10, 2),
    "whole": T.DecimalType(38, 0),
    "name": T.StringType(),
    "list": T.ArrayType(T.LongType()),
    "lists": T.ArrayType(T.ArrayType(T.DoubleType())),
    "map": T.MapType(T.StringType(), T.LongType()),
    "at": T.StructType([T.StructField("x", T.DoubleType()), T.StructField("tags", T.ArrayType(T.StringType()))]),
}
NAMES = list(FIELDS)


def schema(fields: dict[str, T.DataType]) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in fields.items()])


def parser_of(kind: T.StructType) -> JsonParser:
    return JsonParser(of_spark(kind))


ALL = parser_of(schema(FIELDS))


def parse(*payloads: bytes | None, parser: PayloadParser = ALL) -> list[tuple[dict[str, Any] | None, str | None]]:
    rows = parser.parse(pa.array(payloads, pa.binary())).to_pylist(maps_as_pydicts="strict")
    return [(row["payload"], row["_corrupt_record"]) for row in rows]


FITS: list[tuple[bytes, dict[str, Any]]] = [
    (b"{}", {}),
    (b' {"id": 1, "unknown": [1, {}], "ID": 2}\r\n', {"id": 1}),
    (b'{"id": null, "list": null, "at": null, "map": null}', {}),
    (b'{"id": 1, "id": 2}', {"id": 2}),
    (b'{"id": "text", "id": 2}', {"id": 2}),
    (b'{"id": 1, "id": null}', {}),
    (b'{"id": 9223372036854775807}', {"id": (1 << 63) - 1}),
    (b'{"id": -9223372036854775808}', {"id": -(1 << 63)}),
    (b'{"tiny": -128, "int": 2147483647}', {"tiny": -128, "int": (1 << 31) - 1}),
    (b'{"total": 9007199254740992}', {"total": float(1 << 53)}),
    (b'{"total": 5, "name": ""}', {"total": 5.0, "name": ""}),
    (b'{"total": -1e-7}', {"total": -1e-7}),
    (b'{"total": 0.1000000000000000055511151231257827}', {"total": 0.1}),
    (b'{"price": 1.50000, "whole": 12345678901234567890123456789012345678}', {
        "price": Decimal("1.50"), "whole": Decimal("12345678901234567890123456789012345678")}),
    (b'{"price": 12345678.9, "whole": 1e3}', {"price": Decimal("12345678.90"), "whole": Decimal(1000)}),
    ('{"name": "é😀\\u0000\\ud83d\\ude00"}'.encode(), {"name": "é😀\0😀"}),
    (b'{"list": [], "lists": [[], null, [1, 2.5, null]]}', {"list": [], "lists": [[], None, [1.0, 2.5, None]]}),
    (b'{"map": {"a": 1, "": null, "a": 2}}', {"map": {"a": 2, "": None}}),
    (b'{"at": {"tags": ["a", null]}}', {"at": {"x": None, "tags": ["a", None]}}),
    (b'{"unknown": "\\ud800"}', {}),
]  # fmt: skip


@pytest.mark.parametrize(("payload", "wanted"), FITS)
def test_what_fits_is_parsed(payload: bytes, wanted: dict[str, Any]) -> None:
    assert parse(payload) == [(dict.fromkeys(NAMES) | wanted, None)]


CORRUPT = [
    b" ", b"\n", b"1", b'"text"', b"true", b"[]", b'[{"id": 1}]', b"NaN", b"{", b'{"id": 1} x', b'{"id": 1}{"id": 2}',
    b'{"id": 1},{"id": 2}', b"{'id': 1}", b'{"id": 01}', b'{"id": 1,}', b'{id: 1}', b'{"id": 1}\0', b'{"name": "a\nb"}',
    b'\xef\xbb\xbf{"id": 1}',
    b'{"id": 9223372036854775808}', b'{"id": 1.0}', b'{"id": 1e2}', b'{"id": "1"}', b'{"id": true}', b'{"id": NaN}',
    b'{"tiny": 128}', b'{"tiny": 255}', b'{"int": 2147483648}', b'{"flag": 1}', b'{"flag": "true"}',
    b'{"total": 9007199254740993}', b'{"total": 1e400}', b'{"total": NaN}', b'{"total": -Infinity}',
    b'{"total": "NaN"}', b'{"total": "1.5"}', b'{"total": true}',
    b'{"total": 1%s}' % (b"0" * 400), b'{"total": 1%s}' % (b"0" * 5000),
    b'{"unknown": 1%s}' % (b"0" * 5000), b'{"unknown": NaN}',
    b'{"price": 1.005}', b'{"price": 123456789}', b'{"price": "1.5"}',
    b'{"price": 1e99999999}', b'{"total": 1e9999999999999999999}',
    b'{"price": true}',
    b'{"price": 1.000000000000000000000000000000000000000000001}',
    b'{"whole": 123456789012345678901234567890123456789}', b'{"whole": 0.5}',
    b'{"name": 1}', b'{"name": {"a": 1}}', b'{"name": "\\ud800"}', b'{"name": "\\ude00\\ud83d"}',
    b'{"list": [1, "x"]}', b'{"list": 5}', b'{"list": {}}', b'{"list": [9223372036854775808]}',
    b'{"map": []}', b'{"map": {"a": "b"}}', b'{"map": {"\\udfff": 1}}', b'{"at": []}', b'{"at": {"x": "y"}}',
    b'{"unknown": %s}' % (b"[" * 100_000 + b"]" * 100_000),
]  # fmt: skip


@pytest.mark.parametrize("payload", CORRUPT, ids=[repr(one[:40]) for one in CORRUPT])
def test_what_does_not_parse_or_fit_is_kept_as_text(payload: bytes) -> None:
    assert parse(payload, b'{"id": 1}') == [(None, payload.decode()), (dict.fromkeys(NAMES) | {"id": 1}, None)]


def test_bytes_that_are_not_utf_8_fail_nothing() -> None:
    assert parse(b'{"name": "\xff"}', b"\xed\xa0\x80", b'{"id": 1}')[:2] == [
        (None, '{"name": "\ufffd"}'),
        (None, "\ufffd\ufffd\ufffd"),
    ]


def test_nothing_and_null_are_no_corrupt_records() -> None:
    assert parse(b"", None, b"null", b" null\n") == [(None, None)] * 4
    assert parse() == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "no fields"),
        ({"a": T.FloatType()}, "payloads of JSON have no FLOAT"),
        ({"a": T.ArrayType(T.TimestampType())}, "payloads of JSON have no TIMESTAMP"),
        ({"a": T.MapType(T.LongType(), T.LongType())}, "payloads of JSON have no MAP<BIGINT,BIGINT>"),
        ({"a": T.StructType([])}, "no fields"),
        ({"a": T.VariantType()}, "payloads of JSON have no VARIANT"),
        ({"a": T.StringType("UTF8_LCASE")}, "payloads of JSON have no STRING COLLATE UTF8_LCASE"),
    ],
)
def test_types_that_json_does_not_have_are_refused(fields: dict[str, T.DataType], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parser_of(schema(fields))


def test_a_field_that_is_there_twice_is_refused() -> None:
    twice = T.StructType([T.StructField("a", T.LongType()), T.StructField("a", T.StringType())])
    with pytest.raises(UsageError, match="the field 'a' twice"):
        parser_of(twice)


def test_large_payloads_are_parsed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_payload, "_MOST_BYTES", 30)
    payloads = [b"", b'{"id": 1}', b'{"name": "%s"}' % (b"x" * 50), b'{"id": 2}', b'{"id": 3}', b'{"id": 4}', b"bad"]
    found = parse(*payloads)
    assert [row and (row["id"], len(row["name"] or "")) for row, _ in found] == [
        None, (1, 0), (None, 50), (2, 0), (3, 0), (4, 0), None,
    ]  # fmt: skip
    assert [corrupt for _, corrupt in found] == [None] * 6 + ["bad"]


# --- random JSON ---

_TEXT = st.text(max_size=5)  # with halves of surrogate pairs, which json.dumps escapes
_NUMBERS = (
    st.integers(-300, 300)
    | st.integers(-(1 << 70), 1 << 70)
    | st.sampled_from([(1 << 53) + 1, 1 << 63, -(1 << 63), 10**38, 10**45])
    | st.floats()
    | st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=3).map(float)
)
_LEAVES = st.none() | st.booleans() | _NUMBERS | _TEXT
_VALUES = st.recursive(
    _LEAVES, lambda one: st.lists(one, max_size=3) | st.dictionaries(_TEXT | st.sampled_from(["x", "tags"]), one)
)
_EACH = {
    "flag": st.booleans(),
    "tiny": st.integers(-130, 130),
    "int": st.integers(-(1 << 32), 1 << 32),
    "id": st.integers(-(1 << 64), 1 << 64),
    "total": _NUMBERS,
    "price": _NUMBERS,
    "whole": _NUMBERS,
    "name": _TEXT,
    "list": st.lists(st.none() | st.integers(-(1 << 62), 1 << 62), max_size=3),
    "lists": st.lists(st.none() | st.lists(st.none() | st.floats(), max_size=2), max_size=3),
    "map": st.dictionaries(_TEXT, st.none() | st.integers(0, 5), max_size=3),
    "at": st.fixed_dictionaries({}, optional={"x": st.floats(), "tags": st.lists(_TEXT), "y": _LEAVES}),
}
_OBJECTS = st.fixed_dictionaries({}, optional=_EACH) | st.dictionaries(st.sampled_from([*NAMES, "z"]), _VALUES)


@st.composite
def _payloads(draw: st.DrawFn) -> bytes:
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.binary(max_size=20))
    value = draw(_VALUES if kind == 1 else _OBJECTS)
    text = json.dumps(value, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    if kind == 2 and text:  # damaged
        at = draw(st.integers(0, len(text) - 1))
        return text[:at] + draw(st.binary(max_size=2)) + text[at + draw(st.integers(0, 1)) :]
    return text


def same(value: Any, loaded: Any, kind: T.DataType) -> bool:
    """Whether a value of a row is what json.loads gives, where a field is missing null."""
    if value is None or loaded is None:
        return value is None and loaded is None
    if isinstance(kind, T.StructType):
        return all(same(value[f.name], loaded.get(f.name), f.dataType) for f in kind.fields)
    if isinstance(kind, T.ArrayType):
        return len(value) == len(loaded) and all(
            same(a, b, kind.elementType) for a, b in zip(value, loaded, strict=True)
        )
    if isinstance(kind, T.MapType):
        return value.keys() == loaded.keys() and all(same(value[k], loaded[k], kind.valueType) for k in value)
    if isinstance(loaded, bool) or isinstance(kind, T.BooleanType):
        return value is loaded
    if isinstance(kind, T.DecimalType) and isinstance(loaded, float):
        return float(value) == loaded
    return bool(value == loaded)


@pytest.mark.by_turns
@pytest.mark.slow
@given(st.lists(_payloads(), max_size=8))
@example([b'{"total": 1180591620717411303425}'])
def test_a_row_is_what_json_loads_gives_or_the_text_is_kept(payloads: list[bytes]) -> None:
    for payload, (row, corrupt) in zip(payloads, parse(*payloads), strict=True):
        if corrupt is not None:
            assert row is None and corrupt == payload.decode(errors="replace")
        elif payload:
            assert same(row, json.loads(payload.decode()), schema(FIELDS))
        else:
            assert row is None
