from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError
from jsbackup.formats.archive.consumer_state import decode_state, encode_state
from jsbackup.model import ConsumerState, PendingAck, SequencePair

SECOND_NS = 1_000_000_000
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

# What nats-server 2.14.6 put into a snapshot: 2 messages delivered, both pending.
CAPTURED = bytes.fromhex("1602000402 0602e2b98ab00d020202010102 00".replace(" ", ""))


def in_whole_seconds(time_ns: int) -> int:
    return abs(time_ns) // SECOND_NS * SECOND_NS * (1 if time_ns >= 0 else -1)


def as_stored(state: ConsumerState) -> ConsumerState:
    """What `o.dat` keeps of it: whole seconds, and no redelivered entry at the ack floor."""
    return ConsumerState(
        state.delivered,
        state.ack_floor,
        {key: PendingAck(ack.consumer, in_whole_seconds(ack.timestamp_ns)) for key, ack in state.pending.items()},
        {key: count for key, count in state.redelivered.items() if key != state.ack_floor.stream},
    )


def test_a_servers_state_is_read() -> None:
    assert decode_state(CAPTURED) == ConsumerState(
        delivered=SequencePair(consumer=2, stream=6),
        ack_floor=SequencePair(consumer=0, stream=4),
        pending={5: PendingAck(1, 1795247728 * SECOND_NS), 6: PendingAck(2, 1795247728 * SECOND_NS)},
    )


@settings(max_examples=200, deadline=None)
@given(states)
def test_o_dat_keeps_all_but_fractions_of_a_second(state: ConsumerState) -> None:
    assert decode_state(encode_state(state)) == as_stored(state)


def test_version_1_counts_from_the_ack_floor() -> None:
    # floor 3/30, delivered 2 and 12 beyond it, one pending at 31 delivered 5 s after the base, one redelivered 4 times
    raw = bytes((22, 1, 3, 30, 2, 12, 1, 20, 1, 10, 1, 1, 4))
    assert decode_state(raw) == ConsumerState(
        delivered=SequencePair(consumer=4, stream=41),
        ack_floor=SequencePair(consumer=3, stream=30),
        pending={31: PendingAck(0, 15 * SECOND_NS)},
        redelivered={31: 4},
    )


def test_an_empty_file_is_a_consumer_never_used() -> None:
    assert decode_state(b"") == ConsumerState()


def test_redelivered_below_the_ack_floor_wraps_as_the_server_does() -> None:
    state = ConsumerState(SequencePair(9, 9), SequencePair(7, 7), {}, {3: 2})
    assert decode_state(encode_state(state)) == state


def test_o_dat_cut_short_anywhere_or_longer_is_refused() -> None:
    state = ConsumerState(
        SequencePair(900, 900), SequencePair(300, 300), {600: PendingAck(500, 77 * SECOND_NS)}, {600: 300}
    )
    raw = encode_state(state)
    for size in range(1, len(raw)):
        with pytest.raises(FormatError):
            decode_state(raw[:size])
    with pytest.raises(FormatError, match="more after its end"):
        decode_state(raw + b"\0")


@settings(max_examples=300, deadline=None)
@given(states, st.integers(0, 1 << 16), st.integers(0, 7))
def test_a_flipped_bit_gives_a_state_or_a_format_error(state: ConsumerState, place: int, bit: int) -> None:
    raw = bytearray(encode_state(state))
    raw[place % len(raw)] ^= 1 << bit
    try:
        decoded = decode_state(raw)
    except FormatError:
        return
    assert decode_state(encode_state(decoded)) == decoded


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16",
        b"\x16\x03\x00\x00\x00\x00\x00\x00",  # a version to come
        b"\x15\x02\x00\x00\x00\x00\x00\x00",
        b"\x16\x02\x00\x00\x00\x00\xff\xff\xff\xff\x7f\x00",  # more entries than there are bytes
        b"\x16\x02\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x16\x02" + b"\xff" * 10 + b"\x01",  # a number that never ends
        b"\x16\x02" + b"\xff" * 9 + b"\x7f\x00\x00\x00\x00\x00",
        b"\x16\x02\x00\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01\x00\x00\x00\x00",  # sequences are flagged from bit 62 on
        b"\x16\x02\x00\x00\x00\x00\x01" + b"\xff" * 9 + b"\x01" + b"\x01\x01\x00\x00",  # a time out of this world
        b"\x16\x02\x00\x00\x00\x00\x01\x00\x00\x01\x00\x00",  # pending message 0
    ],
)
def test_hostile_o_dat_is_refused(raw: bytes) -> None:
    with pytest.raises(FormatError):
        decode_state(raw)


def test_numbers_beyond_64_bits_are_not_written() -> None:
    with pytest.raises(FormatError, match="out of range"):
        encode_state(ConsumerState(delivered=SequencePair(1 << 64, 0)))
