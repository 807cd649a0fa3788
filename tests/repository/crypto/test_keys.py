"""Who can do what in an encrypted or signed repository, and what a store that lies can bring about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from jsbackup.errors import IntegrityError, JsBackupError, KeyUnavailable, RepositoryNotFound, UsageError
from jsbackup.repository import layout
from jsbackup.repository.checks.verify import Level, verify_backup
from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.access import GivenKeys
from jsbackup.repository.crypto.keys import read_identities
from jsbackup.repository.crypto.new_keys import NewKeys, make_new_keys, replace_writer
from jsbackup.repository.crypto.readers import load_readers
from jsbackup.repository.descriptor import Descriptor, decode_descriptor, encode_descriptor
from jsbackup.repository.manifest import BackupResult, Manifest, Source
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.segment_writer import SegmentWriter
from jsbackup.stores.memory import MemoryStore
from tests.harness.age_files import cheap_passphrase_file
from tests.harness.backups import CREATED, FIRST, SECOND, store_backup
from tests.harness.batches import batch_of, some_messages
from tests.harness.stores import Fault, FaultStore, Killed

ME, OTHER, STRANGER = (age.age_identity(bytes([number]) * 32) for number in (1, 2, 3))
THIRD = "20261121T014700Z-000003"
LEAF = Manifest(FIRST, CREATED, "jsbackup tests", Source(), BackupResult.COMPLETE)


def recipient(identity: age.Identity) -> age.Recipient:
    assert identity.recipient is not None
    return identity.recipient


def counting(start: int = 0) -> Callable[[int], bytes]:
    """Bytes that differ from call to call, the same in each run."""
    numbers = iter(range(start, start + 100))
    return lambda count: bytes([next(numbers)]) * count


def make(store: MemoryStore, *readers: age.Identity, repository_id: str = "00ff", start: int = 10) -> NewKeys:
    new_keys = make_new_keys(repository_id, [recipient(one) for one in readers], None, counting(start))
    Repository.create(store, repository_id=repository_id, created=CREATED, tool="t", new_keys=new_keys)
    return new_keys


def of_writer(new_keys: NewKeys) -> GivenKeys:
    return GivenKeys(writer=new_keys.writer_key)


def of(identity: age.Identity) -> GivenKeys:
    return GivenKeys(identities=(identity,))


def readers_of(store: MemoryStore) -> set[str | None]:
    """For whom the key files of the list are."""
    return {layout.reader_of(key, "00ff") for key in load_readers(store, Repository.open(store).descriptor).listed}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


# --- who can do what ---


def test_a_writer_writes_and_reads_documents_and_what_it_has_just_stored(store: MemoryStore) -> None:
    new_keys = make(store, ME)
    repository = Repository.open(store, of_writer(new_keys))
    manifest = store_backup(repository)
    assert repository.manifest(FIRST).streams == manifest.streams
    assert not list(verify_backup(repository.objects, manifest, Level.DATA))
    later = Repository.open(store, of_writer(new_keys))
    assert not list(verify_backup(later.objects, later.manifest(FIRST), Level.OBJECTS))
    with pytest.raises(KeyUnavailable, match="no key that reads messages was given"):
        list(verify_backup(later.objects, manifest, Level.DATA))


def test_a_reader_reads_all_and_writes_nothing(store: MemoryStore) -> None:
    store_backup(Repository.open(store, of_writer(make(store, OTHER, ME))))
    for identity in (ME, OTHER):
        repository = Repository.open(store, of(identity))
        assert not list(verify_backup(repository.objects, repository.manifest(FIRST), Level.DATA))
        with pytest.raises(KeyUnavailable, match="writer key"):
            repository.commit(replace(LEAF, id=SECOND))
        with pytest.raises(KeyUnavailable, match="writer key"):
            repository.objects.put_once("segments/x", b"")


def test_without_a_key_there_are_ids_and_nothing_else(store: MemoryStore) -> None:
    store_backup(Repository.open(store, of_writer(make(store, ME))))
    repository = Repository.open(store)
    assert repository.backups() == [FIRST]
    for attempt in (
        lambda: repository.manifest(FIRST),
        lambda: repository.inventory(),
        lambda: repository.commit(LEAF),
        lambda: repository.objects.sealing.folder("orders", "1a2b3c4d"),
    ):
        with pytest.raises(KeyUnavailable) as caught:
            attempt()
        assert caught.value.hint


# --- keys that come and go ---


def test_an_identity_file_may_take_a_passphrase_itself() -> None:
    data = cheap_passphrase_file(f"{ME.text}\n".encode(), "p")
    assert [one.text for one in read_identities(data, "p", "identity")] == [ME.text]
    with pytest.raises(KeyUnavailable):
        read_identities(data, "q", "identity")
    for wrong, passphrase in ((data, None), (data[:-1], "p"), (b"\xff", None)):
        with pytest.raises(UsageError):
            read_identities(wrong, passphrase, "identity")


def test_a_new_writer_takes_the_place_of_the_old_one(store: MemoryStore) -> None:
    new_keys = make(store, ME)
    old = Repository.open(store, of_writer(new_keys))
    store_backup(old)
    secret = Repository.open(store, of(ME)).secret
    key, enthrone = replace_writer(
        store, old.descriptor, old.documents, secret, writer_key=None, created=CREATED, random=counting(90)
    )
    old.commit(replace(LEAF, id=SECOND))  # between what was signed so far and the end: it does not count
    enthrone()
    new = Repository.open(store, GivenKeys(writer=key))
    new.commit(replace(LEAF, id=THIRD))
    assert new.manifest(FIRST).streams and new.manifest(THIRD).previous == FIRST
    with pytest.raises(IntegrityError, match="had been replaced before"):
        new.manifest(SECOND)
    again = Repository.open(store, of_writer(new_keys))
    assert again.manifest(THIRD).id == THIRD
    with pytest.raises(KeyUnavailable, match="has been replaced by another one"):
        again.commit(LEAF)
    sealing = old.objects.sealing
    assert new.objects.sealing.name("0" * 64) == sealing.name("0" * 64)


# --- signed, not encrypted ---


def test_a_signed_repository_is_read_by_all_and_written_by_few(store: MemoryStore) -> None:
    new_keys = make(store)
    store_backup(Repository.open(store, of_writer(new_keys)))
    anybody = Repository.open(store)
    assert not list(verify_backup(anybody.objects, anybody.manifest(FIRST), Level.DATA))
    assert any(info.key.startswith("segments/orders-") for info in store.list())
    with pytest.raises(KeyUnavailable, match="no writer key was given"):
        anybody.commit(replace(LEAF, id=SECOND))
    first = Repository.open(store, of_writer(new_keys))
    key, enthrone = replace_writer(
        store,
        first.descriptor,
        first.documents,
        None,
        writer_key=new_keys.writer_key,
        created=CREATED,
        random=counting(80),
    )
    enthrone()
    second = Repository.open(store, GivenKeys(writer=key))
    second.commit(replace(LEAF, id=SECOND))
    assert Repository.open(store).manifest(SECOND).previous == FIRST
    with pytest.raises(KeyUnavailable, match="not the first one"):
        replace_writer(
            store, first.descriptor, first.documents, None, writer_key=key, created=CREATED, random=counting(70)
        )


# --- a store that lies ---


def put_anew(store: MemoryStore, key: str, data: bytes) -> None:
    store.delete(key)
    store.put(key, data)


def test_a_manifest_that_nobody_signed_is_refused(store: MemoryStore) -> None:
    new_keys = make(store)
    Repository.open(store, of_writer(new_keys)).commit(LEAF)
    key = layout.manifest_key(FIRST)
    document = store.get(key).splitlines(keepends=True)[0]
    put_anew(store, key, document)
    with pytest.raises(IntegrityError, match=f"{key} is not signed"):
        Repository.open(store).manifest(FIRST)
    forger = make(MemoryStore(), start=50)
    there = MemoryStore()
    Repository.open(_with(there, forger), of_writer(forger)).commit(LEAF)
    put_anew(store, key, there.get(key))
    with pytest.raises(IntegrityError, match="signed by a key that does not belong to this repository"):
        Repository.open(store).manifest(FIRST)


def _with(store: MemoryStore, new_keys: NewKeys) -> MemoryStore:
    Repository.create(store, repository_id="00ff", created=CREATED, tool="t", new_keys=new_keys)
    return store


def test_an_object_encrypted_for_this_repository_by_somebody_else_is_found_out(store: MemoryStore) -> None:
    """The recipient is public, so anybody can encrypt to it."""
    new_keys = make(store, ME)
    writer = Repository.open(store, of_writer(new_keys))
    segments = SegmentWriter(writer.objects, writer.objects.sealing.folder("orders", "1a2b3c4d"))
    segments.add(batch_of(some_messages(5, 10)))
    (ref,) = segments.finish()
    descriptor = writer.descriptor
    assert descriptor.recipient is not None
    public = age.parse_recipient(descriptor.recipient)
    put_anew(store, ref.key, age.encrypt(b"PAR1 someone else's", [public]))
    reader = Repository.open(store, of(ME))
    with pytest.raises(IntegrityError):
        list(SegmentReader(reader.objects).read(ref))
    key = layout.manifest_key(FIRST)
    documents = new_keys.secret
    assert documents is not None
    store.put(f"{key}.age", age.encrypt(b"{}\n", [public, recipient(documents.documents.identity)]))
    with pytest.raises(IntegrityError, match="is not signed"):
        reader.manifest(FIRST)
    put_anew(store, f"{key}.age", age.encrypt(b"{}\n", [recipient(STRANGER)]))
    with pytest.raises(IntegrityError, match="was not encrypted for this repository"):
        reader.manifest(FIRST)


def descriptors(true: Descriptor) -> dict[str, Descriptor]:
    """What a store may show in place of the true one."""
    forged = make_new_keys("00ff", [recipient(STRANGER)], None, counting(60))
    return {
        "plain": replace(true, authority=None, recipient=None),
        "signed only": replace(true, recipient=None),
        "for another recipient": replace(true, recipient=recipient(STRANGER).label),
        "of another authority": replace(true, authority=forged.authority.public),
        "another one altogether": replace(true, authority=forged.authority.public, recipient=forged.recipient),
    }


@pytest.mark.parametrize("lie", descriptors(Descriptor("", "", "")))
def test_an_exchanged_descriptor_is_not_believed(store: MemoryStore, lie: str) -> None:
    new_keys = make(store, ME)
    shown = descriptors(decode_descriptor(store.get(layout.DESCRIPTOR)))[lie]
    put_anew(store, layout.DESCRIPTOR, encode_descriptor(shown))
    pinned = GivenKeys(expect_signer=new_keys.authority.public)
    for keys in (of_writer(new_keys), of(ME), pinned):
        if keys is pinned and lie == "signed only":
            continue  # nothing but the writers says so, and those it reads below
        with pytest.raises((IntegrityError, UsageError, KeyUnavailable)) as caught:
            Repository.open(store, keys)
        assert caught.value.exit_code == (2 if shown.recipient is None and keys.reads else 14)
    if lie == "signed only":
        with pytest.raises(IntegrityError, match="has been exchanged"):
            Repository.open(store, pinned)


def test_a_writer_whom_the_store_hides_writes_nothing(store: MemoryStore) -> None:
    """What the authority signed about the writer names the recipient: without it nobody knows for whom to encrypt."""
    new_keys = make(store, ME)
    store.delete(layout.writer_key(new_keys.writer_key.signatory.public))
    shown = replace(decode_descriptor(store.get(layout.DESCRIPTOR)), recipient=recipient(STRANGER).label)
    put_anew(store, layout.DESCRIPTOR, encode_descriptor(shown))
    repository = Repository.open(store, of_writer(new_keys))
    for write in (lambda: repository.objects.sealing.seal(b"x"), lambda: repository.commit(LEAF)):
        with pytest.raises(KeyUnavailable):
            write()


def test_what_an_interrupted_init_leaves_does_no_harm(store: MemoryStore) -> None:
    new_keys = make_new_keys("00ff", [recipient(ME)], None, counting())
    operations = 0
    while True:
        operations += 1
        faulty = FaultStore(inner := MemoryStore(), Fault.KILL_AFTER, at=operations)
        try:
            Repository.create(faulty, repository_id="00ff", created=CREATED, tool="t", new_keys=new_keys)
        except Killed:
            pass
        else:
            break
        try:
            Repository.open(inner, of_writer(new_keys)).commit(LEAF)
        except RepositoryNotFound:
            again = make(inner, ME, repository_id="beef", start=30)
            Repository.open(inner, of_writer(again)).commit(LEAF)
            assert len(load_readers(inner, Repository.open(inner).descriptor).stored) == 1
    assert operations > 5


def test_foreign_and_hostile_objects_among_the_keys_are_passed_over(store: MemoryStore) -> None:
    new_keys = make(store, ME)
    for number, name in enumerate(("writer-" + "0" * 64 + ".json", "writer-x.json", "x.age", "y", "age1-00000000.age")):
        store.put(f"{layout.KEYS}{name}", b"{" * number)
    make(other := MemoryStore(), ME, repository_id="beef", start=40)
    for info in other.list(layout.KEYS):
        key = layout.readers_key(2) if info.key == layout.readers_key(1) else info.key
        store.put(key, other.get(info.key))
    Repository.open(store, of_writer(new_keys)).commit(LEAF)
    assert Repository.open(store, of(ME)).manifest(FIRST).id == FIRST


def test_a_replaced_writer_stays_replaced_whatever_is_put_beside(store: MemoryStore) -> None:
    """A thief with the old key may put objects, and may delete none."""
    new_keys = make(store, ME)
    opened = Repository.open(store, of(ME))
    new, enthrone = replace_writer(
        store, opened.descriptor, opened.documents, opened.secret, writer_key=None, created=CREATED, random=counting(60)
    )
    enthrone()
    kept = {info.key for info in store.list(layout.WRITERS)}
    for number in range(400):
        for first in "0f":
            store.put(layout.writer_key(f"{first}{number:063x}"), b"x")
    large = b"x" * 100_000
    store.put(layout.writer_key("b" * 64), large)
    Repository.open(store, GivenKeys(writer=new)).commit(LEAF)
    with pytest.raises(KeyUnavailable, match="has been replaced"):
        Repository.open(store, of_writer(new_keys)).commit(replace(LEAF, id=SECOND))
    assert {info.key for info in store.list(layout.WRITERS)} > kept
    for number in range(5000):
        store.put(layout.writer_key(f"a{number:063x}"), b"x")
    for keys in (of(ME), of_writer(new_keys), GivenKeys(writer=new)):
        with pytest.raises(IntegrityError, match=r"5,80. objects below keys/writer-"):
            Repository.open(store, keys)


def test_readers_are_not_kept_out_by_what_is_put_beside_their_keys(store: MemoryStore) -> None:
    new_keys = make(store, ME)
    Repository.open(store, of_writer(new_keys)).commit(LEAF)
    (mine,) = (one.key for one in store.list(layout.KEYS) if recipient(ME).label in one.key)
    ending = mine[-len("-00000000-00000000.age") :]
    for number in range(3000):
        store.put(f"{layout.KEYS}age1{number:058d}{ending}", b"garbage")
    assert Repository.open(store, of(ME)).manifest(FIRST).id == FIRST
    with pytest.raises(KeyUnavailable, match="no identity or passphrase"):
        Repository.open(store, of(OTHER))


@pytest.mark.slow
def test_every_error_here_is_one_of_ours(store: MemoryStore) -> None:
    new_keys = make(store, ME)
    store_backup(Repository.open(store, of_writer(new_keys)))
    for key in [info.key for info in store.list()]:
        whole = store.get(key)
        for broken in (b"", whole[: len(whole) // 2], b"\xff" * 500, b"{}\n", b"[" * 5000):
            put_anew(store, key, broken)
            for keys in (of_writer(new_keys), of(ME), GivenKeys()):
                try:
                    repository = Repository.open(store, keys)
                    list(verify_backup(repository.objects, repository.manifest(FIRST), Level.DATA))
                except JsBackupError:
                    pass
        put_anew(store, key, whole)
