"""Operations after which a stream holds what it held before, or other content under sequences that were backed up."""

from __future__ import annotations

import json
import shutil

from tests.fuzz.operations import CLOCKS, PLAIN, Operation
from tests.fuzz.reading import check_restored
from tests.fuzz.streams import COPIES, QUEUES
from tests.fuzz.world import World
from tests.harness.commands import Ran

_RECENT = 4
PUT_BACK = "put the server's folder back"
IN_PLACE = ("--if-exists", "replace", "--replace-with-part")
_EMAIL = json.dumps({"email": "someone@example.org"}).encode()


async def restore(world: World, name: str) -> None:
    """An older backup in place, by jsbackup itself: what an operator does after a mistake."""
    if not world.backups or name in (*COPIES, *QUEUES, "MEM", "SEAL"):
        return
    backup = world.chance.choice(world.backups[-_RECENT:])
    done = world.run("restore", backup, name, *IN_PLACE)
    world.note(f"restore {name} from {backup}: {_outcome(done)}")
    if done.code == 0:
        await check_restored(world, backup, name)


async def restore_without_consumers(world: World, _name: str) -> None:
    """A queue in place, where no consumer may have taken a message before the proof."""
    if not world.backups:
        return
    name, backup = world.chance.choice(QUEUES), world.chance.choice(world.backups[-_RECENT:])
    done = world.run("restore", backup, name, *IN_PLACE, "--consumers", "none")
    world.note(f"restore {name} from {backup} without consumers: {_outcome(done)}")
    if done.code == 0:
        await check_restored(world, backup, name)
        await world.create_worker(name)


async def copy_folder(world: World, _name: str) -> None:
    """A copy of the server's folder, for `put_back`."""
    world.note("copy the server's folder")
    world.server.stop()
    copy = world.folder / f"copy-{len(world.copies)}"
    shutil.copytree(world.store, copy)
    world.copies.append(copy)
    await world.revive()


async def put_back(world: World, name: str) -> None:
    """The server's folder as it was: what a restored machine or volume snapshot is."""
    if not world.copies:
        await copy_folder(world, name)
        return
    world.note(PUT_BACK)
    world.server.kill()
    shutil.rmtree(world.store)
    shutil.copytree(world.chance.choice(world.copies[-2:]), world.store)
    await world.revive()
    world.sealed = {"SEAL"} if (await world.info("SEAL"))["config"].get("sealed") else set()


async def delete_the_wrong_one(world: World, _name: str) -> None:
    """The wrong message is deleted, the stream brought back from the backup before, and the right one deleted."""
    name = world.chance.choice(["LOG", "ZIP", "KV_one", "KV_five", "PER"])
    there = await world.sequences(name)
    if len(there) < 4 or not world.backups:
        return
    wrong, right = world.chance.sample(there[:-1], 2)
    first = world.back_up("auto")
    if first.code:
        return
    await world.ask(f"STREAM.MSG.DELETE.{name}", {"seq": wrong})
    world.back_up("auto")
    done = world.run("restore", first.document["backup"], name, *IN_PLACE)
    world.note(f"delete {wrong} of {name} instead of {right}, and restore: {_outcome(done)}")
    await world.ask(f"STREAM.MSG.DELETE.{name}", {"seq": right})


async def mask(world: World, _name: str) -> None:
    """The stream is restored in place with values masked."""
    name = world.chance.choice(["LOG", "ZIP", "KV_one", "PER"])
    if not await world.sequences(name) or not world.backups:
        return
    subject = {"LOG": "log.1", "ZIP": "zip.1", "KV_one": "$KV.one.k1", "PER": "per.1"}[name]
    for _ in range(world.chance.randint(1, 4)):
        await world.publish(subject, _EMAIL)
    world.back_up("auto")
    for _ in range(world.chance.randint(1, 30)):
        await world.publish(f"{subject[:-1]}2", b"{}")
    world.back_up("auto")
    masking = ("--mask", f"{subject}:$.email=redact", "--unmaskable", "keep")
    done = world.run("restore", world.backups[-1], name, *IN_PLACE, *masking)
    world.note(f"mask {name}: {_outcome(done)}")


async def map_subjects(world: World, _name: str) -> None:
    """The stream is restored in place under other subjects of the same length."""
    name = world.chance.choice(["LOG", "ZIP"])
    if not world.backups or not await world.sequences(name):
        return
    world.back_up("auto")
    mapping = f"{name.lower()}.1=>{name.lower()}.2"
    done = world.run("restore", world.backups[-1], name, *IN_PLACE, "--map-subject", mapping)
    world.note(f"map subjects of {name}: {_outcome(done)}")


def _outcome(done: Ran) -> str:
    return f"{done.code} {done.document.get('error', {}).get('message', '')[:80]}".strip()


BACK: list[tuple[Operation, int]] = [
    *CLOCKS, (restore, 6), (restore_without_consumers, 2), (copy_folder, 2), (put_back, 3), (delete_the_wrong_one, 5),
]  # fmt: skip
OTHERWISE: list[tuple[Operation, int]] = [*PLAIN, (mask, 5), (map_subjects, 4)]
