"""No command makes damage worse: what could be restored before it can be restored after it.

Random histories of two repositories that copy from each other. Between commands, stored objects vanish or have a bit
flipped. After each command the oracle looks at the bytes themselves: an object is right if it has the SHA-256 that the
backup names. `JSBACKUP_TEST_HISTORIES=500` makes so many of each kind, `JSBACKUP_TEST_SEED=7` others. A failure says
the steps that led to it.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from jsbackup.errors import JsBackupError, ObjectNotFound, RepositoryLocked
from jsbackup.progress import NullProgress
from jsbackup.repository import layout
from jsbackup.repository.checks.verify import Level
from jsbackup.repository.checks.verify_run import VerifyRun
from jsbackup.repository.crypto.access import NO_KEYS, GivenKeys
from jsbackup.repository.keep.leases import Mode
from jsbackup.repository.layout import ObjectKind
from jsbackup.repository.objects import PageRef, SegmentRef
from jsbackup.repository.pages.segment_list import BrokenPage
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.repair import read_sound_part
from jsbackup.repository.write.repair_run import RepairRun
from jsbackup.stores.base import Store
from jsbackup.stores.local import LocalStore
from jsbackup.stores.s3 import S3Store
from tests.harness.backups import CREATED
from tests.harness.damage import put_instead
from tests.harness.history import IDENTITY, Scene, back_up, copy, forget, initialise, prune_now
from tests.harness.inline import run_inline
from tests.harness.s3server import BUCKET, S3Server
from tests.harness.small_pages import make_pages_small, make_stream_pages_small
from tests.stores.s3_bench import settings_of

ROUNDS = int(os.environ.get("JSBACKUP_TEST_HISTORIES", "0"))
SEED = os.environ.get("JSBACKUP_TEST_SEED", "1")
STEPS = 40

REPLICA = "replica"
PAIRS = [
    ("plain", "plain"),
    ("encrypted", REPLICA),
    ("encrypted", "encrypted"),
    ("signed", REPLICA),
    ("plain", "encrypted"),
]

# What a history may lose. Without the others nothing can be opened, or nobody knows who is at work.
SPARED = {ObjectKind.DESCRIPTOR, ObjectKind.LEASE, ObjectKind.IDENTITY, ObjectKind.READERS, ObjectKind.WRITER}

Restorable = dict[str, tuple[frozenset[tuple[str, str]], bool]]
"""What can be restored of each backup (stream, and what of it), and whether that is all, by its id."""


def restorable(scene: Scene) -> Restorable:
    repository = reader(scene)
    found: Restorable = {}
    for backup in repository.backups():
        try:
            manifest = read_sound_part(repository, backup)
        except JsBackupError:
            found[backup] = frozenset[tuple[str, str]](), False
            continue
        right, whole = set[tuple[str, str]](), not manifest.unlisted
        for stream in manifest.streams:
            beside = 0  # segments
            for ref in stream.walk():
                beside += not isinstance(ref, SegmentRef | PageRef | BrokenPage)
                if isinstance(ref, BrokenPage) or sha256_in(scene.store, ref.key) != ref.sha256:
                    whole = False
                elif not isinstance(ref, PageRef):
                    right.add((stream.name, ref.digest if isinstance(ref, SegmentRef) else str(beside)))
        found[backup] = frozenset(right), whole
    return found


def sha256_in(store: Store, key: str) -> str:
    try:
        return hashlib.sha256(store.get(key)).hexdigest()
    except ObjectNotFound:
        return ""


def reader(scene: Scene) -> Repository:
    keys = GivenKeys(identities=(IDENTITY,)) if scene.kind == "encrypted" else NO_KEYS
    return Repository.open(scene.store, keys)


class History:
    """Two repositories, and what was done."""

    def __init__(self, pair: tuple[str, str], chance: random.Random, stores: Sequence[Store] = ()) -> None:
        self.chance = chance
        self.done: list[str] = []
        self.scenes = one, other = Scene(pair[0], "0a"), Scene(pair[0] if pair[1] == REPLICA else pair[1], "0b00")
        self.by_the_clock = bool(stores)
        for scene, store in zip(self.scenes, stores, strict=False):
            scene.store = store
        self._set_clocks()
        initialise(one, one.store)
        if pair[1] == REPLICA:
            other.new_keys = one.new_keys
            Repository.create_replica(other.store, one.open(), probe_id="7a", created=CREATED, tool="tests")
        else:
            initialise(other, other.store)
        self.ends = [30, 30]
        self.number = 0
        self.known = [False, False]  # whether all damage is recorded
        self.back_up(0)

    def _set_clocks(self) -> None:
        for scene in self.scenes:
            scene.now = time.time() if self.by_the_clock else scene.now + self.chance.choice([1, 60, 90_000])

    def step(self) -> None:
        at = self.chance.randrange(2)
        here, there = self.scenes[at], self.scenes[1 - at]
        steps: dict[str, tuple[int, Callable[[], object]]] = {
            "damage": (6, lambda: self.damage(here)),
            "backup": (5, lambda: self.back_up(at)),
            "copy": (3, lambda: copy(here, here.store, there, there.store)),
            "repair": (4, lambda: self.repair(here, there)),
            "verify": (3, lambda: self.verify(here)),
            "forget": (1, lambda: forget(here, here.store, self.chance.randrange(2, 6))),
            "prune": (1, lambda: prune_now(here, here.store)),
        }
        (name,) = self.chance.choices([*steps], [weight for weight, _ in steps.values()])
        self.done.append(f"{name} {'AB'[at]}")
        before = [restorable(scene) for scene in self.scenes]
        try:
            said = steps[name][1]()
        except (JsBackupError, RepositoryLocked) as error:
            said = f"{type(error).__name__}: {error}"
        self.done[-1] += f" ({str(said)[:300]})"
        if name in ("damage", "verify"):
            self.known[at] = name == "verify" and isinstance(said, int)
        if name == "damage":
            return
        for letter, scene, was, known in zip("AB", self.scenes, before, self.known, strict=True):
            now = restorable(scene)
            if known and name == "backup":  # a copy reads only the ends of what it finds
                assert all(now[backup][1] for backup in now.keys() - was.keys()), f"{letter}: builds on known damage"
            for backup in was.keys() & now.keys():
                lost = was[backup][0] - now[backup][0]
                assert not lost, f"{letter}: {backup} lost {lost}"
                assert now[backup][1] or not was[backup][1], f"{letter}: {backup} was whole"
            if name != "forget":
                assert was.keys() <= now.keys(), f"{letter}: backups are gone"
        self._set_clocks()

    def damage(self, scene: Scene) -> str:
        spared = [info.key for info in scene.store.list() if layout.kind_of(info.key) not in SPARED]
        # Each kind of object as often as the others: there are far more segments.
        kinds = sorted({layout.kind_of(key).name for key in spared})
        hurt = []
        for _ in range(self.chance.choice([1, 1, 2, 4])):
            kind = self.chance.choice([*kinds, *["SEGMENT"] * 4])
            keys = [key for key in spared if layout.kind_of(key).name == kind]
            if not keys:
                continue
            key = self.chance.choice(keys)
            with suppress(ObjectNotFound):
                data = bytearray(scene.store.get(key))
                if not data or self.chance.random() < 0.5:
                    scene.store.delete(key)
                    hurt.append(f"lost {key}")
                else:
                    data[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
                    put_instead(scene.store, key, bytes(data))
                    hurt.append(f"flipped {key}")
        return ", ".join(hurt)

    def back_up(self, at: int) -> str:
        scene, self.number = self.scenes[at], self.number + 1
        self.ends[at] += self.chance.choice([0, 0, 3, 10])
        begin = self.chance.choice([0, 0, 0, 5, 12])
        return back_up(
            scene, scene.store, (begin, self.ends[at]), backup=f"20261121T{self.number:06}Z-{self.number:06}"
        ).id

    def repair(self, here: Scene, there: Scene) -> str:
        keys = GivenKeys(here.new_keys.writer_key) if here.new_keys else NO_KEYS
        repository = Repository.open(here.store, keys)
        with here.lease(here.store, Mode.SHARED, "repair"):
            report = RepairRun(
                repository,
                repository.backups(),
                NullProgress(),
                lambda: here.now,
                here.random,
                keys=keys,
                other=there.store,
                check=self.chance.random() < 0.5,
            ).carry_out()
        return f"{report.mended} mended, {report.lost_keys} lost"

    def verify(self, scene: Scene) -> int:
        """Return the number of problems."""
        keys = GivenKeys(scene.new_keys.writer_key, (IDENTITY,)) if scene.new_keys else NO_KEYS
        repository = Repository.open(scene.store, keys if scene.kind == "encrypted" else GivenKeys(keys.writer))
        run = VerifyRun(
            repository,
            repository.backups(),
            Level.DATA,
            whole=True,
            begun_ns=int(scene.now * 1e9),
            clock_ns=lambda: int(scene.now * 1e9),
            random=scene.random,
            note=lambda text: None,
        )
        report = run.check(run.find_gaps(None), run.find_flaws(), progress=NullProgress())
        run.record(report, part=False)
        whole = {backup for backup, (_, well) in restorable(scene).items() if well}
        said = {one.backup for one in report.backups if not one.problems}
        assert said == whole, f"verify said {said}, and whole are {whole}"
        return report.problems


def run(pair: tuple[str, str], seed: str, stores: Sequence[Store] = (), steps: int = STEPS) -> None:
    history = History(pair, random.Random(seed), stores)
    try:
        for _ in range(steps):
            history.step()
    except BaseException as error:
        told = "\n".join(f"{number}. {step}" for number, step in enumerate(history.done, 1))
        error.add_note(f"{pair} {seed!r}\n{told}")
        raise


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    run_inline(monkeypatch)
    make_pages_small(monkeypatch)
    make_stream_pages_small(monkeypatch)


@pytest.mark.explore
@pytest.mark.slow
@pytest.mark.by_turns
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_what_was_whole_before_a_command_is_whole_after_it(pair: tuple[str, str]) -> None:
    for number in range(ROUNDS or 6):
        run(pair, f"{SEED} {number}")


@pytest.mark.parametrize("pair", PAIRS[:3], ids="-".join)
def test_so_it_is_in_folders(pair: tuple[str, str], tmp_path: Path) -> None:
    for number in range(ROUNDS or 1):
        stores = LocalStore(tmp_path / f"{number}-a"), LocalStore(tmp_path / f"{number}-b")
        run(pair, f"folder {SEED} {number}", stores, steps=25)


@pytest.mark.parametrize("pair", PAIRS[1:3], ids="-".join)
def test_so_it_is_on_s3(pair: tuple[str, str], s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in S3Server.credentials().items():
        monkeypatch.setenv(name, value)
    for number in range(ROUNDS or 1):
        places = (f"histories/{'-'.join(pair)}/{number}-{name}" for name in "ab")
        run(pair, f"s3 {SEED} {number}", [S3Store(BUCKET, one, settings_of(s3_server.url)) for one in places], steps=15)
