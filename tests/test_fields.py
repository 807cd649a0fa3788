"""A field of the wrong kind is an error that names it."""

from __future__ import annotations

import pytest

from jsbackup.errors import FormatError
from jsbackup.strict_json import Fields


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
    assert fields.number("size", default=7) == 7
    assert fields.signed("size", -1) == -1
    assert fields.flag("size") is False
    assert fields.time_ns("size") == 0
    assert fields.optional("size") is None
    assert fields.array("size") == []
    assert fields.names("size") == ()
    for reader in (fields.text, fields.name, fields.number, fields.signed, fields.object, fields.fields):
        with pytest.raises(FormatError, match="here: size is not " if document else "here: size is missing"):
            reader("size")


def test_sequences_come_out_in_order() -> None:
    assert Fields({"deleted": [9, 2, (1 << 64) - 1]}, "state").numbers("deleted") == (2, 9, (1 << 64) - 1)


def test_only_objects_have_fields() -> None:
    with pytest.raises(FormatError, match="entry is not a JSON object"):
        Fields(["a"], "entry")
