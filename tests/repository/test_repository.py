from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from jsbackup.errors import (
    FormatError,
    IntegrityError,
    JsBackupError,
    ObjectExists,
    RepositoryNotFound,
    StoreError,
    UnsupportedError,
    UsageError,
)
from jsbackup.repository import layout
from jsbackup.repository.descriptor import Descriptor, decode_descriptor, encode_descriptor
from jsbackup.repository.document import encode_document
from jsbackup.repository.manifest import Source
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Store, StoreProbe
from jsbackup.stores.local import LocalStore
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import CREATED, FIRST, SECOND, make_repository, store_backup
from tests.harness.stores import Fault, FaultStore


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "repo")


def snapshot_of(store: Store) -> dict[str, bytes]:
    return {info.key: store.get(info.key) for info in store.list()}


# --- making and opening ---


def test_what_was_made_can_be_opened(store: Store) -> None:
    made = make_repository(store)
    opened = Repository.open(store)
    assert (
        opened.descriptor
        == made.descriptor
        == Descriptor("00ff", CREATED, "jsbackup tests", extra={"store": asdict(StoreProbe())})
    )
    assert opened.backups() == []
    assert list(snapshot_of(store)) == ["jsbackup.json"]


def test_a_repository_is_made_only_once(store: Store) -> None:
    make_repository(store)
    before = snapshot_of(store)
    with pytest.raises(UsageError, match="there is a repository at") as caught:
        make_repository(store)
    assert caught.value.exit_code == 2
    assert snapshot_of(store) == before


def test_of_two_makers_one_wins() -> None:
    memory = MemoryStore()

    def make_the_other(operation: str, key: str) -> None:
        if (operation, key) == ("put", layout.DESCRIPTOR):
            make_repository(memory)

    with pytest.raises(UsageError, match="there is a repository at"):
        make_repository(FaultStore(memory, before=make_the_other))
    assert Repository.open(memory).backups() == []


def test_an_empty_location_is_no_repository(store: Store) -> None:
    with pytest.raises(RepositoryNotFound, match="no repository at") as caught:
        Repository.open(store)
    assert caught.value.exit_code == 10
    assert caught.value.hint == "Check the location. 'jsbackup init' makes a repository there."


@pytest.mark.parametrize("key", ["photos/cat.jpg", "notes.txt", "segments/mine", "backups/notes.txt"])
def test_a_foreign_folder_is_neither_opened_nor_taken_over(store: Store, key: str) -> None:
    store.put(key, b"mine")
    with pytest.raises(RepositoryNotFound, match="which holds other files") as caught:
        Repository.open(store)
    assert caught.value.exit_code == 10
    with pytest.raises(UsageError, match="is not empty, and is not a repository"):
        make_repository(store)
    assert snapshot_of(store) == {key: b"mine"}


def test_an_interrupted_init_can_be_repeated(store: Store) -> None:
    store.put(layout.probe_key("dead"), b"left behind")
    with pytest.raises(RepositoryNotFound, match=r"no repository at [^,]*$"):
        Repository.open(store)
    make_repository(store)
    assert Repository.open(store).backups() == []


def test_a_lost_descriptor_is_an_integrity_failure(store: Store) -> None:
    store_backup(make_repository(store))
    store.delete(layout.DESCRIPTOR)
    before = snapshot_of(store)
    for use in (Repository.open, make_repository):
        with pytest.raises(IntegrityError, match="has lost its descriptor") as caught:
            use(store)
        assert caught.value.exit_code == 14
    assert snapshot_of(store) == before


@pytest.mark.parametrize("data", [b"", b"{", b"null", b"\xff", b"{}", b'{"format":1}', b"x" * (2 << 20)])
def test_a_damaged_descriptor_is_neither_absent_nor_overwritten(store: Store, data: bytes) -> None:
    store.put(layout.DESCRIPTOR, data)
    with pytest.raises(FormatError) as caught:
        Repository.open(store)
    assert caught.value.exit_code == 14
    with pytest.raises(UsageError):
        make_repository(store)
    assert store.get(layout.DESCRIPTOR) == data


