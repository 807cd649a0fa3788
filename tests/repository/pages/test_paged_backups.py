"""Backups whose lists of segments are in pages: committed, read, verified, pruned, copied, salvaged, on each kind of
repository.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib.resources import files

import jsonschema
import pytest

from jsbackup.errors import IntegrityError, UnsupportedError
from jsbackup.progress import NullProgress
from jsbackup.repository import layout
from jsbackup.repository.checks.verify import Level, ProblemKind, verify_backup
from jsbackup.repository.crypto.access import NO_KEYS, GivenKeys
from jsbackup.repository.crypto.new_keys import replace_writer
from jsbackup.repository.document import MAX_DOCUMENT_BYTES, decode_document, encode_document
from jsbackup.repository.keep.forget import plan_by_ids, remove_decided
from jsbackup.repository.keep.leases import Lease, Mode, Terms, acquire
from jsbackup.repository.keep.prune import prune
from jsbackup.repository.layout import ObjectKind
from jsbackup.repository.manifest import Manifest, PageRef, SegmentRef
from jsbackup.repository.manifest_json import decode_manifest
from jsbackup.repository.pages.segment_list import SegmentList
from jsbackup.repository.read.losses import salvage
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.copying import copy_backups
from jsbackup.stores.base import Store
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import CREATED, FIRST, SECOND, make_manifest, make_repository, store_backup, store_stream
from tests.harness.batches import some_messages
from tests.harness.counting import NotingStore
from tests.harness.history import KINDS, Scene, initialise
from tests.harness.small_pages import make_pages_small


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_pages_small(monkeypatch)


@pytest.fixture(params=KINDS)
def scene(request: pytest.FixtureRequest) -> Scene:
    scene = Scene(request.param)
    initialise(scene, scene.store)
    return scene


def paged(manifest: Manifest) -> SegmentList:
    segments = manifest.streams[0].segments
    assert isinstance(segments, SegmentList)
    return segments


def pages_in(store: Store) -> set[str]:
    return {info.key for info in store.list(layout.SEGMENTS) if layout.kind_of(info.key) is ObjectKind.PAGE}


def problems(repository: Repository, backup: str, level: Level = Level.DATA) -> list[tuple[ProblemKind, str]]:
    return [(one.kind, one.key) for one in verify_backup(repository.objects, repository.manifest(backup), level)]


def test_a_committed_backup_has_the_segments_that_were_given(scene: Scene) -> None:
    given = store_backup(scene.open(), FIRST, count=200)
    found = scene.open().manifest(FIRST)
    assert tuple(paged(found)) == given.streams[0].segments
    assert len(paged(found).parts) < len(paged(found)) / 2
    assert found == scene.open().manifest(FIRST)
    assert problems(scene.open_to_read(), FIRST) == []


def test_a_short_list_is_in_the_manifest(scene: Scene) -> None:
    repository = scene.open()
    store_backup(repository, FIRST, count=20)
    assert isinstance(repository.manifest(FIRST).streams[0].segments, tuple)
    assert pages_in(scene.store) == set()


def test_a_paged_manifest_is_as_the_schema_says(scene: Scene) -> None:
    repository = scene.open()
    store_backup(repository, FIRST, count=200)
    data = repository.documents.get(layout.manifest_key(FIRST), MAX_DOCUMENT_BYTES)
    schema = json.loads(files("jsbackup.repository").joinpath("manifest.schema.json").read_text())
    jsonschema.validate(json.loads(data), schema)
    wrong = json.loads(data)
    wrong["streams"][0]["segments"]["parts"][0][1] = "not a name"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema)


def test_the_next_backup_shares_the_pages_of_the_one_before(scene: Scene) -> None:
    store_backup(scene.open(), FIRST, count=200)
    repository = scene.open()
    manifest, before = repository.manifest(FIRST), pages_in(scene.store)
    more = store_stream(repository.objects, "orders", some_messages(260, 100)).segments
    orders = manifest.streams[0]
    kept = paged(manifest).select(lambda part: None if part.last_seq > 150 and isinstance(part, PageRef) else True)
    grown = kept.plus([ref for ref in more if ref.first_seq > orders.captured.last_seq])
    repository.commit(replace(manifest, id=SECOND, streams=(replace(orders, segments=grown), *manifest.streams[1:])))
    assert before < pages_in(scene.store)
    assert len(pages_in(scene.store) - before) < len(before)


def test_a_backup_that_changes_little_is_committed_without_reading_pages() -> None:
    store = MemoryStore()
    first = make_repository(store)
    store_backup(first, FIRST, count=200)
    noting = NotingStore(store)
    repository = Repository.open(noting)
    manifest = repository.manifest(FIRST)
    repository.commit(replace(manifest, id=SECOND))
    assert not [key for key in noting.read if "page-" in key]
    assert problems(first, SECOND) == []


def lease_on(store: Store, mode: Mode = Mode.SHARED) -> Lease:
    terms = Terms(mode, "test", "jsbackup tests", "here", CREATED)
    return acquire(store, terms, wait_seconds=0, clock=lambda: 0.0, sleep=lambda seconds: None, random=os.urandom)


def prune_all(scene: Scene) -> None:
    def take(mode: Mode) -> AbstractContextManager[Lease]:
        return scene.lease(scene.store, mode, "prune")

    prune(scene.open(), take, grace_seconds=0, tool="tests", random=os.urandom)


def test_prune_keeps_the_pages_that_are_named_and_removes_the_others(scene: Scene) -> None:
    store_backup(scene.open(), FIRST, count=200)
    repository = scene.open()
    other = make_manifest(repository, SECOND, count=200)
    orders = replace(other.streams[0], segments=other.streams[0].segments[5:])
    repository.commit(replace(other, streams=(orders, *other.streams[1:])))
    scene.now += 60
    remove_decided(repository, plan_by_ids(repository, [FIRST]).decisions)
    prune_all(scene)
    left = scene.open()
    assert pages_in(scene.store) == {page.key for page in left.manifest(SECOND).streams[0].pages}
    kinds = {kind for kind, _ in problems(scene.open_to_read(), SECOND, Level.OBJECTS)}
    assert kinds == {ProblemKind.INCONSISTENT}, "only the totals, which still count the five segments"


def test_prune_reads_each_page_once_and_refuses_without_one() -> None:
    scene = Scene("plain")
    initialise(scene, scene.store)
    for number in range(8):
        store_backup(scene.open(), f"20261121T01450{number}Z-00000{number}", count=200 + number)
    noting = NotingStore(scene.store)

    def take(mode: Mode) -> AbstractContextManager[Lease]:
        return scene.lease(scene.store, mode, "prune")

    prune(Repository.open(noting), take, grace_seconds=3600, tool="tests", random=os.urandom)
    reads = [key for key in noting.read if "page-" in key]
    assert len(reads) == len(set(reads)) == len(pages_in(scene.store))
    scene.store.delete(sorted(pages_in(scene.store))[0])
    with pytest.raises(IntegrityError, match="is missing"):
        prune_all(scene)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["missing", "flipped", "cut", "another"])
def test_a_damaged_page_is_found_named_and_salvaged_around(scene: Scene, damage: str) -> None:
    store_backup(scene.open(), FIRST, count=200)
    manifest = scene.open().manifest(FIRST)
    leaves = [page for page in manifest.streams[0].pages if page.level == 0]
    page, other = leaves[1], leaves[2]
    data = scene.store.get(page.key)
    scene.store.delete(page.key)
    flipped = bytes([data[len(data) // 2] ^ 1])
    wrong = {
        "flipped": data[: len(data) // 2] + flipped + data[len(data) // 2 + 1 :],
        "cut": data[:-10],
        "another": scene.store.get(other.key),
    }
    if damage != "missing":
        scene.store.put(page.key, wrong[damage])
    repository = scene.open_to_read()
    for level in Level:
        found = list(verify_backup(repository.objects, repository.manifest(FIRST), level))
        assert [(one.key, one.first_seq, one.last_seq) for one in found] == [(page.key, page.first_seq, page.last_seq)]
        assert found[0].kind is (ProblemKind.MISSING if damage == "missing" else ProblemKind.DAMAGED)
    left = salvage(repository.manifest(FIRST), found).manifest.streams[0]
    lost = {ref.key for ref in manifest_segments_of(scene, manifest, page.first_seq, page.last_seq)}
    assert lost and not lost & {ref.key for ref in left.segments}
    assert left.captured.messages == manifest.streams[0].captured.messages - page.messages


def manifest_segments_of(scene: Scene, manifest: Manifest, first: int, last: int) -> Iterator[SegmentRef]:
    writer_knows = make_manifest(scene.open(), FIRST, count=200).streams[0].segments
    return (ref for ref in writer_knows if first <= ref.first_seq <= last)


def test_a_page_that_was_found_damaged_is_stored_beside_it(scene: Scene) -> None:
    store_backup(scene.open(), FIRST, count=200)
    page = next(page for page in scene.open().manifest(FIRST).streams[0].pages if page.level == 0)
    data = scene.store.get(page.key)
    scene.store.delete(page.key)
    scene.store.put(page.key, data[:-1])
    store_backup(scene.open(), SECOND, count=200)
    assert problems(scene.open_to_read(), SECOND) == []
    assert page.key not in {one.key for one in scene.open().manifest(SECOND).streams[0].pages}


@pytest.mark.slow
@pytest.mark.parametrize("target_kind", KINDS)
def test_a_copy_has_the_same_segments_and_pages_of_its_own_or_the_same(scene: Scene, target_kind: str) -> None:
    for number, backup in enumerate((FIRST, SECOND)):
        store_backup(scene.open(), backup, count=200 + 10 * number)
    target = Scene(target_kind, "7a79")
    initialise(target, target.store)
    into = target.open()
    source = scene.open_to_read() if scene.kind == "encrypted" else scene.open()
    report = copy_backups(source, into, [FIRST, SECOND], lease_on(MemoryStore()), progress=NullProgress(), jobs=2)
    assert report.copied == (FIRST, SECOND) and not report.failed
    for backup in (FIRST, SECOND):
        ours, theirs = paged(scene.open().manifest(backup)), paged(target.open().manifest(backup))
        assert [ref.digest for ref in ours] == [ref.digest for ref in theirs]
        assert problems(target.open_to_read(), backup) == []
    assert pages_in(target.store)
    if scene.kind == target_kind == "plain":
        assert pages_in(target.store) == pages_in(scene.store)
    again = copy_backups(
        source, target.open(), [FIRST, SECOND], lease_on(MemoryStore()), progress=NullProgress(), jobs=2
    )
    assert again.present == (FIRST, SECOND) and not again.copied


def test_a_replica_has_the_same_pages_byte_for_byte(scene: Scene) -> None:
    store_backup(scene.open(), FIRST, count=200)
    store = MemoryStore()
    source = scene.open()
    replica = Repository.create_replica(store, source, probe_id="p", created=CREATED, tool="tests", keys=keys_of(scene))
    copy_backups(source, replica, [FIRST], lease_on(MemoryStore()), progress=NullProgress(), jobs=2)
    assert {key: store.get(key) for key in pages_in(store)} == {
        key: scene.store.get(key) for key in pages_in(scene.store)
    }
    assert tuple(paged(replica.manifest(FIRST))) == tuple(paged(source.manifest(FIRST)))


def keys_of(scene: Scene) -> GivenKeys:
    return GivenKeys(scene.new_keys.writer_key) if scene.new_keys else NO_KEYS


@pytest.mark.parametrize("kind", ["signed", "encrypted"])
def test_pages_of_a_writer_that_was_replaced_stay_valid(kind: str) -> None:
    scene = Scene(kind)
    initialise(scene, scene.store)
    store_backup(scene.open(), FIRST, count=200)
    reading = scene.open_to_read()
    given = keys_of(scene).writer if kind == "signed" else None
    _, enthrone = replace_writer(
        scene.store,
        reading.descriptor,
        reading.documents,
        reading.secret,
        writer_key=given,
        created=CREATED,
        random=os.urandom,
    )
    enthrone()
    assert problems(scene.open_to_read(), FIRST) == []


def test_a_manifest_that_names_pages_of_another_stream_is_refused() -> None:
    store = MemoryStore()
    repository = make_repository(store)
    store_backup(repository, FIRST, count=200)
    key = layout.manifest_key(FIRST)
    value = dict(decode_document(store.get(key), key).value)
    for folder in ("segments/others-1a2b3c4d", "segments/orders-ffffffff", "backups", "../x"):
        value["streams"][0]["segments"]["folder"] = folder
        with pytest.raises(IntegrityError):
            decode_manifest(encode_document(value, key), key)
    with pytest.raises(UnsupportedError):
        decode_manifest(encode_document(value | {"format": 3}, key), key)


@pytest.mark.parametrize("kind", ["plain", "encrypted"])
def test_a_page_that_the_target_lost_does_not_keep_other_backups_from_being_copied(kind: str) -> None:
    source = Scene("plain")
    initialise(source, source.store)
    for number, backup in enumerate((FIRST, SECOND)):
        store_backup(source.open(), backup, count=200 + 100 * number)
    target = Scene(kind, "7a79")
    initialise(target, target.store)
    for backups in ([FIRST], [FIRST, SECOND]):
        report = copy_backups(
            source.open(), target.open(), backups, lease_on(MemoryStore()), progress=NullProgress(), jobs=2
        )
        assert not report.failed
        if backups == [FIRST]:
            page = next(target.open().manifest(FIRST).streams[0].pages)
            target.store.delete(page.key)
    assert problems(target.open_to_read(), SECOND) == []
