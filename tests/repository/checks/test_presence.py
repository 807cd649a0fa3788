"""A look at stored objects finds what can be found without reading them, with few requests."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from jsbackup.repository import layout
from jsbackup.repository.checks.ledger import remember_damaged
from jsbackup.repository.checks.verify import Level, Problem, ProblemKind, find_absent, verify_backup
from jsbackup.repository.manifest import Manifest, objects_named, total_of
from jsbackup.repository.objects import Objects, SegmentRef, folder_of, id_of
from jsbackup.repository.repository import Repository
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import FIRST, make_repository
from tests.harness.counting import CountingStore
from tests.harness.damage import DAMAGES, flip, put_instead, store_restorable
from tests.harness.small_pages import make_pages_small


def _look(objects: Objects, manifest: Manifest) -> list[Problem]:
    return list(find_absent(objects, manifest))


@pytest.mark.by_turns
@pytest.mark.slow
@pytest.mark.parametrize("paged", [False, True])
def test_it_finds_what_verify_finds_at_level_manifest(paged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if paged:
        make_pages_small(monkeypatch)
    store = MemoryStore()
    store_restorable(make_repository(store), FIRST)
    manifest = Repository.open(store).manifest(FIRST)
    assert _look(Objects(store), manifest) == []
    keys = sorted(objects_named(manifest))
    assert any("/page-" in key for key in keys) is paged
    found = Counter[str]()
    for key in keys:
        whole = store.get(key)
        for damage, left in DAMAGES.items():
            put_instead(store, key, left(whole))
            repository = Repository.open(store)
            objects = Objects(store)
            problems = _look(objects, repository.manifest(FIRST))
            verified = verify_backup(Objects(store), repository.manifest(FIRST), Level.MANIFEST)
            # Of a page of another size verify says that, and not that it has changed.
            assert [replace(one, problem="") for one in problems] == [replace(one, problem="") for one in verified]
            found[damage] += len(problems) > 0
            assert bool(objects.found_damaged) is bool(problems)
            put_instead(store, key, whole)
    for damage in ("missing", "empty", "truncated", "longer"):
        assert found[damage] == len(keys)


def test_what_was_found_damaged_before_is_read_and_nothing_else() -> None:
    store = MemoryStore()
    repository = make_repository(store)
    manifest = store_restorable(repository, FIRST)
    first, second = manifest.streams[1].segments[:2]
    right = store.get(first.key)
    put_instead(store, first.key, flip(right))
    damaged = {id_of(ref): folder_of(ref) for ref in (first, second)}  # the second one was put right since
    remember_damaged(repository.documents, damaged, now_seconds=9, tool="t", random=lambda count: b"x" * count)
    watched = CountingStore(store)
    problems = _look(Repository.open(watched).objects, manifest)
    assert [one.key for one in problems] == [first.key]
    assert {key for key in watched.read_bytes if key.startswith(layout.SEGMENTS)} == {first.key, second.key}
    put_instead(store, first.key, right)
    assert _look(repository.objects, manifest) == []


def test_a_manifest_that_contradicts_itself_is_found() -> None:
    store = MemoryStore()
    manifest = store_restorable(make_repository(store), FIRST)
    stream = manifest.streams[1]
    wrong = replace(stream, captured=replace(stream.captured, messages=1))
    (problem,) = _look(Objects(store), replace(manifest, streams=(wrong,)))
    assert problem.kind is ProblemKind.INCONSISTENT


class _Folder(MemoryStore):
    """A stream of many segments, of which there are only names."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.refs = [
            SegmentRef(
                f"segments/S-00000000/{number * 10 + 1:020}-{number * 10 + 10:020}-00.parquet",
                first_seq=number * 10 + 1,
                last_seq=number * 10 + 10,
                messages=10,
                bytes=100,
                min_ns=1,
                max_ns=2,
                size=1,
                sha256="",
                digest="",
                fingerprint=total_of(()).digest,
            )
            for number in range(count)
        ]
        for ref in self.refs:
            self.put(ref.key, b"x")


def test_it_lists_a_few_objects_and_hardly_any_beside_them() -> None:
    folder = _Folder(20_000)
    stream = store_restorable(make_repository(MemoryStore()), FIRST).streams[1]

    def requests(refs: list[SegmentRef]) -> Counter[str]:
        store, total = CountingStore(folder), total_of(refs)
        captured = replace(
            stream.captured,
            messages=total.messages,
            bytes=total.bytes,
            first_seq=total.first_seq,
            last_seq=total.last_seq,
        )
        of = replace(stream, segments=tuple(refs), consumers=(), captured=captured, digest=total.digest)
        manifest = Manifest(FIRST, stream.created, "t", source=None, result=None, streams=(of,))  # type: ignore[arg-type]
        assert _look(Objects(store), manifest) == []
        return store.requests

    assert requests(folder.refs) == {"list": 20}
    assert requests(folder.refs[5000:5010]) == {"list": 1}
    assert requests(folder.refs[1200:1290]) == {"list": 1}
    assert requests(folder.refs[:1]) == {"list": 1}
