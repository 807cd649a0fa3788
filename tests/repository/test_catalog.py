from __future__ import annotations

from dataclasses import asdict, fields, replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.errors import FormatError, JsBackupError, StoreError, UnsupportedError
from jsbackup.repository import layout
from jsbackup.repository.catalog import Catalog, CatalogEntry, decode_catalog, encode_catalog
from jsbackup.repository.document import decode_document, encode_document
from jsbackup.repository.inventory import newest_catalog, settle_catalog, take_inventory, tend_catalog, write_catalog
from jsbackup.repository.manifest import BackupResult, BackupSummary, Selection, Source, summary_of
from jsbackup.repository.manifest_json import encode_manifest
from jsbackup.repository.repository import Repository
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import make_repository
from tests.harness.counting import CountingStore
from tests.harness.many import nth_id, nth_manifest, put_manifests
from tests.harness.stores import FaultStore

HEX = "0123456789abcdef" * 4


def entry(number: int, **changes: Any) -> CatalogEntry:
    summary = BackupSummary(nth_id(number), "2026-01-01T00:00:00Z", BackupResult.COMPLETE, 2, 30, 400, {"k": "v"})
    previous = nth_id(number - 1) if number else None
    return replace(CatalogEntry(summary, 500, HEX, previous, HEX if number else None), **changes)


def some_catalog(backups: int = 3) -> Catalog:
    return Catalog(7, nth_id(backups - 1), tuple(map(entry, range(backups))))


KEY = layout.catalog_key(7)


@pytest.fixture
def store() -> MemoryStore:
    """An empty repository in a store whose clock goes on by a second with each object."""
    seconds = count(1_000)
    store = MemoryStore(lambda: float(next(seconds)))
    make_repository(store)
    return store


def catalogs(store: MemoryStore) -> list[str]:
    keys = [info.key for info in store.list(layout.CATALOGS)]
    return [key for key in keys if layout.kind_of(key) is not layout.ObjectKind.WITNESS]


def ids(numbers: range) -> list[str]:
    return [nth_id(number) for number in numbers]


def listed(repository: Repository) -> list[str]:
    return [summary.id for summary in repository.inventory().summaries]


# --- the document ---


@given(
    st.lists(st.integers(0, 1000), unique=True).map(sorted),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
    st.integers(1, (1 << 63) - 1),
)
def test_a_catalog_comes_back(numbers: list[int], tags: dict[str, str], number: int) -> None:
    entries = [entry(one, size=number, extra={"later": [number]}) for one in numbers]
    entries = [replace(one, summary=replace(one.summary, tags=tags, messages=number)) for one in entries]
    catalog = Catalog(7, nth_id(1000), tuple(entries), {"more": tags})
    data = encode_catalog(catalog)
    assert decode_catalog(data, KEY) == catalog
    assert encode_catalog(decode_catalog(data, KEY)) == data


def test_a_summary_from_a_catalog_is_that_of_the_manifest(store: MemoryStore) -> None:
    source = Source(
        "2.15.1",
        "cluster",
        "account",
        "domain",
        "context",
        account_name="name",
        api_prefix="JS.API",
        login="00112233",
        profile="shop",
        imported={"from": "folder"},
        transformed={"backup": "", "options": ["--mask x"], "cut": {}},
    )
    selection = Selection(("A", "B.*"), ("C",), consumers=False, config_only=True, allow_empty=True)
    manifest = replace(nth_manifest(3), source=source, result=BackupResult.PARTIAL, selection=selection)
    manifest = replace(manifest, ended="2026-11-21T01:45:07Z", stored_bytes=7, previous=None)
    repository = Repository.open(store)
    repository.commit(manifest)
    write_catalog(repository.documents)
    (summary,) = repository.inventory().summaries
    assert asdict(summary) == asdict(summary_of(manifest))
    plain = BackupSummary("", "", BackupResult.COMPLETE, 0, 0, 0)
    same = [field.name for field in fields(plain) if getattr(summary, field.name) == getattr(plain, field.name)]
    assert same == []  # so that a field that catalogs forget does not go unnoticed


def test_an_empty_catalog_comes_back() -> None:
    assert decode_catalog(encode_catalog(Catalog(7, None)), KEY) == Catalog(7, None)


