"""Changed copies of streams with many segments: some of them at a time are held, and the backup is the same."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from jsbackup.engine.backup.lease_renewal import hold_lease
from jsbackup.errors import IntegrityError
from jsbackup.pipeline.jobs.changed_copy import make_changed_copy, plan_changed_copy
from jsbackup.pipeline.jobs.job_run import JobRun
from jsbackup.pipeline.session.repository_ref import RepositoryRef, lent, place_of
from jsbackup.pipeline.tasks import packing
from jsbackup.pipeline.tasks.reshape_task import MaskKey
from jsbackup.planning.changed_streams import ChangeOptions
from jsbackup.progress import NullProgress, Progress
from jsbackup.repository.keep.leases import Lease, Mode, Terms
from jsbackup.repository.keep.prune import prune
from jsbackup.repository.layout import SEGMENTS, content_key
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.objects import SegmentRef
from jsbackup.repository.pages.segment_list import SegmentList
from jsbackup.repository.pages.segment_pages import SegmentPages
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Store
from jsbackup.transforms.cut import AtSequence, Cut
from jsbackup.transforms.filters.filters import Filters
from jsbackup.transforms.filters.newest import NewestRule
from jsbackup.transforms.mask import Masks
from jsbackup.transforms.rename import RenameOptions
from jsbackup.transforms.reshape import Reshape
from jsbackup.transforms.subject_map import SubjectMaps
from tests.harness import backups
from tests.harness.backups import CREATED
from tests.harness.batches import Message, some_messages
from tests.harness.small_pages import make_pages_small
from tests.pipeline.places import Kept, keep

WAVE = "jsbackup.pipeline.tasks.packing._MOST_SEGMENTS"
SECRET = b"a secret of the tests"


def _messages(count: int, seed: int = 1) -> list[Message]:
    """With a JSON object each, so that masks have something to do."""
    return [
        one._replace(data=b'{"who": "u%d", "n": "%s"}' % (one.sequence % 5, one.data.hex().encode()))
        for one in some_messages(count, 40, seed=seed)
    ]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of some messages, pages of some segments of which few are kept, and tasks of some segments."""
    make_pages_small(monkeypatch)
    monkeypatch.setattr(SegmentPages, "most_kept", 4)
    monkeypatch.setattr(backups, "SEGMENT_BYTES", 500)
    monkeypatch.setattr(packing, "_LEAST_BYTES", 200_000)


class Counting:
    """Runs tasks here, notes its jobs, and the most references to segments that are held after a task."""

    cores = 1

    def __init__(self) -> None:
        self.jobs: list[str] = []
        self.most = 0

    def run(
        self,
        doing: str,
        tasks: Sequence[Callable[[], Any]],
        *,
        weights: Sequence[int] = (),
        progress: Progress | None = None,
    ) -> Iterator[Any]:
        self.jobs.append(doing)
        progress = progress or NullProgress()
        progress.start(doing, sum(weights), 0)
        for task, weight in zip(tasks, weights, strict=True):
            result = task()
            self.most = max(self.most, _held())
            progress.advance(doing, weight, 0)
            yield result
        progress.finish(doing)


class Watcher:
    """Progress by name: what was announced, and how much of it is left."""

    def __init__(self) -> None:
        self.left: dict[str, int] = {}
        self.calls: list[tuple[str, str]] = []

    def start(self, name: str, total_bytes: int, _messages: int) -> None:
        self.calls.append(("start", name))
        self.left[name] = total_bytes

    def advance(self, name: str, byte_count: int, _messages: int) -> None:
        self.left[name] -= byte_count

    def finish(self, name: str) -> None:
        self.calls.append(("finish", name))

    def expect(self, _totals: object) -> None: ...


def _held() -> int:
    return sum(type(one) is SegmentRef for one in gc.get_objects())


def _kept(folder: Path, streams: dict[str, list[Message]], *, encrypted: bool = False) -> Kept:
    kept = keep(folder, streams, encrypted=encrypted, segment_bytes=4096)
    keys = {**dict(kept.place.keys), **({"writer_key": kept.writer_key} if kept.writer_key else {})}
    return replace(kept, place=place_of(kept.place.location, kept.place.s3, keys))


def _lease(store: Store, mode: Mode = Mode.SHARED) -> AbstractContextManager[Lease]:
    return hold_lease(store, Terms(mode, "copy", "tests", "here", CREATED), wait_seconds=0, waiting=lambda _: None)


@dataclass(frozen=True)
class Transforming:
    """Work: a changed copy with these options."""

    options: ChangeOptions
    key: MaskKey = field(default_factory=MaskKey)

    def __call__(
        self, place: RepositoryRef, repository: Repository, runner: Counting, progress: Any = None
    ) -> Manifest:
        plan = plan_changed_copy(repository.manifest(repository.backups()[-1]), self.options)
        with _lease(repository.store) as lease, lent(place, repository):
            run = JobRun(cast(Any, runner), place, repository, lease, progress, random=lambda count: b"\7" * count)
            made, streams = make_changed_copy(run, plan, place, mask_key=self.key)
        return replace(made, extra={"had": [one.kept.had for one in streams], "notes": [one.notes for one in streams]})


