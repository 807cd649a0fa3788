from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.formats.archive.archive_items import (
    asset_name_is_sound,
    state_from_json,
    state_to_json,
)
from jsbackup.model import StreamState

counts = st.integers(0, (1 << 64) - 1)
times = st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.builds(StreamState, counts, counts, counts, times, counts, times, counts, counts))
def test_states_come_back(state: StreamState) -> None:
    assert state_from_json(json.loads(json.dumps(state_to_json(state))), "x") == state


@pytest.mark.parametrize(
    ("name", "sound"),
    [("ORDERS", True), ("größe-😀", True), ("n" * 255, True), ("ß" * 127, True), ("ß" * 128, False), ("", False),
     ("a.b", False), ("a b", False), ("a/b", False), ("a\\b", False), ("a\tb", False), ("a\0b", False), (">", False)],
)  # fmt: skip
def test_names_are_those_that_servers_take(name: str, sound: bool) -> None:
    assert asset_name_is_sound(name) is sound
