"""What happens to streams between two backups. Each operation takes a world and the name of a stream that was drawn."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

import nats.errors

from tests.fuzz.streams import AGED_SECONDS, COPIED, COPIES, QUEUES, subject_of
from tests.fuzz.world import World
from tests.harness.api import JSON

Operation = Callable[[World, str], Awaitable[None]]

KILLED = "restart after SIGKILL"
"""What a world notes of it."""

_TTL_SECONDS = 1
_SIZES = (0, 1, 4, 4, 4, 16, 60, 200)
_COUNTS = (1, 1, 2, 3, 5, 8, 13, 30, 60)


def _fixed(world: World, name: str) -> bool:
    """Whether nobody may change what the stream holds."""
    return name in world.sealed


async def publish(world: World, name: str, count: int | None = None) -> None:
    if name in COPIES or _fixed(world, name):
        return
    chance = world.chance
    count = count or chance.choice(_COUNTS)
    world.note(f"publish {name} {count}")
    for _ in range(count):
        headers = {"X": "y" * chance.randint(0, 9)} if chance.random() < 0.2 else {}
        if name == "AGED":
            headers |= {"Nats-TTL": "never"} if chance.random() < 0.5 else {}
            world.expired_at = time.monotonic() + AGED_SECONDS + 1.5
        await world.publish(subject_of(name, chance), chance.randbytes(chance.choice(_SIZES)), headers)


async def delete(world: World, name: str) -> None:
    chance, there = world.chance, await world.sequences(name)
    if not there or _fixed(world, name):
        return
    match chance.choice(["any", "first", "last", "run"]):
        case "any":
            picked = chance.sample(there, min(len(there), chance.randint(1, 6)))
        case "first":
            picked = there[:1]
        case "last":
            picked = there[-1:]
        case _:
            at = chance.randrange(len(there))
            picked = there[at : at + chance.randint(1, 12)]
    world.note(f"delete {name} {picked}")
    for sequence in picked:
        await world.ask(f"STREAM.MSG.DELETE.{name}", {"seq": sequence, "no_erase": chance.random() < 0.7})


async def purge(world: World, name: str) -> None:
    if _fixed(world, name):
        return
    chance, there = world.chance, await world.sequences(name)
    how = chance.choice(["keep", "seq", "subject", "subject-keep", "all"])
    if how == "all" and chance.random() < 0.7:
        return
    body: JSON = {}
    if how == "keep":
        body["keep"] = chance.randint(1, 40)
    elif how == "seq" and there:
        body["seq"] = chance.choice(there)
    elif how.startswith("subject"):
        body["filter"] = subject_of(name, chance)
        body |= {"keep": 1} if how == "subject-keep" else {}
    world.note(f"purge {name} {body}")
    await world.ask(f"STREAM.PURGE.{name}", body)


async def remove_key(world: World, _name: str) -> None:
    """A marker in a bucket: DEL leaves the revisions before it, PURGE rolls them up."""
    how = world.chance.choice(["DEL", "PURGE"])
    subject = subject_of(world.chance.choice(["KV_one", "KV_five"]), world.chance)
    world.note(f"remove {subject} {how}")
    roll_up = {"Nats-Rollup": "sub"} if how == "PURGE" else {}
    await world.publish(subject, b"", {"KV-Operation": how, **roll_up})


async def roll_up(world: World, _name: str) -> None:
    how = world.chance.choice(["sub", "sub", "all"])
    world.note(f"roll up ROLL {how}")
    await world.publish(subject_of("ROLL", world.chance), b"rolled", {"Nats-Rollup": how})


async def acknowledge(world: World, _name: str) -> None:
    """A worker takes some messages of a queue, and acknowledges most of them."""
    name = world.chance.choice(QUEUES)
    inbox = world.client.new_inbox()
    subscription = await world.client.subscribe(inbox)
    body = json.dumps({"batch": world.chance.randint(1, 30), "no_wait": True}).encode()
    await world.client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{name}.worker", body, reply=inbox)
    acknowledged = 0
    try:
        while (message := await subscription.next_msg(timeout=0.3)).reply:
            if world.chance.random() < 0.8:
                await world.client.publish(message.reply, b"+ACK")
                acknowledged += 1
    except nats.errors.TimeoutError:
        pass
    await subscription.unsubscribe()
    await world.client.flush()
    world.note(f"acknowledge {name} {acknowledged}")


async def make_anew(world: World, name: str) -> None:
    """Delete the stream, and make it again with as many messages of other content under the same sequences."""
    if name in (*COPIED, *COPIES):
        return
    before = (await world.info(name))["state"]
    await world.ask(f"STREAM.DELETE.{name}")
    fields = {"first_seq": before["first_seq"]} if world.chance.random() < 0.3 and before["first_seq"] > 1 else {}
    world.note(f"make anew {name} {fields}")
    await world.create(name, **fields)
    world.sealed.discard(name)
    first = fields.get("first_seq", world.configs[name].get("first_seq", 1))
    await publish(world, name, max(1, min(300, before["last_seq"] - first + 1)))


async def change_limits(world: World, name: str) -> None:
    if _fixed(world, name) or name in COPIES:
        return
    chance, config = world.chance, (await world.info(name))["config"]
    change = chance.choice(["description", "max_msgs", "per subject", "back"])
    match change:
        case "description":
            config["description"] = f"d{chance.random()}"
        case "max_msgs":
            config["max_msgs"] = chance.randint(20, 150)
        case "per subject":
            config["max_msgs_per_subject"] = chance.randint(1, 4)
        case _:
            for field in ("max_msgs", "max_msgs_per_subject"):
                config[field] = world.configs[name].get(field, -1)
    answer = await world.ask(f"STREAM.UPDATE.{name}", config)
    world.note(f"change limits {name} {change}{' refused' if 'error' in answer else ''}")


async def expire(world: World, _name: str) -> None:
    name = world.chance.choice(["TTL", "MARK"])
    if name not in world.configs:
        return
    count = world.chance.randint(1, 8)
    world.note(f"expire {name} {count}")
    for _ in range(count):
        await world.publish(subject_of(name, world.chance), b"short", {"Nats-TTL": f"{_TTL_SECONDS}s"})
    world.expired_at = time.monotonic() + _TTL_SECONDS + 1.5  # servers look once a second


async def set_clock(world: World, _name: str) -> None:
    """Of jsbackup's machine."""
    world.ahead_seconds = world.chance.choice([0, 0, 30, -30, 3600, -7200])
    world.note(f"set the clock {world.ahead_seconds} s ahead")


