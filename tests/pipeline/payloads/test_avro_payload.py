"""Payloads of Avro: what fastavro encodes is read back without a change, and all else is kept byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from itertools import count
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.pipeline.payloads import binary_payload
from tests.pipeline.payloads.encoded import (
    ALL,
    FULL,
    FULL_ROW,
    LEAST,
    LEAST_ROW,
    avro,
    avro_of,
    logical,
    parsed,
    record,
)


def long_of(number: int) -> bytes:
    """A long as Avro encodes it."""
    rest, found = (number << 1) ^ (number >> 63) if number < 0 else number << 1, bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])


def test_all_types_are_read() -> None:
    assert parsed(avro_of(), avro(FULL), avro(LEAST)) == [(FULL_ROW, None), (LEAST_ROW, None)]


def test_nothing_is_no_corrupt_record() -> None:
    assert parsed(avro_of(), b"", None) == [(None, None)] * 2
    assert parsed(avro_of()) == []


def test_a_payload_with_a_header_is_read() -> None:
    schema = record(("a", "long"), ("b", "string"))
    parser, datum = avro_of(schema), avro({"a": 5, "b": "x"}, schema)
    other = avro_of(record(("c", "long"))).header
    assert parsed(parser, parser.header + datum, other + datum, parser.header, parser.header * 2 + datum) == [
        ({"a": 5, "b": "x"}, None),
        (None, other + datum),
        (None, parser.header),
        (None, parser.header * 2 + datum),
    ]
    confluent = b"\0\0\0\0\7" + datum
    assert parsed(parser, confluent) == [(None, confluent)]


_LONGS = {"type": "array", "items": "long"}
_OF_ONE: list[tuple[Any, list[bytes]]] = [
    ("boolean", [b"\2", b"\xff"]),
    ("int", [long_of(1 << 31), long_of(-(1 << 31) - 1), b"\x80", b"\x80" * 9]),
    ("long", [b"\xff" * 10 + b"\1", b"\x80" * 100_000 + b"\0", b"\xff" * 9 + b"\2"]),
    ("float", [b"\0" * 3]),
    ("double", [b"\0" * 7]),
    ("bytes", [long_of(-1) + b"x", long_of(5) + b"abcd", long_of(1 << 60), long_of(-(1 << 62))]),
    ("string", [long_of(1) + b"\xff", long_of(3) + b"\xed\xa0\x80", long_of(4) + b"abc"]),
    ({"type": "fixed", "name": "F", "size": 4}, [b"abc"]),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, [long_of(2), long_of(-1), long_of(1 << 62)]),
    (["null", "int"], [long_of(2), long_of(-1), long_of(1)]),
    (["int", "null"], [long_of(2), long_of(0)]),
    (["int"], [long_of(1) + b"\0", long_of(-1)]),
    (_LONGS, [
        long_of(1 << 60), long_of(-(1 << 60)), long_of(-(1 << 63)) + long_of(0), long_of(2) + b"\2",
        long_of(-1) + long_of(-1) + b"\2\0", long_of(-1) + long_of(2) + b"\2\0", long_of(1) + b"\2",
        long_of(1) + b"\2" + long_of(1 << 40),
    ]),
    ({"type": "array", "items": _LONGS}, [long_of(5) * 100_000]),
    ({"type": "map", "values": "long"}, [
        long_of(1 << 60), long_of(1) + b"\2\xff\2\0", long_of(2) + b"\2a\2\2a\4\0", long_of(1) + b"\2a\2" * 2 + b"\0",
    ]),
    (logical("bytes", "decimal", precision=4, scale=2), [b"\0", b"\4\x27\x10", b"\4\xd8\xf0", b"\x10" + b"\x7f" * 8]),
    (logical("int", "date"), [long_of(2932897), long_of(-719163)]),
    (logical("long", "timestamp-millis"), [long_of(253402300800000), long_of(-62135596800001), long_of(1 << 62)]),
    (logical("long", "timestamp-micros"), [long_of(253402300800000000), long_of(-62135596800000001)]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "payloads"), _OF_ONE, ids=[str(kind)[:60] for kind, _ in _OF_ONE])
def test_what_is_damaged_or_does_not_fit_is_kept_as_bytes(kind: Any, payloads: list[bytes]) -> None:
    """Values around it are read, also those of the fields before it."""
    schema = record(("before", {"type": "map", "values": _LONGS}), ("a", kind), ("after", "int"))
    parser = avro_of(schema)
    before = {"k": [1, 2], "l": []}
    fits = _fitting(kind)
    good = avro({"before": before, "a": fits, "after": 7}, schema)
    prefix = avro({"before": before}, record(("before", {"type": "map", "values": _LONGS})))
    for payload in payloads:
        found = parsed(parser, good, prefix + payload, prefix + payload + b"\x0e", good)
        assert [row is None for row, _ in found] == [False, True, True, False], payload[:40]
        assert [bad for _, bad in found] == [None, prefix + payload, prefix + payload + b"\x0e", None]
        assert found[0] == found[3] and found[0][0]["before"] == before


def _fitting(kind: Any) -> Any:
    if isinstance(kind, list):
        return _fitting(next(one for one in kind if one != "null"))
    name = kind if isinstance(kind, str) else kind["type"]
    plain = {"boolean": True, "int": 1, "long": 1, "float": 1.0, "double": 1.0, "bytes": b"\1", "string": "x"}
    return {**plain, "fixed": b"abcd", "enum": "A", "array": [], "map": {}}[name]


def test_arrays_come_in_blocks_of_all_kinds() -> None:
    parser = avro_of(record(("a", _LONGS), ("m", {"type": "map", "values": "long"})))
    array = long_of(2) + b"\2\4" + long_of(-2) + long_of(3) + b"\6\x80\1" + long_of(1) + b"\0" + b"\0"
    items = long_of(-1) + long_of(3) + b"\2a\2" + long_of(1) + b"\2b\4" + b"\0"
    assert parsed(parser, array + items) == [({"a": [1, 2, 3, 64, 0], "m": {"a": 1, "b": 2}}, None)]


def test_a_short_payload_does_not_become_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of nulls of a wide record there are many values; payloads before and behind it are read."""
    wide = record(*((f"f{number}", ["null", "int"]) for number in range(50)), name="Wide")
    schema = record(("id", "long"), ("a", {"type": "array", "items": ["null", wide]}))
    monkeypatch.setattr(binary_payload, "_MOST_VALUES", 100_000)
    parser = avro_of(schema)
    huge = long_of(1) + long_of(5000) + b"\0" * 5000 + b"\0"
    fits = long_of(1) + long_of(500) + b"\0" * 500 + b"\0"
    found = parsed(parser, fits, huge, fits)
    assert [bad for _, bad in found] == [None, huge, None]
    assert found[0] == found[2] == ({"id": 1, "a": [None] * 500}, None)


