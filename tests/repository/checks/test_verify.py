"""Damage of every kind to every kind of object is found by the level that promises to, and nothing else is accused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from jsbackup.errors import StoreError
from jsbackup.repository import layout
from jsbackup.repository.checks.verify import (
    Level,
    ObjectFlaw,
    Problem,
    ProblemKind,
    check_manifest,
    check_object,
    verify_backup,
)
from jsbackup.repository.layout import ObjectKind
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.objects import AnyRef, Objects
from jsbackup.stores.base import Store
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import make_repository, store_backup
from tests.harness.stores import Fault, FaultStore

LEVELS = list(Level)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def manifest(store: MemoryStore) -> Manifest:
    return store_backup(make_repository(store))


def problems_of(store: Store, manifest: Manifest, level: Level) -> list[Problem]:
    return list(verify_backup(Objects(store), manifest, level))


def replace_object(store: Store, key: str, data: bytes) -> None:
    store.delete(key)
    store.put(key, data)


@pytest.mark.parametrize("level", LEVELS)
def test_a_sound_backup_has_no_problems(store: MemoryStore, manifest: Manifest, level: Level) -> None:
    assert problems_of(store, manifest, level) == []


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], Level, ProblemKind]] = {
    "emptied": (lambda data: b"", Level.MANIFEST, ProblemKind.DAMAGED),
    "truncated": (lambda data: data[:-1], Level.MANIFEST, ProblemKind.DAMAGED),
    "longer": (lambda data: data + b"\0", Level.MANIFEST, ProblemKind.DAMAGED),
    "flipped": (flip, Level.OBJECTS, ProblemKind.DAMAGED),
    "zeroed": (lambda data: bytes(len(data)), Level.OBJECTS, ProblemKind.DAMAGED),
    "foreign": (lambda data: b"x" * len(data), Level.OBJECTS, ProblemKind.DAMAGED),
}


def keys_of_kind(store: MemoryStore, kind: ObjectKind) -> list[str]:
    keys = [info.key for info in store.list() if layout.kind_of(info.key) is kind]
    assert keys
    return keys


@pytest.mark.parametrize("kind", [ObjectKind.SEGMENT, ObjectKind.PENDING, ObjectKind.OPAQUE])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_from_its_level_on(
    store: MemoryStore, manifest: Manifest, kind: ObjectKind, damage: str
) -> None:
    change, found_at, problem_kind = DAMAGES[damage]
    key = keys_of_kind(store, kind)[-1]
    replace_object(store, key, change(store.get(key)))
    for level in LEVELS:
        problems = problems_of(store, manifest, level)
        if LEVELS.index(level) < LEVELS.index(found_at):
            assert problems == []
        else:
            assert [(problem.kind, problem.key) for problem in problems] == [(problem_kind, key)]
            assert key in problems[0].problem


@pytest.mark.parametrize("kind", [ObjectKind.SEGMENT, ObjectKind.PENDING, ObjectKind.OPAQUE])
@pytest.mark.parametrize("level", LEVELS)
def test_a_missing_object_is_found_by_every_level(
    store: MemoryStore, manifest: Manifest, kind: ObjectKind, level: Level
) -> None:
    for key in keys_of_kind(store, kind):
        data = store.get(key)
        store.delete(key)
        (problem,) = problems_of(store, manifest, level)
        assert (problem.kind, problem.key) == (ProblemKind.MISSING, key)
        store.put(key, data)


def test_swapped_segments_are_found(store: MemoryStore, manifest: Manifest) -> None:
    one, other = manifest.streams[0].segments[:2]
    data = store.get(one.key), store.get(other.key)
    replace_object(store, one.key, data[1])
    replace_object(store, other.key, data[0])
    for level in (Level.OBJECTS, Level.DATA):
        assert [problem.key for problem in problems_of(store, manifest, level)] == [one.key, other.key]


def test_a_problem_names_what_is_lost(store: MemoryStore, manifest: Manifest) -> None:
    ref = manifest.streams[0].segments[1]
    store.delete(ref.key)
    (problem,) = problems_of(store, manifest, Level.MANIFEST)
    assert problem == Problem(
        ProblemKind.MISSING,
        "orders",
        ref.key,
        f"object {ref.key} is missing",
        ref.first_seq,
        ref.last_seq,
        ref.messages,
    )


def test_every_problem_is_given_and_in_order(store: MemoryStore, manifest: Manifest) -> None:
    keys = [ref.key for ref in manifest.streams[0].segments]
    for key in keys:
        replace_object(store, key, flip(store.get(key)))
    for threads in (1, 2, 8):
        found = [problem.key for problem in verify_backup(Objects(store), manifest, Level.DATA, threads=threads)]
        assert found == keys


# --- a segment whose object is what the manifest says, and whose messages are not ---


def with_segment(manifest: Manifest, **changes: object) -> Manifest:
    """The manifest with its first segment described otherwise, and all its totals as before."""
    stream = manifest.streams[0]
    ref = replace(stream.segments[0], **changes)  # type: ignore[arg-type]
    return replace(manifest, streams=(replace(stream, segments=(ref, *stream.segments[1:])), *manifest.streams[1:]))


@pytest.mark.parametrize("change", ["digest", "messages"])
def test_messages_that_are_not_those_named_are_found_by_level_data(
    store: MemoryStore, manifest: Manifest, change: str
) -> None:
    ref = manifest.streams[0].segments[0]
    lie = with_segment(manifest, **{change: "0" * 64 if change == "digest" else ref.messages + 1})
    problems = [p for p in problems_of(store, lie, Level.DATA) if p.kind is ProblemKind.DAMAGED]
    assert [problem.key for problem in problems] == [ref.key]
    assert "which are not the" in problems[0].problem
    assert all(p.kind is ProblemKind.INCONSISTENT for p in problems_of(store, lie, Level.OBJECTS))


# --- a manifest that contradicts itself ---


def test_a_manifest_that_contradicts_itself_is_found_by_every_level(store: MemoryStore, manifest: Manifest) -> None:
    stream = manifest.streams[0]
    first, second, *rest = stream.segments
    lies = {
        "do not add up to what was captured": replace(stream, captured=replace(stream.captured, messages=1)),
        "do not match the digest of the stream": replace(stream, digest=first.fingerprint),
        "begins before the previous one ends": replace(stream, segments=(second, first, *rest)),
        "has more messages than sequences": replace(stream, segments=(replace(first, messages=10**6), second, *rest)),
    }
    for says, lie in lies.items():
        wrong = replace(manifest, streams=(lie, *manifest.streams[1:]))
        for level in LEVELS:
            problems = problems_of(store, wrong, level)
            assert [p.stream for p in problems if says in p.problem and p.kind is ProblemKind.INCONSISTENT] == [
                "orders"
            ]
            assert problems[0].key == layout.manifest_key(manifest.id)
    assert check_manifest(manifest) == []


# --- fails closed ---


def test_a_store_that_cannot_be_listed_is_an_error_not_a_pass(store: MemoryStore, manifest: Manifest) -> None:
    for level in LEVELS:
        with pytest.raises(StoreError, match="injected"):
            problems_of(FaultStore(store, Fault.LOSE_ANSWER, at=1), manifest, level)


@pytest.mark.parametrize("level", [Level.OBJECTS, Level.DATA])
def test_an_object_that_cannot_be_read_is_a_problem(store: MemoryStore, manifest: Manifest, level: Level) -> None:
    watched = FaultStore(store)
    problems_of(watched, manifest, level)
    reads = [number for number, (operation, _) in enumerate(watched.log, 1) if operation == "get_range"]
    assert len(reads) == len(list(store.list("segments/")))
    for number in reads:
        faulty = FaultStore(store, Fault.FAIL, at=number)
        (problem,) = verify_backup(Objects(faulty), manifest, level, threads=1)
        assert (problem.kind, problem.key) == (ProblemKind.UNREADABLE, watched.log[number - 1][1])


def test_an_object_that_goes_after_the_listing_is_missing(store: MemoryStore, manifest: Manifest) -> None:
    key = manifest.streams[0].segments[0].key

    def remove(operation: str, asked: str) -> None:
        if (operation, asked) == ("get_range", key):
            store.delete(key)

    (problem,) = verify_backup(Objects(FaultStore(store, before=remove)), manifest, Level.OBJECTS)
    assert (problem.kind, problem.key) == (ProblemKind.MISSING, key)


def test_a_read_that_is_cut_short_is_no_pass(store: MemoryStore, manifest: Manifest) -> None:
    cutting = FaultStore(store, Fault.TRUNCATE, at=1, times=10**6)
    assert len(problems_of(cutting, manifest, Level.OBJECTS)) == len(list(store.list("segments/")))


# --- what it costs, what it tells ---


def test_level_manifest_is_one_listing_per_stream(store: MemoryStore, manifest: Manifest) -> None:
    watched = FaultStore(store)
    problems_of(watched, manifest, Level.MANIFEST)
    assert [operation for operation, _ in watched.log] == ["list", "list"]


def test_threads_run_a_few_objects_ahead_and_no_more(store: MemoryStore, manifest: Manifest) -> None:
    """So that memory is bounded by the threads, not by the backup."""
    watched = FaultStore(store)
    segments = manifest.streams[0].segments
    replace_object(store, segments[0].key, flip(store.get(segments[0].key)))
    others = set(threading.enumerate())  # of earlier tests
    problems = verify_backup(Objects(watched), manifest, Level.DATA, threads=2)
    next(problems)
    problems.close()  # type: ignore[attr-defined]
    assert watched.operations <= 1 + 5
    assert not [one for one in set(threading.enumerate()) - others if one.name.startswith("tasks")]


class Recorder:
    def __init__(self) -> None:
        self.running: dict[str, list[int]] = {}
        self.finished: list[str] = []

    def start(self, name: str, total_bytes: int, total_messages: int) -> None:
        self.running[name] = [total_bytes, total_messages]

    def advance(self, name: str, byte_count: int, messages: int) -> None:
        self.running[name][0] -= byte_count
        self.running[name][1] -= messages

    def finish(self, name: str) -> None:
        self.finished.append(name)


@pytest.mark.parametrize("level", LEVELS)
def test_progress_comes_to_what_was_announced(store: MemoryStore, manifest: Manifest, level: Level) -> None:
    store.delete(manifest.streams[0].segments[0].key)
    recorder = Recorder()
    assert len(list(verify_backup(Objects(store), manifest, level, progress=recorder))) == 1
    assert recorder.finished == ([] if level is Level.MANIFEST else ["orders", "verbatim"])
    assert recorder.running == {name: [0, 0] for name in recorder.finished}


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("held", [1, 2, 3])
def test_a_long_stream_is_looked_through_in_parts(
    store: MemoryStore, manifest: Manifest, held: int, level: Level, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a checker does the work, which never gets more at a time."""
    objects, recorder, numbers = Objects(store), Recorder(), list[int]()

    def checker(refs: Sequence[AnyRef], level: Level) -> Iterator[ObjectFlaw | None]:
        numbers.append(len(refs))
        return (check_object(objects, ref, level) for ref in refs)

    keys = [ref.key for ref in manifest.refs]
    for key in keys[::3]:
        store.delete(key)
    for key in keys[1::3]:
        replace_object(store, key, flip(store.get(key)))
    whole = problems_of(store, manifest, level)
    assert {problem.key for problem in whole} == {*keys[::3], *(keys[1::3] if level is not Level.MANIFEST else ())}
    monkeypatch.setattr("jsbackup.repository.checks.verify._MOST_REFS", held)
    monkeypatch.setattr("jsbackup.repository.checks.verify._MOST_REFS_ELSEWHERE", 2)
    work = checker if elsewhere else None
    assert list(verify_backup(objects, manifest, level, progress=recorder, checker=work)) == whole
    assert all(left == [0, 0] for left in recorder.running.values())
    if elsewhere and level is not Level.MANIFEST:
        assert len(numbers) > 1 and max(numbers) < 2 + held and recorder.finished == []
