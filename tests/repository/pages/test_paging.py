"""Where pages end: equal lists have equal pages, and a change makes few of them anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.repository.objects import PageRef, SegmentRef
from jsbackup.repository.pages.segment_list import SegmentList
from jsbackup.repository.pages.segment_pages import arrange
from tests.harness.small_pages import make_pages_small
from tests.repository.pages.segments import MemoryPages, segment, segments


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        make_pages_small(patch)
        yield


def arranged(pages: MemoryPages, refs: list[SegmentRef]) -> SegmentList:
    return SegmentList(arrange(refs, pages.read, pages.store), pages.read)


@given(st.integers(0, 200), st.integers(0, 60))
def test_appending_gives_the_pages_of_the_whole(count: int, more: int) -> None:
    pages = MemoryPages()
    before = arranged(pages, segments(count))
    after = arrange([*before.parts, *segments(more, first=count)], pages.read, pages.store)
    assert after == arrange(segments(count + more), pages.read, pages.store)
    assert list(SegmentList(after, pages.read)) == segments(count + more)


@given(st.integers(1, 200), st.data())
def test_a_change_in_the_middle_gives_the_pages_of_the_changed_list(count: int, data: st.DataObject) -> None:
    pages = MemoryPages()
    before = arranged(pages, segments(count))
    gone = data.draw(st.sets(st.integers(0, count - 1), max_size=5))
    changed = data.draw(st.sets(st.integers(0, count - 1), max_size=5)) - gone

    def wanted(number: int) -> SegmentRef:
        return segment(10 * number + 1, version=1) if number in changed else segment(10 * number + 1)

    expected = [wanted(number) for number in range(count) if number not in gone]
    touched = {10 * number + 1 for number in gone | changed}

    def keeps(part: PageRef | SegmentRef) -> bool | None:
        hit = any(part.first_seq <= sequence <= part.last_seq for sequence in touched)
        return None if hit and isinstance(part, PageRef) else not hit

    kept = before.select(keeps).parts
    parts = sorted([*kept, *(wanted(number) for number in changed)], key=lambda part: part.first_seq)
    after = arrange(parts, pages.read, pages.store)
    assert list(SegmentList(after, pages.read)) == expected
    assert after == arrange(expected, pages.read, pages.store)


@pytest.mark.by_turns
@given(st.integers(0, 400))
def test_a_page_has_parts_of_the_level_below_within_the_limits(count: int) -> None:
    pages = MemoryPages()
    listed = arranged(pages, segments(count))
    levels = [part.level if isinstance(part, PageRef) else -1 for part in listed.parts]
    assert levels == sorted(levels, reverse=True)
    for page in listed.pages():
        parts = pages.read(page)
        assert 2 <= len(parts) <= 4
        assert {part.level if isinstance(part, PageRef) else -1 for part in parts} == {page.level - 1}
