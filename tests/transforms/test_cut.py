from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import UsageError
from jsbackup.model import StreamState
from jsbackup.transforms.cut import AtSequence, AtTime, Cut, Edge, Extent, KeptShare, parse_edge
from tests.transforms.messages import Message, batch_of, messages_of

NOW = 1_795_248_000_000_000_123  # 2026-11-21T08:00:00.000000123Z
small = st.integers(1, 12)
edges = st.none() | small.map(AtSequence) | small.map(AtTime)
cuts = st.builds(Cut, edges, edges | st.just(AtSequence(0)))  # which keeps nothing
streams = st.lists(st.tuples(small, small), max_size=8, unique_by=lambda m: m[0]).map(
    lambda rows: [Message(sequence, time, "a", None, b"") for sequence, time in sorted(rows)]
)


def is_kept(cut: Cut, message: Message) -> bool:
    """The rule, in words of its own."""
    for edge, sign in ((cut.since, 1), (cut.until, -1)):
        value = message.sequence if isinstance(edge, AtSequence) else message.timestamp_ns
        if edge is not None and (value - (edge.sequence if isinstance(edge, AtSequence) else edge.time_ns)) * sign < 0:
            return False
    return True


@settings(deadline=None)
@given(cuts, streams)
def test_each_message_is_judged_by_itself(cut: Cut, messages: list[Message]) -> None:
    batch = batch_of(messages)
    assert messages_of([batch.filter(cut.rows(batch))]) == [m for m in messages if is_kept(cut, m)]


@settings(deadline=None)
@given(cuts, streams.filter(bool))
def test_a_segment_that_need_not_be_read_is_known(cut: Cut, messages: list[Message]) -> None:
    times = [m.timestamp_ns for m in messages]
    share = cut.share(messages[0].sequence, messages[-1].sequence, min(times), max(times))
    kept = [m for m in messages if is_kept(cut, m)]
    if share is KeptShare.ALL:
        assert kept == messages
    if share is KeptShare.NONE:
        assert kept == []
    if kept == messages:
        assert share is KeptShare.ALL  # bounds that are exact leave no doubt about all


def extent(messages: list[Message]) -> Extent:
    return Extent().plus(batch_of(messages))


def state_of(messages: list[Message], first: int, last: int, last_ns: int) -> StreamState:
    return StreamState(len(messages), 0, first, messages[0].timestamp_ns if messages else 0, last, last_ns)


@settings(deadline=None)
@given(cuts, streams, st.integers(0, 3), st.integers(0, 12))
def test_the_state_after_a_cut_is_one_that_streams_have(
    cut: Cut, messages: list[Message], deleted_tail: int, tail_ns: int
) -> None:
    last_message = messages[-1].sequence if messages else 0
    last = last_message + deleted_tail
    last_ns = tail_ns if deleted_tail else (messages[-1].timestamp_ns if messages else 0)
    before = state_of(messages, messages[0].sequence if messages else last + 1, last, last_ns)
    kept = [m for m in messages if is_kept(cut, m)]
    after = cut.state_after(before, last_message, extent(kept), extent(kept), size=7)
    assert (after.messages, after.bytes) == (len(kept), 7)
    assert after.last_seq <= before.last_seq
    if kept:
        assert after.first_seq == kept[0].sequence and kept[-1].sequence <= after.last_seq
        assert after.deleted == after.last_seq - after.first_seq + 1 - len(kept)
        if after.last_seq == kept[-1].sequence:
            assert after.last_ns == kept[-1].timestamp_ns
    else:
        assert after.first_seq == after.last_seq + 1 or (after.first_seq, after.last_seq) == (0, 0)
        assert after.first_ns == 0
    if cut.until is None:
        assert after.last_seq == before.last_seq and after.last_ns == before.last_ns
    if isinstance(cut.until, AtSequence):
        assert after.last_seq == min(last, cut.until.sequence)
    if isinstance(cut.until, AtTime) and not (deleted_tail and 0 < last_ns <= cut.until.time_ns):
        assert after.last_seq == (kept[-1].sequence if kept else max(before.first_seq - 1, 0))


@pytest.mark.parametrize(
    ("text", "edge"),
    [
        ("1", AtSequence(1)),
        (" 4711 ", AtSequence(4711)),
        (str(2**63 - 1), AtSequence(2**63 - 1)),
        ("2026-11-21T08:00:00.000000123Z", AtTime(NOW)),
        ("2026-11-21T09:00:00+01:00", AtTime(NOW - 123)),
        ("24h", AtTime(NOW - 86_400_000_000_000)),
        ("36500d", AtTime(NOW - 36500 * 86_400_000_000_000)),
        ("1ns", AtTime(NOW - 1)),
        ("0s", AtTime(NOW)),
    ],
)
def test_edges_are_exact(text: str, edge: Edge) -> None:
    assert parse_edge("--until", text, NOW) == edge


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "1.5", str(2**63), "9" * 5000, "yesterday", "2026-11-21", "2026-13-01T00:00:00Z", "24", "²"]
)
def test_no_edge_is_a_usage_error(text: str) -> None:
    if text == "24":
        assert parse_edge("--until", text, NOW) == AtSequence(24)
        return
    with pytest.raises(UsageError, match="--until"):
        parse_edge("--until", text, NOW)


@settings(deadline=None)
@given(st.one_of(st.text(max_size=30), st.from_regex(r"[0-9TZhms:.+ -]{0,30}", fullmatch=True)))
def test_any_text_is_an_edge_or_a_usage_error(text: str) -> None:
    try:
        cut = Cut.parse(text, text, NOW)
    except UsageError:
        return
    assert cut.since == cut.until and Cut.parse(**{"since": None, "until": None, **cut.typed}, now_ns=0) == cut


def test_a_cut_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing lies between"):
        Cut.parse("5", "4", NOW)
    with pytest.raises(UsageError, match="nothing lies between"):
        Cut.parse("1h", "2h", NOW)
    assert Cut.parse("5", "2h", NOW)
    assert not Cut.parse(None, None, NOW)
