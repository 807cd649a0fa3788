"""The states of streams and consumers come back from JSON, and are cut to what a stream has."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError
from jsbackup.model import ConsumerState, PendingAck, SequencePair, StreamState
from jsbackup.server_state import (
    acceptable,
    clamp_state,
    consumer_state_from_json,
    consumer_state_to_json,
    stream_state_from_json,
    stream_state_to_json,
)
from jsbackup.strict_json import Fields

MAX_U64 = (1 << 64) - 1

sequences = st.integers(0, (1 << 62) - 1)
counts = st.integers(0, MAX_U64)
pairs = st.builds(SequencePair, consumer=counts, stream=sequences)
times = st.integers(-(1 << 63), (1 << 63) - 1)
states = st.builds(
    ConsumerState,
    delivered=pairs,
    ack_floor=pairs,
    pending=st.dictionaries(st.integers(1, MAX_U64), st.builds(PendingAck, counts, times), max_size=5),
    redelivered=st.dictionaries(st.integers(0, MAX_U64), st.integers(1, MAX_U64), max_size=5),
)


@given(st.builds(StreamState, counts, counts, counts, times, counts, times, counts, counts))
def test_the_state_of_a_stream_comes_back(state: StreamState) -> None:
    assert stream_state_from_json(Fields(json.loads(json.dumps(stream_state_to_json(state))), "state")) == state


@pytest.mark.parametrize("name", ["messages", "bytes", "first_seq", "last_seq", "consumer_count"])
def test_a_stream_has_all_of_its_numbers(name: str) -> None:
    value = stream_state_to_json(StreamState(1, 2, 3, 4, 5, 6, 7, 8))
    del value[name]
    with pytest.raises(FormatError, match=f"{name} is missing"):
        stream_state_from_json(Fields(value, "state"))


@settings(max_examples=200, deadline=None)
@given(states)
def test_json_keeps_all(state: ConsumerState) -> None:
    assert consumer_state_from_json(Fields(json.loads(json.dumps(consumer_state_to_json(state))), "state")) == state


@pytest.mark.parametrize(
    "value",
    [
        {"delivered": 3},
        {"delivered": {"consumer_seq": -1}},
        {"delivered": {"stream_seq": 1 << 62}},
        {"delivered": {"stream_seq": 1.5}},
        {"delivered": {"stream_seq": True}},
        {"pending": [1]},
        {"pending": {"x": {}}},
        {"pending": {"٣": {}}},
        {"pending": {"99999999999999999999999": {}}},
        {"pending": {"18446744073709551616": {}}},
        {"pending": {"5": 3}},
        {"pending": {"5": {"Sequence": "1"}}},
        {"pending": {"5": {"Timestamp": 1 << 63}}},
        {"redelivered": {"5": None, "6": -1}},
    ],
)
def test_hostile_json_is_refused(value: dict[str, object]) -> None:
    whole = consumer_state_to_json(ConsumerState())
    assert consumer_state_from_json(Fields(whole, "state")) == ConsumerState()
    with pytest.raises(FormatError):
        consumer_state_from_json(Fields({**whole, **value}, "state"))


def test_a_state_is_made_what_a_server_takes_over_as_json() -> None:
    ack = PendingAck(1, 5)
    behind = ConsumerState(SequencePair(6, 11), SequencePair(0, 0), {1: ack, 4: ack, 12: ack}, {4: 3})
    assert acceptable(behind, 3) == ConsumerState(SequencePair(6, 11), SequencePair(0, 2), {4: ack}, {4: 3})
    assert acceptable(behind, 20) == ConsumerState(SequencePair(6, 19), SequencePair(0, 19), {}, {4: 3})
    odd = ConsumerState(SequencePair(1, 1), SequencePair(2, 2))
    assert acceptable(odd, 1) == ConsumerState(SequencePair(2, 2), SequencePair(2, 2))


@given(states, sequences)
def test_an_acceptable_state_stays_as_it_is(state: ConsumerState, start: int) -> None:
    once = acceptable(state, start)
    assert acceptable(once, start) == once
    assert once.ack_floor.stream >= start - 1
    assert all(once.ack_floor.stream < key <= once.delivered.stream for key in once.pending)


@st.composite
def likely_states(draw: st.DrawFn) -> ConsumerState:
    floor = draw(st.integers(0, 10))
    delivered = draw(st.integers(floor, 14))
    acks = st.builds(PendingAck, st.integers(1, 30), st.integers(0, 99))
    most = 4 if delivered > floor else 0
    pending = draw(st.dictionaries(st.integers(floor + 1, max(delivered, floor + 1)), acks, max_size=most))
    redelivered = draw(st.dictionaries(st.sampled_from(sorted(pending)), st.integers(1, 5))) if pending else {}
    return ConsumerState(SequencePair(delivered + 20, delivered), SequencePair(floor + 10, floor), pending, redelivered)


@settings(deadline=None)
@given(likely_states(), st.integers(0, 14), st.sets(st.integers(1, 14)))
def test_no_consumer_is_ahead_of_its_stream_or_waits_for_what_is_gone(
    state: ConsumerState, last_seq: int, kept: set[int]
) -> None:
    kept = {sequence for sequence in kept if sequence <= last_seq}
    after = clamp_state(state, last_seq, kept)
    assert after.delivered.stream == min(state.delivered.stream, last_seq)
    assert after.delivered.consumer == state.delivered.consumer
    assert after.ack_floor.stream <= after.delivered.stream
    assert after.ack_floor.consumer <= after.delivered.consumer
    assert dict(after.pending) == {s: ack for s, ack in state.pending.items() if s in kept}
    assert dict(after.redelivered) == {s: n for s, n in state.redelivered.items() if s in kept}
    assert after == acceptable(after, 0)
    # Nothing that was waiting counts as acknowledged, and nothing else comes again.
    for sequence in kept:
        if sequence <= state.delivered.stream:
            waits = sequence in after.pending or sequence > after.delivered.stream
            assert waits == (sequence in state.pending)
    if not after.pending and state.pending:
        assert after.ack_floor == after.delivered


@settings(deadline=None)
@given(likely_states())
def test_a_cut_that_cuts_nothing_changes_nothing(state: ConsumerState) -> None:
    assert clamp_state(state, 14, {*state.pending, *state.redelivered}) == state


def test_a_state_ahead_of_its_stream_is_cut_and_keeps_its_floor() -> None:
    ahead = ConsumerState(SequencePair(9, 9), SequencePair(3, 3), {8: PendingAck(8, 1)}, {8: 2})
    assert clamp_state(ahead, 7) == ConsumerState(SequencePair(9, 7), SequencePair(3, 3))
    assert clamp_state(ahead, 8) == ConsumerState(SequencePair(9, 8), SequencePair(3, 3), {8: PendingAck(8, 1)}, {8: 2})
