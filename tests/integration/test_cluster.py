"""From and to clusters of three: replicated streams, consumers on other nodes, leaders that go, nodes that die.

2.10 is left out as a cluster: one start in twelve leaves a node out of its meta group, and restored 2.10 streams are
proved on single servers.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from tests.harness.api import JSON, Wire, call, connected, paged
from tests.harness.awkward_bench import Bench
from tests.harness.clusters import NatsCluster
from tests.harness.commands import jsbackup
from tests.harness.oracle import compare
from tests.harness.oracle_features import config_can_go, consumer_can_go
from tests.harness.proxy import Direction, Proxy
from tests.harness.servers import NatsServer, version_tuple
from tests.integration.witness import STATE_FIELDS, Observed, announced, back_up, fidelities, filled, restore, seen

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]

# Streams that a cluster treats otherwise than a single server, and one of each other sort. MIRROR_PART is not among
# them: every version resets replicas of a mirror with a filter ("last sequence mismatch", "critical write error").
AWKWARD = (
    "ATOMIC",
    "COMPRESSED",
    "COUNTER",
    "DELETED_TAIL",
    "EMPTIED",
    "FIRST_SEQ",
    "GAPS",
    "INTEREST",
    "KV",
    "MIRROR",
    "NEVER_USED_FIRST",
    "OBJECTS",
    "PAUSED",
    "PULL",
    "SEALED",
    "SETTINGS",
    "SOURCES",
    "TTL",
    "UNICODE",
    "WORKQUEUE",
)


async def _standing(url: str) -> list[str]:
    """What of streams and consumers is not led and current now, in words."""
    found = []
    async with connected(url) as nc:
        for name in await paged(nc, "STREAM.NAMES", "streams"):
            stream = await call(nc, f"STREAM.INFO.{name}")
            groups: list[tuple[str, JSON]] = [(name, stream["cluster"])]
            groups += [
                (f"{name} > {c['name']}", c["cluster"]) for c in await paged(nc, f"CONSUMER.LIST.{name}", "consumers")
            ]
            for what, group in groups:
                replicas = group.get("replicas") or []
                if not group.get("leader") or not all(one["current"] and not one.get("offline") for one in replicas):
                    found.append(f"{what}: {group}")
            if len(groups[0][1].get("replicas") or []) != stream["config"]["num_replicas"] - 1:
                found.append(f"{name}: {groups[0][1]}")
    return found


def _lacking(streams: Observed, target: str) -> list[str]:
    return [
        name
        for name, stream in streams.items()
        if config_can_go(stream.config, target)
        or any(consumer_can_go(one["config"], target) for one in stream.consumers.values())
    ]


def _leave_out(names: list[str]) -> list[str]:
    return [text for name in names for text in ("--exclude", name)]


def _rest(streams: Observed, names: list[str]) -> Observed:
    return {name: stream for name, stream in streams.items() if name not in names}


@pytest.mark.by_turns
@pytest.mark.parametrize(
    ("source", "single"),
    [("2.12.8", "2.10.26"), ("2.15.1", "2.14.6")],
)
def test_replicated_streams_come_back_in_a_cluster_and_on_a_single_server(
    source: str, single: str, tmp_path: Path
) -> None:
    repository = tmp_path / "repo"
    with NatsCluster(source) as origin:
        before = filled(origin.url, source, AWKWARD, replicas=3)
        backup = back_up(origin.url, repository)
    for name, consumers in fidelities(backup).items():
        for consumer, fidelity in consumers.items():
            pending = before[name].consumers[consumer]["num_ack_pending"] > 0
            assert fidelity in _may_be(source, pending=pending, one_replica=consumer in ("memory", "ephemeral"))

    with NatsCluster(source) as target:
        restored = restore(target.url, repository, "--jobs", "8")
        assert asyncio.run(_standing(target.url)) == []
        target.wait_alike()
        after = seen(target.url)
    assert compare(before, after, ignore=announced(restored)) == []
    assert _never_skipped(before, after) == []

    with NatsServer(single) as server:
        lacking = _lacking(before, single)
        refused = jsbackup("restore", "latest", "-s", server.url, "-r", repository, *_leave_out(lacking))
        assert refused.code == 15
        assert "has 3 replicas, the target is a single server" in refused.document["error"]["message"]
        assert "--replicas 1" in refused.document["error"]["hint"]
        assert seen(server.url) == {}
        restored = restore(server.url, repository, "--replicas", "1", *_leave_out(lacking))
        after = seen(server.url)
    ignore = [
        *announced(restored),
        "config.num_replicas",
        "FIRST_SEQ:config.first_seq",
        "consumer.*.config.num_replicas",
    ]
    assert compare(_rest(before, lacking), after, ignore=ignore) == []
    assert _never_skipped(before, after) == []


def _may_be(version: str, *, pending: bool, one_replica: bool) -> tuple[str, ...]:
    """A cluster's archive v2 does not tell which messages are pending; one of v1 lacks what lives on other nodes."""
    if not pending:
        return ("exact",)
    if version_tuple(version) >= (2, 15):
        return ("floor",)
    return ("exact", "floor") if one_replica else ("exact",)