async def seal(world: World, _name: str) -> None:
    if _fixed(world, "SEAL") or world.chance.random() < 0.5:
        return
    config = (await world.info("SEAL"))["config"]
    if "error" not in await world.ask("STREAM.UPDATE.SEAL", {**config, "sealed": True}):
        world.sealed.add("SEAL")
        world.note("seal SEAL")


async def restart(world: World, _name: str) -> None:
    if world.chance.random() < 0.6:
        return
    kill = world.chance.random() < 0.4
    world.note(KILLED if kill else "restart after SIGTERM")
    if kill:
        world.server.kill()
    else:
        world.server.stop()
    await world.revive()


# With weights. Those of the first table leave the limits and lives of streams alone.
STEADY: list[tuple[Operation, int]] = [
    (publish, 24), (delete, 12), (purge, 6), (remove_key, 5), (roll_up, 2), (acknowledge, 5), (seal, 1),
]  # fmt: skip
PLAIN: list[tuple[Operation, int]] = [*STEADY, (make_anew, 3), (change_limits, 3), (expire, 2), (restart, 2)]
CLOCKS: list[tuple[Operation, int]] = [*PLAIN, (set_clock, 2)]


async def act(world: World, table: list[tuple[Operation, int]]) -> None:
    """Some operations of the table, on streams drawn by chance."""
    operations, weights = zip(*table, strict=True)
    for _ in range(world.chance.randint(1, 12)):
        name = world.chance.choice(list(world.configs))
        (operation,) = world.chance.choices(operations, weights)
        await operation(world, name)
        await world.create_missing()


async def act_beneath(world: World, table: list[tuple[Operation, int]]) -> None:
    """The same, spread over some seconds in which something else runs."""
    for _ in range(world.chance.randint(1, 3)):
        await act(world, table)
        await asyncio.sleep(world.chance.uniform(0, 2))