def test_a_damaged_catalog_is_refused_wherever_it_is_cut_or_flipped() -> None:
    data = encode_catalog(some_catalog())
    for length in range(len(data) - 1):  # the newline at the end says nothing
        with pytest.raises(FormatError):
            decode_catalog(data[:length], KEY)
    for at in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[at // 8] ^= 1 << at % 8
        try:
            assert decode_catalog(damaged, KEY) == some_catalog()
        except JsBackupError as error:
            assert isinstance(error, FormatError)


@pytest.mark.parametrize(
    "changes",
    [
        {"generation": 8},
        {"generation": -1},
        {"head": None},
        {"head": nth_id(1)},
        {"head": "latest"},
        {"backups": {}},
        {"backups": [None]},
        {"format": "1"},
    ],
)
def test_a_forged_catalog_is_refused(changes: dict[str, Any]) -> None:
    document = decode_document(encode_catalog(some_catalog()), "catalog").value | changes
    with pytest.raises(FormatError):
        decode_catalog(encode_document(document, "catalog"), KEY)


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "../../etc"},
        {"id": nth_id(0)},
        {"created": "yesterday"},
        {"result": "fine"},
        {"streams": -1},
        {"messages": 1.5},
        {"bytes": 1 << 64},
        {"tags": {"k": 1}},
        {"size": 0},
        {"sha256": "x"},
        {"previous": "x"},
        {"previous_sha256": "x"},
    ],
)
def test_a_forged_entry_is_refused(changes: dict[str, Any]) -> None:
    document = decode_document(encode_catalog(some_catalog()), "catalog").value
    document["backups"][2] |= changes
    with pytest.raises(FormatError):
        decode_catalog(encode_document(document, "catalog"), KEY)


def test_a_catalog_of_a_later_tool_says_so() -> None:
    for change in ({"format": 2}, {"required_features": ["later"]}):
        document = decode_document(encode_catalog(some_catalog()), "catalog").value | change
        with pytest.raises(UnsupportedError):
            decode_catalog(encode_document(document, "catalog"), KEY)


# --- what there is ---


def test_without_a_catalog_manifests_are_read(store: MemoryStore) -> None:
    put_manifests(store, 30)
    inventory = Repository.open(store).inventory()
    assert [summary.id for summary in inventory.summaries] == ids(range(30))
    assert inventory.summaries[7].tags == {"number": "7"}
    assert inventory.entries[7].previous == nth_id(6)
    assert (inventory.unreadable, inventory.warnings) == ((), ())


def test_with_a_catalog_only_the_others_are_read(store: MemoryStore) -> None:
    put_manifests(store, 30)
    before = Repository.open(store).inventory()
    write_catalog(Repository.open(store).documents)
    put_manifests(store, 3, first=30)
    counted = CountingStore(store)
    repository = Repository.open(counted)
    counted.requests.clear()
    after = repository.inventory()
    assert after.entries[:30] == before.entries
    assert [summary.id for summary in after.summaries] == ids(range(33))
    assert counted.requests == {"list": 2, "get": 4}


def test_those_that_are_wanted_are_looked_up(store: MemoryStore) -> None:
    put_manifests(store, 30)
    counted = CountingStore(store)
    wanted = {nth_id(3), nth_id(20), nth_id(99)}
    found = take_inventory(Repository.open(counted).documents, wanted)
    assert [found.id for found in found.summaries] == [nth_id(3), nth_id(20)]
    assert counted.requests["get"] == 3  # the descriptor and two manifests


def test_what_was_forgotten_or_removed_is_not_there_whatever_a_catalog_says(store: MemoryStore) -> None:
    put_manifests(store, 5)
    repository = Repository.open(store)
    write_catalog(repository.documents)
    store.delete(layout.manifest_key(nth_id(2)))
    assert listed(repository) == [nth_id(n) for n in (0, 1, 3, 4)]


def test_a_manifest_that_goes_while_it_is_looked_at_is_not_there(store: MemoryStore) -> None:
    put_manifests(store, 5)
    gone = layout.manifest_key(nth_id(2))

    def forget(operation: str, key: str) -> None:
        if (operation, key) == ("get_range", gone):
            store.delete(gone)

    assert len(listed(Repository.open(FaultStore(store, before=forget)))) == 4


def test_a_manifest_of_another_size_than_its_entry_is_read(store: MemoryStore) -> None:
    put_manifests(store, 5)
    repository = Repository.open(store)
    write_catalog(repository.documents)
    key = layout.manifest_key(nth_id(2))
    store.delete(key)
    store.put(key, encode_manifest(replace(nth_manifest(2), tags={"number": "another"})))
    assert repository.inventory().summaries[2].tags == {"number": "another"}
    store.delete(key)
    store.put(key, b"{}")
    inventory = repository.inventory()
    assert [one.id for one in inventory.unreadable] == [nth_id(2)]
    assert len(inventory.entries) == 4


@pytest.mark.parametrize("catalogued", [False, True])
def test_one_that_cannot_be_read_does_not_hide_the_others(store: MemoryStore, catalogued: bool) -> None:
    put_manifests(store, 5)
    later = encode_document(decode_document(encode_manifest(nth_manifest(5)), "").value | {"format": 9}, "manifest")
    store.put(layout.manifest_key(nth_id(5)), later)
    store.put(layout.manifest_key(nth_id(6)), b"\0")
    repository = Repository.open(store)
    if catalogued:
        write_catalog(repository.documents)
    inventory = repository.inventory()
    assert [summary.id for summary in inventory.summaries] == ids(range(5))
    assert [(one.id, type(one.error)) for one in inventory.unreadable] == [
        (nth_id(5), UnsupportedError),
        (nth_id(6), FormatError),
    ]


