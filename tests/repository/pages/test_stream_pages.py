"""Backups whose streams are in pages: committed, read, pruned, copied, damaged, on each kind of repository."""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from importlib.resources import files

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError, IntegrityError, JsBackupError
from jsbackup.formats.digest import StreamDigest
from jsbackup.model import ConsumerState, Fidelity
from jsbackup.progress import NullProgress
from jsbackup.repository import layout
from jsbackup.repository.checks.ledger import remember_damaged
from jsbackup.repository.checks.verify import Level, verify_backup
from jsbackup.repository.checks.verify_run import VerifyRun
from jsbackup.repository.document import MAX_DOCUMENT_BYTES, decode_document, encode_document
from jsbackup.repository.keep.forget import plan_by_ids, remove_decided
from jsbackup.repository.keep.leases import Lease, Mode
from jsbackup.repository.keep.prune import prune
from jsbackup.repository.manifest import (
    ArchiveFormat,
    Captured,
    ConsumerBackup,
    ReadAs,
    Reading,
    SegmentRef,
    StreamBackup,
    summary_of,
)
from jsbackup.repository.pages import stream_pages
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.copying import copy_backups
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import FIRST, INCARNATION, SECOND, make_repository, store_stream
from tests.harness.batches import some_messages
from tests.harness.counting import CountingStore
from tests.harness.damage import DAMAGES, put_instead
from tests.harness.history import KINDS, Scene, initialise
from tests.harness.many_streams import MANY, manifest_of, many_streams, pages_in, small_stream


@pytest.fixture(params=KINDS)
def scene(request: pytest.FixtureRequest) -> Scene:
    scene = Scene(request.param)
    initialise(scene, scene.store)
    return scene


FEW = 150  # in some pages


@cache
def _committed(kind: str) -> Scene:
    scene = Scene(kind)
    initialise(scene, scene.store)
    scene.open().commit(manifest_of(many_streams(FEW)))
    return scene


@pytest.fixture(params=KINDS)
def committed(request: pytest.FixtureRequest) -> Scene:
    """With a backup of a few streams in pages, which is made once for each kind."""
    return _committed(request.param).copy()


def same_but_times(streams: Sequence[StreamBackup]) -> list[StreamBackup]:
    return [replace(one, captured=replace(one.captured, begun="", ended="")) for one in streams]


def test_a_committed_backup_has_the_streams_that_were_given(scene: Scene) -> None:
    repository = scene.open()
    first = store_stream(repository.objects, "A", some_messages(40, 100))
    streams = [first, *many_streams()]
    repository.commit(manifest_of(streams))
    found = scene.open().manifest(FIRST)
    assert same_but_times(found.streams) == same_but_times(streams)
    assert 5 < len(found.stream_pages) < 60 and pages_in(scene.store) == {page.key for page in found.stream_pages}
    assert list(verify_backup(scene.open_to_read().objects, found, Level.DATA)) == []
    assert found == scene.open().manifest(FIRST)
    # A stream of which messages were read has its own times, the others those from the first to the last of them.
    assert found.streams[0].captured == first.captured
    assert {(one.captured.begun, one.captured.ended) for one in found.streams[1:]} == {
        ("2026-11-21T01:45:00Z", "2026-11-21T01:45:59Z")
    }


def test_its_manifest_is_small_and_as_the_schema_says() -> None:
    store = MemoryStore()
    repository = make_repository(store)
    repository.commit(manifest_of(many_streams()))
    data = repository.documents.get(layout.manifest_key(FIRST), MAX_DOCUMENT_BYTES)
    assert len(data) < 10_000
    schema = json.loads(files("jsbackup.repository").joinpath("manifest.schema.json").read_text())
    jsonschema.validate(json.loads(data), schema)
    wrong = json.loads(data)
    wrong["paged_streams"]["pages"][0][0] = "not a name"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema)


def test_few_streams_and_those_of_an_import_are_in_the_manifest(scene: Scene) -> None:
    repository = scene.open()
    repository.commit(manifest_of(many_streams(20)))
    repository.commit(replace(manifest_of(many_streams(), SECOND), selection=None))
    assert pages_in(scene.store) == set()


@pytest.mark.by_turns
@pytest.mark.slow
@pytest.mark.parametrize(("count", "segments"), [(3, 60), (64, 64)])
def test_what_a_backup_writes_does_not_grow_with_the_other_streams(scene: Scene, count: int, segments: int) -> None:
    streams = [long_stream(number, segments) for number in range(count)]
    repository = scene.open()
    repository.commit(manifest_of(streams))
    before = {info.key for info in scene.store.list()}
    streams[1] = replace(streams[1], segments=streams[1].segments[:-1])
    repository.commit(manifest_of(streams, SECOND))
    assert sum(info.size for info in scene.store.list() if info.key not in before) < 40_000
    assert same_but_times(scene.open().manifest(SECOND).streams) == same_but_times(streams)


