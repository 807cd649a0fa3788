"""Records of readers' key files: who may sign them, and what comes and goes while they are looked at."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from jsbackup.errors import StoreError
from jsbackup.repository import layout
from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.keys import GivenKeys
from jsbackup.repository.crypto.new_keys import NewKeys, make_new_keys
from jsbackup.repository.crypto.readers import Readers, examine_readers, put_record, record_readers
from jsbackup.repository.crypto.signing import Signatory
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Store
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import CREATED
from tests.harness.stores import FaultStore

ME = age.age_identity(bytes([1]) * 32)


def counting() -> Callable[[int], bytes]:
    numbers = iter(range(1, 100))
    return lambda count: bytes([next(numbers)]) * count


def make(store: Store) -> tuple[Repository, NewKeys, str]:
    """Return a repository with a reader, opened by its writer, and the key of its key file."""
    assert ME.recipient is not None
    new_keys = make_new_keys("00ff", [ME.recipient], None, counting())
    Repository.create(store, repository_id="00ff", created=CREATED, tool="t", new_keys=new_keys)
    key = layout.identity_key(ME.recipient.label, "00ff")
    return Repository.open(store, GivenKeys(writer=new_keys.writer_key)), new_keys, key


def look(repository: Repository, store: Store | None = None) -> Readers:
    return examine_readers(store or repository.store, repository.descriptor, repository.signers)


def test_a_record_is_a_kind_of_its_own() -> None:
    for whom in ("age1" + "q" * 58, "ssh-ed25519-0123456789abcdef", "passphrase-00ff00"):
        key = layout.identity_key(whom, "00ff")
        record = layout.reader_key(key)
        assert layout.kind_of(record) is layout.ObjectKind.READER and layout.recorded_identity(record) == key
    assert layout.kind_of(layout.writer_key("0" * 64)) is layout.ObjectKind.WRITER


def test_authority_and_writers_may_record_and_nobody_else() -> None:
    store = MemoryStore()
    repository, new_keys, key = make(store)
    sha256 = hashlib.sha256(store.get(key)).hexdigest()
    for signatory in (new_keys.authority, new_keys.writer_key.signatory):
        put_record(store, "00ff", signatory, key=key, sha256=sha256, anew=True)
        assert look(repository) == Readers(whole=frozenset({key}))
    for signatory, of in ((Signatory(b"x" * 32), "00ff"), (new_keys.authority, "beef")):
        put_record(store, of, signatory, key=key, sha256=sha256, anew=True)
        (broken,) = look(repository).broken
        assert broken.key == layout.reader_key(key) and broken.sha256 is None


def test_what_is_removed_or_added_meanwhile_is_no_loss() -> None:
    store = MemoryStore()
    repository, _, key = make(store)

    def remove(operation: str, at: str) -> None:
        """As `key remove` does, between the two reads."""
        if operation == "get_range" and at == key:
            store.delete(layout.reader_key(key))
            store.delete(key)

    assert look(repository, FaultStore(store, before=remove)).broken == ()


def test_a_key_file_that_goes_while_it_is_recorded_leaves_no_record() -> None:
    store = MemoryStore()
    repository, _, key = make(store)
    store.delete(layout.reader_key(key))
    readers = look(repository)
    assert [one for one, _ in readers.unrecorded] == [key]
    store.delete(key)
    record_readers(store, "00ff", repository.signatory, readers)
    assert not [info for info in store.list(layout.KEYS) if info.key.endswith((".age", f"{key[5:-4]}.json"))]


def test_what_cannot_be_recorded_is_no_obstacle() -> None:
    store = MemoryStore()
    repository, _, key = make(store)
    store.delete(layout.reader_key(key))

    def refuse(operation: str, at: str) -> None:
        if operation == "put":
            raise StoreError("not allowed")

    readers = look(repository)
    record_readers(FaultStore(store, before=refuse), "00ff", repository.signatory, readers)
    record_readers(store, "00ff", None, readers)
    assert look(repository) == readers


@pytest.mark.parametrize("record", [True, False])
def test_what_the_store_does_not_answer_is_named(record: bool) -> None:
    store = MemoryStore()
    repository, _, key = make(store)
    asked = layout.reader_key(key) if record else key

    def fail(operation: str, at: str) -> None:
        if operation == "get_range" and at == asked:
            raise StoreError("no answer")

    (broken,) = look(repository, FaultStore(store, before=fail)).broken
    assert (broken.key, broken.problem) == (asked, "no answer")
