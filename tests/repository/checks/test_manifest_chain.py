from __future__ import annotations

from dataclasses import replace

import pytest

from jsbackup.errors import KeyUnavailable, StoreError
from jsbackup.repository import layout
from jsbackup.repository.catalog import Catalog, CatalogEntry, entry_of
from jsbackup.repository.checks.manifest_chain import Evidence, check_chain
from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.access import GivenKeys
from jsbackup.repository.crypto.new_keys import NewKeys, make_new_keys
from jsbackup.repository.document import MAX_DOCUMENT_BYTES, Document
from jsbackup.repository.inventory import find_gaps, newest_catalog, write_catalog
from jsbackup.repository.manifest import BackupResult, Manifest, Source
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Store
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import CREATED
from tests.harness.stores import FaultStore

A, B, C, D = (f"20261121T01450{number}Z-000000" for number in range(4))
LEAF = Manifest(A, CREATED, "t", Source(), BackupResult.COMPLETE)


def entry(backup: str, previous: str | None = None, *, sha: str = "", of_previous: str = "") -> CatalogEntry:
    manifest = replace(LEAF, id=backup, previous=previous)
    found = entry_of(manifest, Document(b"", "", 100, sha or backup))
    return replace(found, previous_sha256=(of_previous or previous) if previous else None)


def gaps(
    *present: CatalogEntry, catalog: Catalog | None = None, damaged: str = "", expect: str | None = None
) -> list[str]:
    evidence = Evidence({one.id: one for one in present}, frozenset({damaged} - {""}), catalog)
    return [gap.backup for gap in check_chain(evidence, expect)]


def catalog_of(*entries: CatalogEntry, head: str | None = None) -> Catalog:
    return Catalog(1, head or entries[-1].id, entries)


# --- the rules ---


def test_an_unbroken_chain_is_sound() -> None:
    assert gaps() == []
    assert gaps(entry(A), entry(B, A), entry(C, B)) == []
    assert gaps(entry(A), entry(B, A), entry(C, A)) == [], "two at the same time"
    assert gaps(entry(A), entry(B, A), entry(C, B), catalog=catalog_of(entry(A), entry(B, A))) == []


def test_a_link_that_is_gone_was_removed() -> None:
    assert gaps(entry(A), entry(C, B)) == [B]
    assert gaps(entry(B, A)) == [A]
    assert gaps(entry(D, C), catalog=catalog_of(entry(A), head=B)) == [A, C]


def test_a_link_that_is_another_was_exchanged() -> None:
    assert gaps(entry(A), entry(B, A, of_previous="other")) == [A]


def test_what_a_catalog_names_has_to_be_there_as_it_was() -> None:
    catalog = catalog_of(entry(A), entry(B, A))
    assert gaps(entry(A), catalog=catalog) == [B]
    assert gaps(entry(A, sha="other"), entry(B, A), catalog=catalog) == [A]


def test_what_a_witness_stands_for_has_to_be_there() -> None:
    def with_witness(*present: CatalogEntry, catalog: Catalog | None = None, damaged: str = "") -> list[str]:
        found = {one.id: one for one in present}
        evidence = Evidence(found, frozenset({damaged} - {""}), catalog, witnessed=frozenset({B}))
        return [gap.backup for gap in check_chain(evidence)]

    assert with_witness(entry(A)) == with_witness(entry(A), catalog=catalog_of(entry(A))) == [B]
    assert with_witness(entry(A), entry(C, B)) == [B]
    assert with_witness(entry(A), entry(B, A)) == with_witness(entry(A), damaged=B) == []
    assert with_witness(entry(A), catalog=catalog_of(entry(A), head=B)) == [], "it was forgotten"


def test_what_was_forgotten_is_not_missed() -> None:
    assert gaps(entry(C, B), catalog=catalog_of(entry(C, B))) == []
    assert gaps(entry(C, B), entry(D, C), catalog=Catalog(2, C, (entry(C, B),))) == []
    assert gaps(entry(D, B), catalog=Catalog(2, B)) == []


def test_a_damaged_manifest_is_there() -> None:
    assert gaps(entry(A), entry(C, B), damaged=B) == []
    assert gaps(entry(A), catalog=catalog_of(entry(A), entry(B, A)), damaged=B, expect=B) == []


def test_an_expected_backup_has_to_be_there() -> None:
    assert gaps(entry(A), expect=A) == []
    assert gaps(entry(A), expect=B) == [B]


# --- in repositories ---

ME = age.age_identity(bytes(32))


@pytest.fixture(params=["encrypted", "signed"])
def keys(request: pytest.FixtureRequest) -> NewKeys:
    numbers = iter(range(99))
    readers = [ME.recipient] if request.param == "encrypted" and ME.recipient else []
    return make_new_keys("00ff", readers, None, lambda count: bytes([next(numbers)]) * count)


@pytest.fixture
def repository(keys: NewKeys) -> Repository:
    """With the backups A, B and C."""
    made = Repository.create(MemoryStore(), repository_id="00ff", created=CREATED, tool="t", new_keys=keys)
    for backup in (A, B, C):
        made.commit(replace(LEAF, id=backup))
    return made


def problems(repository: Repository, wanted: list[str] | None = None, expect: str | None = None) -> dict[str, str]:
    return {gap.backup: gap.problem for gap in find_gaps(repository.documents, wanted, expect)}


def test_each_backup_follows_the_newest_there_is(repository: Repository) -> None:
    assert [repository.manifest(one).previous for one in (A, B, C)] == [None, A, B]
    stored = repository.documents.fetch(layout.manifest_key(A), MAX_DOCUMENT_BYTES)
    assert repository.manifest(B).previous_sha256 == stored.sha256
    assert problems(repository) == {}


