"""Killed at every single store operation: what was committed stays, what was not is invisible, a rerun succeeds."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jsbackup.errors import FormatError, RepositoryNotFound, StoreError
from jsbackup.repository import layout
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.objects import Objects
from jsbackup.repository.repository import Repository
from jsbackup.repository.verify import Level, verify_backup
from jsbackup.stores.base import Store
from jsbackup.stores.local import LocalStore
from jsbackup.stores.memory import MemoryStore
from jsbackup.stores.retry import RetryingStore
from tests.harness.backups import FIRST, SECOND, make_repository, store_backup
from tests.harness.stores import Fault, FaultStore, Killed

ROOT = Path(__file__).parents[2]

KILLS = [Fault.KILL_BEFORE, Fault.KILL_AFTER]


def second_backup(store: Store) -> Manifest:
    """More messages than the first: some segments are shared, the last of the first is not."""
    return store_backup(Repository.open(store), SECOND, count=60)


def whole_run(store: Store, repository_id: str = "0001") -> Manifest:
    """What `backup` does at an empty location."""
    try:
        repository = Repository.open(store)
    except RepositoryNotFound:
        repository = make_repository(store, repository_id)
    return store_backup(repository)


def prepared() -> MemoryStore:
    store = MemoryStore()
    store_backup(make_repository(store))
    return store


def operations_of(run: Callable[[Store], object], store: MemoryStore) -> int:
    watched = FaultStore(store)
    run(watched)
    return watched.operations


def assert_sound(store: Store, backup: str) -> Manifest:
    manifest = Repository.open(store).manifest(backup)
    assert list(verify_backup(Objects(store), manifest, Level.DATA)) == []
    return manifest


@pytest.mark.parametrize("fault", KILLS)
def test_a_first_backup_killed_anywhere_is_whole_or_invisible(fault: Fault) -> None:
    for at in range(1, operations_of(whole_run, MemoryStore()) + 1):
        store = MemoryStore()
        with pytest.raises(Killed):
            whole_run(FaultStore(store, fault, at=at))
        try:
            backups = Repository.open(store).backups()
        except RepositoryNotFound:
            backups = []
        for backup in backups:
            assert_sound(store, backup)
        if not backups:
            whole_run(store, "0002")
        assert_sound(store, FIRST)


@pytest.mark.parametrize("fault", KILLS)
def test_a_killed_backup_harms_no_other_and_a_rerun_uses_what_it_stored(fault: Fault) -> None:
    complete = prepared()
    manifest = second_backup(complete)
    whole = {info.key: complete.get(info.key) for info in complete.list()}
    for at in range(1, operations_of(second_backup, prepared()) + 1):
        store = prepared()
        with pytest.raises(Killed):
            second_backup(FaultStore(store, fault, at=at))
        repository = Repository.open(store)
        assert_sound(store, FIRST)
        committed = repository.backups() == [FIRST, SECOND]
        # Every object that was stored is one of those that a run without the kill stores: nothing is left over.
        assert {info.key: store.get(info.key) for info in store.list()}.items() <= whole.items()
        if not committed:
            assert repository.backups() == [FIRST]
            assert second_backup(store) == manifest
        assert_sound(store, FIRST)
        assert_sound(store, SECOND)
        assert {info.key: store.get(info.key) for info in store.list()} == whole


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_ANSWER])
def test_an_operation_that_fails_once_is_an_error_without_retries_and_nothing_with_them(fault: Fault) -> None:
    watched = FaultStore(prepared())
    second_backup(watched)
    committed = watched.log.index(("put", layout.manifest_key(SECOND))) + 1
    for at in range(1, watched.operations + 1):
        store = prepared()
        if at <= committed:
            with pytest.raises(StoreError):
                second_backup(FaultStore(store, fault, at=at))
        else:  # the catalog can wait
            second_backup(FaultStore(store, fault, at=at))
            assert_sound(store, SECOND)
        assert_sound(store, FIRST)
        store = prepared()
        second_backup(RetryingStore(FaultStore(store, fault, at=at), sleep=lambda seconds: None))
        assert_sound(store, SECOND)


def test_objects_stored_short_are_found() -> None:
    """A store that breaks its promise and keeps half of an object."""
    watched = FaultStore(prepared())
    there = {info.key for info in watched.store.list()}
    second_backup(watched)
    puts = [(at, key) for at, (name, key) in enumerate(watched.log, 1) if name == "put" and key not in there]
    assert len(puts) > 2
    for at, key in puts:
        store = prepared()
        manifest = second_backup(FaultStore(store, Fault.TRUNCATE, at=at))
        if key == layout.manifest_key(SECOND):
            with pytest.raises(FormatError):
                Repository.open(store).manifest(SECOND)
        else:
            assert [problem.key for problem in verify_backup(Objects(store), manifest, Level.MANIFEST)] == [key]


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