def test_an_unreadable_descriptor_is_the_stores_error(store: Store) -> None:
    make_repository(store)
    for use in (Repository.open, make_repository):
        with pytest.raises(StoreError, match="injected") as caught:
            use(FaultStore(store, Fault.FAIL, at=1))
        assert caught.value.exit_code == 21


def test_a_repository_of_a_later_tool_is_not_supported(store: Store) -> None:
    later = {"format": 2, "required_features": [], "id": "00ff", "created": CREATED, "tool": "t"}
    store.put(layout.DESCRIPTOR, encode_document(later, "test"))
    with pytest.raises(UnsupportedError, match="format 2") as caught:
        Repository.open(store)
    assert caught.value.exit_code == 13
    store.delete(layout.DESCRIPTOR)
    later = {"format": 1, "required_features": ["riddles"], "id": "00ff", "created": CREATED, "tool": "t"}
    store.put(layout.DESCRIPTOR, encode_document(later, "repository descriptor"))
    with pytest.raises(UnsupportedError, match="needs features not known here: riddles"):
        Repository.open(store)


def test_a_flipped_bit_in_the_descriptor_is_found() -> None:
    data = encode_descriptor(Descriptor("00ff", CREATED, "t")).rstrip()
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << (at % 8)
        with pytest.raises(FormatError):
            decode_descriptor(flipped)


def test_a_descriptor_keeps_what_it_does_not_know() -> None:
    descriptor = Descriptor("00ff", CREATED, "t", extra={"recipients": ["age1…"]})
    assert decode_descriptor(encode_descriptor(descriptor)) == descriptor


def test_a_store_that_overwrites_gets_no_repository() -> None:
    class Overwriting(MemoryStore):
        def put(self, key: str, data: object) -> None:
            self.delete(key)
            super().put(key, data)  # type: ignore[arg-type]

    store = Overwriting()
    with pytest.raises(UnsupportedError, match="replaces objects"):
        make_repository(store)
    assert list(store.list()) == []


# --- backups ---


def test_a_committed_backup_can_be_read(store: Store) -> None:
    repository = make_repository(store)
    manifest = store_backup(repository)
    assert Repository.open(store).manifest(FIRST) == manifest
    assert repository.backups() == [FIRST]


def test_what_is_there_instead_of_the_repository_gets_no_backup(store: Store) -> None:
    """As a folder below a disk that was unmounted, or another disk."""
    repository = make_repository(store)
    manifest = store_backup(repository)
    store.delete(layout.manifest_key(manifest.id))
    store.delete("jsbackup.json")
    before = snapshot_of(store)
    with pytest.raises(RepositoryNotFound, match="has lost its descriptor"):
        repository.commit(manifest)
    assert snapshot_of(store) == before
    for info in list(store.list()):
        store.delete(info.key)
    with pytest.raises(RepositoryNotFound, match="no repository at"):
        repository.commit(manifest)
    assert not snapshot_of(store)
    Repository.create(store, repository_id="0f0f", created=CREATED, tool="jsbackup tests")
    with pytest.raises(RepositoryNotFound, match="another repository is at"):
        repository.commit(manifest)
    assert list(snapshot_of(store)) == ["jsbackup.json"]


def test_backups_are_listed_oldest_first_and_found(store: Store) -> None:
    repository = make_repository(store)
    store_backup(repository, SECOND)
    store_backup(repository, FIRST)
    store.put("backups/notes.txt", b"mine")
    assert repository.backups() == [FIRST, SECOND]
    assert repository.resolve("latest") == SECOND
    assert repository.resolve(FIRST[:-3]) == FIRST
    assert repository.resolve(FIRST) == FIRST
    with pytest.raises(UsageError, match="2 backups start with"):
        repository.resolve("2026")


def test_a_stream_in_place_of_a_backup_is_recognized(store: Store) -> None:
    repository = make_repository(store)
    store_backup(repository, FIRST)
    with pytest.raises(UsageError, match="no backup starts with 'orders'") as raised:
        repository.resolve("orders")
    assert raised.value.hint is not None
    assert raised.value.hint.startswith(
        "orders is a stream: write 'latest orders', the backup before the stream; or only"
    )
    assert repository.newest_names() == ["orders", "verbatim"]
    store.put(layout.manifest_key(SECOND), b"{")
    assert repository.newest_names() == []
    with pytest.raises(UsageError) as raised:
        repository.resolve("orders")
    assert str(raised.value.hint).startswith("A backup is named before streams")


