"""A repair finds what only shows when something else is there again, and calls nothing lost that is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from jsbackup.progress import NullProgress
from jsbackup.repository import layout
from jsbackup.repository.refs import PageRef
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.repair_run import RepairReport, RepairRun
from jsbackup.stores.base import Store
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import FIRST, SECOND, make_manifest, make_repository, store_backup
from tests.harness.damage import flip, put_instead
from tests.harness.many_streams import manifest_of, many_streams, pages_in

THIRD = "20261121T014700Z-000003"
NOW = 1_800_000_000


def copy_of(store: Store) -> MemoryStore:
    other = MemoryStore()
    for info in store.list():
        other.put(info.key, store.get(info.key))
    return other


def content_of(store: Store) -> dict[str, bytes]:
    """All of it but records of what was verified."""
    return {info.key: store.get(info.key) for info in store.list() if not info.key.startswith(layout.VERIFIED)}


def counter() -> Callable[[int], bytes]:
    numbers = iter(range(1, 1000))
    return lambda count: next(numbers).to_bytes(count, "big")


def repair(store: Store, other: Store) -> RepairReport:
    repository = Repository.open(store)
    return RepairRun(
        repository, repository.backups(), NullProgress(), clock=lambda: NOW, random=counter(), other=other
    ).carry_out()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_what_a_lost_page_lists_is_read(store: MemoryStore) -> None:
    """No `verify` could see it, so it is in no record."""
    store_backup(make_repository(store), count=1500)
    (stream, _) = Repository.open(store).manifest(FIRST).streams
    page = next(part for part in stream.walk() if isinstance(part, PageRef) and part.level == 0)
    segment = next(ref for ref in stream.segments if ref.first_seq == page.first_seq)
    other, before = copy_of(store), content_of(store)
    store.delete(page.key)
    put_instead(store, segment.key, flip(store.get(segment.key)))
    report = repair(store, other)
    assert (report.mended, report.incomplete) == (2, False)
    assert content_of(store) == before


@pytest.mark.parametrize("which", ["missing", "damaged"])
def test_a_page_of_streams_that_backups_share_is_not_lost_for_one_of_them(store: MemoryStore, which: str) -> None:
    repository = make_repository(store)
    for backup in (FIRST, SECOND, THIRD):
        repository.commit(manifest_of(many_streams(300), backup))
    page = min(pages_in(store))
    other, before = copy_of(store), content_of(store)
    put_instead(store, page, flip(store.get(page)) if which == "damaged" else None)
    report = repair(store, other)
    assert (report.lost, report.incomplete) == (0, False)
    assert content_of(store) == before


def test_a_page_of_streams_that_is_lost_does_not_keep_the_others_away(store: MemoryStore) -> None:
    make_repository(store).commit(manifest_of(many_streams(300)))
    lost, *others = sorted(pages_in(store))
    other = copy_of(store)
    other.delete(lost)
    for page in (lost, *others):
        store.delete(page)
    report = repair(store, other)
    assert report.incomplete and report.lost == 1
    assert pages_in(store) == {*others}


def test_a_manifest_that_is_back_shows_that_the_one_before_it_is_missing(store: MemoryStore) -> None:
    repository = make_repository(store)
    previous = None
    for backup in (FIRST, SECOND, THIRD):
        repository.commit(replace(make_manifest(repository, backup), previous=previous))
        previous = backup
    other, before = copy_of(store), content_of(store)
    for info in list(store.list(layout.CATALOGS)):  # nothing else names the first
        store.delete(info.key)
        before.pop(info.key)
        other.delete(info.key)
    store.delete(layout.manifest_key(FIRST))
    key = layout.manifest_key(SECOND)
    put_instead(store, key, flip(store.get(key)))
    report = repair(store, other)
    assert [one.backup for one, _ in report.manifests] == [SECOND, FIRST]
    assert store.get(key) == before[key]
    assert report.incomplete == (content_of(store) != before)
