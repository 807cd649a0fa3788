from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.errors import FormatError
from jsbackup.formats.archive_items import (
    asset_name_is_sound,
    json_object,
    ns_from_rfc3339,
    rfc3339_from_ns,
    state_from_json,
    state_to_json,
)
from jsbackup.model import StreamState

counts = st.integers(0, (1 << 64) - 1)
times = st.integers(-(1 << 63), (1 << 63) - 1)


@given(times)
def test_times_come_back_to_the_nanosecond(ns: int) -> None:
    assert ns_from_rfc3339(rfc3339_from_ns(ns), "x") == ns


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0001-01-01T00:00:00Z", 0),
        (None, 0),
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:01.5Z", 1_500_000_000),
        ("1969-12-31T23:59:59.999999999Z", -1),
        ("2026-11-21T09:55:28.679969888+02:00", 1795247728679969888),
    ],
)
def test_times_of_go_are_read(text: str | None, ns: int) -> None:
    assert ns_from_rfc3339(text, "x") == ns


@pytest.mark.parametrize(
    "text",
    ["", "now", 5, [], "2026-11-21", "2026-11-21T09:55:28", "2026-11-21T09:55:28.1234567890Z", "2026-02-30T00:00:00Z",
     "1600-01-01T00:00:00Z", "2500-01-01T00:00:00Z", "2026-11-21T09:55:28+99:99", "２026-11-21T09:55:28Z"],
)  # fmt: skip
def test_other_times_are_refused(text: object) -> None:
    with pytest.raises(FormatError, match="x: bad time"):
        ns_from_rfc3339(text, "x")


@given(st.builds(StreamState, counts, counts, counts, times, counts, times, counts, counts))
def test_states_come_back(state: StreamState) -> None:
    assert state_from_json(json.loads(json.dumps(state_to_json(state))), "x") == state


@pytest.mark.parametrize("data", [b"", b"{", b"3", b"[]", b"\xff", b'{"a": NaN}', b"[" * 200_000, b"9" * 10_000])
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="x: not"):
        json_object(data, "x")


@pytest.mark.parametrize(
    ("name", "sound"),
    [("ORDERS", True), ("größe-😀", True), ("n" * 255, True), ("ß" * 127, True), ("ß" * 128, False), ("", False),
     ("a.b", False), ("a b", False), ("a/b", False), ("a\\b", False), ("a\tb", False), ("a\0b", False), (">", False)],
)  # fmt: skip
def test_names_are_those_that_servers_take(name: str, sound: bool) -> None:
    assert asset_name_is_sound(name) is sound