def long_stream(number: int, segments: int) -> StreamBackup:
    stream = small_stream(number)
    folder = layout.stream_folder(stream.name, INCARNATION)
    refs = []
    for at in range(segments):
        digest, sha256, fingerprint = (hashlib.sha256(f"{number} {at} {one}".encode()).hexdigest() for one in range(3))
        key = layout.segment_key(folder, 10 * at + 1, 10 * at + 10, digest)
        times = (10**18 + at, 10**18 + at + 1)
        refs.append(
            SegmentRef(
                key, 10 * at + 1, 10 * at + 10, 10, 999, *times, 500, sha256, digest, StreamDigest.from_hex(fingerprint)
            )
        )
    return replace(stream, segments=tuple(refs))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
def test_a_stream_of_many_consumers_is_in_a_page(scene: Scene, count: int) -> None:
    """Of its own: other streams change without it."""
    config = {"ack_policy": "explicit", "deliver_policy": "all", "ack_wait": 30 * 10**9}
    consumers = tuple(
        ConsumerBackup(f"c{number}", {**config, "durable_name": f"c{number}"}, None, Fidelity.FLOOR, ConsumerState())
        for number in range(2000)
    )
    streams = [small_stream(number) for number in range(count)]
    streams[0] = replace(streams[0], consumers=consumers)
    repository = scene.open()
    repository.commit(manifest_of(streams))
    assert len(scene.store.get(repository.documents.stored_key(layout.manifest_key(FIRST)))) < 6000
    before = {info.key for info in scene.store.list()}
    if count > 1:
        streams[1] = small_stream(1, limit=7)
        repository.commit(manifest_of(streams, SECOND))
        assert sum(info.size for info in scene.store.list() if info.key not in before) < 8000
    assert same_but_times(scene.open().manifest(FIRST).streams)[0] == same_but_times(streams)[0]


def test_a_summary_needs_no_page() -> None:
    store = MemoryStore()
    repository = make_repository(store)
    manifest = manifest_of(many_streams())
    repository.commit(manifest)
    for key in pages_in(store):
        store.delete(key)
    found = Repository.open(store).inventory().summaries
    assert found == [summary_of(manifest)] or list(found) == [summary_of(manifest)]


def test_the_next_backup_shares_the_pages_of_unchanged_streams(scene: Scene) -> None:
    first = scene.open()
    first.commit(manifest_of(many_streams()))
    before = pages_in(scene.store)
    counting = CountingStore(scene.store)
    repository = scene.open(counting)
    streams = list(repository.manifest(FIRST).streams)
    read = Reading(ReadAs.INCREMENT, "2 of 9 messages had to be read")
    for number in (3, 250, 499):
        streams[number] = replace(small_stream(number, limit=1000, at=7), read=read)
    streams.insert(100, replace(small_stream(0), name="STREAM_0099_B"))
    del streams[300]
    counting.requests.clear()
    repository.commit(manifest_of(streams, SECOND))
    new = pages_in(scene.store) - before
    # Each change concerns one page, or the two that are joined or divided.
    assert 3 <= len(new) <= 10 < len(before)
    assert counting.requests["put"] <= len(new) + 4  # and the manifest, a witness, a catalog
    assert counting.requests["get"] + counting.requests["head"] <= 8
    assert same_but_times(scene.open().manifest(SECOND).streams) == same_but_times(streams)


def test_pages_of_a_backup_that_is_gone_are_stored_again(scene: Scene) -> None:
    """This process still knows them; `prune` has removed them since."""
    repository = scene.open()
    repository.commit(manifest_of(many_streams()))
    manifest = repository.manifest(FIRST)
    for key in (*pages_in(scene.store), repository.documents.stored_key(layout.manifest_key(FIRST))):
        scene.store.delete(key)
    repository.commit(replace(manifest, id=SECOND, streams=tuple(many_streams())))
    assert len(scene.open().manifest(SECOND).streams) == MANY


def test_prune_keeps_the_pages_of_each_backup_and_no_other(scene: Scene) -> None:
    repository = scene.open()
    repository.commit(manifest_of([store_stream(repository.objects, "A", some_messages(40, 100)), *many_streams()]))
    old = pages_in(scene.store)
    streams = list(repository.manifest(FIRST).streams)
    streams[200] = small_stream(199, limit=5000)
    repository.commit(manifest_of(streams[1:], SECOND))
    new = {page.key for page in scene.open().manifest(SECOND).stream_pages}

    def take(mode: Mode) -> AbstractContextManager[Lease]:
        return scene.lease(scene.store, mode, "prune")

    def run() -> None:
        prune(scene.open(), take, grace_seconds=0, tool="t", random=scene.random)

    run()
    assert pages_in(scene.store) == old | new != new
    with scene.lease(scene.store, Mode.SHARED, "forget"):
        remove_decided(scene.open(), plan_by_ids(scene.open(), [FIRST]).decisions)
    run()
    assert pages_in(scene.store) == new
    assert list(scene.store.list(layout.SEGMENTS)) == []