def test_many_payloads_are_parsed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = [b"", avro(FULL), b"bad", avro(LEAST), avro(FULL)] * 30
    wanted = parsed(avro_of(), *payloads)
    for name, value in (("_MOST_AT_ONCE", 100), ("_MOST_BYTES", 300)):
        monkeypatch.setattr(binary_payload, name, value)
        assert parsed(avro_of(), *payloads) == wanted
    assert wanted[:5] == [(None, None), (FULL_ROW, None), (None, b"bad"), (LEAST_ROW, None), (FULL_ROW, None)]


def test_a_slice_of_a_batch_is_read() -> None:
    payloads = pa.array([b"bad", avro(FULL), None], pa.binary()).slice(1)
    batch = pa.RecordBatch.from_arrays([payloads], ["data"])
    found = avro_of().with_payloads(batch)
    assert found.schema.names == ["data", "payload", "_corrupt_record"]
    assert found.column("payload").null_count == 1 and found.column("_corrupt_record").null_count == 2


# --- random schemas ---

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXACT = Context(prec=60)


class _Kind:
    """A type: its schema, values that fastavro takes, and what a row has of a value."""

    def __init__(
        self, schema: Any, values: st.SearchStrategy[Any], row: Callable[[Any], Any] = lambda one: one
    ) -> None:
        self.schema, self.values, self.row = schema, values, row


def _decimal(precision: int, scale: int) -> _Kind:
    most = 10**precision - 1

    def encoded(number: int) -> bytes:
        return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)

    def row(data: bytes) -> Decimal:
        return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-scale, _EXACT)

    kind = logical("bytes", "decimal", precision=precision, scale=scale)
    return _Kind(kind, st.integers(-most, most).map(encoded), row)


def _leaves(number: int) -> list[_Kind]:
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    symbols = ["A", "B", "C"]
    first, last = -62135596800, 253402300799
    return [
        _Kind("boolean", st.booleans()),
        _Kind("int", st.integers(-(1 << 31), (1 << 31) - 1)),
        _Kind("long", st.integers(-(1 << 63), (1 << 63) - 1)),
        _Kind("float", st.floats(width=32)),
        _Kind("double", st.floats()),
        _Kind("bytes", st.binary(max_size=6)),
        _Kind("string", text),
        _Kind({"type": "fixed", "name": f"F{number}", "size": 3}, st.binary(min_size=3, max_size=3)),
        _Kind({"type": "enum", "name": f"E{number}", "symbols": symbols}, st.sampled_from(symbols)),
        _decimal(5, 2),
        _decimal(38, 20),
        _Kind(
            logical("int", "date"),
            st.integers(-719162, 2932896),
            lambda days: (datetime(1, 1, 1) + timedelta(days=days + 719162)).date(),
        ),
        _Kind(
            logical("long", "timestamp-millis"),
            st.integers(first * 1000, last * 1000 + 999),
            lambda number: _EPOCH + timedelta(milliseconds=number),
        ),
        _Kind(
            logical("long", "timestamp-micros"),
            st.integers(first * 10**6, last * 10**6 + 999_999),
            lambda number: _EPOCH + timedelta(microseconds=number),
        ),
        _Kind(logical("string", "uuid"), st.uuids().map(str)),
        _Kind(
            logical("fixed", "uuid", name=f"U{number}", size=16),
            st.uuids().map(lambda one: one.bytes),
            lambda data: str(UUID(bytes=data)),
        ),
    ]


