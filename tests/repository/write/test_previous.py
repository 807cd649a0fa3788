from __future__ import annotations

import logging

import pytest

from jsbackup.model import StreamState
from jsbackup.repository import layout
from jsbackup.repository.manifest import (
    ArchiveFormat,
    BackupResult,
    Captured,
    Manifest,
    Selection,
    Source,
    StreamBackup,
)
from jsbackup.repository.origin import Origin
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.new_backup import imported_streams, previous_streams
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import CREATED, FIRST, SECOND, make_repository
from tests.harness.many_streams import manifest_of, many_streams, small_stream
from tests.harness.stores import FaultStore

WANTED = {"orders": "11111111", "users": "22222222"}


def stream(name: str, incarnation: str = "", how: ArchiveFormat = ArchiveFormat.V2, **config: object) -> StreamBackup:
    captured = Captured(0, 0, 0, 0, CREATED, CREATED)
    incarnation = incarnation or WANTED[name]
    return StreamBackup(name, incarnation, {"name": name, **config}, CREATED, StreamState(), captured, how)


def commit(
    repository: Repository,
    number: int,
    *streams: StreamBackup,
    imported: str = "",
    transformed: str = "",
    account: str = "",
) -> str:
    backup = f"20261121T014500Z-{number:06x}"
    source = Source(
        account=account,
        imported={"from": imported} if imported else None,
        transformed={"backup": backup, "options": [transformed]} if transformed else None,
    )
    selection = Selection(tuple(one.name for one in streams))
    repository.commit(
        Manifest(
            backup, CREATED, "tests", source, BackupResult.COMPLETE, streams, selection=None if imported else selection
        )
    )
    return backup


def numbered(found: dict[str, StreamBackup]) -> dict[str, int]:
    return {name: one.config["number"] for name, one in found.items()}


def test_the_newest_backup_of_each_stream_is_found() -> None:
    repository = make_repository(MemoryStore())
    commit(repository, 1, stream("orders", number=1), stream("users", number=1))
    commit(repository, 2, stream("orders", number=2))
    assert numbered(previous_streams(repository, WANTED)) == {"orders": 2, "users": 1}


def test_of_many_accounts_the_own_one_is_looked_at_first() -> None:
    """A hundred accounts, each with a backup since: more than are ever read."""
    repository = make_repository(MemoryStore())
    for number in range(100):
        commit(repository, number, stream("orders", f"{number:08x}", number=number), account=f"A{number}")
    for number in (0, 50, 99):
        found = previous_streams(repository, {"orders": f"{number:08x}"}, origin=Origin("", f"A{number}", ""))
        assert numbered(found) == {"orders": number}
    assert previous_streams(repository, {"orders": f"{0:08x}"}) == {}  # nobody says which account is meant


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
    for number in range(2, 60):
        commit(repository, number, stream("orders", number=number))
    watched.log.clear()
    assert numbered(previous_streams(repository, WANTED)) == {"orders": 59, "users": 1}
    assert len(watched.log) < 120
    watched.log.clear()
    assert numbered(previous_streams(repository, {"orders": "11111111"})) == {"orders": 59}
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


def test_a_lost_page_of_streams_costs_only_its_streams() -> None:
    """Also in older backups that share it: the others are taken from the newest."""
    store = MemoryStore()
    streams = many_streams()
    for number, backup in enumerate((FIRST, SECOND)):
        repository = make_repository(store) if not number else Repository.open(store)
        streams[0] = small_stream(0, limit=1000 + number)
        repository.commit(manifest_of(streams, backup))
    pages = Repository.open(store).manifest(SECOND).stream_pages
    lost = pages[3]
    store.delete(lost.key)
    wanted = {one.name: one.incarnation for one in streams}
    found = previous_streams(Repository.open(store), wanted)
    assert len(found) == len(streams) - lost.streams
    assert found[streams[0].name].config["max_msgs"] == 1001
    assert not found.keys() & {one.name for one in streams if lost.first <= one.name < pages[4].first}
    store.delete(pages[0].key)
    found = previous_streams(Repository.open(store), wanted)
    assert len(found) == len(streams) - lost.streams
    assert found[streams[0].name].config["max_msgs"] == 1000, "from the backup before"
