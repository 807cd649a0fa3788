"""What an increment keeps and reads is together what is there, whatever went and came since the last backup."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.engine.read.increment import (
    Increment,
    Incremental,
    PresentSequences,
    SequenceSpan,
    Whole,
    accept_increment,
    plan_increment,
    signs_of_loss,
)
from jsbackup.formats.digest import StreamDigest, digest_of_missing
from jsbackup.model import SequencePair, StreamState
from jsbackup.protocol.info import ConsumerInfo, StreamInfo
from jsbackup.repository.manifest import ArchiveFormat, Captured, SegmentRef, StreamBackup
from jsbackup.repository.write.segment_cuts import Cuts

CREATED = "2026-11-21T01:45:00Z"
V1, V2 = (2, 12), (2, 15)


def stream(sequences: list[int], last: int = 0, *, deleted: bool = True, lost: int = 0, **config: object) -> StreamInfo:
    """A stream as its server reports it, with these messages, 100 bytes each, and `last` as its last sequence."""
    last = max([last, *sequences])
    first = min(sequences, default=last + 1)
    gone = tuple(sorted(set(range(first, last + 1)) - set(sequences)))
    state = StreamState(len(sequences), 100 * len(sequences), first, first, last, last, 0, len(gone))
    return StreamInfo(
        name="S",
        config={"name": "S", "retention": "limits", "storage": "file", **config},
        created=CREATED,
        created_ns=0,
        state=state,
        deleted=gone if deleted else None,
        subjects=None,
        lost=lost,
        cluster=None,
        mirror=None,
        sources=(),
        now_ns=0,
    )


def segments(sequences: list[int], size: int) -> tuple[SegmentRef, ...]:
    runs = [sequences[i : i + size] for i in range(0, len(sequences), size)]
    return tuple(
        SegmentRef(
            *(f"s/{r[0]}", r[0], r[-1], len(r), 100 * len(r), 1, 2, 10, "00", str(r), StreamDigest()),
            gaps=digest_of_missing(s for s in range(r[0], r[-1]) if s not in r),
        )
        for r in runs
    )


def backup(sequences: list[int], last: int = 0, size: int = 4) -> StreamBackup:
    state = stream(sequences, last).state
    refs = segments(sequences, size)
    bounds = (refs[0].first_seq, refs[-1].last_seq) if refs else (0, 0)
    captured = Captured(len(sequences), 100 * len(sequences), *bounds, CREATED, CREATED)
    return StreamBackup(
        "S", "00000000", {}, CREATED, state, captured, ArchiveFormat.V2, segments=refs, digest=StreamDigest()
    )


def plan(previous: StreamBackup, info: StreamInfo, *, without: str = "") -> Increment | Whole:
    stored = [ref for ref in previous.segments if ref.key != without]
    return plan_increment(previous, stored, info, Cuts(0, 400))


def increment(previous: StreamBackup, info: StreamInfo, *, without: str = "") -> Increment:
    made = plan(previous, info, without=without)
    assert isinstance(made, Increment), made
    return made


def why(previous: StreamBackup, info: StreamInfo) -> str:
    made = plan(previous, info)
    assert isinstance(made, Whole), made
    return made.why


OLD = list(range(1, 21))  # segments 1 to 4, 5 to 8 … 17 to 20


def test_what_is_new_is_read_together_with_the_last_segment() -> None:
    made = increment(backup(OLD), stream([*OLD, 21, 22]))
    assert [ref.first_seq for ref in made.kept] == [1, 5, 9, 13]
    assert made.spans == (SequenceSpan(17, 22, 6),)
    assert made.anchor is not None and made.anchor.first_seq == 17
    assert (made.read_messages, made.read_bytes, made.whole_bytes) == (6, 600, 2200)


def test_without_an_anchor_only_what_is_new_is_read() -> None:
    previous = backup(OLD)
    made = plan_increment(previous, previous.segments, stream([*OLD, 21, 22]), Cuts(0, 400), anchors=0)
    assert isinstance(made, Increment) and made.kept == previous.segments
    assert (made.spans, made.anchor) == ((SequenceSpan(21, 22, 2),), None)


def test_a_segment_that_lost_messages_is_read_anew() -> None:
    made = increment(backup(OLD), stream([s for s in OLD if s not in (6, 7)] + [21]))
    assert [ref.first_seq for ref in made.kept] == [1, 9, 13]
    assert made.spans == (SequenceSpan(5, 8, 2), SequenceSpan(17, 21, 5))


def test_a_segment_of_which_one_message_came_back_and_another_went_is_read_anew() -> None:
    there = [s for s in OLD if s != 8]
    made = increment(backup(there, size=5), stream([s for s in OLD if s != 9]))
    assert [ref.first_seq for ref in made.kept] == [1, 12]
    assert made.spans == (SequenceSpan(6, 11, 5), SequenceSpan(17, 20, 4))


def test_a_stream_of_which_one_message_came_back_and_another_went_has_changed() -> None:
    there = [s for s in OLD if s != 6]
    assert increment(backup(there, size=19), stream(there)).spans == ()
    assert (
        why(backup(there, size=19), stream([s for s in OLD if s != 7]))
        == "every segment of the last backup has changed"
    )


def test_a_segment_with_gaps_that_an_older_version_stored_is_read_anew() -> None:
    there = [s for s in OLD if s != 8]
    old = backup(there, size=5)
    assert [ref.first_seq for ref in increment(old, stream([*there, 21])).kept] == [1, 6, 12]
    old = replace(old, segments=tuple(replace(ref, gaps="") for ref in old.segments))
    assert [ref.first_seq for ref in increment(old, stream([*there, 21])).kept] == [1, 12]


def test_a_segment_that_is_not_in_the_store_any_more_is_read_anew() -> None:
    made = increment(backup(OLD), stream([*OLD, 21]), without="s/9")
    assert [ref.first_seq for ref in made.kept] == [1, 5, 13]
    assert made.spans == (SequenceSpan(9, 12, 4), SequenceSpan(17, 21, 5))


def test_where_the_end_lost_messages_the_anchor_is_the_last_segment_that_did_not() -> None:
    made = increment(backup(OLD), stream([s for s in OLD if s != 18], 20))
    assert made.anchor is not None and made.anchor.first_seq == 13
    assert made.spans == (SequenceSpan(13, 20, 7),)


def test_short_segments_at_the_end_are_read_with_what_is_new_to_be_joined() -> None:
    previous = backup(list(range(1, 81)), size=40)
    small = segments(list(range(81, 83)), 1)
    previous = replace(previous, segments=(*previous.segments, *small))
    info = stream(list(range(1, 91)))
    made = plan_increment(previous, previous.segments, info, Cuts(8200, 4000))
    assert isinstance(made, Increment)
    assert [ref.first_seq for ref in made.kept] == [1, 41]
    assert made.spans == (SequenceSpan(81, 90, 10),)
    assert made.anchor == small[-1]


def test_a_stream_that_has_not_changed_is_not_read() -> None:
    made = increment(backup(OLD), stream(OLD, deleted=False))
    assert (made.kept, made.spans, made.anchor, made.read_bytes) == (segments(OLD, 4), (), None, 0)


@pytest.mark.parametrize("field", ["bytes", "first_ns", "last_ns"])
def test_the_same_counts_with_other_bytes_or_times_are_read(field: str) -> None:
    info = stream(OLD)
    changed = replace(info.state, **{field: getattr(info.state, field) + 1})
    assert increment(backup(OLD), replace(info, state=changed)).spans == (SequenceSpan(17, 20, 4),)


def test_a_stream_that_cannot_be_the_same_any_more_is_read_whole() -> None:
    assert why(backup(OLD), stream(OLD[:-1])) == "it ends at sequence 19 and ended at 20 in the last backup"
    assert why(backup(OLD[4:]), stream(OLD)) == "it begins at sequence 1 and began at 5 in the last backup"
    assert why(backup(OLD), stream(OLD[::2], 30)) == "every segment of the last backup has changed"
    assert why(backup(OLD), replace(stream([*OLD, 21]), created="2026-11-22T01:45:00Z")) == "it was created again"
    assert why(backup([], 5), stream([6])) == "the last backup has no messages of it"
    assert why(backup(OLD), stream([*OLD, 21], lost=2)) == "the server reports 2 damaged messages"


@pytest.mark.parametrize(
    ("now", "last", "signs"),
    [
        (OLD, 20, ""),
        ([*OLD, 21, 22], 22, ""),
        (OLD[:18], 18, "it ends at sequence 18 and ended at 20 in the last backup"),
        (OLD[:18], 20, "it has 2 messages less than in the last backup, and nobody may delete any"),
        ([*OLD[:18], 21, 22], 22, "it has 2 messages less than in the last backup, and nobody may delete any"),
    ],
)
def test_a_loss_shows_without_reading(now: list[int], last: int, signs: str) -> None:
    """Missing messages are a loss only if they could not be deleted, neither now nor at the time of the backup."""
    denied = {"deny_delete": True, "deny_purge": True}
    before = replace(backup(OLD), config=denied)
    assert signs_of_loss(before, stream(now, last, **denied)) == signs
    deletable = signs if "ends at" in signs else ""
    assert signs_of_loss(backup(OLD), stream(now, last, **denied)) == deletable
    assert signs_of_loss(before, stream(now, last, **denied, max_age=10**9)) == deletable
    assert signs_of_loss(replace(before, created="2026-01-01T00:00:00Z"), stream(now, last, **denied)) == ""


def test_deletions_that_cannot_be_told_are_a_reason_to_read_all() -> None:
    assert why(backup(OLD), stream([*OLD[1:], 22], deleted=False)) == "1 deleted sequences are too many to ask for"
    info = stream([*OLD, 22])
    wrong = replace(info, state=replace(info.state, messages=20))
    assert "do not agree" in why(backup(OLD), wrong)


@given(
    st.sets(st.integers(1, 60), min_size=1),
    st.sets(st.integers(1, 60)),
    st.sets(st.integers(61, 90)),
    st.integers(1, 9),
)
def test_what_is_kept_and_what_is_read_is_what_is_there(
    old: set[int], gone: set[int], new: set[int], size: int
) -> None:
    there = sorted((old - gone) | new)
    made = plan(backup(sorted(old), 60, size), stream(there, 60))
    if isinstance(made, Whole):
        return
    assert all(ref.messages == len([s for s in there if ref.first_seq <= s <= ref.last_seq]) for ref in made.kept)
    found = [s for ref in made.kept for s in there if ref.first_seq <= s <= ref.last_seq]
    for span in made.spans:
        inside = [s for s in there if span.first <= s <= span.last]
        assert (inside[0], inside[-1], len(inside)) == (span.first, span.last, span.messages)
        found += inside
    assert sorted(found) == there
    if made.anchor:
        assert made.spans[-1].first <= made.anchor.first_seq <= made.anchor.last_seq <= made.spans[-1].last


@given(st.sets(st.integers(1, 60)), st.integers(0, 70), st.integers(0, 70))
def test_present_knows_what_is_there(there: set[int], first: int, last: int) -> None:
    info = stream(sorted(there), 60)
    present = PresentSequences(info.state, info.deleted or ())
    expected = [s for s in sorted(there) if first <= s <= last]
    assert list(present.within(first, last)) == expected
    assert present.count(first, last) == len(expected)
    assert present.span(first, last) == (SequenceSpan(expected[0], expected[-1], len(expected)) if expected else None)
    assert all((s in present) == (s in there) for s in range(70))


# --- whether ---


def consumer(pending: int = 0, redelivered: int = 0, **config: object) -> ConsumerInfo:
    blank = SequencePair()
    return ConsumerInfo("S", "c", dict(config), CREATED, 0, blank, blank, pending, redelivered, 0, None, False, 0)


def sized(read: int, whole: int, bytes_each: int) -> Increment:
    span = (SequenceSpan(1, 2, 2),)
    return Increment((), span, segments(OLD, 20)[0], read, read * bytes_each, whole, whole * bytes_each)


def auto(made: Increment, info: StreamInfo, *consumers: ConsumerInfo, version: tuple[int, int] = V2) -> str:
    chosen = accept_increment(Incremental.AUTO, made, info, consumers, version=version)
    return chosen.why if isinstance(chosen, Whole) else ""


def test_auto_reads_apart_what_is_a_small_part() -> None:
    info, queue = stream(OLD), stream(OLD, retention="workqueue")
    assert auto(sized(10_000, 1_000_000, 256), info) == ""
    assert auto(sized(300_000, 1_000_000, 256), info).startswith("300000 of 1000000 messages")
    assert auto(sized(20_000, 50_000, 16_384), info) == ""
    assert auto(sized(20_000, 1_000_000, 256), queue) != ""
    assert auto(sized(5_000, 1_000_000, 256), queue) == ""


def test_auto_leaves_to_a_snapshot_what_only_that_can_tell_of_a_consumer() -> None:
    made, info = sized(10, 1_000_000, 256), stream(OLD)
    assert auto(made, info, consumer()) == ""
    assert "consumer c has not acknowledged" in auto(made, info, consumer(pending=1))
    assert "consumer c has not acknowledged" in auto(made, info, consumer(redelivered=1))
    # Where a snapshot would not tell it either.
    assert auto(made, info, consumer(pending=1, mem_storage=True), version=V1) == ""
    assert "consumer c" in auto(made, info, consumer(pending=1, mem_storage=True))
    assert auto(made, stream(OLD, storage="memory"), consumer(pending=1), version=V1) == ""


def test_a_stream_that_no_snapshot_can_be_had_of_is_read_apart_as_soon_as_that_is_less() -> None:
    memory = stream(OLD, storage="memory")
    assert auto(sized(900_000, 1_000_000, 256), memory, version=V1) == ""
    assert auto(sized(900_000, 1_000_000, 256), memory, version=V2) != ""


def test_always_is_what_it_says() -> None:
    made, info = sized(1_000_000, 1_000_000, 256), stream(OLD)
    assert accept_increment(Incremental.ALWAYS, made, info, [consumer(pending=1)], version=V2) is made
