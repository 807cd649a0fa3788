from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.formats.archive.consumer_state import acceptable
from jsbackup.model import ConsumerState, PendingAck, SequencePair
from jsbackup.transforms.consumer_state import clamp_state, sequences_to_know, surviving
from tests.transforms.messages import Message, batch_of


@st.composite
def states(draw: st.DrawFn) -> ConsumerState:
    floor = draw(st.integers(0, 10))
    delivered = draw(st.integers(floor, 14))
    acks = st.builds(PendingAck, st.integers(1, 30), st.integers(0, 99))
    most = 4 if delivered > floor else 0
    pending = draw(st.dictionaries(st.integers(floor + 1, max(delivered, floor + 1)), acks, max_size=most))
    redelivered = draw(st.dictionaries(st.sampled_from(sorted(pending)), st.integers(1, 5))) if pending else {}
    return ConsumerState(SequencePair(delivered + 20, delivered), SequencePair(floor + 10, floor), pending, redelivered)


@settings(deadline=None)
@given(states(), st.integers(0, 14), st.sets(st.integers(1, 14)))
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
@given(states())
def test_a_cut_that_cuts_nothing_changes_nothing(state: ConsumerState) -> None:
    assert clamp_state(state, 14, sequences_to_know(state)) == state


def test_what_survives_is_read_off_the_batches() -> None:
    batch = batch_of([Message(n, n, "a", None, b"") for n in (2, 3, 7)])
    assert surviving(batch, {1, 3, 7, 2**64 - 1}) == {3, 7}
    assert surviving(batch, set()) == set()
