"""What a run that was stopped has stored is stored once, whatever became of its receipts."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest

from jsbackup.formats.digest import StreamDigest
from jsbackup.model import JsonObject
from jsbackup.repository import layout
from jsbackup.repository.document import Documents, encode_document
from jsbackup.repository.layout import ObjectKind, ReceiptKey
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.pages.segment_pages import list_to_json
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.write import receipts
from jsbackup.repository.write.receipts import Receipts
from jsbackup.repository.write.segment_writer import SegmentWriter, stored_segments
from jsbackup.stores.base import Store
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import INCARNATION, SEGMENT_BYTES, make_manifest, make_repository
from tests.harness.batches import Message, batch_of, messages_of, some_messages
from tests.harness.damage import DAMAGES, put_instead
from tests.harness.history import KINDS, Scene, initialise
from tests.harness.stores import Fault, FaultStore, Killed

FOLDER, OTHER = (layout.stream_folder(name, INCARNATION) for name in ("orders", "other"))
RUN, NEXT = "00" * 8, "11" * 8
BEGAN, LATER = "2026-11-21T01:45:00Z", "2026-11-21T01:55:00Z"
MESSAGES = some_messages(300, 100)


@pytest.fixture
def store() -> MemoryStore:
    numbers = itertools.count()
    return MemoryStore(lambda: 1e9 + next(numbers))


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receipt is due with every segment."""
    monkeypatch.setattr(receipts, "_EVERY_BYTES", 1)
    monkeypatch.setattr(receipts, "_EVERY_PART", 1 << 60)


def ref_of(number: int, folder: str = FOLDER, size: int = 1000) -> SegmentRef:
    first = number * 10 + 1
    key = layout.segment_key(folder, first, first + 9, f"{number:064x}")
    return SegmentRef(key, first, first + 9, 10, size, 1, 2, 50, "a" * 64, f"{number:064x}", StreamDigest())


def a_run(store: MemoryStore, run: str, refs: Sequence[SegmentRef], created: str = BEGAN) -> Receipts:
    """Of a run that comes no further than its segments."""
    made = Receipts(Documents(store), run, created, "t")
    for ref in refs:
        made.note(ref)
    return made


def the_next(store: MemoryStore, run: str = NEXT) -> Receipts:
    made = Receipts(Documents(store), run, LATER, "t")
    made.read_earlier()
    return made


def keys(store: Store) -> list[str]:
    return [info.key for info in store.list(layout.RECEIPTS)]


# --- when there are any ---