def _never_skipped(before: Observed, after: Observed) -> list[str]:
    """Consumers that would not deliver again what they had not acknowledged."""
    return [
        f"{name} > {consumer}"
        for name, stream in after.items()
        for consumer, info in stream.consumers.items()
        if info["ack_floor"]["stream_seq"] > max(before[name].consumers[consumer]["ack_floor"]["stream_seq"], 0)
        and info["ack_floor"]["stream_seq"] >= stream.state["first_seq"]
    ]


@pytest.mark.by_turns
@pytest.mark.parametrize(("source", "target"), [("2.15.1", "2.12.8"), ("2.11.11", "2.14.6")])
def test_replicated_streams_come_back_in_a_cluster_of_another_version(source: str, target: str, tmp_path: Path) -> None:
    with NatsCluster(source) as origin:
        before = filled(origin.url, source, ["GAPS", "WORKQUEUE", "MIRROR", "TTL", "BATCHED", "ACK_FLOW"], replicas=3)
        back_up(origin.url, tmp_path / "repo")
    lacking = _lacking(before, target)
    with NatsCluster(target) as cluster:
        restored = restore(cluster.url, tmp_path / "repo", *_leave_out(lacking))
        assert asyncio.run(_standing(cluster.url)) == []
        cluster.wait_alike()
        after = seen(cluster.url)
    assert compare(_rest(before, lacking), after, ignore=announced(restored)) == []


@pytest.mark.by_turns
def test_streams_of_a_single_server_come_to_a_cluster_with_and_without_replicas(tmp_path: Path) -> None:
    with NatsServer("2.12.8") as origin:
        before = filled(origin.url, "2.12.8", ["GAPS", "PULL", "WORKQUEUE", "INTEREST", "KV", "PERSIST_ASYNC"])
        backup = back_up(origin.url, tmp_path / "repo")
    assert {fidelity for stream in fidelities(backup).values() for fidelity in stream.values()} == {"exact"}
    with NatsCluster("2.15.1") as cluster:
        restored = restore(cluster.url, tmp_path / "repo")
        assert asyncio.run(_standing(cluster.url)) == []
        cluster.wait_alike()
        assert fidelities(restored) == fidelities(backup)
        assert compare(before, seen(cluster.url)) == []

        three = ("--replicas", "3", "--if-exists", "replace")
        refused = jsbackup("restore", "latest", "-s", cluster.url, "-r", tmp_path / "repo", *three)
        assert refused.code == 15
        assert "PERSIST_ASYNC: has persist_mode async" in refused.document["error"]["message"]
        restored = restore(cluster.url, tmp_path / "repo", *three, "--exclude", "PERSIST_ASYNC")
        assert asyncio.run(_standing(cluster.url)) == []
        cluster.wait_alike()
        assert fidelities(restored) == _without(fidelities(backup), "PERSIST_ASYNC")
        differences = compare(before, seen(cluster.url))
        replicated = sorted(f"{name}: config.num_replicas: 1 became 3" for name in before if name != "PERSIST_ASYNC")
        assert sorted(differences) == replicated


def test_streams_are_cloned_into_a_cluster_with_replicas_and_out_of_it_again() -> None:
    with NatsServer("2.12.8") as origin, NatsCluster("2.15.1") as cluster, NatsServer("2.15.1") as single:
        before = filled(origin.url, "2.12.8", ["GAPS", "PULL", "WORKQUEUE", "INTEREST", "KV"])
        cloned = jsbackup("clone", "*", "-s", origin.url, "--to-server", cluster.url, "--replicas", "3").ok()
        assert asyncio.run(_standing(cluster.url)) == []
        cluster.wait_alike()
        differences = compare(before, seen(cluster.url), ignore=announced(cloned))
        assert sorted(differences) == sorted(f"{name}: config.num_replicas: 1 became 3" for name in before)

        back = jsbackup("clone", "*", "-s", cluster.url, "--to-server", single.url, "--replicas", "1").ok()
        assert compare(before, seen(single.url), ignore=[*announced(cloned), *announced(back)]) == []


def _without(entries: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in entries.items() if key != name}


# ------------------------------------------------------------------------------- consumers that live on other nodes