def _made(kept: Kept, to: Path, work: Any, runner: Counting) -> tuple[Manifest, dict[str, bytes]]:
    """What is made of a copy of a repository, and the objects that it then has beside manifests and such."""
    shutil.copytree(kept.place.location, to)
    place = replace(kept.place, location=str(to))
    repository = place.open()
    made = work(place, repository, runner)
    assert made is not None
    stored = repository.manifest(made.id)
    assert stored.streams == made.streams
    for stream in made.streams:
        assert isinstance(stream.segments, SegmentList) or len(stream.segments) <= 2
    objects = {key: repository.store.get(key) for key in _there(repository)}
    return replace(made, id="", created="", ended="", previous=None), objects


def _there(repository: Repository) -> set[str]:
    """The objects of streams."""
    return {info.key for info in repository.store.list(SEGMENTS)}


def _bare(one: Any) -> Any:
    """A segment, or a consumer, without what encryption makes different each time."""
    if isinstance(one, SegmentRef):
        return replace(one, key=content_key(one.key), size=0, sha256="")
    return replace(one, pending=None)


WAYS: dict[str, Reshape] = {
    "filtered": Reshape(filters=Filters(("orders.3", "orders.4"))),
    "mapped": Reshape(maps=SubjectMaps.parse(["orders.>=>old.orders.>"])),
    "masked": Reshape(masks=Masks.parse([">:$.who=hash"])),
    "cut": Reshape(cut=Cut(AtSequence(50))),
    "renumbered": Reshape(renumber=True),
    "renumbered and filtered": Reshape(renumber=True, filters=Filters(("orders.3",))),
    "newest": Reshape(newest=NewestRule(5)),
    "newest, renumbered": Reshape(newest=NewestRule(9), renumber=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_several_waves_make_the_same_backup_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encrypted: bool
) -> None:
    streams = {"A": _messages(500), "B": _messages(40, 2), "C": [], "D": _messages(100, 3)}
    kept = _kept(tmp_path / "kept", streams, encrypted=encrypted)
    (tmp_path / "key").write_bytes(SECRET)
    key = MaskKey((("mask_key_file", str(tmp_path / "key")),))
    renames = RenameOptions.parse(["*=N*"])
    works: dict[str, Any] = {
        name: Transforming(ChangeOptions((), renames, reshape, allow_nothing=True), key)
        for name, reshape in WAYS.items()
    }
    for name in ("filtered", "renumbered", "newest") if encrypted else works:
        work = works[name]
        found = []
        for size in (1 << 20, 12):
            monkeypatch.setattr(WAVE, size)
            runner = Counting()
            made, objects = _made(kept, tmp_path / f"{name} {size}", work, runner)
            if encrypted:  # what is encrypted twice differs
                described: Any = [
                    replace(one, segments=tuple(map(_bare, one.segments)), consumers=tuple(map(_bare, one.consumers)))
                    for one in made.streams
                ]
                made = replace(made, stored_bytes=0)
                stored: Any = {content_key(key) for key in objects if "/page-" not in key}
            else:
                described, stored = made.streams, objects
            found.append((described, replace(made, streams=()), stored, runner))
        assert found[0][:3] == found[1][:3], name
        assert len(found[1][3].jobs) > 4 * len(found[0][3].jobs), name


@pytest.mark.by_turns
@pytest.mark.parametrize(
    "work",
    [
        Transforming(ChangeOptions(reshape=Reshape(maps=SubjectMaps.parse(["orders.>=>old.orders.>"])))),
        Transforming(ChangeOptions(reshape=Reshape(renumber=True, filters=Filters(("orders.3", "orders.5"))))),
        Transforming(ChangeOptions(reshape=Reshape(newest=NewestRule(100)))),
    ],
    ids=["map", "renumber", "newest"],
)
def test_segments_are_held_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Any) -> None:
    monkeypatch.setattr(WAVE, 20)
    kept = _kept(tmp_path / "kept", {"A": _messages(1500)})
    count = len(kept.manifest.streams[0].segments)
    place = kept.place
    del kept
    gc.collect()
    before, runner = _held(), Counting()
    assert count > 400 and work(place, place.open(), runner) is not None
    assert 0 < runner.most - before < 160


def test_what_fails_in_a_later_wave_leaves_nothing_half_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WAVE, 20)
    kept = _kept(tmp_path / "kept", {"A": _messages(700)})
    refs = kept.manifest.streams[0].segments
    kept.repository.store.delete(refs[len(refs) // 2].key)
    repository, runner = kept.place.open(), Counting()
    before = _there(repository)
    maps = SubjectMaps.parse(["orders.>=>old.orders.>"])
    work = Transforming(ChangeOptions(reshape=Reshape(maps=maps)))
    with pytest.raises(IntegrityError, match="missing"):
        work(kept.place, repository, runner)
    assert len(runner.jobs) > 3
    assert repository.backups() == [kept.manifest.id]
    assert _there(repository) > before  # segments and pages of the waves before; nothing names them
    prune(
        repository,
        lambda mode: _lease(repository.store, mode),
        grace_seconds=0,
        tool="tests",
        random=lambda count: b"\7" * count,
    )
    assert _there(repository) == before


def test_progress_of_all_waves_is_that_of_one_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WAVE, 20)
    kept = _kept(tmp_path / "kept", {"A": _messages(400)})
    maps = SubjectMaps.parse(["orders.>=>old.orders.>"])
    work = Transforming(ChangeOptions(reshape=Reshape(maps=maps)))
    watcher, runner = Watcher(), Counting()
    assert work(kept.place, kept.place.open(), runner, watcher) is not None
    name = "the copy"
    assert runner.jobs.count(name) > 3
    assert [call for call in watcher.calls if call[1] == name] == [("start", name), ("finish", name)]
    assert watcher.left[name] == 0