@pytest.mark.parametrize("catalog", [False, True])
@pytest.mark.parametrize("wanted", [None, [C]])
def test_a_removed_backup_is_named(repository: Repository, catalog: bool, wanted: list[str] | None) -> None:
    if catalog:
        write_catalog(repository.documents)
    repository.documents.delete(layout.manifest_key(B))
    assert list(problems(repository, wanted)) == [B]


@pytest.mark.parametrize("catalog", [False, True])
def test_the_newest_is_missed_until_it_is_given_up(repository: Repository, catalog: bool) -> None:
    if catalog:
        write_catalog(repository.documents)
    repository.documents.delete(layout.manifest_key(C))
    assert list(problems(repository)) == list(problems(repository, wanted=[])) == [C]
    write_catalog(repository.documents, without=[C])
    assert problems(repository) == {}
    assert list(problems(repository, expect=C)) == [C]


def test_the_newest_is_missed_by_those_who_remember_it_where_nothing_witnesses_it(repository: Repository) -> None:
    repository.documents.delete(layout.manifest_key(C))
    repository.store.delete(layout.witness_key(C))
    assert problems(repository) == {}
    assert list(problems(repository, expect=C)) == [C]


def test_no_more_than_the_backups_that_need_one_have_a_witness(repository: Repository) -> None:
    def witnessed() -> list[str]:
        keys = (info.key for info in repository.store.list(layout.CATALOGS))
        return [backup for key in keys if (backup := layout.witnessed_backup_of(key)) is not None]

    assert witnessed() == [C]
    write_catalog(repository.documents)
    assert witnessed() == []
    repository.commit(replace(LEAF, id=D))
    assert witnessed() == [D]
    damaged = repository.documents.stored_key(layout.manifest_key(D))
    repository.store.delete(damaged)
    repository.store.put(damaged, b"rot")
    write_catalog(repository.documents)
    assert witnessed() == [D], "no catalog names what it cannot read"


def test_a_store_that_takes_no_witness_takes_backups(keys: NewKeys) -> None:
    def refuse(_operation: str, key: str) -> None:
        if layout.witnessed_backup_of(key) is not None:
            raise StoreError("not allowed")

    store = FaultStore(MemoryStore(), before=refuse)
    made = Repository.create(store, repository_id="00ff", created=CREATED, tool="t", new_keys=keys)
    for backup in (A, B):
        made.commit(replace(LEAF, id=backup))
    write_catalog(made.documents)
    assert made.backups() == [A, B] and problems(made) == {}


def test_a_backup_that_a_writer_made_again_is_not_the_one_that_was(repository: Repository) -> None:
    repository.documents.delete(layout.manifest_key(B))
    repository.commit(replace(LEAF, id=B, tool="another"))
    found = problems(repository)
    assert list(found) == [B] and "replaced" in found[B]


def test_forgetting_raises_no_alarm(repository: Repository) -> None:
    write_catalog(repository.documents, without=[C, A])
    for backup in (A, C):
        repository.documents.delete(layout.manifest_key(backup))
    assert problems(repository) == {}
    repository.commit(replace(LEAF, id=D))
    assert problems(repository) == {}
    repository.documents.delete(layout.manifest_key(B))
    assert list(problems(repository)) == [B]


def test_a_damaged_catalog_is_told(repository: Repository) -> None:
    write_catalog(repository.documents)
    key = repository.documents.stored_key(layout.catalog_key(1))
    data = repository.store.get(key)
    repository.store.delete(key)
    repository.store.put(key, data[:-1])
    (gap,) = find_gaps(repository.documents)
    assert gap.backup == "" and "catalog" in gap.problem


def test_a_catalog_that_nobody_signed_is_not_believed(repository: Repository) -> None:
    key = layout.catalog_key(1)
    data = b'{"format":1}\n'
    repository.store.put(repository.documents.stored_key(key), data)
    assert newest_catalog(repository.documents)[0] is None
    assert problems(repository).keys() == {""}


def test_what_is_committed_or_forgotten_meanwhile_is_no_problem(repository: Repository, keys: NewKeys) -> None:
    """At each operation of the check, in turn, someone else commits a backup and forgets another."""
    write_catalog(repository.documents)
    given = GivenKeys(writer=keys.writer_key)
    at = 1
    while _check_while_others_work(repository.store, given, at):
        at += 1
    assert at > 5


def _check_while_others_work(store: Store, keys: GivenKeys, at: int) -> bool:
    """Whether the check had as many as `at` operations, at which things happen."""
    copy = MemoryStore()
    for info in store.list():
        copy.put(info.key, store.get(info.key))
    others, seen, checking = Repository.open(copy, keys), 0, False

    def meddle(_operation: str, _key: str) -> None:
        nonlocal seen
        seen += checking
        if checking and seen == at:
            others.commit(replace(LEAF, id=D))
            write_catalog(others.documents, without=[B])
            others.documents.delete(layout.manifest_key(B))

    watched = Repository.open(FaultStore(copy, before=meddle), keys)
    checking = True
    assert find_gaps(watched.documents) == []
    return seen >= at


def test_without_a_key_nothing_is_judged(repository: Repository) -> None:
    anybody = Repository.open(repository.store)
    if anybody.descriptor.recipient is None:
        assert find_gaps(anybody.documents) == []
        return
    with pytest.raises(KeyUnavailable):
        find_gaps(anybody.documents)
    assert find_gaps(Repository.open(repository.store, GivenKeys(identities=(ME,))).documents) == []
