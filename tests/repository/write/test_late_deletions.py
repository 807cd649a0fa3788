"""What archive v1 calls deleted late: certain goes, doubtful goes only where captured messages explain it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.formats.archive.archive import ArchiveEnd, IndexState
from jsbackup.formats.sequences import SequenceSet
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.write.late_deletions import messages_to_remove, overwritten
from jsbackup.repository.write.segment_writer import SegmentWriter
from jsbackup.stores.memory import MemoryStore
from tests.harness.api import headers
from tests.harness.batches import Message, batch_of

FOLDER = "segments/S-00000000"


def _stored(messages: list[Message]) -> tuple[list[SegmentRef], SegmentReader]:
    store = MemoryStore()
    writer = SegmentWriter(Objects(store), FOLDER, segment_bytes=40)  # a few messages each
    for message in messages:
        writer.add(batch_of([message]))
    return writer.finish(), SegmentReader(Objects(store))


def _end(
    last_seq: int, *, index_last: int | None, removed: list[int], tombstoned: list[int] | None = None
) -> ArchiveEnd:
    index = None
    if index_last is not None:
        index = IndexState(4, 0, 0, 1, 0, index_last, 0, SequenceSet(removed))
    return ArchiveEnd("v1", 0, last_seq, SequenceSet(tombstoned or []), index)


KEYS = [Message(1, subject="a"), Message(2, subject="b"), Message(3, subject="a"), Message(4, subject="c")]


def test_the_index_of_a_quiet_stream_is_exact() -> None:
    refs, reader = _stored(KEYS)
    end = _end(4, index_last=4, removed=[1, 2])
    assert list(messages_to_remove(end, {}, refs, reader)) == [1, 2]


def test_a_key_whose_next_revision_was_not_captured_is_kept() -> None:
    refs, reader = _stored(KEYS)
    end = _end(4, index_last=9, removed=[1, 2, 4])
    assert list(messages_to_remove(end, {"max_msgs_per_subject": 1}, refs, reader)) == [1]


def test_a_subject_is_the_same_whether_its_segment_keeps_text_or_bytes() -> None:
    refs, reader = _stored([Message(1, subject="a"), Message(2, subject=b"\xff"), Message(3, subject="a")])
    end = _end(3, index_last=9, removed=[1])
    assert list(messages_to_remove(end, {"max_msgs_per_subject": 1}, refs, reader)) == [1]


@settings(max_examples=50)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=30), st.integers(1, 3), st.data())
def test_what_stays_of_each_subject_is_never_less_than_the_limit_allows(
    subjects: list[str], limit: int, data: st.DataObject
) -> None:
    messages = [Message(number, subject=subject) for number, subject in enumerate(subjects, start=1)]
    doubtful = data.draw(st.sets(st.integers(1, len(messages))))
    refs, reader = _stored(messages)
    end = _end(len(messages), index_last=len(messages) + 5, removed=sorted(doubtful))
    gone = set(messages_to_remove(end, {"max_msgs_per_subject": limit}, refs, reader))
    assert gone <= doubtful
    for subject in set(subjects):
        all_of_it = [m.sequence for m in messages if m.subject == subject]
        assert set(all_of_it[-limit:]).isdisjoint(gone)
        assert {s for s in all_of_it[:-limit] if s in doubtful} <= gone


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([None, "sub", "all"])), min_size=1, max_size=30),
    st.integers(0, 3),
    st.data(),
)
def test_what_newer_messages_replaced_is_what_the_server_removes(
    written: list[tuple[str, str | None]], limit: int, data: st.DataObject
) -> None:
    after = data.draw(st.integers(0, len(written)))
    there: list[Message] = []
    read: list[Message] = []
    for number, (subject, roll_up) in enumerate(written, start=1):
        block = headers(("Nats-Rollup", roll_up)) if roll_up else None
        message = Message(number, subject=subject, headers=block)
        if roll_up == "all":
            there = []
        elif roll_up == "sub":
            there = [one for one in there if one.subject != subject]
        there.append(message)
        while limit and sum(one.subject == subject for one in there) > limit:
            there.remove(next(one for one in there if one.subject == subject))
        read = list(there) if number <= after else [*read, message]
    refs, reader = _stored(read)
    gone = overwritten(refs, after, limit, reader)
    assert [one.sequence for one in read if one.sequence not in gone] == [one.sequence for one in there]
