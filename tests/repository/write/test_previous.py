from __future__ import annotations

import logging

import pytest

from jsbackup.model import StreamState
from jsbackup.repository import layout
from jsbackup.repository.manifest import ArchiveFormat, Captured, Manifest, Result, Selection, Source, StreamBackup
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.previous import imported_streams, previous_streams
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import CREATED, make_repository
from tests.harness.stores import FaultStore

WANTED = {"orders": "11111111", "users": "22222222"}


def stream(name: str, incarnation: str = "", how: ArchiveFormat = ArchiveFormat.V2, **config: object) -> StreamBackup:
    captured = Captured(0, 0, 0, 0, CREATED, CREATED)
    incarnation = incarnation or WANTED[name]
    return StreamBackup(name, incarnation, {"name": name, **config}, CREATED, StreamState(), captured, how)


def commit(
    repository: Repository, number: int, *streams: StreamBackup, imported: str = "", transformed: str = ""
) -> str:
    backup = f"20261121T014500Z-{number:06x}"
    extra: dict[str, object] = {"imported": {"from": imported}} if imported else {}
    extra |= {"transformed": {"backup": backup, "options": [transformed]}} if transformed else {}
    source = Source(cluster="", account="", extra=extra)
    selection = Selection(tuple(one.name for one in streams))
    repository.commit(
        Manifest(backup, CREATED, "tests", source, Result.COMPLETE, streams, selection=None if imported else selection)
    )
    return backup


def numbered(found: dict[str, StreamBackup]) -> dict[str, int]:
    return {name: one.config["number"] for name, one in found.items()}


def test_the_newest_backup_of_each_stream_is_found() -> None:
    repository = make_repository(MemoryStore())
    commit(repository, 1, stream("orders", number=1), stream("users", number=1))
    commit(repository, 2, stream("orders", number=2))
    assert numbered(previous_streams(repository, WANTED)) == {"orders": 2, "users": 1}


def test_a_recreated_stream_has_no_previous_backup() -> None:
    repository = make_repository(MemoryStore())
    commit(repository, 1, stream("orders", "33333333"))
    assert previous_streams(repository, WANTED) == {}


def test_a_backup_of_the_config_alone_is_passed_over_and_an_opaque_one_ends_the_search() -> None:
    repository = make_repository(MemoryStore())
    commit(repository, 1, stream("orders", number=1), stream("users", number=1))
    commit(
        repository, 2, stream("orders", how=ArchiveFormat.CONFIG), stream("users", how=ArchiveFormat.OPAQUE, number=2)
    )
    assert numbered(previous_streams(repository, WANTED)) == {"orders": 1}


def test_what_only_the_nightly_backup_has_is_found_behind_a_day_of_others() -> None:
    watched = FaultStore(MemoryStore())
    repository = make_repository(watched)
    commit(repository, 1, stream("orders", number=1), stream("users", number=1))
    for number in range(2, 150):
        commit(repository, number, stream("orders", number=number))
    watched.log.clear()
    assert numbered(previous_streams(repository, WANTED)) == {"orders": 149, "users": 1}
    assert len(watched.log) < 120
    watched.log.clear()
    assert numbered(previous_streams(repository, {"orders": "11111111"})) == {"orders": 149}
    assert len(watched.log) == 2


def test_backups_made_of_others_do_not_hide_what_a_server_was_read_for() -> None:
    repository = make_repository(MemoryStore())
    commit(repository, 1, stream("orders", number=1))
    for number in range(2, 20):
        commit(repository, number, stream("orders", "33333333"), transformed="--mask")
    assert numbered(previous_streams(repository, {"orders": "11111111"})) == {"orders": 1}


def test_a_damaged_manifest_is_passed_over_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    repository = make_repository(store)
    commit(repository, 1, stream("orders", number=1), stream("users", number=1))
    damaged = layout.manifest_key(commit(repository, 2, stream("orders", number=2)))
    store.delete(damaged)
    store.put(damaged, b"{")
    with caplog.at_level(logging.WARNING):
        assert numbered(previous_streams(repository, WANTED)) == {"orders": 1, "users": 1}
    assert "cannot be built on" in caplog.text


def test_imports_are_found_among_backups() -> None:
    repository = make_repository(MemoryStore())
    commit(repository, 1, stream("orders", number=1), imported="nats-cli")
    for number in range(2, 9):
        commit(repository, number, stream("users", number=number))
    assert {key: one.config["number"] for key, one in imported_streams(repository).items()} == {
        ("orders", "11111111"): 1
    }


def test_nothing_is_found_in_an_empty_repository() -> None:
    repository = make_repository(MemoryStore())
    assert previous_streams(repository, WANTED) == {}
    assert imported_streams(repository) == {}
