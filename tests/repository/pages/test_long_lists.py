"""Lists of tens of thousands of segments: what a manifest lists of them, and what a change makes anew."""

from __future__ import annotations

import pytest

from jsbackup.repository.objects import SegmentRef
from jsbackup.repository.pages.segment_list import SegmentList
from jsbackup.repository.pages.segment_pages import LEAST, MOST, arrange
from tests.repository.pages.segments import MemoryPages, segment, segments


def arranged(pages: MemoryPages, refs: list[SegmentRef]) -> SegmentList:
    return SegmentList(arrange(refs, pages.read, pages.store), pages.read)


@pytest.mark.slow
def test_a_manifest_lists_few_parts_of_a_long_list() -> None:
    pages = MemoryPages()
    listed = arranged(pages, segments(30_000))
    assert len(listed) == 30_000
    assert len(listed.parts) < 4 * MOST
    sizes = [len(pages.read(page)) for page in listed.pages()]
    assert min(sizes) >= LEAST and max(sizes) <= MOST
    assert 30 < sum(sizes) / len(sizes) < 50


@pytest.mark.slow
def test_appending_to_a_long_list_reads_no_page_and_stores_few() -> None:
    pages = MemoryPages()
    before = arranged(pages, segments(30_000))
    pages.reads = pages.puts = 0
    arrange([*before.parts, *segments(10, first=30_000)], pages.read, pages.store)
    assert pages.reads == 0
    assert pages.puts <= 3


@pytest.mark.slow
def test_a_change_in_a_long_list_stores_a_page_for_each_level_or_a_few_more() -> None:
    pages = MemoryPages()
    before = list(segments(30_000))
    arrange(before, pages.read, pages.store)
    pages.puts = 0
    before[15_000] = segment(150_001, version=1)
    arrange(before, pages.read, pages.store)
    assert 1 <= pages.puts <= 8