def test_a_prune_reads_each_page_once() -> None:
    store = MemoryStore()
    repository = make_repository(store)
    streams = many_streams()
    for number in range(1, 6):
        streams[number * 50] = small_stream(number * 50, limit=9999 + number)
        repository.commit(manifest_of(streams, f"20261121T01460{number}Z-000002"))
    counting = CountingStore(store)
    from jsbackup.repository.keep.prune import preview_prune

    scene = Scene("plain")
    preview_prune(Repository.open(counting), lambda mode: scene.lease(store, mode, "prune"), grace_seconds=0)
    assert counting.requests["get"] <= len(pages_in(store)) + 5 + 10


def test_verify_lists_the_folders_of_many_streams_at_once_and_finds_what_is_missing() -> None:
    store = MemoryStore()
    repository = make_repository(store)
    streams = [store_stream(repository.objects, f"S{number:03}", some_messages(3, 100)) for number in range(100)]
    repository.commit(manifest_of(streams))
    gone = [streams[number].segments[0].key for number in (2, 70)]
    for key in gone:
        store.delete(key)
    counting = CountingStore(store)
    found = list(verify_backup(Repository.open(counting).objects, repository.manifest(FIRST), Level.MANIFEST))
    assert [one.key for one in found] == gone
    assert counting.requests["list"] < 40


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_to_a_page_is_an_error_that_names_it(committed: Scene, damage: Callable[[bytes], bytes | None]) -> None:
    assert len(pages_in(committed.store)) > 2
    key = min(pages_in(committed.store))
    put_instead(committed.store, key, damage(committed.store.get(key)))
    with pytest.raises(IntegrityError, match=layout.content_key(key).split("/")[1][:20]):
        committed.open().manifest(FIRST)


def test_a_damaged_page_is_stored_beside_by_the_next_backup(committed: Scene) -> None:
    put_instead(committed.store, min(pages_in(committed.store)), b"damaged")
    committed.open().commit(manifest_of(many_streams(FEW), SECOND))
    assert len(committed.open().manifest(SECOND).streams) == FEW
    with pytest.raises(IntegrityError):
        committed.open().manifest(FIRST)


def _replicas() -> Iterator[tuple[str, str]]:
    yield from ((kind, other) for kind in KINDS for other in KINDS)


@pytest.mark.parametrize(("kind", "other"), list(_replicas()))
def test_a_copy_has_the_same_streams(kind: str, other: str) -> None:
    ours, theirs = Scene(kind), Scene(other, "11ee")
    for one in (ours, theirs):
        initialise(one, one.store)
    source = ours.open()
    source.commit(manifest_of([store_stream(source.objects, "A", some_messages(40, 100)), *many_streams(FEW)]))
    streams = list(source.manifest(FIRST).streams)
    streams[9] = small_stream(8, limit=77)
    source.commit(manifest_of(streams, SECOND))
    target = theirs.open()
    reader = ours.open_to_read() if kind == "encrypted" else ours.open()
    with theirs.lease(theirs.store, Mode.SHARED, "copy") as lease:
        report = copy_backups(reader, target, [FIRST, SECOND], lease, progress=NullProgress(), jobs=2)
    assert list(report.copied) == [FIRST, SECOND] and not report.failed
    for backup in (FIRST, SECOND):
        expected, found = ours.open().manifest(backup), theirs.open().manifest(backup)
        assert [one.name for one in found.streams] == [one.name for one in expected.streams]
        assert [one.captured for one in found.streams] == [one.captured for one in expected.streams]
        assert list(verify_backup(theirs.open_to_read().objects, found, Level.DATA)) == []
    assert pages_in(theirs.store) >= {page.key for page in theirs.open().manifest(SECOND).stream_pages}


readings = st.none() | st.builds(
    Reading,
    st.sampled_from(ReadAs),
    st.sampled_from(["nothing", "it is followed", "x"]),
    st.just({}) | st.just({"n": 1}),
)
times = st.integers(0, 59).map(lambda second: f"2026-11-21T01:45:{second:02}.5Z")