def spoil(store: MemoryStore, key: str, data: bytes) -> None:
    store.delete(key)
    store.put(key, data)


def test_a_damaged_catalog_is_passed_over_with_a_warning(store: MemoryStore) -> None:
    put_manifests(store, 5)
    repository = Repository.open(store)
    write_catalog(repository.documents)
    put_manifests(store, 5, first=5)
    write_catalog(repository.documents)
    assert len(catalogs(store)) == 2
    spoil(store, layout.catalog_key(2), b"{}")
    inventory = repository.inventory()
    assert [summary.id for summary in inventory.summaries] == ids(range(10))
    assert len(inventory.warnings) == 1 and layout.catalog_key(2) in inventory.warnings[0]
    spoil(store, layout.catalog_key(1), encode_catalog(some_catalog()))  # whole, but of another generation
    inventory = repository.inventory()
    assert [summary.id for summary in inventory.summaries] == ids(range(10))
    assert len(inventory.warnings) == 2
    # The next one is right again, and does not take the damaged one's place.
    write_catalog(repository.documents)
    assert repository.inventory().warnings == ()
    assert newest_catalog(repository.documents)[0] == Catalog(3, nth_id(9), inventory.entries)


def test_a_catalog_of_a_later_tool_is_neither_used_nor_followed(store: MemoryStore) -> None:
    put_manifests(store, 5)
    repository = Repository.open(store)
    document = decode_document(encode_catalog(Catalog(1, None)), "").value | {"format": 2}
    store.put(layout.catalog_key(1), encode_document(document, "catalog"))
    assert listed(repository) == ids(range(5))
    with pytest.raises(UnsupportedError):
        write_catalog(repository.documents)
    assert catalogs(store) == [layout.catalog_key(1)]


def test_foreign_objects_among_catalogs_mean_nothing(store: MemoryStore) -> None:
    put_manifests(store, 5)
    store.put("catalog/notes.json", b"mine")
    repository = Repository.open(store)
    write_catalog(repository.documents)
    assert listed(repository) == ids(range(5))
    assert catalogs(store) == [layout.catalog_key(1), "catalog/notes.json"]


# --- writing ---


def test_the_newest_two_catalogs_are_kept(store: MemoryStore) -> None:
    put_manifests(store, 2)
    documents = Repository.open(store).documents
    for _ in range(4):
        write_catalog(documents)
    assert catalogs(store) == [layout.catalog_key(3), layout.catalog_key(4)]


def test_old_catalogs_that_cannot_be_deleted_do_no_harm(store: MemoryStore) -> None:
    put_manifests(store, 2)

    def refuse(operation: str, key: str) -> None:
        if operation == "delete":
            raise StoreError("locked")

    documents = Repository.open(FaultStore(store, before=refuse)).documents
    for _ in range(4):
        write_catalog(documents)
    assert len(catalogs(store)) == 4
    assert newest_catalog(documents)[0] is not None


def test_a_catalog_leaves_out_what_is_going_to_be_forgotten_and_nothing_else(store: MemoryStore) -> None:
    put_manifests(store, 5)
    documents = Repository.open(store).documents
    write_catalog(documents)
    store.delete(layout.manifest_key(nth_id(1)))  # not by forget: it stays on record
    write_catalog(documents, without={nth_id(0), nth_id(4)})
    catalog, _ = newest_catalog(documents)
    assert catalog is not None
    assert [one.id for one in catalog.entries] == ids(range(1, 4))
    assert catalog.head == nth_id(4)
    # Until they are deleted they are there, and seen.
    assert listed(Repository.open(store)) == [nth_id(n) for n in (0, 2, 3, 4)]


def test_an_entry_never_changes(store: MemoryStore) -> None:
    put_manifests(store, 3)
    documents = Repository.open(store).documents
    write_catalog(documents)
    before, _ = newest_catalog(documents)
    spoil(store, layout.manifest_key(nth_id(1)), encode_manifest(replace(nth_manifest(1), tags={})))
    write_catalog(documents)
    after, _ = newest_catalog(documents)
    assert before is not None and after is not None
    assert after.entries == before.entries


def test_fields_of_a_later_tool_survive(store: MemoryStore) -> None:
    put_manifests(store, 1)
    documents = Repository.open(store).documents
    kept = entry(0, extra={"later": 1})
    store.put(layout.catalog_key(1), encode_catalog(Catalog(1, nth_id(0), (kept,), {"later": 2})))
    write_catalog(documents)
    assert newest_catalog(documents)[0] == Catalog(2, nth_id(0), (kept,), {"later": 2})