async def _place_consumers(url: str, version: str) -> None:
    async with connected(url) as nc:
        wire = await Wire.open(url)
        try:
            bench = Bench(nc, wire, version_tuple(version), "file", 3, "$JS.API", "PLACED", "placed", random.Random(1))
            await bench.create()
            await bench.publish_numbered(40)
            for number in range(6):
                await bench.consumer(f"done-{number}", num_replicas=1)
                await bench.ack(*(await bench.pull(f"done-{number}", 5 + number)))
                await bench.consumer(f"half-{number}", num_replicas=1)
                await bench.ack(*(await bench.pull(f"half-{number}", 20))[: 3 + number])
        finally:
            await wire.close()


@pytest.mark.by_turns
@pytest.mark.parametrize("version", ["2.12.8", "2.15.1"])
def test_consumers_of_one_replica_on_other_nodes_are_in_the_backup(version: str, tmp_path: Path) -> None:
    with NatsCluster(version) as cluster:
        asyncio.run(_place_consumers(cluster.url, version))
        before = seen(cluster.url)
        consumers = before["PLACED"].consumers
        assert len({info["cluster"]["leader"] for info in consumers.values()}) > 1
        backup = back_up(cluster.url, tmp_path / "repo")
    known = fidelities(backup)["PLACED"]
    assert known.keys() == consumers.keys()
    assert {known[name] for name in known if name.startswith("done")} == {"exact"}
    # v1 has those exactly that live on the node that made the snapshot, v2 none.
    assert "floor" in {known[name] for name in known if name.startswith("half")}
    for entry in backup.document["streams"][0]["consumers"]:
        assert (entry["reason"] == "") == (entry["fidelity"] == "exact")
    with NatsServer(version) as server:
        restored = restore(server.url, tmp_path / "repo", "--replicas", "1")
        after = seen(server.url)
    assert fidelities(restored)["PLACED"] == known
    fields = [*STATE_FIELDS, "config.num_replicas"]
    ignore = ["config.num_replicas", *(f"consumer.half-*.{field}" for field in fields)]
    assert compare(before, after, ignore=ignore) == []
    for name, info in after["PLACED"].consumers.items():
        floor = consumers[name]["ack_floor"]
        assert (info["ack_floor"]["consumer_seq"], info["ack_floor"]["stream_seq"]) == (
            floor["consumer_seq"],
            floor["stream_seq"],
        )
        if known[name] == "floor":
            assert (info["delivered"]["stream_seq"], info["num_ack_pending"]) == (info["ack_floor"]["stream_seq"], 0)


# --------------------------------------------------------------------------------- leaders that go, nodes that die

LARGE_BYTES = 24_000_000


