"""Compressed blocks: whole ones, and what is left of damaged ones."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.formats.s2 import S2Encoder
from jsbackup.formats.server_store import plain_block
from jsbackup.formats.server_store.block_messages import read_region
from jsbackup.formats.server_store.plain_block import decode_block
from tests.formats.archives import as_stored
from tests.formats.server_store.blocks import KEY, compressed, records_of_messages
from tests.harness.batches import Message, messages_of, some_messages

FRAME = 1 << 20
SMALL = some_messages(30, 400)
SMALL_BLOCK = b"".join(records_of_messages(SMALL))


def long_messages() -> list[Message]:
    """Of three frames: random bytes, which do not compress, and repeated ones."""
    some = random.Random(5)
    return [
        Message(sequence, 10**18, "s", None, some.randbytes(9_000) if sequence % 2 else b"%d" % sequence * 3_000)
        for sequence in range(1, 260)
    ]


LONG = long_messages()
LONG_BLOCK = b"".join(records_of_messages(LONG))
LONG_STORED = compressed(LONG_BLOCK)


def messages_in(stored: bytes) -> list[Message]:
    found: list[Message] = []
    last = 0
    for region in decode_block(stored).regions:
        read = read_region(region, KEY, last)
        last = read.last_seq
        found += messages_of(read.batches)
    return found


def joined(message: Message) -> tuple[int, int, bytes]:
    """What the checksum of a record covers: everything but where its parts end (`block_messages.py`)."""
    subject = message.subject if isinstance(message.subject, bytes) else message.subject.encode()
    return message.sequence, message.timestamp_ns, subject + (message.headers or b"") + message.data


def test_blocks_come_back() -> None:
    for block in (b"", SMALL_BLOCK, LONG_BLOCK):
        assert b"".join(decode_block(block).regions) == block and not decode_block(block).compressed
    for block in (SMALL_BLOCK, LONG_BLOCK):
        found = decode_block(compressed(block))
        assert found.compressed and found.regions == (block,) and not found.flaws


def test_both_sizes_that_servers_write_are_sound() -> None:
    """2.11 writes the size of the compressed bytes."""
    stored = compressed(SMALL_BLOCK)
    start = stored.index(b"\xff\x06")
    size = len(stored) - start
    theirs = b"cmp\x01" + bytes([size & 0x7F | 0x80, size >> 7]) + stored[start:]
    assert decode_block(theirs).regions == (SMALL_BLOCK,) and not decode_block(theirs).flaws
    wrong = b"cmp\x01" + bytes([size + 1 & 0x7F | 0x80, size >> 7]) + stored[start:]
    assert decode_block(wrong).regions == (SMALL_BLOCK,) and decode_block(wrong).flaws


@pytest.mark.parametrize("at", [0, 3, 4, 5, 6, 7, 12, 16])
def test_a_damaged_beginning_costs_nothing(at: int) -> None:
    stored = LONG_STORED[:at] + bytes([LONG_STORED[at] ^ 0x21]) + LONG_STORED[at + 1 :]
    found = decode_block(stored)
    assert found.compressed and found.flaws
    assert messages_in(stored) == as_stored(LONG)


def test_damage_costs_no_message_of_another_frame() -> None:
    some = random.Random(9)
    for _ in range(25):
        at = some.randrange(20, len(LONG_STORED))
        stored = LONG_STORED[:at] + bytes([LONG_STORED[at] ^ 1 << some.randrange(8)]) + LONG_STORED[at + 1 :]
        assert decode_block(stored).flaws or at >= len(LONG_STORED) - 8
        found = messages_in(stored)
        assert [one for one in found if one not in LONG] == []
        assert len(found) > len(LONG) * 0.55, at


def test_zeros_over_one_frame_leave_the_others() -> None:
    at = LONG_STORED.index(b"\xff\x06") + 10
    size = 4 + int.from_bytes(LONG_STORED[at + 1 : at + 4], "little")
    found = decode_block(LONG_STORED[:at] + bytes(size) + LONG_STORED[at + size :])
    assert found.flaws[0][:2] == (at, at + size)
    assert sum(map(len, found.regions)) == len(LONG_BLOCK) - FRAME


@settings(max_examples=60)
@given(st.integers(0, len(LONG_STORED)))
def test_what_is_before_a_cut_comes_back(size: int) -> None:
    found = messages_in(LONG_STORED[:size])
    assert found == as_stored(LONG)[: len(found)]
    assert len(found) >= size // FRAME * 50


@pytest.mark.slow
@settings(max_examples=300)
@given(st.data())
def test_damage_of_any_kind_brings_nothing_that_was_not_there(data: st.DataObject) -> None:
    stored = bytearray(compressed(SMALL_BLOCK))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(stored)))
        stored[at : at + data.draw(st.integers(0, 60))] = data.draw(st.binary(max_size=60))
    found = decode_block(bytes(stored))
    assert all(0 <= flaw.start < flaw.stop <= len(stored) for flaw in found.flaws)
    assert {*map(joined, messages_in(bytes(stored)))} <= {*map(joined, as_stored(SMALL))}


def test_a_damaged_length_of_subjects_moves_their_end_and_changes_nothing_else() -> None:
    """The compressed bytes have it once, for all records. Who imports a stream compares with the subjects it had."""
    stored = bytearray(compressed(SMALL_BLOCK))
    assert stored[44] == len(SMALL[0].subject)
    stored[44] = 0
    found = messages_in(bytes(stored))
    assert decode_block(bytes(stored)).flaws
    assert {*map(joined, found)} <= {*map(joined, as_stored(SMALL))}
    assert any(not one.subject for one in found)


@given(st.binary(max_size=2000), st.sampled_from([b"", b"cmp\x01", b"cmp\x01\x90\x0a\xff\x06\x00\x00S2sTwO"]))
def test_garbage_is_no_error(garbage: bytes, head: bytes) -> None:
    found = decode_block(head + garbage)
    assert found.flaws or not head or not garbage or found.regions


@settings(max_examples=300)
@given(st.binary(min_size=1, max_size=3000), st.integers(0, 1 << 30))
def test_what_is_decoded_of_a_damaged_frame_is_its_beginning(content: bytes, seed: int) -> None:
    content *= 3
    encoder = S2Encoder()
    frame = b"".join([*encoder.feed(content), *encoder.finish()])[10:]
    block = frame[8:]
    if frame[0] != 0:  # it does not compress
        return
    assert plain_block._prefix(block) == (len(content), content)
    declared, found = plain_block._prefix(block[: random.Random(seed).randrange(len(block))])
    assert declared in (0, len(content)) or len(found) == 0
    assert content.startswith(found)


def test_a_small_block_that_claims_to_be_huge_costs_little() -> None:
    bomb = b"\xff\xff\xff\x01" + bytes([0, 65]) + b"\xfe\xff\xff\xff" * 100  # long copies of one byte
    stored = b"cmp\x01\x05\xff\x06\x00\x00S2sTwO\x00" + (len(bomb) + 4).to_bytes(3, "little") + bytes(4) + bomb
    assert sum(map(len, decode_block(stored).regions)) <= 4 << 20


def test_frames_without_end_are_not_decoded_beyond_the_largest_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_block, "MAX_PLAIN_BYTES", 2 * FRAME)
    found = decode_block(LONG_STORED)
    assert sum(map(len, found.regions)) <= 3 * FRAME and found.flaws
