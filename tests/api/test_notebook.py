"""The public face, as a notebook uses it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import jsbackup
from tests.api.shop import COUNT, Shop, fill_small, look, rows
from tests.harness.oracle import compare
from tests.harness.servers import NatsServer, wait_until

pytestmark = pytest.mark.nats


@pytest.fixture
def repository(shop: Shop) -> jsbackup.BackupRepository:
    return jsbackup.open(shop.folder)


@pytest.fixture
def backup(repository: jsbackup.BackupRepository) -> jsbackup.Backup:
    return repository.latest()


# --- what is there ---


def test_backups_are_listed_and_found(shop: Shop, repository: jsbackup.BackupRepository) -> None:
    (listed,) = repository.backups()
    for found in (listed, repository.latest(), repository[shop.backup], repository[shop.backup[:13]]):
        assert found.id == shop.backup
        assert found.complete and found.tags == {"kind": "test"} and found.skipped == {}
        assert timedelta() < datetime.now(UTC) - found.created < timedelta(minutes=10)
        assert sorted(found) == ["EMPTY", "KV_settings", "ORDERS"] and len(found) == 3
        assert "ORDERS" in found and "NONE" not in found
        assert found.message_count == COUNT - 1 + 1
    assert repository.latest(server=shop.url).id == shop.backup
    assert repository.backups(tags={"kind": "other"}) == []
    assert repository.location == str(shop.folder)


def test_a_stream_tells_what_it_is(backup: jsbackup.Backup) -> None:
    orders = backup["ORDERS"]
    assert orders.name == "ORDERS" and orders.config["subjects"] == ["orders.>"]
    assert (orders.first_seq, orders.last_seq, orders.message_count) == (1, COUNT, COUNT - 1)
    assert orders.byte_count > 0 and len(orders.digest) == 64 and orders.warnings == ()
    packing = orders.consumers["packing"]
    assert (packing.delivered_seq, packing.ack_floor_seq, packing.exact) == (5, 5, True)
    assert packing.config["ack_policy"] == "explicit"
    orders.config["subjects"].append("changed")
    assert orders.config["subjects"] == ["orders.>"]
    assert (backup["EMPTY"].first_seq, backup["EMPTY"].last_seq, backup["EMPTY"].message_count) == (0, 0, 0)


# --- messages ---


def test_messages_are_those_that_were_published(shop: Shop, backup: jsbackup.Backup) -> None:
    assert rows(backup["ORDERS"].messages()) == shop.published
    assert rows(backup["EMPTY"].messages()) == []
    assert backup["ORDERS"].table().num_rows == COUNT - 1
    assert backup["EMPTY"].table().num_rows == 0


def test_messages_are_chosen_by_subject_time_and_sequence(shop: Shop, backup: jsbackup.Backup) -> None:
    orders, published = backup["ORDERS"], shop.published
    assert rows(orders.messages("orders.eu.>")) == [row for row in published if row[2].startswith("orders.eu.")]
    assert rows(orders.messages(["orders.us.1", "orders.*.2"])) == [
        row for row in published if row[2] == "orders.us.1" or row[2].endswith(".2")
    ]
    assert rows(orders.messages(since=100, until=200)) == [row for row in published if 100 <= row[0] <= 200]
    edge = published[150][1]
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=edge // 1000)
    ns = edge // 1000 * 1000
    assert rows(orders.messages(since=time)) == [row for row in published if row[1] >= ns]
    assert rows(orders.messages(until=time.astimezone())) == [row for row in published if row[1] <= ns]
    assert rows(orders.messages("orders.us.>", since=time, until=280)) == [
        row for row in published if row[2].startswith("orders.us.") and row[1] >= ns and row[0] <= 280
    ]
    assert rows(orders.messages(since="1h")) == published
    assert rows(orders.messages(until="1h")) == []


def test_two_streams_are_read_side_by_side(backup: jsbackup.Backup) -> None:
    streams = [backup[name].messages() for name in ("ORDERS", "KV_settings", "ORDERS")]
    assert [next(batches).num_rows for batches in streams] == [COUNT - 1, 1, COUNT - 1]


# --- restores ---


def test_a_backup_is_restored_and_compared(shop: Shop, backup: jsbackup.Backup, target: NatsServer) -> None:
    planned = jsbackup.plan(backup, target.url)
    assert planned.ok and sorted(planned.streams) == sorted(backup) and planned.refusals == ()
    assert planned.streams["ORDERS"].messages == COUNT - 1 and not planned.streams["ORDERS"].replaces
    planned.check()
    told: list[jsbackup.StreamProgress] = []
    done = jsbackup.restore(backup, target.url, progress=told.append)
    assert done.backup.id == backup.id
    assert {name: one.messages for name, one in done.streams.items()} == {
        "EMPTY": 0,
        "KV_settings": 1,
        "ORDERS": COUNT - 1,
    }
    assert all(one.verified for one in done.streams.values()) and not done.failed and not done.missing
    assert compare(look(shop.url), look(target.url)) == []
    last = {one.stream: one for one in told}
    assert last["ORDERS"].finished and last["ORDERS"].done_messages == COUNT - 1


def test_a_restore_takes_the_options_of_the_command(shop: Shop, backup: jsbackup.Backup, target: NatsServer) -> None:
    done = jsbackup.restore(
        backup,
        target.url,
        streams="ORDERS",
        rename={"ORDERS": "OLD"},
        map_subject="orders.>=>old.>",
        subject="orders.eu.>",
        until=200,
        config={"max_msgs": 5000, "description": "part"},
        consumers="none",
    )
    assert list(done.streams) == ["ORDERS"] and done.streams["ORDERS"].as_name == "OLD"
    old = look(target.url)["OLD"]
    wanted = [row for row in shop.published if row[2].startswith("orders.eu.") and row[0] <= 200]
    assert [(one.sequence, one.subject.decode()) for one in old.messages] == [
        (row[0], row[2].replace("orders.", "old.", 1)) for row in wanted
    ]
    assert (old.config["max_msgs"], old.config["description"]) == (5000, "part")


def test_latest_of_a_repository_is_that_of_the_server(
    shop: Shop, tmp_path: Path, target: NatsServer, nats_server: object
) -> None:
    repository = jsbackup.open(tmp_path / "repo", create=True)
    ours = jsbackup.backup(shop.url, repository)
    with NatsServer(name="other") as other:
        asyncio.run(fill_small(other.url))
        theirs = jsbackup.backup(other.url, repository)
        assert [one.id for one in repository.backups()] == [ours.id, theirs.id]
        with pytest.raises(jsbackup.errors.UsageError, match="ambiguous"):
            repository.latest()
        assert repository.latest(server=shop.url).id == ours.id
        assert repository.latest(origin="other").id == theirs.id
        assert jsbackup.plan(repository, shop.url, if_exists="replace").backup.id == ours.id
        assert jsbackup.restore(repository, other.url, if_exists="replace").backup.id == theirs.id
        named = jsbackup.restore(ours, other.url, streams="EMPTY")
        assert "comes from" in named.notes[0]


# --- where it is called ---


def test_it_works_inside_a_running_event_loop(shop: Shop, tmp_path: Path, target: NatsServer) -> None:
    async def cell() -> None:
        repository = jsbackup.open(tmp_path / "repo", create=True)
        made = jsbackup.backup(shop.url, repository)
        assert repository.latest(server=shop.url).id == made.id
        assert rows(made["ORDERS"].messages()) == shop.published
        jsbackup.restore(made, target.url)

    asyncio.run(cell())
    assert compare(look(shop.url), look(target.url)) == []


def test_the_twins_are_awaited_and_leave_the_loop_to_others(shop: Shop, tmp_path: Path, target: NatsServer) -> None:
    async def cell() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.005)

        ticking = asyncio.create_task(tick())
        repository = jsbackup.open(tmp_path / "repo", create=True)
        made = await jsbackup.backup_async(shop.url, repository)
        assert (await jsbackup.plan_async(made, target.url)).ok
        await jsbackup.restore_async(made, target.url)
        ticking.cancel()
        assert ticks > 10

    asyncio.run(cell())
    assert compare(look(shop.url), look(target.url)) == []


def test_two_threads_use_one_repository(shop: Shop, tmp_path: Path) -> None:
    repository = jsbackup.open(tmp_path / "repo", create=True)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: jsbackup.backup(shop.url, repository), range(2))
        assert one.id != other.id
        assert [found.id for found in repository.backups()] == sorted([one.id, other.id])
        read = list(pool.map(lambda found: rows(found["ORDERS"].messages()), (one, other)))
    assert read == [shop.published, shop.published]


def test_nothing_of_the_process_is_changed(shop: Shop, tmp_path: Path) -> None:
    import gc
    import logging
    import signal

    import pyarrow as pa

    def state() -> list[object]:
        loggers = [logging.getLogger(name) for name in (None, "jsbackup", "nats", "asyncio")]
        return [
            *((one.handlers[:], one.filters[:], one.level, one.propagate) for one in loggers),
            pa.default_memory_pool().backend_name,
            gc.get_threshold(),
            [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        ]

    before, threads = state(), set(threading.enumerate())
    jsbackup.backup(shop.url, jsbackup.open(tmp_path / "repo", create=True))
    assert state() == before
    wait_until(lambda: threads.issuperset(threading.enumerate()), "the end of its threads")
