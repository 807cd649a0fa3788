"""What a check came to is read back as it was put, or passed over."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace

import pytest

from jsbackup.errors import KeyUnavailable
from jsbackup.model import JsonObject
from jsbackup.repository import layout
from jsbackup.repository.checks import ledger
from jsbackup.repository.checks.ledger import (
    DrilledStream,
    DrillOutcome,
    FailedStream,
    VerifyOutcome,
    read_runs,
    record_run,
)
from jsbackup.repository.checks.verify import Level
from jsbackup.repository.crypto.access import GivenKeys
from jsbackup.repository.crypto.new_keys import replace_writer
from jsbackup.repository.document import Documents, decode_document, encode_document
from jsbackup.repository.layout import ObjectKind
from jsbackup.repository.repository import Repository
from jsbackup.stores.memory import MemoryStore
from jsbackup.times import format_time
from tests.harness.damage import put_instead
from tests.harness.history import KINDS, Scene

BACKUP = "20261121T014500Z-1a2b3c"
BEGUN = 1_795_225_500_000_000_000
VERIFY = VerifyOutcome(
    begun="2026-11-21T01:45:00Z",
    ended="2026-11-21T01:46:00.5Z",
    ok=False,
    level=Level.OBJECTS,
    everything=False,
    part=True,
    backups=3,
    problems=2,
    chosen=(BACKUP, "20261121T014500Z-1a2b3d"),
    damaged=(BACKUP,),
)
DRILL = DrillOutcome(
    begun="2026-11-21T01:45:00Z",
    ended="2026-11-21T01:47:00Z",
    ok=False,
    code=14,
    backup=BACKUP,
    backup_created="2026-11-20T00:00:00Z",
    error="a segment is damaged",
    newest_message="2026-11-19T23:59:59.123456789Z",
    server="2.15.1",
    nodes=3,
    restored=2,
    messages=12,
    streams=(DrilledStream('a"\n𝕏', 12, 3456, True, 1.25), DrilledStream("empty", 0, 0, False, 0.0)),
    failed=(FailedStream("LOST", "gone"),),
)


def numbered() -> itertools.count[int]:
    return itertools.count()


@pytest.mark.parametrize("kind", KINDS)
def test_outcomes_come_back_newest_first(kind: str) -> None:
    repository = _made(Scene(kind))
    numbers = numbered()

    def random(count: int) -> bytes:
        return next(numbers).to_bytes(count, "big")

    documents = repository.documents
    later = replace(VERIFY, begun=format_time(BEGUN + 10**9), ok=True, level=Level.DATA, chosen=(), damaged=())
    for outcome in (VERIFY, later):
        record_run(documents, outcome, "jsbackup tests", random)
    record_run(documents, DRILL, "jsbackup tests", random)
    assert read_runs(VerifyOutcome, documents, 10) == [later, VERIFY]
    assert read_runs(VerifyOutcome, documents, 1) == [later]
    assert read_runs(DrillOutcome, documents, 10) == [DRILL]
    assert DRILL.seconds == 120
    assert {layout.kind_of(info.key) for info in repository.store.list("receipts/")} == {ObjectKind.CHECK}


def _made(scene: Scene) -> Repository:
    Repository.create(
        scene.store, repository_id=scene.id, created="2026-11-21T00:00:00Z", tool="tests", new_keys=scene.new_keys
    )
    return scene.open()


def test_without_the_key_that_signs_nothing_is_recorded_and_that_is_said() -> None:
    scene = Scene("signed")
    _made(scene)
    documents = Repository.open(scene.store).documents
    with pytest.raises(KeyUnavailable):
        record_run(documents, VERIFY, "jsbackup tests", scene.random)
    assert read_runs(VerifyOutcome, documents, 10) == []


def test_the_oldest_outcomes_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MOST_RUNS", 3)
    documents = Documents(MemoryStore())
    record_run(documents, DRILL, "tests", bytes)
    for second in range(5):
        record_run(documents, replace(VERIFY, begun=format_time(BEGUN + second * 10**9)), "tests", bytes)
    assert [one.begun[17:19] for one in read_runs(VerifyOutcome, documents, 10)] == ["04", "03", "02"]
    assert len(read_runs(DrillOutcome, documents, 10)) == 1


@pytest.mark.slow
def test_damage_is_passed_over_and_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    store = MemoryStore()
    documents = Documents(store)
    record_run(documents, DRILL, "tests", bytes)
    record_run(documents, replace(DRILL, begun=format_time(BEGUN + 10**9)), "tests", bytes)
    key = next(info.key for info in reversed(list(store.list())))
    whole = store.get(key)
    for length in range(len(whole) - 1):  # the newline may be missing
        put_instead(store, key, whole[:length])
        assert [one.begun for one in read_runs(DrillOutcome, documents, 10)] == [DRILL.begun]
    for place in range(len(whole)):
        put_instead(store, key, whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert [one.begun for one in read_runs(DrillOutcome, documents, 10)] == [DRILL.begun]
    assert f"ignored: {key}" in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        {"backup": "latest"},
        {"code": -1},
        {"nodes": 0},
        {"ended": "yesterday"},
        {"newest_message": 7},
        {"streams": [{"name": "a", "messages": 1, "bytes": 1, "verified": True, "seconds": True}]},
        {"streams": [{"name": "a", "messages": 1, "bytes": 1, "verified": True, "seconds": 1e300}]},
        {"failed": [3]},
        {"format": 2},
        {"required_features": ["new"]},
    ],
)
def test_what_makes_no_sense_is_passed_over(change: JsonObject) -> None:
    store = MemoryStore()
    documents = Documents(store)
    record_run(documents, DRILL, "tests", bytes)
    [info] = store.list()
    value = decode_document(store.get(info.key), "it").value
    put_instead(store, info.key, encode_document({**value, **change}, "it"))
    assert read_runs(DrillOutcome, documents, 10) == []


def test_of_the_same_second_the_later_one_is_newer() -> None:
    documents = Documents(MemoryStore())
    for number, nanoseconds in enumerate((3, 1, 2)):
        outcome = replace(VERIFY, begun=format_time(BEGUN + nanoseconds))
        record_run(documents, outcome, "tests", lambda count, number=number: number.to_bytes(count, "big"))
    assert [one.begun[-4:] for one in read_runs(VerifyOutcome, documents, 9)] == ["003Z", "002Z", "001Z"]


def test_of_very_many_streams_those_that_took_longest_are_told() -> None:
    documents = Documents(MemoryStore())
    streams = tuple(DrilledStream(f"S{number}", 1, 10, True, number / 10) for number in range(1500))
    record_run(documents, replace(DRILL, restored=1500, messages=1500, streams=streams), "tests", bytes)
    [read] = read_runs(DrillOutcome, documents, 1)
    assert (read.restored, read.messages, len(read.streams)) == (1500, 1500, 1000)
    assert [one.name for one in read.streams[:2]] == ["S1499", "S1498"]


def test_what_was_signed_stays_readable_when_the_writer_key_is_replaced() -> None:
    scene = Scene("signed")
    repository = _made(scene)
    record_run(repository.documents, VERIFY, "jsbackup tests", scene.random)
    record_run(repository.documents, DRILL, "jsbackup tests", scene.random)
    assert scene.new_keys is not None
    key, make_valid = replace_writer(
        scene.store,
        repository.descriptor,
        repository.documents,
        None,
        writer_key=scene.new_keys.writer_key,
        created="2026-11-21T02:00:00Z",
        random=lambda count: bytes([7]) * count,
    )
    make_valid()
    documents = Repository.open(scene.store, GivenKeys(key)).documents
    assert (read_runs(VerifyOutcome, documents, 9), read_runs(DrillOutcome, documents, 9)) == ([VERIFY], [DRILL])
