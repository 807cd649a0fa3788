"""What a repository has beside backups: whole, or told of. The test of the command has damage of every kind."""

from __future__ import annotations

import pytest

from jsbackup.errors import StoreError
from jsbackup.repository import layout
from jsbackup.repository.checks.verify_run import check_own_documents
from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.access import GivenKeys
from jsbackup.repository.crypto.keys import add_readers, reader_id, remove_reader
from jsbackup.repository.crypto.new_keys import NewKeys, make_new_keys, replace_writer
from jsbackup.repository.keep.holds import Hold, put_hold, release_hold
from jsbackup.repository.layout import ObjectKind
from jsbackup.repository.repository import Repository
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import CREATED, FIRST, make_repository, store_backup
from tests.harness.damage import put_instead, swap
from tests.harness.stores import FaultStore

ME, OTHER = (age.age_identity(bytes([number]) * 32) for number in (1, 2))
# An RSA key has a longer stanza than others, over several lines.
SSH = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB7IrmFOLwgBiTPbtpTBjzTwXO1u5FdBJCHFvi7JIvYR"


def recipient(identity: age.Identity) -> age.Recipient:
    assert identity.recipient is not None
    return identity.recipient


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def make(store: MemoryStore) -> tuple[Repository, NewKeys]:
    numbers = iter(range(1, 100))
    new_keys = make_new_keys(
        "00ff", [recipient(ME), recipient(OTHER)], None, lambda count: bytes([next(numbers)]) * count
    )
    return Repository.create(store, repository_id="00ff", created=CREATED, tool="t", new_keys=new_keys), new_keys


def keys_of(store: MemoryStore, kind: ObjectKind) -> list[str]:
    return [info.key for info in store.list() if layout.kind_of(info.key) is kind]


def test_what_is_whole_is_not_accused(store: MemoryStore) -> None:
    repository, new_keys = make(store)
    assert new_keys.secret is not None
    store_backup(repository)
    put_hold(repository, Hold(FIRST, CREATED, "t", "why"))
    add_readers(store, repository.descriptor, new_keys.secret, [age.parse_recipient(SSH)])
    key, enthrone = replace_writer(
        store,
        repository.descriptor,
        repository.documents,
        new_keys.secret,
        writer_key=None,
        created=CREATED,
        random=lambda count: b"n" * count,
    )
    enthrone()
    assert check_own_documents(Repository.open(store, GivenKeys(writer=key))) == []


def test_exchanged_key_files_are_told(store: MemoryStore) -> None:
    repository, _ = make(store)
    first, second = keys_of(store, ObjectKind.IDENTITY)
    swap(store, first, second)
    assert [flaw.key for flaw in check_own_documents(repository)] == [first, second]


def test_an_identity_that_an_interrupted_init_left_is_nobodys(store: MemoryStore) -> None:
    repository, _ = make(store)
    store.put(layout.identity_key(recipient(ME).label, "another", "0" * 64), b"half")
    assert check_own_documents(repository) == []


def test_a_writer_that_nobody_made_one_is_told(store: MemoryStore) -> None:
    repository, new_keys = make(store)
    stranger = make_new_keys("00ff", [], None, lambda count: b"x" * count)
    other = MemoryStore()
    Repository.create(other, repository_id="00ff", created=CREATED, tool="t", new_keys=stranger)
    (key,) = keys_of(other, ObjectKind.WRITER)
    store.put(key, other.get(key))
    (flaw,) = check_own_documents(repository)
    assert flaw.key == key and "someone who may not" in flaw.problem
    assert new_keys.authority.public != stranger.authority.public


def test_a_hold_that_cannot_be_read_still_holds(store: MemoryStore) -> None:
    repository = make_repository(store)
    store_backup(repository)
    put_hold(repository, Hold(FIRST, CREATED, "t", "why"))
    put_instead(store, layout.hold_key(FIRST), b"")
    (flaw,) = check_own_documents(repository)
    assert flaw.key == layout.hold_key(FIRST) and f"backup {FIRST} stays held" in flaw.problem
    assert release_hold(repository, FIRST)
    assert check_own_documents(repository) == []


def test_what_goes_while_it_is_looked_at_is_not_missed(store: MemoryStore) -> None:
    repository, new_keys = make(store)
    (writer,), (listed,) = keys_of(store, ObjectKind.WRITER), keys_of(store, ObjectKind.READERS)
    gone, _ = keys_of(store, ObjectKind.IDENTITY)

    def go(operation: str, key: str) -> None:
        if operation == "get_range" and key == writer:
            store.delete(writer)
        elif operation == "get_range" and key == gone and listed in keys_of(store, ObjectKind.READERS):
            remove_reader(store, repository.descriptor, new_keys.secret, reader_id(gone))

    watched = Repository.open(store, GivenKeys(writer=new_keys.writer_key))
    watched.store = FaultStore(store, before=go)
    assert check_own_documents(watched) == []


def test_what_the_store_does_not_answer_is_no_pass(store: MemoryStore) -> None:
    repository, _ = make(store)
    store_backup(repository)
    put_hold(repository, Hold(FIRST, CREATED, "t", "why"))
    watched = FaultStore(store)
    repository.store = watched
    assert check_own_documents(repository) == []
    for failing in dict.fromkeys(watched.log):

        def fail(operation: str, key: str, failing: tuple[str, str] = failing) -> None:
            if (operation, key) == failing:
                raise StoreError("no answer")

        repository.store = FaultStore(store, before=fail)
        operation, key = failing
        if operation == "list":
            with pytest.raises(StoreError):
                check_own_documents(repository)
        else:
            assert [flaw.key for flaw in check_own_documents(repository)] == [key]


def test_in_a_plain_repository_keys_are_foreign(store: MemoryStore) -> None:
    repository = make_repository(store)
    signed, _ = make(MemoryStore())
    for info in signed.store.list(layout.KEYS):
        store.put(info.key, signed.store.get(info.key)[:-9])
    assert check_own_documents(repository) == []
