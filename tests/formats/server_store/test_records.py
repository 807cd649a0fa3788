"""Damaged blocks: what is proved comes back, and nothing else."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jsbackup.formats.server_store import records
from jsbackup.formats.server_store.block_messages import misplaced_headers, read_region
from jsbackup.formats.server_store.records import records_of, walk
from tests.formats.archives import as_stored
from tests.formats.server_store.blocks import ERASED, KEY, NUMBER, STREAM, TOMBSTONE, empty_record, records_of_messages
from tests.harness.batches import Message, messages_of, some_messages

MESSAGES = some_messages(40, 60)
RECORDS = records_of_messages(MESSAGES)
BLOCK = b"".join(RECORDS)
ENDS = list(accumulate(map(len, RECORDS)))
STARTS = [0, *ENDS[:-1]]
# The checksum covers no lengths: where the subject of a message without headers ends is not proved by the block.
SUBJECT_LENGTH = range(20, 22)


def read(block: bytes, after: int = 0) -> list[Message]:
    found = read_region(block, KEY, after)
    wrong = {one for batch in found.batches for one in misplaced_headers(batch)}
    return [one for one in messages_of(found.batches) if one.sequence not in wrong]


def with_subject_bytes(message: Message) -> Message:
    """Its type differs with the other subjects of its batch."""
    return message._replace(subject=message.subject if isinstance(message.subject, bytes) else message.subject.encode())


def unproved_boundary(at: int) -> bool:
    """Whether this byte is the length of a subject that nothing in the block proves."""
    number = next(number for number, end in enumerate(ENDS) if at < end)
    return MESSAGES[number].headers is None and at - STARTS[number] in SUBJECT_LENGTH


def kept(*touched: range) -> list[Message]:
    """The messages of the records that no range of bytes touches."""
    return as_stored(
        message
        for message, start, end in zip(MESSAGES, STARTS, ENDS, strict=True)
        if not any(start < one.stop and end > one.start for one in touched)
    )


def test_an_undamaged_block_has_no_holes() -> None:
    found = walk(BLOCK, KEY, 0)
    assert found.runs == ((0, len(BLOCK)),) and not found.holes and found.last_seq == MESSAGES[-1].sequence
    assert read(BLOCK) == as_stored(MESSAGES)
    assert [record.sequence for record in records_of(BLOCK, 0, len(BLOCK))] == [one.sequence for one in MESSAGES]


@pytest.mark.slow
def test_every_flipped_bit_costs_one_message() -> None:
    whole = BLOCK[: ENDS[5]]
    for at in range(ENDS[3]):
        if unproved_boundary(at):
            continue
        for bit in range(8):
            block = whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
            assert read(block) == kept(range(at, at + 1), range(len(whole), len(BLOCK))), (at, bit)


@pytest.mark.slow
@settings(max_examples=400)
@given(st.data())
def test_damage_of_any_kind_costs_what_it_touches(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(BLOCK) - 1))
    stop = data.draw(st.integers(start + 1, min(len(BLOCK), start + 400)))
    instead = data.draw(st.one_of(st.just(bytes(stop - start)), st.binary(max_size=500)))
    block = BLOCK[:start] + instead + BLOCK[stop:]
    if instead == BLOCK[start:stop] or any(unproved_boundary(at) for at in range(start, stop)):
        return
    found = read(block)
    expected = kept(range(start, stop))
    if len(instead) == stop - start:
        assert [one for one in expected if one not in found] == []
    assert [one for one in found if one not in as_stored(MESSAGES)] == []


@given(st.integers(0, len(BLOCK)))
def test_a_block_that_is_cut_off_has_what_is_before(size: int) -> None:
    assert read(BLOCK[:size]) == kept(range(size, len(BLOCK)))


@given(st.binary(max_size=3000))
@example(bytes(3000))
@example(b"\x1e\0\0\0" * 700)
def test_garbage_has_no_records(garbage: bytes) -> None:
    found = walk(garbage, KEY, 0)
    assert not found.runs
    assert len(found.holes) == (1 if garbage else 0)


def test_the_hole_tells_where_it_is_and_what_it_seems_to_be() -> None:
    number = 5
    at = ENDS[number] - 12
    block = BLOCK[:at] + bytes([BLOCK[at] ^ 1]) + BLOCK[at + 1 :]
    (hole,) = walk(block, KEY, 0).holes
    assert (hole.start, hole.stop) == (STARTS[number], ENDS[number])
    assert (hole.after_seq, hole.before_seq) == (MESSAGES[number - 1].sequence, MESSAGES[number + 1].sequence)
    assert hole.claim == (MESSAGES[number].sequence, MESSAGES[number].subject)


def test_a_copy_of_records_in_a_payload_is_never_taken_for_them() -> None:
    """A backup of the stream in the stream: its records are older, and so are its tombstones."""
    copy = BLOCK + empty_record(MESSAGES[0].sequence | TOMBSTONE) * 3
    last = MESSAGES[-1].sequence
    carrier = Message(last + 1, 10**18, "backups", None, b"x" * 50 + copy + b"y" * 50)
    after = Message(last + 2, 10**18, "orders.1", None, b"after")
    (big,) = records_of_messages([carrier])
    (end,) = records_of_messages([after])
    whole = BLOCK + big + end
    places = [len(BLOCK) + at for at in (0, 1, 2, 3, 5, 25, 40, len(big) // 2, len(big) - 1)]
    for at in places:
        block = whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :]
        found = read_region(block, KEY, 0)
        assert messages_of(found.batches) == as_stored([*MESSAGES, after])
        assert not found.tombstones


def test_a_length_that_leads_to_a_later_record_by_chance_hides_none() -> None:
    number = 4
    longer = len(RECORDS[number]) + len(RECORDS[number + 1]) + len(RECORDS[number + 2])
    head = longer | (1 << 31 if MESSAGES[number].headers else 0)
    block = BLOCK[: STARTS[number]] + head.to_bytes(4, "little") + BLOCK[STARTS[number] + 4 :]
    assert read(block) == as_stored(one for at, one in enumerate(MESSAGES) if at != number)


def test_erased_messages_and_tombstones_are_records() -> None:
    block = RECORDS[0] + empty_record(MESSAGES[1].sequence | ERASED) + empty_record(1 | TOMBSTONE) + RECORDS[2]
    found = read_region(block, KEY, 0)
    assert messages_of(found.batches) == as_stored([MESSAGES[0], MESSAGES[2]])
    assert list(found.tombstones) == [1] and not found.holes
    for at in range(len(RECORDS[0]), len(RECORDS[0]) + 60):
        damaged = block[:at] + bytes([block[at] ^ 4]) + block[at + 1 :]
        assert messages_of(read_region(damaged, KEY, 0).batches) == as_stored([MESSAGES[0], MESSAGES[2]])


def test_a_block_of_another_number_or_stream_has_nothing() -> None:
    assert not walk(BLOCK, records.block_key(STREAM, NUMBER + 1), 0).runs
    assert not walk(BLOCK, records.block_key("OTHERS", NUMBER), 0).runs


def test_sequences_far_above_the_last_one_are_found() -> None:
    far = [Message(1 << 60, 5, "a", None, b"1"), Message((1 << 60) + 1, 5, "b", None, b"2")]
    block = bytes(100) + b"".join(records_of_messages(far))
    assert read(block) == as_stored(far)


def test_a_search_ends_however_many_lengths_look_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each place of a hostile block seems to begin a long record."""
    monkeypatch.setattr(records, "_SEARCHED_BYTES", 1 << 22)
    head = (60_000).to_bytes(4, "little") + (9).to_bytes(8, "little")
    block = head * 20_000
    assert not walk(block, KEY, 0).runs
    assert read(block[:50_000] + RECORDS[0])[:1] in ([], as_stored([MESSAGES[0]]))