def test_writers_that_meet_do_not_undo_each_other(store: MemoryStore) -> None:
    """A backup writes a catalog while `forget` does: it keeps what `forget` took out of its own out."""
    put_manifests(store, 5)
    write_catalog(Repository.open(store).documents)
    put_manifests(store, 1, first=5)
    met: list[str] = []

    def forget(operation: str, key: str) -> None:
        if (operation, key) == ("put", layout.catalog_key(2)) and not met:
            met.append(key)
            write_catalog(Repository.open(store).documents, without={nth_id(0)})
            store.delete(layout.manifest_key(nth_id(0)))

    write_catalog(Repository.open(FaultStore(store, before=forget)).documents)
    catalog, _ = newest_catalog(Repository.open(store).documents)
    assert met and catalog is not None
    assert catalog.generation == 3
    assert [one.id for one in catalog.entries] == ids(range(1, 6))


def test_what_a_writer_named_again_before_it_was_deleted_is_taken_out_again(store: MemoryStore) -> None:
    put_manifests(store, 5)
    documents = Repository.open(store).documents
    generation = write_catalog(documents, without={nth_id(0)})
    write_catalog(documents)  # someone else's: the manifest is still there
    store.delete(layout.manifest_key(nth_id(0)))
    settle_catalog(documents, generation, {nth_id(0)})
    catalog, _ = newest_catalog(documents)
    assert catalog is not None and [one.id for one in catalog.entries] == ids(range(1, 5))
    settle_catalog(documents, catalog.generation, {nth_id(0)})
    assert catalogs(store)[-1] == layout.catalog_key(3)


def test_a_writer_takes_out_again_what_was_forgotten_while_it_wrote(store: MemoryStore) -> None:
    put_manifests(store, 5)
    documents = Repository.open(store).documents
    generation = write_catalog(documents, without={nth_id(0)})

    def forget(operation: str, key: str) -> None:
        if (operation, key) == ("put", layout.catalog_key(2)):
            store.delete(layout.manifest_key(nth_id(0)))
            settle_catalog(documents, generation, {nth_id(0)})

    write_catalog(Repository.open(FaultStore(store, before=forget)).documents)
    catalog, _ = newest_catalog(documents)
    assert catalog is not None and [one.id for one in catalog.entries] == ids(range(1, 5))


def test_who_is_always_overtaken_gives_up(store: MemoryStore) -> None:
    def overtake(operation: str, key: str) -> None:
        if operation == "put":
            write_catalog(Repository.open(store).documents)

    with pytest.raises(StoreError, match="again and again"):
        write_catalog(Repository.open(FaultStore(store, before=overtake)).documents)


# --- tending ---


def test_a_backup_writes_a_catalog_when_many_manifests_are_not_covered(store: MemoryStore) -> None:
    repository = Repository.open(store)
    written: list[int] = []
    for number in range(210):
        repository.commit(nth_manifest(number))
        if len(catalogs(store)) > len(written):
            written.append(number + 1)
    assert written == [101, 202]
    assert listed(repository) == ids(range(210))


def test_large_manifests_are_covered_sooner(store: MemoryStore) -> None:
    repository = Repository.open(store)
    repository.commit(nth_manifest(0))
    size = store.head(layout.manifest_key(nth_id(0))).size
    assert not catalogs(store)
    store.put(layout.manifest_key(nth_id(1)), b" " * (32 << 20))
    assert size < 32 << 20
    repository.commit(nth_manifest(2))
    assert catalogs(store) == [layout.catalog_key(1)]


def test_tending_costs_two_listings_where_nothing_is_due(store: MemoryStore) -> None:
    put_manifests(store, 150)
    assert tend_catalog(Repository.open(store).documents)
    put_manifests(store, 90, first=150)
    counted = CountingStore(store)
    assert not tend_catalog(Repository.open(counted).documents)
    assert counted.requests == {"get": 1, "list": 2}


def test_in_a_store_without_a_clock_the_catalog_is_asked() -> None:
    store = MemoryStore()
    make_repository(store)
    put_manifests(store, 150)
    documents = Repository.open(store).documents
    assert tend_catalog(documents)
    assert not tend_catalog(documents)


def test_of_two_that_tend_the_later_one_leaves_it_at_that(store: MemoryStore) -> None:
    put_manifests(store, 150)

    def overtake(operation: str, key: str) -> None:
        if operation == "put":
            tend_catalog(Repository.open(store).documents)

    assert not tend_catalog(Repository.open(FaultStore(store, before=overtake)).documents)
    assert catalogs(store) == [layout.catalog_key(1)]
