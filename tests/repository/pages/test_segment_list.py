"""A list of segments does what a tuple of them does, and reads no more pages than it needs."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.errors import IntegrityError
from jsbackup.repository.manifest import total_of
from jsbackup.repository.objects import PageRef, SegmentRef
from jsbackup.repository.pages.segment_list import BrokenPage, Part, SegmentList, parts_of, size_of, touching
from jsbackup.repository.pages.segment_pages import arrange
from tests.harness.small_pages import make_pages_small
from tests.repository.pages.segments import MemoryPages, segments


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        make_pages_small(patch)
        yield


def listed(count: int) -> tuple[MemoryPages, SegmentList]:
    pages = MemoryPages()
    return pages, SegmentList(arrange(segments(count), pages.read, pages.store), pages.read)


@given(st.integers(0, 100), st.data())
def test_it_is_a_sequence_like_a_tuple(count: int, data: st.DataObject) -> None:
    _, paged = listed(count)
    plain = tuple(segments(count))
    assert len(paged) == len(plain)
    assert tuple(paged) == plain
    assert tuple(reversed(paged)) == plain[::-1]
    assert paged == plain and paged == listed(count)[1]
    assert paged != tuple(segments(count + 1))
    assert pickle.loads(pickle.dumps(paged)) == plain
    cut = slice(*data.draw(st.tuples(*[st.none() | st.integers(-110, 110)] * 2)))
    assert paged[cut] == plain[cut]
    if plain:
        at = data.draw(st.integers(-count, count - 1))
        assert paged[at] == plain[at]
        assert paged[::-1] == plain[::-1]


@given(st.integers(0, 100))
def test_totals_are_those_of_the_segments_without_reading_a_page(count: int) -> None:
    pages, paged = listed(count)
    plain = segments(count)
    assert total_of(paged) == total_of(plain)
    assert size_of(paged) == sum(ref.size for ref in plain) == size_of(plain)
    assert len(paged) == count
    assert pages.reads == 0


@pytest.mark.parametrize("at", [100, -101])
def test_an_index_beyond_the_end_is_an_error(at: int) -> None:
    with pytest.raises(IndexError):
        listed(100)[1][at]


@given(st.integers(1, 100), st.integers(0, 1100), st.integers(0, 300))
def test_the_segments_of_some_sequences(count: int, first: int, length: int) -> None:
    _, paged = listed(count)
    expected = [ref for ref in segments(count) if ref.first_seq <= first + length and first <= ref.last_seq]
    assert (
        list(touching(paged, first, first + length))
        == expected
        == list(touching(segments(count), first, first + length))
    )


def test_the_ends_are_found_without_reading_the_middle() -> None:
    pages, paged = listed(1000)
    levels = max(part.level for part in paged.parts if isinstance(part, PageRef)) + 1
    assert paged[0] == segments(1)[0]
    assert pages.reads == levels
    pages.reads = 0
    assert paged[-1] == segments(1, first=999)[0]
    assert next(reversed(paged)) == paged[-1]
    assert list(touching(paged, 5001, 5010)) == segments(1, first=500)
    assert pages.reads <= 4 * levels


def test_a_page_that_cannot_be_read_is_named_and_the_rest_is_not_lost() -> None:
    pages, paged = listed(200)
    broken = next(page for page in paged.pages() if page.level == 0 and page.first_seq > 500)

    def read(page: PageRef) -> tuple[Part, ...]:
        if page == broken:
            raise IntegrityError("damaged")
        return pages.read(page)

    damaged = SegmentList(paged.parts, read)
    with pytest.raises(IntegrityError):
        list(damaged)
    walked = list(damaged.walk())
    wrong = [part for part in walked if isinstance(part, BrokenPage)]
    assert [part.page for part in wrong] == [broken]
    left = [part for part in walked if isinstance(part, SegmentRef)]
    assert left == [ref for ref in segments(200) if not broken.first_seq <= ref.first_seq <= broken.last_seq]
    assert [part for part in walked if isinstance(part, PageRef)] == list(paged.pages())


def test_parts_of_a_tuple_are_its_segments() -> None:
    assert list(parts_of(tuple(segments(3)))) == segments(3)
