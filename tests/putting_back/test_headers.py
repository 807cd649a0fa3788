"""Header blocks of messages that are put back, by random ones and by the letter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.look.message import LookedUp
from jsbackup.putting_back.headers import (
    MessageOrigin,
    comparable,
    content_of,
    is_marker,
    message_id,
    new_block,
    origin_in,
    origin_of_message,
    reason_against,
)

SECOND = 1_000_000_000
_NAMES = ["A", "b", "Nats-Msg-Id", "KV-Operation", "Content-Type", "X-Nats-TTL", "Nats"]
_ACTING = [
    "Nats-Expected-Last-Sequence",
    "nats-expected-stream",
    "Nats-Rollup",
    "NATS-ROLLUP",
    "Nats-Batch-Id",
    "Nats-Batch-Commit",
    "Nats-Trace-Only",
    "Nats-Scheduler",
    "Nats-Schedule-Next",
    "Nats-Stream-Source",
    "Jsbackup-Origin",
]
_VALUES = st.binary(max_size=20).filter(lambda value: b"\r" not in value and b"\n" not in value)
_KEPT = st.tuples(st.sampled_from(_NAMES), _VALUES)
_DROPPED = st.tuples(st.sampled_from(_ACTING), _VALUES)


def _block(pairs: list[tuple[str, bytes]]) -> bytes:
    return b"NATS/1.0\r\n" + b"".join(name.encode() + b":" + value + b"\r\n" for name, value in pairs) + b"\r\n"


@given(st.lists(st.one_of(_KEPT, _DROPPED), max_size=12))
def test_what_stays_stays_byte_for_byte_in_order(pairs: list[tuple[str, bytes]]) -> None:
    kept = [(name, value) for name, value in pairs if name in _NAMES]
    block = new_block(_block(pairs), [("Added", "1")], stored_ns=0, now_ns=0)
    assert block == _block(kept)[:-2] + b"Added: 1\r\n\r\n"
    assert reason_against(block, stored_ns=0, now_ns=0, allows_ttl=False) == ""
    # What is put back is recognized as the same content, and again after it was put back once more.
    assert comparable(block)[:-1] == comparable(_block(pairs))
    origin = MessageOrigin("b", "S", 1, SECOND)
    copy = new_block(
        _block(pairs), [("Jsbackup-Origin", str(origin)), ("Nats-Expected-Stream", "S")], stored_ns=0, now_ns=0
    )
    assert content_of("s", copy, b"x") == content_of("s", _block(pairs), b"x")
    assert origin_in(copy) == origin
    assert new_block(copy, [("Added", "1")], stored_ns=0, now_ns=0) == block


@given(st.binary(max_size=200))
def test_any_bytes_are_a_block_or_refused(block: bytes) -> None:
    reason = reason_against(block, stored_ns=0, now_ns=0, allows_ttl=True)
    assert origin_in(block) is None
    comparable(block)
    is_marker(block)
    if block and not (block.startswith(b"NATS/1.0") and block.endswith(b"\r\n\r\n")):
        assert reason == "its header block is damaged"


@given(
    st.text(
        alphabet=st.characters(exclude_characters=" \t\r\n\f.*>\0", exclude_categories=["Cs"]), min_size=1, max_size=40
    ),
    st.integers(1, (1 << 62)),
    st.integers(1, 4 * 10**18),
)
def test_an_origin_survives_its_text(stream: str, sequence: int, time_ns: int) -> None:
    origin = MessageOrigin("20261121T094249Z-acd9df", stream, sequence, time_ns)
    assert MessageOrigin.parse(str(origin)) == origin
    block = new_block(None, [("Jsbackup-Origin", str(origin))], stored_ns=0, now_ns=0)
    assert origin_in(block) == origin
    again = LookedUp(99, 1, "s", block, b"")
    assert origin_of_message("other", "T", again) == origin


@pytest.mark.parametrize("text", ["", "x", "b S 0 2026-01-01T00:00:00Z", "b S 1 yesterday", "b S -1 x", "b S 1 2 3"])
def test_anything_else_is_no_origin(text: str) -> None:
    assert MessageOrigin.parse(text) is None


@pytest.mark.parametrize(
    ("ttl", "age_seconds", "left"),
    [
        ("60", 10, "50s"),
        ("60s", 10, "50s"),
        ("1h30m", 30, "5370s"),
        ("1.5h", 0, "5400s"),
        ("90000ms", 60, "30s"),
        ("never", 1000, "never"),
        ("NEVER", 1000, "never"),
        ("10", 9.5, "1s"),
        ("0", 5, None),
    ],
)
def test_a_time_to_live_is_what_is_left_of_it(ttl: str, age_seconds: float, left: str | None) -> None:
    block, now_ns = _block([("A", b" 1"), ("Nats-TTL", ttl.encode())]), int(age_seconds * SECOND)
    assert reason_against(block, stored_ns=0, now_ns=now_ns, allows_ttl=True) == ""
    expected = _block([("A", b" 1")])[:-2] + (b"" if left is None else f"Nats-TTL: {left}\r\n".encode()) + b"\r\n"
    assert new_block(block, [], stored_ns=0, now_ns=now_ns) == expected
    if left is not None:
        assert "allow_msg_ttl" in reason_against(block, stored_ns=0, now_ns=now_ns, allows_ttl=False)


@pytest.mark.parametrize("ttl", ["10", "10s"])
def test_a_time_to_live_that_ended_is_a_reason(ttl: str) -> None:
    block = _block([("Nats-TTL", ttl.encode())])
    assert "time to live ended at" in reason_against(block, stored_ns=0, now_ns=10 * SECOND, allows_ttl=True)


@pytest.mark.parametrize("ttl", ["soon", "-5", "10x", "1e3", "0.5s", "9" * 19])
def test_a_time_to_live_that_means_nothing_is_a_reason(ttl: str) -> None:
    block = _block([("Nats-TTL", ttl.encode())])
    assert "cannot be understood" in reason_against(block, stored_ns=0, now_ns=0, allows_ttl=True)


def test_the_message_id_is_the_one_that_a_server_sees() -> None:
    assert message_id(None) == message_id(b"") == message_id(_block([("A", b" 1")])) == b""
    assert message_id(_block([("A", b"Nats-Msg-Id:y"), ("Nats-Msg-Id", b"  x "), ("Nats-Msg-Id", b"z")])) == b"x"
    assert message_id(_block([("nats-msg-id", b" x"), ("Nats-Msg-Id2", b" y")])) == b""


def test_schedules_counters_and_markers_are_known() -> None:
    def reason(name: str) -> str:
        return reason_against(_block([(name, b" 1")]), stored_ns=0, now_ns=0, allows_ttl=True)

    assert "schedule" in reason("Nats-Schedule") and "counter" in reason("nats-incr")
    assert is_marker(_block([("Nats-Marker-Reason", b" MaxAge")])) and not is_marker(_block([("A", b"1")]))
    assert not is_marker(None)
