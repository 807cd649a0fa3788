"""Which objects backups name: each page is read, whatever the hashes of keys are."""

from __future__ import annotations

import pytest

from jsbackup.repository import layout
from jsbackup.repository.keep import prune as named_objects
from jsbackup.repository.keep.prune import NamedObjects
from jsbackup.repository.repository import Repository
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import FIRST, SECOND, make_repository, store_backup
from tests.harness.counting import NotingStore
from tests.harness.many_streams import manifest_of, many_streams, pages_in
from tests.harness.small_pages import make_pages_small


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """Two backups with pages of segments of several levels, and one with pages of streams."""
    make_pages_small(monkeypatch)
    store = MemoryStore()
    for number, backup in enumerate((FIRST, SECOND)):
        store_backup(make_repository(store) if not number else Repository.open(store), backup, count=200 + 9 * number)
    Repository.open(store).commit(manifest_of(many_streams(100), "20261121T014700Z-000003"))
    return store


def named_in(store: NotingStore) -> NamedObjects:
    repository = Repository.open(store)
    named = NamedObjects(repository.stream_pages)
    for backup in repository.backups():
        named.add(repository.manifest(backup, streams=False))
    named.read_pages(2)
    return named


def test_what_backups_name_is_named_and_nothing_else(store: MemoryStore) -> None:
    content = {info.key for prefix in (layout.SEGMENTS, layout.STREAMS) for info in store.list(prefix)}
    named = named_in(NotingStore(store))
    assert all(key in named for key in content)
    assert not any(f"{key}x" in named for key in content)


def test_a_page_whose_key_has_the_hash_of_another_is_read_too(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only such a page lists would seem unused, and be deleted."""
    pages = pages_in(store) | {info.key for info in store.list(layout.SEGMENTS) if "/page-" in info.key}
    monkeypatch.setattr(named_objects, "hash", lambda key: 7, raising=False)
    noting = NotingStore(store)
    named_in(noting)
    assert sorted(key for key in noting.read if "/page-" in key) == sorted(pages), "each of them once"
