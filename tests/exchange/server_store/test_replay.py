"""The replay of limits against a model that keeps all messages in a list."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.exchange.server_store.import_store import Replay

ROLL_UP = {kind: b"NATS/1.0\r\nNats-Rollup: %s\r\n\r\n" % kind.encode() for kind in ("sub", "all")}


@dataclass
class Model:
    """What a server does, without any haste."""

    config: dict[str, Any]
    held: list[tuple[int, bytes, int]] = field(default_factory=list)

    def store(self, sequence: int, subject: bytes, size: int, roll_up: str) -> None:
        if self.config.get("allow_rollup_hdrs") and roll_up:
            self.held = [one for one in self.held if roll_up == "sub" and one[1] != subject]
        self.held.append((sequence, subject, size))
        most = self.config.get("max_msgs_per_subject", 0)
        same = [one for one in self.held if one[1] == subject]
        if most > 0 and not self.config.get("discard_new_per_subject"):
            for one in same[: max(0, len(same) - most)]:
                self.held.remove(one)
        if self.config.get("discard", "old") == "old":
            while 0 < self.config.get("max_msgs", 0) < len(self.held):
                self.held.pop(0)
            while 0 < self.config.get("max_bytes", 0) < sum(one[2] for one in self.held):
                self.held.pop(0)

    def delete(self, sequence: int) -> None:
        self.held = [one for one in self.held if one[0] != sequence]


CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "max_msgs": st.sampled_from([-1, 3, 10]),
        "max_bytes": st.sampled_from([-1, 400, 1500]),
        "max_msgs_per_subject": st.sampled_from([-1, 1, 2, 5]),
        "allow_rollup_hdrs": st.booleans(),
        "discard": st.sampled_from(["old", "new"]),
        "discard_new_per_subject": st.booleans(),
    },
)
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("store"), st.integers(0, 3), st.integers(50, 300), st.sampled_from(["", "", "", "sub", "all"])
        ),
        st.tuples(st.just("delete"), st.integers(1, 40), st.just(0), st.just("")),
    ),
    max_size=40,
)


@settings(max_examples=500, deadline=None)
@given(CONFIGS, STEPS)
def test_limits_remove_what_the_server_removes(config: dict[str, Any], steps: list[tuple[str, int, int, str]]) -> None:
    replay, model = Replay(config), Model(config)
    last, deleted = 0, set()
    for step, number, size, roll_up in steps:
        if step == "delete":
            if number <= last:
                replay.delete(number)
                model.delete(number)
                deleted.add(number)
            continue
        last += 1
        subject = b"s.%d" % number
        replay.store(last, subject, size, ROLL_UP.get(roll_up, b""))
        model.store(last, subject, size, roll_up)
    held = {one[0] for one in model.held}
    assert set(range(1, last + 1)) - replay.gone - deleted == held
    if not replay.is_needed:
        assert not replay.gone


@pytest.mark.parametrize("config", [{}, {"max_msgs": -1, "max_bytes": 0}, {"max_msgs": 5, "discard": "new"}])
def test_without_limits_nothing_is_played(config: dict[str, Any]) -> None:
    assert not Replay(config).is_needed
