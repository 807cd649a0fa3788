"""The signed list of readers: what comes and goes while it is looked at or changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jsbackup.errors import StoreError, UsageError
from jsbackup.repository import layout
from jsbackup.repository.checks.verify_run import check_readers
from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.keys import GivenKeys, add_readers, reader_id, remove_reader
from jsbackup.repository.crypto.new_keys import NewKeys, make_new_keys
from jsbackup.repository.crypto.readers import AGAIN_FROM_COPY, Flaw, change_readers, examine_readers, load_readers
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Store
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import CREATED
from tests.harness.stores import Fault, FaultStore, Killed

ME, OTHER = (age.age_identity(bytes([number]) * 32) for number in (1, 2))
assert ME.recipient is not None and OTHER.recipient is not None
TO_OTHER = [OTHER.recipient]


def counting() -> Callable[[int], bytes]:
    numbers = iter(range(1, 100))
    return lambda count: bytes([next(numbers)]) * count


def make(store: Store) -> tuple[Repository, NewKeys, str]:
    """Return a repository with a reader, opened by its writer, and the key of its key file."""
    assert ME.recipient is not None
    new_keys = make_new_keys("00ff", [ME.recipient], None, counting())
    Repository.create(store, repository_id="00ff", created=CREATED, tool="t", new_keys=new_keys)
    repository = Repository.open(store, GivenKeys(writer=new_keys.writer_key))
    (key,) = load_readers(store, repository.descriptor).listed
    return repository, new_keys, key


def test_an_interrupted_change_loses_nobody_and_is_repeated() -> None:
    for remove in (False, True):
        at = 0
        while True:
            at += 1
            inner = MemoryStore()
            repository, new_keys, mine = make(inner)
            assert new_keys.secret is not None
            descriptor, secret = repository.descriptor, new_keys.secret
            theirs = reader_id(add_readers(inner, descriptor, secret, TO_OTHER)[0]) if remove else ""
            store = FaultStore(inner, Fault.KILL_AFTER, at=at)
            try:
                if remove:
                    remove_reader(store, descriptor, secret, theirs)
                else:
                    add_readers(store, descriptor, secret, TO_OTHER)
            except Killed:
                pass
            else:
                break
            readers = examine_readers(inner, descriptor)
            assert readers.broken == () and mine in readers.whole
            try:
                if remove:
                    remove_reader(inner, descriptor, secret, theirs)
                else:
                    add_readers(inner, descriptor, secret, TO_OTHER)
            except UsageError:  # it was done
                pass
            readers = examine_readers(inner, descriptor)
            assert readers.broken == () and len(readers.listed) == 2 - remove
            assert not remove or readers.unlisted == []
        assert at > 2


def test_two_who_change_the_list_at_once_lose_no_reader() -> None:
    store = MemoryStore()
    repository, new_keys, _ = make(store)
    assert new_keys.secret is not None
    authority, descriptor = new_keys.secret.authority, repository.descriptor
    first, second = (layout.identity_key(whom, "00ff", "0" * 64) for whom in ("age1x", "age1y"))

    def interfere(operation: str, key: str) -> None:
        if operation == "put" and key == layout.readers_key(2) and not list(store.list(layout.readers_key(2))):
            change_readers(store, descriptor, authority, add={first: "0" * 64})

    change_readers(FaultStore(store, before=interfere), descriptor, authority, add={second: "0" * 64})
    readers = load_readers(store, descriptor)
    assert {first, second} < readers.listed.keys() and readers.lists == (layout.readers_key(3),)


def test_a_list_that_the_store_does_not_return_is_not_replaced() -> None:
    """The readers whom it names would be lost."""
    store = MemoryStore()
    repository, new_keys, _ = make(store)
    assert new_keys.secret is not None

    def fail(operation: str, key: str) -> None:
        if operation == "get_range" and key == layout.readers_key(1):
            raise StoreError("no answer")

    with pytest.raises(StoreError, match="no answer"):
        add_readers(FaultStore(store, before=fail), repository.descriptor, new_keys.secret, TO_OTHER)
    assert load_readers(store, repository.descriptor).generation == 1


def test_a_key_file_opens_the_repository_where_the_store_does_not_return_the_list() -> None:
    inner = MemoryStore()
    repository, _, mine = make(inner)

    def fail(operation: str, key: str) -> None:
        if operation == "get_range" and key == layout.readers_key(1):
            raise StoreError("input/output error")

    store = FaultStore(inner, before=fail)
    opened = Repository.open(store, GivenKeys(identities=(ME,)))
    assert opened.secret is not None
    assert check_readers(opened) == [Flaw(layout.readers_key(1), f"input/output error; {AGAIN_FROM_COPY}")]
    with pytest.raises(StoreError, match="input/output"):
        remove_reader(store, repository.descriptor, opened.secret, reader_id(mine))


@pytest.mark.parametrize("forged", [[2, 3, 9_999_999_999], [10**9 * 9 + at for at in range(9)]])
def test_forged_lists_keep_nobody_from_removing_a_reader(forged: list[int]) -> None:
    store = MemoryStore()
    repository, new_keys, mine = make(store)
    assert new_keys.secret is not None
    for generation in forged:
        store.put(layout.readers_key(generation), b"forged")
    (theirs,) = add_readers(store, repository.descriptor, new_keys.secret, TO_OTHER)
    store.put(layout.readers_key(9_999_999_999), b"forged")
    remove_reader(store, repository.descriptor, new_keys.secret, reader_id(theirs))
    readers = examine_readers(store, repository.descriptor)
    assert readers.whole == {mine} and readers.lists == (readers.list_key,) and readers.generation < 10_000
