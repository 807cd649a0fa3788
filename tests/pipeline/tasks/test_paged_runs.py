"""Runs of segments that pages name: each wanted segment once and in order, whoever reads the pages."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import IntegrityError
from jsbackup.pipeline.tasks import packing
from jsbackup.pipeline.tasks.packing import PagedRun, packed_runs
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.objects import PageRef
from jsbackup.repository.pages.segment_list import SegmentList
from jsbackup.repository.repository import Repository
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import FIRST, make_repository, store_backup
from tests.harness.small_pages import make_pages_small

COUNT = 600


@pytest.fixture(scope="module", params=["pages", "as it was before there were pages"])
def stored(request: pytest.FixtureRequest) -> Iterator[tuple[Repository, Sequence[SegmentRef]]]:
    """A repository, and the segments of its stream as a manifest has them."""
    with pytest.MonkeyPatch.context() as patch:
        make_pages_small(patch)
        patch.setattr(packing, "_LEAST_BYTES", 1)
        repository = make_repository(MemoryStore())
        given_refs = store_backup(repository, FIRST, count=COUNT).streams[0].segments
        segments = repository.manifest(FIRST).streams[0].segments
        assert isinstance(segments, SegmentList) and max(page.level for page in segments.pages()) >= 2
        yield repository, segments if request.param == "pages" else tuple(given_refs)


def _read(repository: Repository, tasks: list[tuple[tuple[str, PagedRun], ...]]) -> list[SegmentRef]:
    sent = pickle.loads(pickle.dumps(tasks))
    return [ref for runs in sent for _, run in runs for ref in run.segments(repository)]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([1, 10_000, 200_000, 1 << 40]), st.integers(0, 40))
def test_the_segments_are_those_that_the_driver_would_list(
    stored: tuple[Repository, Sequence[SegmentRef]], most: int, cores: int
) -> None:
    repository, segments = stored
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "_MOST_BYTES", most)
        tasks = packed_runs([("A", segments), ("B", segments[:3])], cores)
    wanted = [*segments, *segments[:3]]
    assert _read(repository, tasks) == wanted
    assert all(tasks)
    # What one task does is limited, if nothing in it is larger by itself.
    for runs in tasks:
        assert len(runs) == 1 or sum(run.weight for _, run in runs) <= max(most, 1)


def test_few_pages_are_read_before_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    make_pages_small(monkeypatch)
    repository = make_repository(MemoryStore())
    refs = store_backup(repository, FIRST, count=COUNT).streams[0].segments
    stored = repository.manifest(FIRST).streams[0].segments
    assert isinstance(stored, SegmentList)
    read: list[PageRef] = []

    def noting(page: PageRef) -> Sequence[PageRef | SegmentRef]:
        read.append(page)
        return stored.read(page)

    segments = SegmentList(stored.parts, noting)
    monkeypatch.setattr(packing, "_LEAST_BYTES", 1 << 30)
    (whole,) = packed_runs([("A", segments)], 1)
    assert read == [] and len(whole) < 10  # all of it is less than one task does
    # Where a segment is all that a task does, the pages of segments are left to the tasks: each reads one.
    read.clear()
    monkeypatch.setattr(packing, "_MOST_BYTES", 1)
    monkeypatch.setattr(packing, "_LEAST_BYTES", 1)
    tasks = packed_runs([("A", segments)], 1)
    assert [run.start for runs in tasks for _, run in runs if run.stop is not None]
    assert all(page.level for page in read)
    assert _read(repository, tasks) == list(refs) and len(tasks) == len(refs)
    few = packed_runs([("A", segments)], 1, most_tasks=4)
    assert _read(repository, few) == list(refs) and 4 <= len(few) < 10


def test_a_page_that_is_lost_is_named_by_the_task_that_reads_it() -> None:
    with pytest.MonkeyPatch.context() as patch:
        make_pages_small(patch)
        repository = make_repository(MemoryStore())
        store_backup(repository, FIRST, count=COUNT)
    opened = Repository.open(repository.store)
    segments = opened.manifest(FIRST).streams[0].segments
    assert isinstance(segments, SegmentList)
    lost = [page for page in segments.pages() if not page.level][3]
    repository.store.delete(lost.key)
    opened = Repository.open(repository.store)
    with pytest.raises(IntegrityError, match=f"object {lost.key} is missing"):
        _read(opened, packed_runs([("A", segments)], 1))
