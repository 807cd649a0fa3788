"""JSON from outside is bounded, and a field of the wrong kind is an error that names it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.errors import FormatError
from jsbackup.protocol.fields import MAX_DEPTH, MAX_JSON_BYTES, Fields, dump_object, load_object

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), JSON))
def test_what_is_written_is_read(value: dict[str, object]) -> None:
    assert load_object(dump_object(value, "it"), "it") == value


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"-ERR 'storage failure during restore'",
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":1e999}',
        b'{"a":"\xff"}',
        '{"a":1}'.encode("utf-16"),
        rb'{"a":"\ud800"}',
        rb'{"\udfff":1}',
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":' * 100_000,
        b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH + b"}",
        b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}",
    ],
    ids=lambda payload: repr(payload[:20]),
)
def test_what_is_no_bounded_json_object_is_a_format_error(payload: bytes) -> None:
    with pytest.raises(FormatError, match=r"^the answer "):
        load_object(payload, "the answer")


def test_depth_is_bounded_and_width_is_not() -> None:
    deep = b'{"a":' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}"
    assert load_object(deep, "it")
    wide = json.dumps({"a": [{"b": []}] * 1000}).encode()
    assert len(load_object(wide, "it")["a"]) == 1000


def test_size_is_bounded() -> None:
    with pytest.raises(FormatError, match="more than"):
        load_object(b" " * (MAX_JSON_BYTES + 1), "it")


@pytest.mark.parametrize("value", [{"a": float("nan")}, {"a": {1, 2}}, {"a": "\ud800"}])
def test_what_is_no_json_is_not_written(value: dict[str, object]) -> None:
    with pytest.raises(FormatError, match="cannot be written as JSON"):
        dump_object(value, "config")


def test_a_value_that_contains_itself_is_not_written() -> None:
    value: dict[str, object] = {}
    value["a"] = value
    with pytest.raises(FormatError):
        dump_object(value, "config")


@pytest.mark.parametrize(
    ("reader", "wrong"),
    [
        ("text", [1, True, [], {}]),
        ("name", [1, "", "a b", "a.b", "x" * 256]),
        ("number", ["1", 1.0, True, -1, 1 << 64]),
        ("signed", ["1", 1.0, True, 1 << 63]),
        ("flag", ["true", 1, {}]),
        ("time_ns", [1, "yesterday"]),
        ("object", [1, "x", []]),
        ("fields", [1, "x", []]),
        ("optional", [1, "x", []]),
        ("array", [1, "x", {}]),
        ("names", ["x", ["a b"], [1]]),
        ("numbers", ["x", [-1], ["1"], [True], [1 << 64]]),
    ],
)
def test_a_field_of_the_wrong_kind_is_named(reader: str, wrong: list[object]) -> None:
    for value in wrong:
        with pytest.raises(FormatError, match="here: size"):
            getattr(Fields({"size": value}, "here"), reader)("size")


@pytest.mark.parametrize("document", [{}, {"size": None}])
def test_absent_and_null_are_the_same(document: dict[str, object]) -> None:
    fields = Fields(document, "here")
    assert fields.text("size", "") == ""
    assert fields.number("size", 7) == 7
    assert fields.signed("size", -1) == -1
    assert fields.flag("size") is False
    assert fields.time_ns("size") == 0
    assert fields.optional("size") is None
    assert fields.array("size") == []
    assert fields.names("size") == ()
    for reader in (fields.text, fields.name, fields.number, fields.signed, fields.object, fields.fields):
        with pytest.raises(FormatError, match="here: size is missing"):
            reader("size")


def test_sequences_come_out_in_order() -> None:
    assert Fields({"deleted": [9, 2, (1 << 64) - 1]}, "state").numbers("deleted") == (2, 9, (1 << 64) - 1)


def test_only_objects_have_fields() -> None:
    with pytest.raises(FormatError, match="entry is not a JSON object"):
        Fields(["a"], "entry")
