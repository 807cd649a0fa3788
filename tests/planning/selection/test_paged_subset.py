"""What a cut keeps of a stream is the same whether its segments are in pages or not, and few pages are read for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jsbackup.planning.selection.kept_messages import survey_cut
from jsbackup.planning.selection.subset import KeptStream, kept_by_bounds, segments_within
from jsbackup.repository.manifest import StreamBackup
from jsbackup.repository.pages.segment_list import SegmentList
from jsbackup.repository.repository import Repository
from jsbackup.stores.memory import MemoryStore
from jsbackup.transforms.cut import AtSequence, AtTime, Cut
from jsbackup.transforms.reshape import Reshape
from tests.harness.backups import make_repository, store_stream
from tests.harness.batches import some_messages
from tests.harness.small_pages import make_pages_small


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        make_pages_small(patch)
        yield


@pytest.fixture(scope="module")
def both() -> tuple[Repository, StreamBackup, StreamBackup]:
    """A stream as a tuple of segments, and as a list in pages."""
    repository = make_repository(MemoryStore())
    plain = store_stream(repository.objects, "orders", some_messages(300, 100))
    paged = replace(plain, segments=repository.pages.store(plain.segments))
    assert isinstance(paged.segments, SegmentList) and len(paged.segments.parts) < len(plain.segments) / 3
    return repository, plain, paged


def as_listed(kept: KeptStream) -> KeptStream:
    return replace(kept, entry=replace(kept.entry, segments=tuple(kept.entry.segments)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_a_cut_keeps_the_same(both: tuple[Repository, StreamBackup, StreamBackup], data: st.DataObject) -> None:
    repository, plain, paged = both
    times = sorted(time for ref in plain.segments for time in (ref.min_ns, ref.max_ns))
    last = plain.captured.last_seq
    edges = st.none() | st.integers(1, last + 5).map(AtSequence) | st.sampled_from(times).map(AtTime)
    cut = Cut(since=data.draw(edges), until=data.draw(edges))
    assert tuple(segments_within(paged, cut)) == tuple(segments_within(plain, cut))
    assert as_listed(survey_cut(repository.objects, paged, cut)) == survey_cut(repository.objects, plain, cut)
    bounds = [kept_by_bounds(entry, Reshape(cut=cut)) for entry in (paged, plain)]
    assert as_listed(bounds[0]).entry == bounds[1].entry
