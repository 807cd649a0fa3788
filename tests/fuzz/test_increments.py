"""Does a backup hold what the server holds? Random operations, a backup, and a comparison by other means.

A world is a server, a repository and streams of all kinds. In each round operations are drawn, a backup is made, mostly
an increment, and compared with the server at rest (`reading.py`).

| mode | what happens |
| --- | --- |
| plain | messages, deletes, purges, buckets, roll-ups, acks, limits, TTLs, sealing, made anew, restarts, wrong clocks |
| follow | all of that beneath a running `jsbackup follow`, whose last backup is compared |
| rollback | all of plain, older backups restored in place and compared, and the server's folder put back |
| reshape | all of plain, streams restored in place masked, or with their subjects mapped |
| busy | writers go on during the backup (`busy.py` says what must hold then) |

`JSBACKUP_TEST_FUZZ_ROUNDS=300` makes as many rounds of each mode with each of four servers, a dozen in a world;
`JSBACKUP_TEST_SEED` draws others. A test says its seed and the operations since the last backup that was right.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.back_in_time import BACK, OTHERWISE, PUT_BACK
from tests.fuzz.busy import back_up_busily
from tests.fuzz.operations import CLOCKS, KILLED, PLAIN, STEADY, Operation, act, act_beneath, publish
from tests.fuzz.reading import differences
from tests.fuzz.world import Contents, World
from tests.harness.commands import PATIENT, Ran, command_line, environment, jsbackup
from tests.harness.servers import NEWEST

ROUNDS = int(os.environ.get("JSBACKUP_TEST_FUZZ_ROUNDS", "0"))
SEED = os.environ.get("JSBACKUP_TEST_SEED", "1")
SERVERS = ("2.10.26", "2.12.8", "2.14.6", NEWEST)
OPERATIONS: dict[str, list[tuple[Operation, int]]] = {
    "plain": CLOCKS,
    "follow": PLAIN,
    "rollback": BACK,
    "reshape": OTHERWISE,
    "busy": STEADY,
}

# Every day: mode, servers, rounds.
DAILY = [
    ("plain", SERVERS[::3], 3),
    ("follow", SERVERS[1:2], 2),
    ("rollback", SERVERS[1::2], 3),
    ("reshape", SERVERS[:1], 3),
    ("busy", SERVERS[1::2], 2),
]
_ROUNDS_OF_A_WORLD = 12
_ROUND_SECONDS = 240  # only what hangs lasts so long

pytestmark = [pytest.mark.nats, pytest.mark.explore]


def _worlds() -> Iterator[Any]:
    """Parameters of the test: mode, version, number of the world, and its rounds."""
    if not ROUNDS:
        for mode, servers, rounds in DAILY:
            for version in servers:
                yield _world(mode, version, 0, rounds)
        return
    for number, begun in enumerate(range(0, ROUNDS, _ROUNDS_OF_A_WORLD)):
        for mode in OPERATIONS:
            for version in SERVERS:
                yield _world(mode, version, number, min(_ROUNDS_OF_A_WORLD, ROUNDS - begun))


def _world(mode: str, version: str, number: int, rounds: int) -> Any:
    limit = pytest.mark.timeout(_ROUND_SECONDS * (rounds + 2))
    return pytest.param(mode, version, number, rounds, id=f"{mode}-{version}-{number}", marks=limit)


@pytest.mark.by_turns
@pytest.mark.parametrize(("mode", "version", "number", "rounds"), list(_worlds()))
def test_a_backup_holds_what_the_server_holds(
    mode: str, version: str, number: int, rounds: int, tmp_path: Path
) -> None:
    with World(version, tmp_path / "world", f"{SEED} {mode} {version} {number}") as world:
        try:
            asyncio.run(_live(world, mode, rounds))
        except Exception as error:
            error.add_note(f"JSBACKUP_TEST_SEED={SEED}; since the last backup that was right: {'; '.join(world.done)}")
            raise
        jsbackup("verify", "--level", "data", "-r", world.repository).ok()


async def _live(world: World, mode: str, rounds: int) -> None:
    try:
        await world.begin()
        for name in world.configs:
            await publish(world, name, world.chance.randint(60, 250))
        for number in range(rounds):
            done, wrong = await _round(world, mode, first=number == 0)
            assert done.code == 0, f"round {number}: exit code {done.code}: {done.out[-500:]} {done.err[-500:]}"
            assert not wrong, f"round {number}, {done.document['backup']}: {json.dumps(wrong)}"
            world.done.clear()
    finally:
        await world.end()


async def _round(world: World, mode: str, *, first: bool) -> tuple[Ran, list[Any]]:
    """A backup after some operations, and what is wrong with it. The first is of what was published."""
    (incremental,) = world.chance.choices(["auto", "always", "never"], [75, 20, 5])
    if not first and mode != "follow":
        await act(world, OPERATIONS[mode])
    at_rest = await world.settle()
    if not first and mode == "busy":
        return await back_up_busily(world, incremental)
    if not first and mode == "follow":
        done, at_rest = await _follow(world)
    else:
        done = world.back_up(incremental)
        # Said once: the server has lost messages, or after a kill (2.10) brought deleted ones at its beginning back.
        went_back = {PUT_BACK, KILLED}.intersection(world.done)
        if done.code == 3 and went_back and "The next backup is complete again." in str(done.document):
            done = world.back_up(incremental)
    wrong = await differences(world, done.document["backup"]) if done.code == 0 else []
    if wrong and await world.has_changed(at_rest):
        world.note("not at rest")
        return await _round(world, mode, first=first)
    return done, wrong


async def _follow(world: World) -> tuple[Ran, Contents]:
    """What `follow` has made when it is ended, and what it had to read, at rest. A backup if it is not complete."""
    arguments = ("-s", world.server.url, "-r", world.repository, "--every", "1s", "--no-progress", *PATIENT)
    with subprocess.Popen(
        command_line("follow", *arguments),
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            await asyncio.sleep(world.chance.uniform(1, 4))
            await act_beneath(world, PLAIN)
            at_rest = await world.settle()
            await asyncio.sleep(world.chance.choice([0, 2]))
        finally:
            process.send_signal(signal.SIGINT)
            said = (await asyncio.to_thread(process.communicate))[1]
    if process.returncode in (3, 130):  # on a busy machine: something could not be read, or it had not begun
        return world.back_up("auto"), at_rest
    if process.returncode:
        return Ran(process.returncode, {}, "", said), at_rest
    newest = jsbackup("show", "latest", "-r", world.repository).ok()
    if newest.document["result"] != "complete":
        return world.back_up("auto"), at_rest
    world.backups.append(newest.document["backup"])
    return newest, at_rest