@pytest.mark.by_turns
@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from(ArchiveFormat), readings, times, times, st.integers(0, 9)), min_size=66, max_size=90
    )
)
def test_every_capture_comes_back(captures: list[tuple[ArchiveFormat, Reading | None, str, str, int]]) -> None:
    streams = [
        replace(
            small_stream(number),
            archive_format=how,
            read=read,
            captured=Captured(messages, messages * 9, 0, 0, begun, ended),
        )
        for number, (how, read, begun, ended, messages) in enumerate(captures)
    ]
    repository = make_repository(MemoryStore())
    repository.commit(manifest_of(streams))
    found = repository.manifest(FIRST).streams
    assert same_but_times(found) == same_but_times(streams)
    for given_one, one in zip(streams, found, strict=True):
        same = one.captured == given_one.captured
        within = one.captured.begun <= given_one.captured.begun and given_one.captured.ended <= one.captured.ended
        reads_messages = one.read is not None and one.read.how is not ReadAs.INCREMENT
        assert same if reads_messages else within


@pytest.mark.by_turns
@settings(deadline=None, max_examples=200)
@given(st.data())
def test_a_hostile_list_is_a_format_error(data: st.DataObject) -> None:
    store = MemoryStore()
    make_repository(store).commit(manifest_of(many_streams(70)))
    key = layout.manifest_key(FIRST)
    fields = decode_document(store.get(key), key)
    paged = fields.object("paged_streams")
    junk = st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=3) | st.just({})
    where = data.draw(st.sampled_from(["pages", "captures", "unchanged", "suffix", "row", "drop"]))
    value = data.draw(junk)
    if where == "row":
        row = data.draw(st.sampled_from(paged["pages"]))
        at = data.draw(st.integers(0, 7))
        if row[at] == value:
            return
        row[at] = value
    elif where == "drop":
        del paged["pages"][data.draw(st.integers(0, len(paged["pages"]) - 1))]
        if not paged["pages"]:
            paged["pages"] = [[]]
        else:
            paged["captures"] = [{"stream": "NOT_THERE", **paged["unchanged"]}]
    elif paged[where] == value:
        return
    else:
        paged[where] = value
    store.delete(key)
    store.put(key, encode_document(fields.value, key))
    with pytest.raises(JsBackupError) as raised:
        Repository.open(store).manifest(FIRST)
    assert isinstance(raised.value, FormatError | IntegrityError)


@pytest.mark.by_turns
@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_process_that_stores_for_days_stores_a_page_again_that_was_found_damaged(
    scene: Scene, damage: Callable[[bytes], bytes | None]
) -> None:
    """It knows what the page lists, and would name it for ever."""
    repository = scene.open()
    repository.commit(manifest_of(many_streams(FEW)))
    streams = repository.manifest(FIRST).streams
    key = min(pages_in(scene.store))
    put_instead(scene.store, key, damage(scene.store.get(key)))
    verify_and_record(scene, FIRST)
    repository.look_for_damage()
    for number in range(2, 5):
        backup = f"20261121T01460{number}Z-000002"
        repository.commit(manifest_of(streams, backup))
        assert len(scene.open().manifest(backup).streams) == FEW


def verify_and_record(scene: Scene, backup: str) -> None:
    repository = scene.open()
    run = VerifyRun(
        repository,
        [backup],
        Level.OBJECTS,
        whole=False,
        begun_ns=0,
        clock_ns=lambda: int(scene.now * 1e9),
        random=scene.random,
        note=pytest.fail,
    )
    assert run.check([], [], progress=NullProgress()).problems
    remember_damaged(
        repository.documents,
        repository.objects.found_damaged,
        now_seconds=int(scene.now),
        tool="tests",
        random=scene.random,
    )


@pytest.mark.slow
def test_a_process_that_stores_for_days_notices_pages_that_are_gone(scene: Scene) -> None:
    """Without `verify`: now and then it looks which pages there are."""
    repository = scene.open()
    repository.commit(manifest_of(many_streams(FEW)))
    streams = repository.manifest(FIRST).streams
    scene.store.delete(min(pages_in(scene.store)))
    for number in range(stream_pages.LOOK_EVERY + 1):
        backup = f"20261121T02{number // 60:02}{number % 60:02}Z-000002"
        repository.commit(manifest_of(streams, backup))
    assert len(scene.open().manifest(backup).streams) == FEW


@pytest.mark.slow
def test_a_process_that_stores_for_days_keeps_the_streams_of_its_newest_backup_only() -> None:
    scene = Scene(KINDS[0])
    initialise(scene, scene.store)
    repository = scene.open()

    def streams_in_memory_after(rounds: range) -> int:
        for number in rounds:
            streams = [small_stream(at, limit=number) for at in range(MANY)]
            repository.commit(manifest_of(streams, f"20261121T0245{number:02}Z-000002"))
        gc.collect()
        return sum(type(one) is StreamBackup for one in gc.get_objects())

    assert streams_in_memory_after(range(2, 8)) < streams_in_memory_after(range(2)) + MANY