@st.composite
def _kinds(draw: st.DrawFn, numbers: Any, depth: int) -> _Kind:
    choice = draw(st.integers(0, 7 if depth else 3))
    if choice <= 3:
        return draw(st.sampled_from(_leaves(next(numbers))))
    inner = draw(_kinds(numbers, depth - 1))
    if choice == 4 and not isinstance(inner.schema, list):
        null = draw(st.booleans())
        schema = ["null", inner.schema] if null else [inner.schema, "null"]
        return _Kind(schema, st.none() | inner.values, lambda one: None if one is None else inner.row(one))
    if choice == 5:
        names = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
        values = st.dictionaries(names, inner.values, max_size=3)
        return _Kind(
            {"type": "map", "values": inner.schema}, values, lambda one: {k: inner.row(v) for k, v in one.items()}
        )
    if choice == 6:
        values = st.lists(inner.values, max_size=4)
        return _Kind({"type": "array", "items": inner.schema}, values, lambda one: [inner.row(v) for v in one])
    return _record_of(numbers, [inner, draw(_kinds(numbers, depth - 1))])


def _record_of(numbers: Any, kinds: list[_Kind]) -> _Kind:
    fields = {f"f{number}": kind for number, kind in enumerate(kinds)}
    schema = record(*((name, kind.schema) for name, kind in fields.items()), name=f"R{next(numbers)}")
    values = st.fixed_dictionaries({name: kind.values for name, kind in fields.items()})
    return _Kind(schema, values, lambda one: {name: kind.row(one[name]) for name, kind in fields.items()})


@st.composite
def _records(draw: st.DrawFn) -> tuple[_Kind, list[Any]]:
    numbers = count()
    kind = _record_of(numbers, draw(st.lists(_kinds(numbers, 3), min_size=1, max_size=5)))
    return kind, draw(st.lists(kind.values, max_size=4))


@given(_records(), st.data())
@settings(deadline=None)
def test_what_fastavro_encodes_is_read_back(found: tuple[_Kind, list[Any]], data: st.DataObject) -> None:
    kind, values = found
    parser = avro_of(kind.schema)
    payloads = [avro(value, kind.schema) for value in values]
    # Of floats the representation tells all: -0.0, and that NaN is NaN.
    wanted = [repr((kind.row(value), None)) for value in values]
    assert list(map(repr, parsed(parser, *payloads))) == wanted
    assert list(map(repr, parsed(parser, *(parser.header + payload for payload in payloads)))) == wanted
    for payload in payloads:
        short = payload[: data.draw(st.integers(0, len(payload) - 1))]
        longer = payload + data.draw(st.binary(min_size=1, max_size=3))
        assert parsed(parser, short, longer) == [(None, short or None), (None, longer)]


def _damaged(draw: st.DrawFn, payload: bytes) -> bytes:
    at = draw(st.integers(0, len(payload)))
    return payload[:at] + draw(st.binary(max_size=12)) + payload[at + draw(st.integers(0, 12)) :]


@st.composite
def _any_bytes(draw: st.DrawFn) -> bytes:
    if draw(st.integers(0, 3)) == 0:
        return draw(st.binary(max_size=200))
    return _damaged(draw, avro(draw(st.sampled_from([FULL, LEAST])), ALL))


_PARSER = avro_of()


@given(st.lists(_any_bytes(), max_size=6))
def test_damage_never_fails_and_never_touches_others(payloads: list[bytes]) -> None:
    good = avro(FULL)
    found = parsed(_PARSER, good, *payloads, good)
    assert found[0] == found[-1] == (FULL_ROW, None)
    for payload, (row, bad) in zip(payloads, found[1:-1], strict=True):
        if row is None:
            assert bad == (payload or None)
        else:
            assert bad is None
            # What is read is a value of the schema: encoded again, it is read as the same.
            back = row | {"key": UUID(row["key"]).bytes}
            assert repr(parsed(_PARSER, avro(back))) == repr([(row, None)])
