"""Stopped at every single store operation: what was committed stays, what was not is invisible, a rerun succeeds, and
prune removes exactly what no backup names.

No sample: each command is run once for every operation it takes, and stops there in each of three ways. Only in an
encrypted repository, which has the same operations and takes four times as long, it is every second one. Afterwards
comes what a user does: look, run it again, prune.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import pytest

from jsbackup.errors import FormatError, RepositoryLocked, RepositoryNotFound, StoreError
from jsbackup.repository import inventory, layout
from jsbackup.repository.checks.verify import Level, verify_backup
from jsbackup.repository.keep.holds import Hold, put_hold
from jsbackup.repository.keep.leases import Mode
from jsbackup.repository.layout import ObjectKind
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.objects import Objects
from jsbackup.repository.repository import Repository
from jsbackup.repository.write import receipts
from jsbackup.stores.base import Store
from jsbackup.stores.local import LocalStore
from jsbackup.stores.memory import MemoryStore
from jsbackup.stores.retry import RetryingStore
from tests.harness.backups import CREATED, SECOND, make_repository, store_backup
from tests.harness.history import (
    KINDS,
    Scene,
    back_up,
    copy,
    forget,
    initialise,
    initialise_and_back_up,
    prune_now,
)
from tests.harness.inline import run_inline
from tests.harness.small_pages import make_pages_small, make_stream_pages_small
from tests.harness.stores import Fault, FaultStore, Killed

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DAY = 86_400.0

Command = Callable[[Scene, Store], object]

# Killed before operation n is killed after operation n - 1, as far as the store can tell.
STOPS = [Fault.KILL_AFTER, Fault.FAIL, Fault.LOSE_ANSWER]
ONCE = [Fault.FAIL, Fault.LOSE_ANSWER]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream of all these backups has pages, of several levels, and each stream is in a page of streams."""
    run_inline(monkeypatch)
    make_pages_small(monkeypatch)
    make_stream_pages_small(monkeypatch)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog is due with every other backup, and a receipt with every segment; and one thread, so that the n-th
    operation is always the same.
    """
    monkeypatch.setattr(inventory, "_MOST_UNCOVERED", 1)
    monkeypatch.setattr(receipts, "_EVERY_BYTES", 1)
    monkeypatch.setattr(inventory, "_THREADS", 1)


@cache
def with_backups(kind: str) -> Scene:
    """Four backups, the second of them held. A catalog covers most."""
    scene = Scene(kind)
    for span in ((0, 40), (4, 60), (10, 60), (10, 70)):
        initialise_and_back_up(scene, scene.store, span)
        scene.now += 60
    repository = scene.open()
    put_hold(repository, Hold(repository.backups()[1], CREATED))
    assert {ObjectKind.PAGE, ObjectKind.STREAM_PAGE} <= {layout.kind_of(key) for key in scene.content()}
    return scene


@cache
def with_orphans(kind: str) -> Scene:
    """The same after a `forget`, and after a backup that was killed when it was to commit."""
    scene = with_backups(kind).copy()
    forget(scene, scene.store, 2)
    forgotten = scene.content() - scene.named()

    def kill(operation: str, key: str) -> None:
        if operation == "put" and key.startswith(layout.BACKUPS):
            raise Killed

    with pytest.raises(Killed):
        back_up(scene, FaultStore(scene.store, before=kill), (15, 90))
    scene.outlive_leases()
    assert forgotten and scene.content() - scene.named() > forgotten
    return scene


@cache
def with_marks(kind: str) -> Scene:
    """The same, with marks of a prune whose grace period is over."""
    scene = with_orphans(kind).copy()
    prune_now(scene, scene.store, DAY)
    scene.now += DAY + 1
    return scene


COMMANDS: dict[str, tuple[Callable[[str], Scene], Command]] = {
    "first backup": (Scene, partial(initialise_and_back_up, span=(0, 40))),
    "backup": (with_backups, partial(back_up, span=(15, 90))),
    "forget": (with_backups, partial(forget, last=2)),
    "prune": (with_orphans, partial(prune_now)),
    "prune, marking": (with_orphans, partial(prune_now, grace_seconds=DAY)),
    "prune, deleting what is marked": (with_marks, partial(prune_now, grace_seconds=DAY)),
}


def operations(scene: Scene, command: Command) -> int:
    watched = FaultStore(scene.store)
    command(scene, watched)
    return watched.operations


def backups_in(scene: Scene) -> set[str]:
    try:
        return set(scene.assert_sound())
    except RepositoryNotFound:
        return set()


def segments_of(scene: Scene) -> set[str]:
    return {key for key in scene.content() if layout.kind_of(key) is ObjectKind.SEGMENT}


def assert_prunes_exactly(scene: Scene) -> None:
    """Not before the leases of the dead have ended; and then all that nobody names. The scene stays as it is.

    Commands that were stopped at different operations and run again often end in the same state.
    """
    state = scene.state()
    if state not in _pruned:
        _assert_prunes_exactly(scene.copy())
        _pruned.add(state)


_pruned: set[bytes] = set()


def _assert_prunes_exactly(scene: Scene) -> None:
    backups = backups_in(scene)
    before, named = scene.content(), scene.named()
    if scene.live_leases() and before > named:
        with pytest.raises(RepositoryLocked):
            prune_now(scene, scene.store)
        assert scene.content() == before
    scene.now += DAY + 1  # ends leases, and makes what is left of an `init` old
    report = prune_now(scene, scene.store)
    assert scene.content() == named <= before
    assert report.deleted_objects == len(before - named)
    assert not {layout.kind_of(info.key) for info in scene.store.list()} & {
        ObjectKind.LEASE,
        ObjectKind.MARKS,
        ObjectKind.PROBE,
        ObjectKind.RECEIPT,
    }
    assert backups_in(scene) == backups


def again(scene: Scene, command: Command, *, deletes: bool) -> None:
    """At once, whatever leases are left: only what deletes has to wait for all of them, and all for what deletes."""
    leases = scene.live_leases()
    try:
        command(scene, scene.store)
    except RepositoryLocked:
        assert Mode.EXCLUSIVE in leases or (leases and deletes)
        scene.outlive_leases()
        command(scene, scene.store)


def assert_was_not_needed(bad: FaultStore, fault: Fault, at: int) -> None:
    """A command that was not killed has needed fewer operations than before: threads share what they know of the
    store, and renewals of leases depend on the time.
    """
    assert fault is not Fault.KILL_AFTER or bad.operations < at


def places(number: int, kind: str) -> range:
    """The operations, of so many, at which a command is stopped."""
    return range(1, number + 1, 1 if kind == "plain" else 2)


def cases(kinds: dict[str, list[Fault]]) -> list[tuple[str, Fault]]:
    return [(kind, fault) for kind, faults in kinds.items() for fault in faults]


@pytest.mark.by_turns
@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(("kind", "fault"), cases({"plain": STOPS, "encrypted": STOPS[:1]}))
@pytest.mark.parametrize("name", COMMANDS)
def test_stopped_at_any_operation_it_harms_nothing_and_a_rerun_succeeds(name: str, kind: str, fault: Fault) -> None:
    make, command = COMMANDS[name]
    before, whole = make(kind).copy(), make(kind).copy()
    number = operations(whole, command)
    was, becomes = backups_in(before), backups_in(whole)
    for at in places(number, kind):
        scene = before.copy()
        bad = FaultStore(scene.store, fault, at=at)
        # `RepositoryLocked`: its own first lease could not be given up.
        with suppress(Killed, StoreError, RepositoryLocked):
            command(scene, bad)
            assert_was_not_needed(bad, fault, at)
        there = backups_in(scene)
        assert was & becomes <= there <= was | becomes
        again(scene, command, deletes=name.startswith("prune"))
        assert backups_in(scene) >= becomes
        if there == was and kind != "encrypted":
            assert scene.content() == whole.content()
        elif there == was:  # nobody can tell what is in objects of which no receipt has come
            assert len(segments_of(scene)) <= len(segments_of(whole)) + 1
        assert_prunes_exactly(scene)


@pytest.mark.by_turns
@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(("kind", "fault"), cases({"plain": ONCE[:1], "encrypted": ONCE[1:]}))
@pytest.mark.parametrize("name", COMMANDS)
def test_what_fails_once_at_any_operation_is_tried_again_and_makes_no_difference(
    name: str, kind: str, fault: Fault
) -> None:
    make, command = COMMANDS[name]
    whole = make(kind).copy()
    number = operations(whole, command)
    becomes = backups_in(whole)
    for at in places(number, kind):
        scene = make(kind).copy()
        command(scene, RetryingStore(FaultStore(scene.store, fault, at=at), sleep=lambda seconds: None))
        assert backups_in(scene) == becomes
        assert names_in(scene) == names_in(whole)
        assert scene.live_leases() == []


def names_in(scene: Scene) -> list[str]:
    """The objects, whether they had to be stored beside others or not. Pages are named by that, too."""
    return sorted(
        layout.content_key(key)
        for key in scene.content()
        if layout.kind_of(key) not in (ObjectKind.PAGE, ObjectKind.STREAM_PAGE)
    )


# --- copies: two repositories, and either store may be the one that goes wrong ---

REPLICA = "replica"
COPIES = [
    ("encrypted", REPLICA),
    ("plain", "encrypted"),
]


@cache
def target_of(kind: str, of: str) -> Scene:
    """A repository that has got the first backup before."""
    source = with_backups(of).copy()
    scene = Scene(of if kind == REPLICA else kind, "7a")
    if kind == REPLICA:
        scene.new_keys = source.new_keys
        Repository.create_replica(scene.store, source.open(), probe_id="7a", created=CREATED, tool="tests")
    else:
        initialise(scene, scene.store)
    copy(source, source.store, scene, scene.store, count=1)
    return scene


@pytest.mark.by_turns
@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize(("of", "to"), COPIES)
def test_a_copy_stopped_at_any_operation_leaves_whole_backups_and_is_finished_by_a_rerun(
    of: str, to: str, side: str
) -> None:
    made, becomes = with_backups(of).copy(), set(with_backups(of).open().backups()[:3])

    def run(source: Scene, target: Scene, fault: Fault | None = None, at: int = 0) -> FaultStore:
        bad = FaultStore((source if side == "source" else target).store, fault, at=at)
        stores = (bad, target.store) if side == "source" else (source.store, bad)
        copy(source, stores[0], target, stores[1], count=3)
        return bad

    whole = target_of(to, of).copy()
    number = run(made.copy(), whole).operations
    was = backups_in(target_of(to, of))
    assert len(was) == 1 and backups_in(whole) == becomes
    for fault in STOPS if (of, to) == ("plain", "plain") else STOPS[:1]:
        for at in places(number, "plain" if (of, to) == ("plain", "plain") else "encrypted"):
            source, target = made.copy(), target_of(to, of).copy()
            with suppress(Killed, StoreError):
                assert_was_not_needed(run(source, target, fault, at), fault, at)
            assert was <= backups_in(target) <= becomes
            assert backups_in(source) > becomes
            run(source, target)
            assert backups_in(target) == becomes
            assert_prunes_exactly(target)
            assert_prunes_exactly(source)


# --- one after the other, and all of them at any time ---


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_stopped_whenever_and_however_often(kind: str) -> None:
    """A random history, in which the rerun is stopped too. Always the same one, but for `JSBACKUP_TEST_CRASHES`."""
    steps = int(os.environ.get("JSBACKUP_TEST_CRASHES", "40"))
    chance = random.Random(f"{kind} {steps}")
    scene, end = with_backups(kind).copy(), 70
    for _ in range(steps):
        commands: dict[str, Command] = {
            "backup": partial(back_up, span=(max(0, end - chance.randrange(30, 80)), end)),
            "forget": partial(forget, last=2),
            "prune": partial(prune_now, grace_seconds=chance.choice([0, DAY])),
        }
        name = chance.choice(list(commands))
        bad = FaultStore(scene.store, chance.choice([None, *STOPS]), at=chance.randrange(1, 80))
        was = backups_in(scene)
        with suppress(Killed, StoreError, RepositoryLocked):
            commands[name](scene, bad)
        assert name == "forget" or was <= backups_in(scene)
        end += chance.randrange(0, 5)
        scene.now += chance.choice([1, 60, DAY + 1])
    scene.outlive_leases()
    back_up(scene, scene.store, (end - 30, end))
    assert_prunes_exactly(scene)


# --- other ways to go wrong ---


def second_backup(store: Store) -> Manifest:
    """More messages than the first: some segments are shared, the last of the first is not."""
    return store_backup(Repository.open(store), SECOND, count=60)


def prepared() -> MemoryStore:
    store = MemoryStore()
    store_backup(make_repository(store))
    return store


def assert_sound(store: Store, backup: str) -> None:
    manifest = Repository.open(store).manifest(backup)
    assert list(verify_backup(Objects(store), manifest, Level.DATA)) == []


def test_objects_stored_short_are_found() -> None:
    """A store that breaks its promise and keeps half of an object."""
    watched = FaultStore(prepared())
    there = {info.key for info in watched.store.list()}
    second_backup(watched)
    puts = [(at, key) for at, (name, key) in enumerate(watched.log, 1) if name == "put" and key not in there]
    puts = [
        (at, key) for at, key in puts if layout.kind_of(key) is not layout.ObjectKind.WITNESS
    ]  # nothing to keep half of
    assert len(puts) > 2
    for at, key in puts:
        store = prepared()
        second_backup(FaultStore(store, Fault.TRUNCATE, at=at))
        if key == layout.manifest_key(SECOND):
            with pytest.raises(FormatError):
                Repository.open(store).manifest(SECOND)
        else:
            named = Repository.open(store).manifest(SECOND)
            assert [problem.key for problem in verify_backup(Objects(store), named, Level.MANIFEST)] == [key]


RUN = """
import sys
from pathlib import Path
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.harness.backups import store_backup
from tests.harness.stores import FaultStore

store = FaultStore(LocalStore(Path(sys.argv[1])), before=lambda operation, key: print(key, flush=True))
store_backup(Repository.open(store), sys.argv[2], count=int(sys.argv[3]))
"""


@pytest.mark.by_turns
def test_a_process_killed_while_it_stores_leaves_a_sound_repository(tmp_path: Path) -> None:
    """The same with a real process, a real folder and SIGKILL at random moments."""
    folder = tmp_path / "repo"
    make_repository(LocalStore(folder))
    chance = random.Random(5)
    for number in range(6):
        backup = f"20261121T01450{number}Z-00000{number}"
        command = [sys.executable, "-c", RUN, str(folder), backup, str(40 + 10 * number)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
            assert child.stdout is not None
            for _ in range(chance.randrange(1, 12)):
                child.stdout.readline()
            child.kill()
        repository = Repository.open(LocalStore(folder))
        for committed in repository.backups():
            assert_sound(repository.store, committed)
        if backup not in repository.backups():
            store_backup(repository, backup, count=40 + 10 * number)
        assert_sound(repository.store, backup)