def test_the_latest_backup_is_none_that_was_made_by_reshaping_unless_all_are(store: Store) -> None:
    repository = make_repository(store)
    store_backup(repository, FIRST)
    manifest = repository.manifest(FIRST)
    done = {"backup": FIRST, "options": ["--mask", "x"]}
    source = replace(manifest.source, transformed=done)
    repository.commit(replace(manifest, id=SECOND, source=source))
    assert repository.resolve("latest") == repository.find("latest").id == FIRST
    store.delete(layout.manifest_key(FIRST))
    assert repository.resolve("latest") == SECOND


def test_a_newer_backup_that_cannot_be_read_may_be_the_latest_and_is_no_reason_to_take_another(store: Store) -> None:
    repository = make_repository(store)
    store_backup(repository, FIRST)
    store.put(layout.manifest_key(SECOND), b"{")
    with pytest.raises(FormatError, match=SECOND) as raised:
        repository.resolve("latest")
    assert f"{FIRST}: name it by its id" in (raised.value.hint or "")


def test_a_backup_that_is_not_there_is_a_usage_error(store: Store) -> None:
    repository = make_repository(store)
    with pytest.raises(UsageError, match="the repository has no backup yet"):
        repository.resolve("latest")
    with pytest.raises(UsageError, match=f"no backup {FIRST}"):
        repository.manifest(repository.resolve(FIRST))


def test_a_manifest_is_never_overwritten(store: Store) -> None:
    repository = make_repository(store)
    manifest = store_backup(repository)
    with pytest.raises(ObjectExists):
        repository.commit(replace(manifest, tool="another"))
    assert repository.manifest(FIRST) == manifest


def test_a_manifest_that_could_not_be_read_back_is_not_written(store: Store) -> None:
    repository = make_repository(store)
    manifest = store_backup(repository)
    stream = manifest.streams[0]
    wrong = [
        replace(manifest, id=SECOND, created="now"),
        replace(manifest, id=SECOND, streams=(stream, stream)),
        replace(manifest, id=SECOND, streams=(replace(stream, name="other"),)),
        replace(manifest, id=SECOND, streams=(replace(stream, config={"description": "\ud800"}),)),
        replace(manifest, id=SECOND, source=Source(extra={"x": float("nan")})),
        replace(manifest, id="latest"),
    ]
    for broken in wrong:
        with pytest.raises(FormatError):
            repository.commit(broken)
    assert repository.backups() == [FIRST]


@pytest.mark.parametrize("data", [b"", b"{}", b"garbage"])
def test_a_damaged_manifest_is_a_format_error_and_others_stay_readable(store: Store, data: bytes) -> None:
    repository = make_repository(store)
    store_backup(repository, SECOND)
    store.put(layout.manifest_key(FIRST), data)
    assert repository.backups() == [FIRST, SECOND]
    with pytest.raises(FormatError, match=FIRST):
        repository.manifest(FIRST)
    assert repository.manifest(SECOND).id == SECOND


def test_a_manifest_under_the_name_of_another_is_refused(store: Store) -> None:
    repository = make_repository(store)
    store_backup(repository)
    store.put(layout.manifest_key(SECOND), store.get(layout.manifest_key(FIRST)))
    with pytest.raises(FormatError, match="is that of another backup"):
        repository.manifest(SECOND)


def test_an_unreadable_manifest_is_the_stores_error(store: Store) -> None:
    store_backup(make_repository(store))
    faulty = Repository(FaultStore(store, Fault.FAIL, at=1), Descriptor("", "", ""))
    with pytest.raises(StoreError, match="injected") as caught:
        faulty.manifest(FIRST)
    assert caught.value.exit_code == 21


def test_every_error_here_is_one_of_ours(store: Store) -> None:
    repository = make_repository(store)
    for text in ("", "../x", "a\0b", "x" * 10_000, "\ud800"):
        with pytest.raises(JsBackupError):
            repository.manifest(repository.resolve(text))