def test_a_run_that_stores_little_leaves_none(store: MemoryStore) -> None:
    few = a_run(store, RUN, [ref_of(number, size=receipts._EVERY_BYTES // 16) for number in range(15)])
    assert keys(store) == []
    few.note(ref_of(15, size=receipts._EVERY_BYTES // 16))
    assert keys(store) == [layout.receipt_key(ReceiptKey(RUN, 1))]


@pytest.mark.usefixtures("eager")
def test_what_an_earlier_attempt_at_a_stream_stored_there_is_not_listed_beside_it(store: MemoryStore) -> None:
    made = a_run(store, RUN, [ref_of(number) for number in (3, 0, 1, 2)])
    key = layout.segment_key(FOLDER, 15, 28, "f" * 64)
    wide = replace(ref_of(1), key=key, first_seq=15, last_seq=28, digest="f" * 64)
    made.note(wide)
    wanted = [ref_of(0), wide, ref_of(3)]
    assert list(made.candidates(FOLDER, None)[0]) == wanted
    assert the_next(store).candidates(FOLDER, None) == [wanted]


# --- what they are good for ---


@pytest.mark.usefixtures("eager")
def test_the_newest_comes_first_and_a_run_before_all_others(store: MemoryStore) -> None:
    a_run(store, RUN, [ref_of(1)], BEGAN)
    a_run(store, "22" * 8, [ref_of(2)], LATER)
    a_run(store, "33" * 8, [ref_of(3, OTHER)])
    now = the_next(store)
    now.note(ref_of(4))
    repository = make_repository(MemoryStore())
    made = make_manifest(repository, "20261121T015000Z-000001").streams[0]
    between = replace(made, captured=replace(made.captured, begun="2026-11-21T01:50:00Z"), segments=(ref_of(5),))
    assert [[ref.first_seq // 10 for ref in refs] for refs in now.candidates(FOLDER, between)] == [[4], [2], [5], [1]]
    assert now.candidates(OTHER, None) == [[ref_of(3, OTHER)]]
    assert now.candidates("segments/none-00000000", None) == []


@pytest.mark.usefixtures("eager")
def test_it_goes_when_a_manifest_names_all_it_lists(store: MemoryStore) -> None:
    a_run(store, RUN, [ref_of(1)])
    a_run(store, "22" * 8, [ref_of(1), ref_of(1, OTHER)])
    now = the_next(store)
    now.note(ref_of(1))
    assert len(keys(store)) == 3
    now.settle({FOLDER})
    assert keys(store) == [layout.receipt_key(ReceiptKey("22" * 8, 2))]
    last = the_next(store, "44" * 8)
    last.note(ref_of(3, OTHER))
    last.settle({FOLDER})  # a stream failed
    assert len(keys(store)) == 1 + 1
    last.settle({FOLDER, OTHER})
    assert keys(store) == []


# --- what is wrong with them costs nothing but storing again ---


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("damage", DAMAGES)
def test_one_that_is_damaged_is_passed_over_for_the_one_before_it(
    store: MemoryStore, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    a_run(store, RUN, [ref_of(1), ref_of(2)])
    a_run(store, "22" * 8, [ref_of(3)], LATER)
    newest = layout.receipt_key(ReceiptKey(RUN, 2))
    before = encode_document({**_document(store, newest), "lists": []}, "t")
    store.put(layout.receipt_key(ReceiptKey(RUN, 1)), before)
    put_instead(store, newest, DAMAGES[damage](store.get(newest)))
    with caplog.at_level(logging.WARNING):
        now = the_next(store)
    assert now.candidates(FOLDER, None) == [[ref_of(3)]]
    assert (f"ignored: {newest}" in caplog.text) is (damage != "missing")
    now.settle({FOLDER})
    assert keys(store) == []


def _document(store: MemoryStore, key: str) -> JsonObject:
    document: JsonObject = json.loads(store.get(key))
    del document["sha256"]
    return document


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "change",
    [
        {"required_features": ["more"]},
        {"created": "yesterday"},
        {"lists": [{}]},
        {"lists": [list_to_json([ref_of(1)]) | {"folder": "segments/../jsbackup.json"}]},
        {"lists": [list_to_json([ref_of(1)]) | {"parts": [[2**70] * 13]}]},
    ],
    ids=str,
)
def test_one_that_a_stranger_wrote_is_passed_over(store: MemoryStore, change: JsonObject) -> None:
    a_run(store, RUN, [ref_of(1)])
    (key,) = keys(store)
    put_instead(store, key, encode_document({**_document(store, key), **change}, "t"))
    assert the_next(store).candidates(FOLDER, None) == []


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.TRUNCATE])
def test_a_store_that_does_not_take_or_give_one_stops_no_backup(store: MemoryStore, fault: Fault) -> None:
    a_run(store, RUN, [ref_of(9)])

    def run(at: int) -> FaultStore:
        scene = MemoryStore()
        for info in store.list():
            scene.put(info.key, store.get(info.key))
        bad = FaultStore(scene, fault, at=at)
        now = Receipts(Documents(bad), NEXT, LATER, "t")
        now.read_earlier()
        for number in range(3):
            now.note(ref_of(number))
        assert the_next(scene, "22" * 8).candidates(FOLDER, None)
        now.settle({FOLDER})
        last = the_next(scene, "33" * 8)
        assert all(refs[0].first_seq in (1, 91) for refs in last.candidates(FOLDER, None))
        last.settle({FOLDER})
        return bad

    number = run(0).operations
    assert number > 8
    for at in range(1, number + 1):
        run(at)


# --- in repositories of every kind ---


def back_up(
    scene: Scene, run: str, messages: list[Message], *, store: Store | None = None, finish: bool = True
) -> SegmentWriter:
    """As another process than any before: whoever wrote a segment can read it as long as it runs."""
    repository = scene.open(store)
    made = Receipts(repository.documents, run, LATER, "t")
    made.read_earlier()
    folder = repository.objects.sealing.folder("orders", INCARNATION)
    stored = stored_segments(repository.objects, folder, *made.candidates(folder, None))
    writer = SegmentWriter(repository.objects, folder, stored, note=made.note, segment_bytes=SEGMENT_BYTES)
    writer.add(batch_of(messages))
    if finish:
        writer.finish()
    else:
        assert writer._cutter.refs  # waits until what is full is stored
    return writer


@pytest.fixture(params=KINDS)
def scene(request: pytest.FixtureRequest) -> Scene:
    scene = Scene(request.param)
    initialise(scene, scene.store)
    return scene


def segments(scene: Scene) -> set[str]:
    return {info.key for info in scene.store.list(layout.SEGMENTS)}


@pytest.mark.usefixtures("eager")
def test_a_rerun_stores_the_rest_and_nothing_twice(scene: Scene) -> None:
    back_up(scene, RUN, MESSAGES[:200], finish=False)
    left = segments(scene)
    assert len(left) > 5 and len(keys(scene.store)) == 1
    writer = back_up(scene, NEXT, MESSAGES)
    refs = writer.finish()
    assert {ref.key for ref in refs} == segments(scene) > left
    assert writer.reused == len(left)
    reader = SegmentReader(scene.open_to_read().objects)
    assert [message for ref in refs for message in messages_of(reader.read(ref))] == MESSAGES


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_killed_at_any_operation_at_most_one_segment_is_stored_again(scene: Scene) -> None:
    whole = scene.copy()
    watched = FaultStore(whole.store)
    count = len(back_up(whole, RUN, MESSAGES[:100], store=watched).finish())
    assert watched.operations > 2 * count > 6
    for at in range(1, watched.operations + 1):
        killed = scene.copy()
        with pytest.raises(Killed):
            back_up(killed, RUN, MESSAGES[:100], store=FaultStore(killed.store, Fault.KILL_AFTER, at=at))
        back_up(killed, NEXT, MESSAGES[:100])
        assert len(segments(killed)) <= count + (scene.kind == "encrypted")


@pytest.mark.usefixtures("eager")
def test_it_is_signed_and_hidden_like_a_manifest(scene: Scene) -> None:
    back_up(scene, RUN, MESSAGES)
    (key,) = keys(scene.store)
    hidden = scene.kind == "encrypted"
    assert layout.kind_of(key) is ObjectKind.RECEIPT and key.endswith(".age") is hidden
    assert (b"segments/" in scene.store.get(key)) is not hidden
    # A stranger's, for the same stream: in a plain repository whoever can put one can put anything.
    repository = scene.open()
    folder = repository.objects.sealing.folder("orders", INCARNATION)
    other = MemoryStore()
    a_run(other, "22" * 8, [ref_of(1, folder)])
    for info in other.list():
        scene.store.put(info.key + ".age" * hidden, other.get(info.key))
    now = Receipts(repository.documents, NEXT, LATER, "t")
    now.read_earlier()
    assert len(now.candidates(folder, None)) == (2 if scene.kind == "plain" else 1)
