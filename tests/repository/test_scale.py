"""Five thousand backups of 50 streams: how many requests the store gets. A listing is one for each thousand objects.

With one backup every ten minutes that is five weeks, none forgotten. Numbers are bounds, not times: a request is what
costs, in latency and on the bill.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from jsbackup.config import Glob
from jsbackup.progress import NullProgress
from jsbackup.repository import layout
from jsbackup.repository.keep.forget import plan_by_policy, remove_decided
from jsbackup.repository.keep.holds import held_backups
from jsbackup.repository.keep.retention import Policy
from jsbackup.repository.origin import origin_of
from jsbackup.repository.read.latest import Wanted
from jsbackup.repository.read.sources import Grouping
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.copying import copy_backups
from jsbackup.repository.write.new_backup import previous_streams
from jsbackup.repository.write.segment_writer import stored_segments
from tests.harness.backups import INCARNATION
from tests.harness.counting import PAGE, CountingStore
from tests.harness.many import EVERY, ManyBackups, nth_created, nth_id, nth_manifest
from tests.repository.write.test_copying import lease_on

pytestmark = pytest.mark.slow

BACKUPS = 5_000
STREAMS = 50
UNCOVERED = 90
PAGES = BACKUPS // PAGE + 1

NOW_NS = 1_775_000_000_000_000_000  # after the newest


@pytest.fixture(scope="module")
def many() -> ManyBackups:
    """Changed by nobody."""
    return ManyBackups(BACKUPS, uncovered=UNCOVERED)


@contextmanager
def counted(store: ManyBackups, most: int) -> Iterator[CountingStore]:
    """The store, which gets at most so many requests."""
    counting = CountingStore(store)
    yield counting
    assert counting.total <= most, counting.requests


def test_listing(many: ManyBackups) -> None:
    with counted(many, 5 + PAGES + UNCOVERED) as store:
        repository = Repository.open(store)
        inventory = repository.inventory()
        held_backups(repository)
    assert [summary.id for summary in inventory.summaries] == [nth_id(number) for number in range(BACKUPS)]
    assert {summary.streams for summary in inventory.summaries} == {STREAMS}
    assert inventory.summaries[-1].created == nth_created(BACKUPS - 1)


@pytest.mark.by_turns
def test_finding_a_backup(many: ManyBackups) -> None:
    with counted(many, 1 + PAGES) as store:
        assert Repository.open(store).resolve(nth_id(BACKUPS - 1)[:15]) == nth_id(BACKUPS - 1)
    # Whether others share the repository, and what has gone since, a listing tells.
    with counted(many, 5 + 2 * PAGES + UNCOVERED) as store:
        assert Repository.open(store).resolve("latest") == nth_id(BACKUPS - 1)
    origin = origin_of(many.made(BACKUPS - 1).source)
    for streams in ((Glob(ManyBackups.STREAMS[0]),), ()):
        with counted(many, 7 + 2 * PAGES + UNCOVERED) as store:
            wanted = Wanted(streams, origin=origin)
            assert Repository.open(store).choose("latest", wanted).manifest.id == nth_id(BACKUPS - 1)
    with counted(many, 2) as store:
        repository = Repository.open(store)
        repository.manifest(repository.resolve(nth_id(4321)))


def test_deciding_what_to_forget(many: ManyBackups) -> None:
    policy = Policy(hourly=24, daily=7, weekly=4, monthly=12)
    # And what is kept: at most 50 manifests, 32 folders, then all others at once.
    with counted(many, 5 + PAGES + UNCOVERED + 50 + 33) as store:
        plan = plan_by_policy(Repository.open(store), policy, Grouping.SELECTION, now_ns=NOW_NS)
    assert len(plan.decisions.kept) + len(plan.decisions.removed) == BACKUPS
    assert 30 < len(plan.decisions.kept) < 50


def test_a_backup() -> None:
    """All that a backup of 50 streams asks of the repository, but for the messages that it stores."""
    store = ManyBackups(BACKUPS, uncovered=UNCOVERED)
    with_lists = 3 * PAGES + STREAMS  # what came before, which id comes next, is a catalog due; and what is stored
    with counted(store, with_lists + 2 + 6 + 1) as counting:  # two pages of streams; what the last witness says
        repository = Repository.open(counting)
        earlier = previous_streams(repository, dict.fromkeys(ManyBackups.STREAMS, INCARNATION))
        assert len(earlier) == STREAMS
        for stream in earlier.values():
            stored_segments(repository.objects, layout.stream_folder(stream.name, INCARNATION), stream.segments)
        assert repository.backups()[-1] == nth_id(BACKUPS - 1)
        repository.commit(store.made(BACKUPS))


def test_a_backup_that_writes_a_catalog() -> None:
    store = ManyBackups(BACKUPS, uncovered=100)
    # The manifest before it, which a backup has read, too; and what the last two witnesses say.
    with counted(store, 2 * PAGES + 101 + 12 + 2) as counting:
        Repository.open(counting).commit(store.made(BACKUPS))
    assert [info.key for info in store.list(layout.CATALOGS)] == [layout.catalog_key(1), layout.catalog_key(2)]
    with counted(store, 3 + PAGES) as counting:
        assert len(Repository.open(counting).inventory().entries) == BACKUPS + 1


@pytest.mark.by_turns
def test_forgetting() -> None:
    store = ManyBackups(BACKUPS, uncovered=UNCOVERED)
    within_seconds = (BACKUPS - 21) * EVERY.total_seconds()  # leaves 20 out; the others displace none
    with counted(store, 5 + PAGES + UNCOVERED + 2 + 33) as counting:
        policy = Policy(within_seconds=within_seconds)
        plan = plan_by_policy(Repository.open(counting), policy, Grouping.SELECTION, now_ns=NOW_NS)
    with counted(store, PAGES + UNCOVERED + 10 + 20 * 3) as counting:
        done = remove_decided(Repository.open(counting), plan.decisions)
    assert len(done.removed) == 20
    with counted(store, 3 + PAGES) as counting:
        assert len(Repository.open(counting).inventory().entries) == BACKUPS - 20


@pytest.mark.by_turns
def test_copying_what_is_there_already() -> None:
    source, target = (ManyBackups(BACKUPS, uncovered=UNCOVERED) for _ in range(2))
    lease = lease_on(target)
    with (
        counted(source, 1 + 3 * PAGES + UNCOVERED + 3) as ours,
        counted(target, 1 + 2 * PAGES + UNCOVERED + 3) as theirs,
    ):
        here = Repository.open(ours)
        report = copy_backups(here, Repository.open(theirs), here.backups(), lease, progress=NullProgress(), jobs=4)
    assert (len(report.present), report.copied, report.failed) == (BACKUPS, (), ())


@pytest.mark.parametrize(("streams", "segments"), [(1, 16_000), (50, 20)])
def test_a_manifest_of_a_terabyte_and_one_of_many_streams_are_written_and_read(streams: int, segments: int) -> None:
    store = ManyBackups(2, uncovered=0)
    manifest = replace(nth_manifest(7, streams=streams, segments=segments), tags={})
    repository = Repository.open(store)
    repository.commit(manifest)
    found = repository.manifest(manifest.id)
    assert replace(found, stream_pages=()) == manifest
    assert bool(found.stream_pages) is (streams > 1)
    assert len(repository.inventory().entries) == 3
