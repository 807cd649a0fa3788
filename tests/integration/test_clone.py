"""Clones from server to server, read back by the witness; repeated, of sources that move on, and broken off."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.api import JSON, Wire, call, connected
from tests.harness.awkward_bench import Storage
from tests.harness.commands import PATIENT, Ran, command_line, jsbackup
from tests.harness.oracle import ObservedStream, compare, unused_floors
from tests.harness.proxy import Direction, Proxy
from tests.harness.servers import ENDS, NEWEST, NatsServer
from tests.integration.large import NAME, WHOLE, Standing, make_large, standing
from tests.integration.test_interrupted import stopped
from tests.integration.test_memory import watch
from tests.integration.test_round_trip import _announced, _fill_and_observe, _not_for
from tests.integration.witness import seen

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]

Starter = Callable[..., NatsServer]
Observed = dict[str, ObservedStream]


def clone(source: str, target: str, *arguments: str) -> Ran:
    streams = [] if arguments and not arguments[0].startswith("-") else ["*"]
    return jsbackup("clone", *streams, *arguments, "-s", source, "--to-server", target, *PATIENT)


# ------------------------------------------------------------------------------------------------ what comes out of it


@pytest.mark.parametrize(
    ("source", "target", "storage", "again"),
    [(NEWEST, "2.12.8", "file", 1), (ENDS[0], NEWEST, "memory", 0)],
)
def test_every_awkward_stream_comes_over_and_again_in_place_of_itself(
    source: str, target: str, storage: Storage, again: int, nats_server: Starter
) -> None:
    origin, server = nats_server(source), nats_server(target)
    before = asyncio.run(_fill_and_observe(origin.url, source, storage))
    lacking = _not_for(target, before)
    leave_out = [text for name in sorted(lacking) for text in ("--exclude", name)]
    if lacking:
        refused = clone(origin.url, server.url)
        assert refused.code == 15 and "jsbackup clone --dry-run" in refused.document["error"]["hint"]
        assert seen(server.url) == {}
    expected = {name: stream for name, stream in before.items() if name not in lacking}
    for options in [[], *[["--if-exists", "replace"]] * again]:
        cloned = clone(origin.url, server.url, *leave_out, *options).ok()
        assert all(stream["verified"] for stream in cloned.document["streams"])
        after = seen(server.url)
        ignore = [*_announced(cloned), *unused_floors(expected, after)]
        if source.startswith("2.10."):
            ignore.append("state.first_ts")  # as in test_round_trip
        assert compare(expected, after, ignore=ignore) == []
    assert compare(before, seen(origin.url)) == []


def test_a_stream_is_not_cloned_onto_itself_nor_over_another_unasked(nats_server: Starter) -> None:
    origin = nats_server(NEWEST)
    make_large(origin.url, messages=5)
    for options in ([], ["--if-exists", "replace"], ["--dry-run", "--if-exists", "replace"]):
        refused = clone(origin.url, origin.url, *options)
        assert (refused.code, "source and target are the same" in refused.out) == (16, True)
    other = nats_server(NEWEST)
    make_large(other.url, messages=7)
    assert clone(origin.url, other.url).code == 16
    assert clone(origin.url, other.url, "--if-exists", "replace", "--replace-with-part", "--dry-run").code == 0
    assert standing(other.url) == {NAME: Standing(7, 7, False)}
    assert standing(origin.url) == {NAME: Standing(5, 5, False)}


# ------------------------------------------------------------------------------------- sources that do not stand still

KEYS = 600


async def _send(url: str, keys: range, size: int) -> None:
    wire = await Wire.open(url)
    chance = random.Random(size)
    for key in keys:
        await wire.send(f"k.{key % KEYS}", chance.randbytes(size))
    await wire.replies()
    await wire.close()


async def _delete(url: str, sequences: range) -> None:
    async with connected(url) as nc:
        for sequence in sequences:
            await call(nc, "STREAM.MSG.DELETE.BUSY", {"seq": sequence, "no_erase": True})


@pytest.mark.parametrize(
    ("config", "target"),
    [({"max_msgs_per_subject": 1, "deny_delete": True}, "2.15.1"), ({"retention": "workqueue"}, "2.12.8")],
)
def test_what_is_removed_while_a_server_makes_its_snapshot_is_not_in_the_clone(
    config: JSON, target: str, nats_server: Starter
) -> None:
    origin, server = nats_server("2.12.8"), nats_server(target)
    base: JSON = {"name": "BUSY", "subjects": ["k.>"], "retention": "limits", "storage": "file", "num_replicas": 1}

    async def make() -> None:
        async with connected(origin.url) as nc:
            await call(nc, "STREAM.CREATE.BUSY", base | config)
        await _send(origin.url, range(2 * KEYS), 16 * 1024)

    def change() -> None:
        if "retention" in config:
            asyncio.run(_delete(origin.url, range(1, 2 * KEYS, 7)))
        asyncio.run(_send(origin.url, range(0, KEYS, 3), 10))

    asyncio.run(make())
    before = {message.sequence: message for message in seen(origin.url)["BUSY"].messages}
    with Proxy(origin.port) as proxy:
        proxy.at(Direction.TO_CLIENT, 5 << 20, change)
        cloned = clone(proxy.url, server.url).ok()
    after = {message.sequence: message for message in seen(origin.url)["BUSY"].messages}
    held = seen(server.url)["BUSY"]
    assert [stream["verified"] for stream in cloned.document["streams"]] == [True]
    # Each message is one that the source had; of each key there is exactly one, or all that was not deleted.
    assert all(message in (before.get(message.sequence), after.get(message.sequence)) for message in held.messages)
    assert {key: held.config.get(key) for key in config} == config
    if "retention" in config:
        assert {message.sequence for message in held.messages} == after.keys()
    else:
        assert len(held.messages) == len({message.subject for message in held.messages}) == KEYS


# ---------------------------------------------------------------------------------------------------------- broken off


def test_a_clone_that_is_killed_leaves_the_old_stream_or_none_and_a_rerun_finishes(nats_server: Starter) -> None:
    origin, server, place = nats_server(ENDS[0]), nats_server(NEWEST), 0.7
    make_large(origin.url)
    with Proxy(server.port) as proxy:
        line = command_line("clone", NAME, "-s", origin.url, "--to-server", proxy.url)
        assert stopped(proxy, line, signal.SIGKILL, Direction.TO_SERVER, place) == -signal.SIGKILL
        assert all(left.marked for left in standing(server.url).values())
        jsbackup(*line[3:]).ok()
        assert standing(server.url) == WHOLE
        # In place of what is there: it goes twice over this way, first as a copy.
        replace = [*line, "--if-exists", "replace"]
        assert stopped(proxy, replace, signal.SIGKILL, Direction.TO_SERVER, 2 * place) == -signal.SIGKILL
        left = standing(server.url)
        whole = [name for name, stream in left.items() if stream == WHOLE[NAME]]
        assert NAME in whole or any(name.startswith(f"{NAME}-jsbackup-") for name in whole), left
        jsbackup(*replace[3:]).ok()
        assert standing(server.url)[NAME] == WHOLE[NAME]


def test_a_clone_that_is_interrupted_leaves_nothing(nats_server: Starter) -> None:
    origin, server = nats_server(NEWEST), nats_server("2.12.8")
    make_large(origin.url)
    with Proxy(origin.port) as proxy:
        line = command_line("clone", NAME, "-s", proxy.url, "--to-server", server.url)
        assert stopped(proxy, line, signal.SIGINT, Direction.TO_CLIENT, 0.4) == 130
    assert standing(server.url) == {}


def test_memory_is_bounded_where_the_target_is_slower_than_the_source(nats_server: Starter, tmp_path: Path) -> None:
    origin, server = nats_server(NEWEST), nats_server(NEWEST)
    for number in range(4):
        make_large(origin.url, f"LARGE{number}", messages=3000)
    line = command_line("clone", "*", "-s", origin.url, "--to-server", server.url, wire="v2")
    watched = watch(line, tmp_path / "temporary", tmp_path / "none")
    assert watched.peak_bytes < 300 << 20 and watched.temporary == 0, watched