async def _make_large(url: str, version: str, replicas: int = 3) -> None:
    async with connected(url) as nc:
        wire = await Wire.open(url)
        try:
            bench = Bench(
                nc, wire, version_tuple(version), "file", replicas, "$JS.API", "LARGE", "large", random.Random(1)
            )
            await bench.create()
            await bench.publish_numbered(LARGE_BYTES // 20_000, size_bytes=20_000)
            await bench.consumer("reader")
            await bench.ack(*(await bench.pull("reader", 50)))
        finally:
            await wire.close()


def _names(url: str) -> list[str]:
    async def run() -> list[str]:
        async with connected(url) as nc:
            return await paged(nc, "STREAM.NAMES", "streams")

    return asyncio.run(run())


def _ask(url: str, subject: str) -> JSON:
    async def run() -> JSON:
        async with connected(url) as nc:
            return await call(nc, subject)

    return asyncio.run(run())


@pytest.mark.by_turns
@pytest.mark.parametrize("version", ["2.12.8", "2.15.1"])
def test_leaders_that_step_down_in_the_middle_of_a_backup_do_no_harm(version: str, tmp_path: Path) -> None:
    with NatsCluster(version) as cluster:
        asyncio.run(_make_large(cluster.url, version))
        before = seen(cluster.url)
        leaders = [cluster.leader_of("LARGE").name]

        def step_down() -> None:
            for _ in range(2):
                _ask(cluster.urls[2], "STREAM.LEADER.STEPDOWN.LARGE")
                leaders.append(cluster.leader_of("LARGE").name)

        with Proxy(cluster.servers[0].port) as proxy:
            proxy.at(Direction.TO_CLIENT, LARGE_BYTES // 4, step_down)
            ran = jsbackup("backup", "-s", proxy.url, "-r", tmp_path / "repo")
        assert len(leaders) == 3
        if ran.code:  # then as cleanly as anything: nothing was committed, and a rerun succeeds
            assert ran.code == 20
            back_up(cluster.url, tmp_path / "repo")
    with NatsServer(version) as server:
        restored = restore(server.url, tmp_path / "repo", "--replicas", "1")
        ignore = [*announced(restored), "config.num_replicas"]
        assert compare(before, seen(server.url), ignore=ignore) == []


@pytest.mark.by_turns
@pytest.mark.parametrize("version", ["2.12.8", "2.15.1"])
def test_a_node_that_dies_in_the_middle_of_a_backup_is_made_up_for_by_the_others(version: str, tmp_path: Path) -> None:
    with NatsCluster(version) as cluster:
        asyncio.run(_make_large(cluster.url, version))
        before = seen(cluster.url)
        leader = cluster.leader_of("LARGE")
        others = [server.url for server in cluster.servers if server is not leader]
        with Proxy(leader.port) as proxy:
            proxy.at(Direction.TO_CLIENT, LARGE_BYTES // 4, leader.kill)
            ran = jsbackup("backup", "-s", ",".join([proxy.url, *others]), "-r", tmp_path / "repo")
        ran.ok()
        assert "attempt 2" in ran.err
        jsbackup("verify", "-r", tmp_path / "repo", "--level", "data").ok()
    with NatsServer(version) as server:
        restored = restore(server.url, tmp_path / "repo", "--replicas", "1")
        ignore = [*announced(restored), "config.num_replicas"]
        assert compare(before, seen(server.url), ignore=ignore) == []


@pytest.mark.by_turns
@pytest.mark.parametrize("version", ["2.12.8", "2.15.1"])
def test_a_node_that_dies_in_the_middle_of_a_restore_leaves_nothing_in_the_way_of_the_next(
    version: str, tmp_path: Path
) -> None:
    with NatsServer(version) as origin:
        asyncio.run(_make_large(origin.url, version, 1))
        before = seen(origin.url)
        back_up(origin.url, tmp_path / "repo")
    with NatsCluster(version) as cluster:
        # Without it nobody answers what is asked of JetStream until the others have elected another.
        victim = cluster.meta_leader
        others = [server.url for server in cluster.servers if server is not victim]
        with Proxy(victim.port) as proxy:
            proxy.at(Direction.TO_SERVER, LARGE_BYTES // 4, victim.kill)
            options = ("-r", tmp_path / "repo", "--replicas", "3")
            broken = jsbackup("restore", "latest", "-s", ",".join([proxy.url, *others]), *options)
        assert broken.code == 20, broken.out
        assert _names(others[0]) == []
        victim.start()
        cluster.wait_ready()
        restored = restore(cluster.url, tmp_path / "repo", "--replicas", "3")
        assert asyncio.run(_standing(cluster.url)) == []
        cluster.wait_alike()
        ignore = [*announced(restored), "config.num_replicas"]
        assert compare(before, seen(cluster.url), ignore=ignore) == []


# -------------------------------------------------------------------------------------------- a node that is down


async def _make_small(url: str, count: int, **config: Any) -> None:
    async with connected(url) as nc:
        for name in (f"SMALL-{number}" for number in range(count)):
            await call(nc, f"STREAM.CREATE.{name}", {"name": name, "subjects": [name], "storage": "file", **config})
            reader = {"stream_name": name, "config": {"durable_name": "reader", "ack_policy": "explicit"}}
            await call(nc, f"CONSUMER.DURABLE.CREATE.{name}.reader", reader)
            await nc.publish(name, b"one")
        await nc.flush()


def test_replicas_on_a_node_that_is_down_are_waited_for_once(tmp_path: Path) -> None:
    with NatsServer() as origin:
        asyncio.run(_make_small(origin.url, 8))
        back_up(origin.url, tmp_path / "repo")
    with NatsCluster() as cluster:
        down = next(server for server in cluster.servers if server is not cluster.meta_leader)
        down.kill()
        cluster.wait_ready()
        url = ",".join(server.url for server in cluster.servers if server.running)
        ran = jsbackup("restore", "latest", "-s", url, "-r", tmp_path / "repo", "--replicas", "3")
    assert ran.code == 3, ran.err
    assert 2 <= ran.err.count("waiting for replicas of 8 streams: SMALL-0, SMALL-1, SMALL-2, SMALL-3 and 4 more") <= 4
    notes = {stream["name"]: stream["notes"] for stream in ran.document["streams"]}
    assert len(notes) == 8
    for said in notes.values():
        assert any(f"not all replicas are current on {down.name} after 3" in note for note in said)
    assert all(stream["verified"] and stream["seconds"] < 60 for stream in ran.document["streams"])


def test_a_backup_waits_for_an_election(tmp_path: Path) -> None:
    with NatsCluster() as cluster:
        asyncio.run(_make_small(cluster.url, 6, num_replicas=3))
        cluster.meta_leader.kill()
        url = ",".join(server.url for server in cluster.servers if server.running)
        ran = jsbackup("backup", "-s", url, "-r", tmp_path / "repo").ok()
    assert len(ran.document["streams"]) == 6