def test_subjects_of_any_bytes_come_back() -> None:
    odd = [
        Message(1, 1, b"\xff\xfe", None, b""),
        Message(2, 1, "", None, b"x"),
        Message(3, 1, "s", b"NATS/1.0\r\n\r\n", b""),
    ]
    found = read(b"".join(records_of_messages(odd)))
    assert list(map(with_subject_bytes, found)) == list(map(with_subject_bytes, as_stored(odd)))


def test_headers_that_end_in_the_wrong_place_are_noticed() -> None:
    some = random.Random(3)
    for _ in range(200):
        block_of_headers = b"NATS/1.0\r\nA: b\r\nC: %d\r\n\r\n" % some.randrange(1000)
        message = Message(7, 1, "s", block_of_headers, some.randbytes(80))
        (record,) = records_of_messages([message])
        at = 22 + 1
        wrong = some.choice([one for one in range(110) if one != len(block_of_headers)])
        changed = record[:at] + wrong.to_bytes(4, "little") + record[at + 4 :]
        assert read(changed) == []


def test_a_payload_that_looks_like_headers_is_kept() -> None:
    like = [Message(1, 1, "s", None, b"NATS/1.0\r\nA: b\r\n\r\nx"), Message(2, 1, "s", b"NATS/1.0\r\n\r\n", b"y")]
    assert read(b"".join(records_of_messages(like))) == as_stored(like)
