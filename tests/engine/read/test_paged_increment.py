"""An increment on a list of segments in pages is the same as on a tuple of them, and reads few pages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.engine.read.increment import Increment, Whole, plan_increment
from jsbackup.formats.digest import digest_of_missing
from jsbackup.model import StreamState
from jsbackup.protocol.info import StreamInfo
from jsbackup.repository.manifest import ArchiveFormat, Captured, StreamBackup, total_of
from jsbackup.repository.objects import SegmentRef
from jsbackup.repository.pages.segment_list import SegmentList, split_at
from jsbackup.repository.pages.segment_pages import arrange
from jsbackup.repository.write.segment_cuts import Cuts
from tests.harness.backups import CREATED, INCARNATION
from tests.harness.small_pages import make_pages_small
from tests.repository.pages.segments import MemoryPages, segment, segments


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        make_pages_small(patch)
        yield


def paged(refs: list[SegmentRef]) -> tuple[MemoryPages, SegmentList]:
    pages = MemoryPages()
    return pages, SegmentList(arrange(refs, pages.read, pages.store), pages.read)


def backup_of(refs: list[SegmentRef]) -> StreamBackup:
    total = total_of(refs)
    return StreamBackup(
        name="orders",
        incarnation=INCARNATION,
        config={"name": "orders"},
        created=CREATED,
        state=StreamState(
            messages=total.messages, bytes=total.bytes, first_seq=total.first_seq, last_seq=total.last_seq
        ),
        captured=Captured.of(total, CREATED, CREATED),
        archive_format=ArchiveFormat.V2,
        digest=total.digest,
        segments=tuple(refs),
    )


def info_of(first: int, last: int, deleted: frozenset[int]) -> StreamInfo:
    gone = tuple(sorted(sequence for sequence in deleted if first < sequence < last))
    state = StreamState(
        messages=last - first + 1 - len(gone),
        bytes=100 * (last - first + 1 - len(gone)),
        first_seq=first,
        last_seq=last,
        deleted=len(gone),
    )
    return StreamInfo("orders", {"name": "orders"}, CREATED, 0, state, gone, None, 0, None, None, (), 0)


def thinned(ref: SegmentRef, missing: frozenset[int]) -> SegmentRef:
    """A segment that was stored without some of its messages."""
    inner = sorted(s for s in missing if ref.first_seq < s < ref.last_seq)
    if not inner:
        return ref
    return replace(ref, messages=ref.messages - len(inner), gaps=digest_of_missing(inner))


@given(
    st.integers(1, 60),
    st.frozensets(st.integers(1, 600), max_size=8),
    st.frozensets(st.integers(1, 700), max_size=8),
    st.integers(0, 50),
    st.integers(0, 80),
    st.sampled_from([0, 1]),
)
def test_the_plan_is_the_same_with_pages(
    count: int, before: frozenset[int], since: frozenset[int], front: int, more: int, anchors: int
) -> None:
    refs = [thinned(ref, before) for ref in segments(count)]
    last = 10 * count
    info = info_of(1 + front, last + more, (before | since)) if 1 + front <= last + more else info_of(1, last, before)
    _, listed = paged(refs)
    previous = backup_of(refs)
    plain = plan_increment(previous, refs, info, Cuts(0, 2000), anchors=anchors)
    same = plan_increment(replace(previous, segments=listed), listed, info, Cuts(0, 2000), anchors=anchors)
    assert type(plain) is type(same)
    if isinstance(plain, Whole):
        assert plain == same
    else:
        assert isinstance(same, Increment)
        assert replace(plain, kept=tuple(plain.kept)) == replace(same, kept=tuple(same.kept))


@given(st.integers(0, 60), st.integers(0, 60))
def test_a_list_is_split_where_a_tuple_is(count: int, at: int) -> None:
    refs = segments(count)
    _, listed = paged(refs)
    for sequence in (10 * at + 1, 10 * at):
        if sequence % 10 == 0 and at:  # the last sequence of a segment: not between segments
            continue
        head, tail = split_at(listed, sequence)
        assert (tuple(head), tuple(tail)) == tuple(map(tuple, split_at(tuple(refs), sequence)))


def planned(more: int, deleted: frozenset[int]) -> tuple[Increment, int]:
    """An increment of a stream of 3,000 full segments; and how many pages were read for each level of them."""
    refs = [replace(segment(1000 * number + 1, 1000), bytes=32 << 20) for number in range(3000)]
    pages, listed = paged(refs)
    levels = max(page.level for page in listed.pages()) + 1
    pages.reads = 0
    previous = replace(backup_of(refs), segments=listed)
    plan = plan_increment(previous, listed, info_of(1, 3_000_000 + more, deleted), Cuts(0, 32 << 20))
    assert isinstance(plan, Increment)
    return plan, pages.reads // levels


def test_appending_to_a_long_list_is_planned_without_reading_its_pages() -> None:
    plan, reads = planned(10, frozenset())
    assert [(span.first, span.last) for span in plan.spans] == [(2_999_001, 3_000_010)]
    assert reads <= 3


def test_only_pages_that_lost_messages_are_read() -> None:
    plan, reads = planned(10, frozenset({1_500_500}))
    assert [(span.first, span.last) for span in plan.spans] == [(1_500_001, 1_501_000), (2_999_001, 3_000_010)]
    assert reads <= 6
