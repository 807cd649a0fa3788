"""Payloads of Protobuf: what its own package encodes is read back unchanged, and all else is kept byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.pipeline.payloads import binary_payload
from jsbackup.pipeline.payloads.payload_tally import PayloadTally
from tests.pipeline.payloads.encoded import (
    EMPTY_ROW,
    ORDER_ROW,
    REPEATED,
    REQUIRED,
    STATE,
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
    protobuf_of,
)

PARSER = protobuf_of()
FULL: bytes = order(class_of(PARSER)).SerializeToString(deterministic=True)


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def tagged(number: int, wire: int, content: bytes) -> bytes:
    """A field on the wire; of wire type 2 with its length."""
    return varint(number << 3 | wire) + (varint(len(content)) if wire == 2 else b"") + content


def test_all_types_are_read() -> None:
    assert parsed(PARSER, FULL) == [(ORDER_ROW, None)]


def test_an_empty_payload_is_a_message_and_null_is_none() -> None:
    assert parsed(PARSER, b"", None, b"") == [(EMPTY_ROW, None), (None, None), (EMPTY_ROW, None)]
    assert parsed(PARSER) == []


def test_fields_of_newer_versions_are_ignored() -> None:
    newer = FULL + tagged(500, 2, b"x") + tagged(501, 0, b"\5")
    assert parsed(PARSER, newer) == [(ORDER_ROW, None)]


DAMAGED = {
    "ends early": FULL[:-1],
    "no field": b"\0",
    "an endless number": b"\x08" + b"\xff" * 11,
    "a length beyond the end": varint(14 << 3 | 2) + varint(1 << 40) + b"x",
    "text that is not UTF-8": tagged(14, 2, b"\xff"),
    "a number of another wire type": tagged(1, 2, b"abc"),
    "a text of another wire type": tagged(14, 0, b"\5"),
    "a number without a name": tagged(20, 0, b"\7"),
    "one of several without a name": tagged(70, 2, b"\0\7"),
    "another wire type deeper": tagged(93, 2, tagged(2, 2, b"x")),
    "another wire type in a map": tagged(98, 2, tagged(1, 2, b"k")) + tagged(98, 0, b"\1"),
    "another wire type in a wrapper": tagged(80, 2, tagged(1, 2, b"x")),
    "a time after the last year": tagged(91, 2, tagged(1, 0, varint(253402300800))),
    "a time before the first year": tagged(91, 2, tagged(1, 0, varint((1 << 64) - 62135596801))),
    "too many nanoseconds": tagged(91, 2, tagged(2, 0, varint(10**9))),
    "negative nanoseconds": tagged(91, 2, tagged(2, 0, varint((1 << 64) - 1))),
    "deep groups": varint(500 << 3 | 3) * 100_000,
}


@pytest.mark.parametrize("payload", DAMAGED.values(), ids=DAMAGED)
def test_what_is_damaged_or_does_not_fit_is_kept_as_bytes(payload: bytes) -> None:
    assert parsed(PARSER, FULL, payload, FULL) == [(ORDER_ROW, None), (None, payload), (ORDER_ROW, None)]


def test_the_oldest_syntax_is_read() -> None:
    """Fields that have to be there, closed enums, defaults and groups; text that Protobuf does not check."""
    group = message("Group", field("x", 1, F.TYPE_INT32))
    old = message(
        "Old",
        field("id", 1, F.TYPE_INT64, REQUIRED),
        field("state", 2, F.TYPE_ENUM, of=".shop.State", default_value="PAID"),
        field("states", 3, F.TYPE_ENUM, REPEATED, ".shop.State"),
        field("group", 4, F.TYPE_GROUP, of=".shop.Old.Group"),
        field("name", 5, F.TYPE_STRING, default_value="d"),
        nested=(group,),
    )
    parser = protobuf_of(descriptors(file_of(old, enums=(STATE,), syntax="proto2")), "shop.Old")
    nothing = {"id": 1, "state": None, "states": [], "group": None, "name": None}
    identified = tagged(1, 0, b"\1")
    good = identified + tagged(2, 0, b"\5") + tagged(3, 0, b"\0") + b"\x23" + tagged(1, 0, b"\7") + b"\x24"
    good += tagged(5, 2, b"n")
    bad = [tagged(2, 0, b"\5"), identified + tagged(2, 0, b"\7"), identified + tagged(3, 0, b"\7")]
    bad += [identified + tagged(5, 2, b"\xff"), identified + b"\x23"]
    assert parsed(parser, identified, good, *bad) == [
        (nothing, None),
        ({"id": 1, "state": "PAID", "states": ["OPEN"], "group": {"x": 7}, "name": "n"}, None),
        *((None, payload) for payload in bad),
    ]
    # A deleted key has an empty payload, which cannot be such a message.
    tally = PayloadTally()
    found = parser.parse(pa.array([b"", identified, None, bad[0]], pa.binary()), tally)
    assert found.field("_corrupt_record").to_pylist() == [None, None, None, bad[0]]
    assert found.field("payload").to_pylist(maps_as_pydicts="strict")[0] is None
    assert tally == PayloadTally(payloads=2, misfits=1, known=True)


def test_a_map_has_the_last_value_of_a_key_and_loses_no_entry() -> None:
    """Protobuf: "If there are duplicate map keys the last key seen is used." It keeps an entry with a field that is
    neither key nor value beside the map, so the map would lack it: the payload is kept as bytes.
    """
    entry = map_entry("MEntry", field("key", 1, F.TYPE_STRING), field("value", 2, F.TYPE_INT32))
    top = message("Top", field("m", 1, F.TYPE_MESSAGE, REPEATED, ".shop.Top.MEntry"), nested=(entry,))
    parser = protobuf_of(descriptors(file_of(top)), "shop.Top")

    def one(value: int, more: bytes = b"") -> bytes:
        return tagged(1, 2, tagged(1, 2, b"a") + tagged(2, 0, varint(value)) + more)

    twice, more = one(1) + one(2), one(1) + one(2, tagged(3, 0, b"\5"))
    assert dict(class_of(parser).FromString(twice).m) == {"a": 2}
    assert dict(class_of(parser).FromString(more).m) == {"a": 1}
    assert parsed(parser, twice, more) == [({"m": {"a": 2}}, None), (None, more)]


def test_a_payload_is_known_by_a_field_of_the_message() -> None:
    for payloads, known in (
        ([tagged(2000, 0, b"\1"), b"", tagged(2001, 2, b"x")], False),
        ([tagged(2000, 0, b"\1"), FULL], True),
        ([tagged(14, 2, b"")], True),  # a default that was written
        ([b"\0"], False),
    ):
        tally = PayloadTally()
        PARSER.parse(pa.array(payloads, pa.binary()), tally)
        assert tally.known is known and tally.missed is not known


def test_a_short_payload_does_not_become_much(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = message("Wide", *(field(f"f{number}", number, F.TYPE_INT32) for number in range(1, 51)))
    top = message("Top", field("wide", 1, F.TYPE_MESSAGE, REPEATED, ".shop.Wide"))
    parser = protobuf_of(descriptors(file_of(wide, top)), "shop.Top")
    monkeypatch.setattr(binary_payload, "_MOST_VALUES", 100_000)
    huge, fits = tagged(1, 2, b"") * 5000, tagged(1, 2, b"") * 500
    found = parsed(parser, fits, huge, fits)
    assert [bad for _, bad in found] == [None, huge, None]
    assert found[0] == found[2] and len(found[0][0]["wide"]) == 500


def test_many_payloads_are_parsed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = [b"", FULL, b"\0", FULL] * 20
    wanted = parsed(PARSER, *payloads)
    for name, value in (("_MOST_AT_ONCE", 100), ("_MOST_BYTES", 300)):
        monkeypatch.setattr(binary_payload, name, value)
        assert parsed(PARSER, *payloads) == wanted
    assert wanted[:3] == [(EMPTY_ROW, None), (ORDER_ROW, None), (None, b"\0")]


# --- random messages ---

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
_SIGNED = {32: st.integers(-(1 << 31), (1 << 31) - 1), 64: st.integers(-(1 << 63), (1 << 63) - 1)}
_UNSIGNED = {32: st.integers(0, (1 << 32) - 1), 64: st.integers(0, (1 << 64) - 1)}
_SECONDS = st.tuples(st.integers(-62135596800, 253402300799), st.integers(0, 999_999_999))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Row = Callable[[Any], Any]


def _as_it_is(value: Any) -> Any:
    return value


def _row_of_time(one: tuple[int, int]) -> dict[str, Any]:
    return {"time": _EPOCH + timedelta(seconds=one[0], microseconds=one[1] // 1000), "nanos": one[1]}


# Types of single values: their number, name and values, and what a row has of one.
_SCALARS: dict[str, tuple[int, str, st.SearchStrategy[Any], Row]] = {
    **{name: (getattr(F, f"TYPE_{name.upper()}"), "", _SIGNED[int(name[-2:])], _as_it_is)
       for name in ("int32", "int64", "sint32", "sint64", "sfixed32", "sfixed64")},
    **{name: (getattr(F, f"TYPE_{name.upper()}"), "", _UNSIGNED[int(name[-2:])], row)
       for name, row in (("uint32", _as_it_is), ("fixed32", _as_it_is), ("uint64", Decimal), ("fixed64", Decimal))},
    "bool": (F.TYPE_BOOL, "", st.booleans(), _as_it_is),
    "float": (F.TYPE_FLOAT, "", st.floats(width=32), _as_it_is),
    "double": (F.TYPE_DOUBLE, "", st.floats(), _as_it_is),
    "string": (F.TYPE_STRING, "", _TEXT, _as_it_is),
    "bytes": (F.TYPE_BYTES, "", st.binary(max_size=5), _as_it_is),
    "enum": (F.TYPE_ENUM, ".shop.State", st.sampled_from([0, 5]), {0: "OPEN", 5: "PAID"}.__getitem__),
}  # fmt: skip
_KEYS = sorted(set(_SCALARS) - {"float", "double", "bytes", "enum"})


class _Field:
    """A field of a random message: how it is declared, its values, how one is set, and what a row has of it."""

    def __init__(self, name: str, number: int, draw: st.DrawFn, numbers: Any, depth: int) -> None:
        self.name = name
        self.entries: list[Any] = []
        self.nested: list[Any] = []
        shape = draw(
            st.sampled_from(["plain", "optional", "many", "map", "message", "messages", "time"][: 4 + 3 * depth])
        )
        self.shape = shape
        if shape in ("message", "messages"):
            inner = _Message(draw, numbers, depth - 1)
            self.nested = [inner]
            label = REPEATED if shape == "messages" else F.LABEL_OPTIONAL
            self.declared = field(name, number, F.TYPE_MESSAGE, label, f".shop.{inner.name}")
            one: st.SearchStrategy[Any] = inner.values
            self.values = st.lists(one, max_size=3) if shape == "messages" else st.none() | one
            return
        if shape == "time":
            self.declared = field(name, number, F.TYPE_MESSAGE, of=".google.protobuf.Timestamp")
            self.values = st.none() | _SECONDS
            return
        kind, of, values, self.row_of = _SCALARS[draw(st.sampled_from(sorted(_SCALARS)))]
        self.values = st.lists(values, max_size=4) if shape == "many" else values
        self.declared = field(name, number, kind, REPEATED if shape == "many" else F.LABEL_OPTIONAL, of)
        if shape == "optional":
            self.declared.proto3_optional = True
            self.values = st.none() | values
        if shape == "map":
            key, _, keys, self.key_row = _SCALARS[draw(st.sampled_from(_KEYS))]
            entry = f"{name.title()}Entry"
            self.entries = [map_entry(entry, field("key", 1, key), field("value", 2, kind, of=of))]
            self.declared = field(name, number, F.TYPE_MESSAGE, REPEATED, f".shop.@.{entry}")
            self.values = st.dictionaries(keys, values, max_size=3)

    def put(self, into: Any, value: Any) -> None:
        if self.shape == "message" and value is not None:
            getattr(into, self.name).SetInParent()
            self.nested[0].put(getattr(into, self.name), value)
        elif self.shape == "messages":
            for one in value:
                self.nested[0].put(getattr(into, self.name).add(), one)
        elif self.shape == "time" and value is not None:
            getattr(into, self.name).SetInParent()
            getattr(into, self.name).seconds, getattr(into, self.name).nanos = value
        elif self.shape == "many":
            getattr(into, self.name).extend(value)
        elif self.shape == "map":
            for key, one in value.items():
                getattr(into, self.name)[key] = one
        elif value is not None:
            setattr(into, self.name, value)

    def row(self, value: Any) -> Any:
        if self.shape == "messages":
            return [self.nested[0].row(one) for one in value]
        if self.shape == "many":
            return [self.row_of(one) for one in value]
        if self.shape == "map":
            return {self.key_row(key): self.row_of(value[key]) for key in sorted(value)}
        if value is None:
            return None
        if self.shape == "message":
            return self.nested[0].row(value)
        return _row_of_time(value) if self.shape == "time" else self.row_of(value)


class _Message:
    """A random message, with those that it has."""

    def __init__(self, draw: st.DrawFn, numbers: Any, depth: int) -> None:
        self.name = f"M{next(numbers)}"
        size = draw(st.integers(1, 4))
        self.fields = [_Field(f"f{number}", number, draw, numbers, depth) for number in range(1, size + 1)]
        self.values: st.SearchStrategy[Any] = st.tuples(*(one.values for one in self.fields))

    def declared(self) -> list[Any]:
        """It, and the messages in it."""
        oneofs = []
        for one in self.fields:
            if "@" in one.declared.type_name:
                one.declared.type_name = one.declared.type_name.replace("@", self.name)
            if one.declared.proto3_optional:
                one.declared.oneof_index = len(oneofs)
                oneofs.append({"name": f"_{one.name}"})
        entries = tuple(entry for one in self.fields for entry in one.entries)
        mine = message(self.name, *(one.declared for one in self.fields), nested=entries, oneof_decl=oneofs)
        return [mine, *(other for one in self.fields for inner in one.nested for other in inner.declared())]

    def put(self, into: Any, value: Any) -> None:
        for one, of in zip(self.fields, value, strict=True):
            one.put(into, of)

    def row(self, value: Any) -> dict[str, Any]:
        return {one.name: one.row(of) for one, of in zip(self.fields, value, strict=True)}


@st.composite
def _messages(draw: st.DrawFn) -> tuple[_Message, list[Any]]:
    found = _Message(draw, count(), 1)
    return found, draw(st.lists(found.values, max_size=3))


@given(_messages())
@settings(deadline=None)
def test_what_protobuf_encodes_is_read_back(found: tuple[_Message, list[Any]]) -> None:
    from google.protobuf.timestamp_pb2 import DESCRIPTOR

    kind, values = found
    declared = file_of(*kind.declared(), enums=(STATE,), dependency=["google/protobuf/timestamp.proto"])
    parser = protobuf_of(descriptors(imported(DESCRIPTOR), declared), f"shop.{kind.name}")
    payloads = []
    for value in values:
        made = class_of(parser)()
        kind.put(made, value)
        payloads.append(made.SerializeToString())
    wanted = [repr((kind.row(value), None)) for value in values]
    assert list(map(repr, parsed(parser, *payloads))) == wanted


@st.composite
def _any_bytes(draw: st.DrawFn) -> bytes:
    if draw(st.integers(0, 3)) == 0:
        return draw(st.binary(max_size=200))
    at = draw(st.integers(0, len(FULL)))
    return FULL[:at] + draw(st.binary(max_size=12)) + FULL[at + draw(st.integers(0, 12)) :]


@given(st.lists(_any_bytes(), max_size=6))
@settings(deadline=None)
def test_damage_never_fails_and_never_touches_others(payloads: list[bytes]) -> None:
    found = parsed(PARSER, FULL, *payloads, FULL)
    assert found[0] == found[-1] == (ORDER_ROW, None)
    for payload, (row, bad) in zip(payloads, found[1:-1], strict=True):
        assert bad == (payload if row is None else None)
