"""What commands do in a repository, on a store in memory and without a server: histories that can be stopped anywhere.

Each function here does the store operations of one command, with its leases, in the same order at every run. A `Scene`
is cheap to copy, so that every one of them can be the one at which something goes wrong.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache

from jsbackup.errors import StoreError
from jsbackup.model import StreamState
from jsbackup.progress import NullProgress
from jsbackup.repository import layout
from jsbackup.repository.catalog import CatalogEntry, entry_of
from jsbackup.repository.checks.verify import Level, verify_backup
from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.access import NO_KEYS, GivenKeys
from jsbackup.repository.crypto.new_keys import NewKeys, make_new_keys
from jsbackup.repository.document import MAX_DOCUMENT_BYTES
from jsbackup.repository.inventory import find_gaps
from jsbackup.repository.keep.forget import plan_by_policy, remove_decided
from jsbackup.repository.keep.leases import DURATION_SECONDS, Lease, Mode, Terms, acquire, commit, list_leases
from jsbackup.repository.keep.prune import PruneReport, prune
from jsbackup.repository.keep.retention import Policy
from jsbackup.repository.manifest import BackupResult, Captured, Manifest, Selection, objects_named, total_of
from jsbackup.repository.read.sources import Grouping
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.copying import CopyReport, copy_backups
from jsbackup.repository.write.new_backup import previous_streams
from jsbackup.repository.write.receipts import Receipts
from jsbackup.repository.write.segment_writer import SegmentWriter, stored_segments
from jsbackup.stores.base import Store
from jsbackup.stores.memory import MemoryStore
from jsbackup.times import format_time
from tests.harness.backups import CREATED, INCARNATION, SEGMENT_BYTES, make_manifest
from tests.harness.batches import batch_of, some_messages

KINDS = ("plain", "signed", "encrypted")
IDENTITY = age.age_identity(b"a reader's key, of 32 bytes all in"[:32])

BEGIN_SECONDS = 1_732_153_500.0  # 2024-11-21: months go by in a history, and none may be in the future

# Which messages of the stream there are, by their places, when a backup is made: some come, and those in front go.
Span = tuple[int, int]


@cache
def new_keys_of(kind: str, repository_id: str) -> NewKeys | None:
    if kind == "plain":
        return None
    assert IDENTITY.recipient is not None
    numbers = itertools.count()

    def random(count: int) -> bytes:
        return hashlib.sha256(f"{repository_id} {next(numbers)}".encode()).digest()[:count]

    return make_new_keys(repository_id, [IDENTITY.recipient] if kind == "encrypted" else [], None, random)


class Scene:
    """A place for a repository of one kind, and the store's clock. It is empty at first."""

    def __init__(self, kind: str, repository_id: str = "00ff") -> None:
        self.kind = kind
        self.id = repository_id
        self.new_keys = new_keys_of(kind, repository_id)
        self.now = BEGIN_SECONDS
        self.store: Store = MemoryStore(lambda: self.now)
        self._drawn = 0

    def copy(self) -> Scene:
        other = Scene(self.kind, self.id)
        other.new_keys = self.new_keys
        for info in self.store.list():
            other.now = info.modified_seconds
            other.store.put(info.key, self.store.get(info.key))
        other.now, other._drawn = self.now, self._drawn
        return other

    def random(self, count: int) -> bytes:
        self._drawn += 1
        return self._drawn.to_bytes(8, "big")[-count:]

    @contextmanager
    def lease(self, store: Store, mode: Mode, purpose: str) -> Iterator[Lease]:
        """As commands hold one: whether it can be given up is nobody's concern."""
        terms = Terms(mode, purpose, "jsbackup tests", "tests", CREATED)
        lease = acquire(
            store, terms, wait_seconds=0, clock=lambda: self.now, sleep=lambda seconds: None, random=self.random
        )
        try:
            yield lease
        finally:
            with suppress(StoreError):
                lease.release()

    def open(self, store: Store | None = None) -> Repository:
        """As a backup host has it."""
        keys = GivenKeys(self.new_keys.writer_key) if self.new_keys else NO_KEYS
        return Repository.open(store or self.store, keys)

    def open_to_read(self, store: Store | None = None) -> Repository:
        """With the key that reads messages."""
        keys = GivenKeys(identities=(IDENTITY,)) if self.kind == "encrypted" else NO_KEYS
        return Repository.open(store or self.store, keys)

    # --- what there is ---

    def content(self) -> set[str]:
        return {info.key for prefix in (layout.SEGMENTS, layout.STREAMS) for info in self.store.list(prefix)}

    def named(self) -> set[str]:
        repository = self.open()
        return {key for backup in repository.backups() for key in _seen(repository, backup).named}

    def live_leases(self) -> list[Mode]:
        live = [seen.key for seen in list_leases(self.store) if seen.is_live(self.now)]
        return [Mode.EXCLUSIVE if key.exclusive else Mode.SHARED for key in live]

    def state(self) -> bytes:
        """Names what is stored, to the byte, and what time it is: what comes of it is the same again."""
        digest = hashlib.sha256(f"{self.now}\n".encode() + self._state_to_read())
        for info in self.store.list(layout.LOCKS):
            digest.update(f"{info.key} {info.modified_seconds}\n".encode() + self.store.get(info.key))
        return digest.digest()

    def _state_to_read(self) -> bytes:
        """The same without leases and time: who reads backups looks at neither."""
        digest = hashlib.sha256(f"{self.kind} {self.id}\n".encode())
        for info in self.store.list():
            if not info.key.startswith(layout.LOCKS):
                digest.update(f"{info.key} {info.modified_seconds} {info.size}\n".encode())
                digest.update(self.store.get(info.key))
        return digest.digest()

    def outlive_leases(self) -> None:
        self.now += DURATION_SECONDS + 1

    def assert_sound(self) -> list[str]:
        """Every backup verifies, all ways to look at them agree, and none seems to be taken away. Gives their ids.

        What a command left is often what it left when it was stopped elsewhere: it is looked at once.
        """
        state = self._state_to_read()
        if state not in _sound:
            _sound[state] = self._assert_sound()
        return [*_sound[state]]

    def _assert_sound(self) -> list[str]:
        repository = self.open_to_read()
        backups = repository.backups()
        for backup in backups:
            assert_whole(repository, backup)
        inventory = repository.inventory()
        assert inventory.entries == tuple(_seen(repository, backup).entry for backup in backups)
        assert (inventory.unreadable, inventory.warnings) == ((), ())
        if backups:
            complete = [one.id for one in inventory.summaries if one.result is BackupResult.COMPLETE]
            assert repository.resolve("latest") == (complete or backups)[-1]
        if self.new_keys is not None:
            assert find_gaps(repository.documents) == []
        return backups


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a manifest says, by the bytes that are stored: they are the same again and again."""

    manifest: Manifest
    entry: CatalogEntry
    named: tuple[str, ...]


_seen_manifests: dict[bytes, _Seen] = {}
_whole: set[bytes] = set()
_sound: dict[bytes, list[str]] = {}


def _seen(repository: Repository, backup: str) -> _Seen:
    key = layout.manifest_key(backup)
    stored = repository.store.get(repository.documents.stored_key(key))
    if stored not in _seen_manifests:
        manifest = repository.manifest(backup)
        entry = entry_of(manifest, repository.documents.fetch(key, MAX_DOCUMENT_BYTES))
        _seen_manifests[stored] = _Seen(manifest, entry, tuple(objects_named(manifest)))
    return _seen_manifests[stored]


def assert_whole(repository: Repository, backup: str, manifest: Manifest | None = None) -> None:
    """It verifies, message by message. What was found so is not read again as long as every byte is the same.

    `manifest` is the backup's, where it has just been read.
    """
    seen = _seen(repository, backup)
    assert manifest in (None, seen.manifest)
    digest = hashlib.sha256(seen.entry.sha256.encode())
    for key in seen.named:
        digest.update(hashlib.sha256(repository.store.get(key)).digest())
    if digest.digest() not in _whole:
        assert list(verify_backup(repository.objects, seen.manifest, Level.DATA)) == []
        _whole.add(digest.digest())


# --- what commands do: `store` is the scene's, or one around it in which something goes wrong ---


def initialise(scene: Scene, store: Store) -> None:
    """`init`. Each attempt makes an id and keys of its own."""
    scene.id = f"{int(scene.id, 16) + 1:04x}"
    scene.new_keys = new_keys_of(scene.kind, scene.id)
    Repository.create(store, repository_id=scene.id, created=CREATED, tool="tests", new_keys=scene.new_keys)


def initialise_and_back_up(scene: Scene, store: Store, span: Span) -> None:
    """What `backup` does where it may find nothing."""
    if not list(store.list(layout.DESCRIPTOR)):
        initialise(scene, store)
    back_up(scene, store, span)


def back_up(scene: Scene, store: Store, span: Span, backup: str = "") -> Manifest:
    """One stream of messages that builds on its last backup, one that is kept verbatim, and consumers of both. Its id
    is that of the last backup and one more, if no other is given.
    """
    repository = scene.open(store)
    with scene.lease(store, Mode.SHARED, "backup") as lease:
        earlier = previous_streams(repository, {"orders": INCARNATION}).get("orders")
        previous = next(reversed(repository.backups()), None)
        number = 1 if previous is None else int(previous[-6:]) + 1
        backup = backup or f"20261121T01{number:02}00Z-{number:06}"
        objects = repository.objects
        folder = objects.sealing.folder("orders", INCARNATION)
        receipts = Receipts(repository.documents, lease.id, format_time(int(scene.now * 1e9)), "tests")
        receipts.read_earlier()
        reusable = stored_segments(objects, folder, *receipts.candidates(folder, earlier))
        writer = SegmentWriter(objects, folder, reusable, note=receipts.note, segment_bytes=SEGMENT_BYTES)
        writer.add(batch_of(some_messages(span[1], 100)[span[0] :]))
        segments = writer.finish()
        total = total_of(segments)
        model = make_manifest(repository, backup, count=0)
        orders = replace(
            model.streams[0],
            state=StreamState(messages=total.messages, first_seq=total.first_seq, last_seq=total.last_seq),
            captured=Captured.of(total, CREATED, CREATED),
            digest=total.digest,
            segments=tuple(segments),
        )
        manifest = replace(
            model,
            created=format_time(int(scene.now * 1e9)),
            streams=(orders, *model.streams[1:]),
            previous=previous,
            selection=Selection(),  # as that of a server: its streams may be in pages
        )
        commit(repository, manifest, lease)
        receipts.settle({objects.sealing.folder(one.name, one.incarnation) for one in manifest.streams})
    return manifest


def forget(scene: Scene, store: Store, last: int) -> None:
    repository = scene.open(store)
    plan = plan_by_policy(repository, Policy(last=last), Grouping.SELECTION, now_ns=int(scene.now * 1e9))
    remove_decided(repository, plan.decisions)


def prune_now(scene: Scene, store: Store, grace_seconds: float = 0) -> PruneReport:
    def take(mode: Mode) -> AbstractContextManager[Lease]:
        return scene.lease(store, mode, "prune")

    repository = scene.open(store)
    return prune(repository, take, grace_seconds=grace_seconds, tool="tests", random=scene.random, threads=1)


def copy(source: Scene, of: Store, target: Scene, to: Store, *, count: int = 100) -> CopyReport:
    """The first so many backups; `of` is the source's store and `to` the target's."""
    here, there = source.open_to_read(of), target.open(to)
    with _reading(source, of), target.lease(to, Mode.SHARED, "copy") as lease:
        return copy_backups(here, there, here.backups()[:count], lease, progress=NullProgress(), jobs=1)


@contextmanager
def _reading(scene: Scene, store: Store) -> Iterator[None]:
    """A lease where one can be had."""
    with ExitStack() as stack:
        with suppress(StoreError):
            stack.enter_context(scene.lease(store, Mode.SHARED, "copy"))
        yield
