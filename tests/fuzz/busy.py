"""Writers go on during a backup. However busy a stream was, of one that a backup calls complete this must hold:

1. what it has under a sequence is what was published under it;
2. what was there before the backup began, and until it had ended, is in it;
3. what had been removed before it began is not in it;
4. of a key that had a value before and was not deleted meanwhile there is a revision, not older than that value.

For the last there is a bucket besides, whose keys are overwritten and never deleted: all of them have to be there.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.reading import Held, live_messages, manifest_of, stored_messages
from tests.fuzz.streams import subject_of
from tests.fuzz.world import World
from tests.harness.api import JSON
from tests.harness.commands import Ran

_WRITTEN = ("LOG", "KV_one", "PER", "QUEUE", "MEM")
_BUCKET = "KV_many"
_KEYS = 3000
_SHOWN = 10
# Servers that sync each write make no snapshot of it at all if there is more to do.
_PAUSE_SECONDS, _OVERWRITES, _OVERWRITE_SECONDS = 0.0005, 3, 0.005


@dataclass(frozen=True, slots=True)
class Published:
    """`at` is when it was acknowledged, by the monotonic clock."""

    subject: bytes
    data: bytes
    at: float


@dataclass(frozen=True, slots=True)
class Removed:
    """Between `asked` and `answered` it went; `replaced` if by a newer one of its subject."""

    asked: float
    answered: float
    replaced: bool


@dataclass(slots=True)
class Journal:
    """What was published to a stream and what went, by sequence."""

    limit: int  # of messages per subject, 0 for none
    published: dict[int, Published] = field(default_factory=dict)
    removed: dict[int, Removed] = field(default_factory=dict)

    def replace_older(self, subject: bytes, asked: float) -> None:
        """A message of this subject was published: what is beyond the limit has gone."""
        if not self.limit:
            return
        there = [one for one in sorted(self.published) if one not in self.removed]
        same = [one for one in there if self.published[one].subject == subject]
        for sequence in same[: -self.limit]:
            self.removed[sequence] = Removed(asked, time.monotonic(), replaced=True)


async def back_up_busily(world: World, incremental: str) -> tuple[Ran, list[Any]]:
    """A backup with writers at work, and what is wrong with it."""
    await _fill_bucket(world)
    journals = {name: await _journal(world, name) for name in _WRITTEN}
    stop = asyncio.Event()
    writers = [asyncio.create_task(_write(world, name, journal, stop)) for name, journal in journals.items()]
    writers.append(asyncio.create_task(_overwrite(world, stop)))
    await asyncio.sleep(0.3)
    began = time.monotonic()
    done = await asyncio.to_thread(world.back_up, incremental)
    ended = time.monotonic()
    stop.set()
    await asyncio.gather(*writers)
    if done.code:
        return done, []
    wrong: list[Any] = []
    for stream in manifest_of(world.repository, done.document["backup"])["streams"]:
        stored = stored_messages(world.repository, stream)
        if stream["name"] == _BUCKET:
            lacking = _KEYS - len({one.subject for one in stored.values()})
            found: JSON = {"keys lost": lacking} if lacking else {}
        elif stream["name"] in journals:
            found = _wrong(journals[stream["name"]], stored, began, ended)
        else:
            continue
        if found:
            wrong.append({"stream": stream["name"], "read": stream["read"], **found})
    return done, wrong


async def _fill_bucket(world: World) -> None:
    config = {**world.configs["KV_one"], "name": _BUCKET, "subjects": ["$KV.many.>"]}
    answer = await world.ask(f"STREAM.CREATE.{_BUCKET}", config)
    if not answer["state"]["messages"]:
        for number in range(_KEYS):
            await world.client.publish(f"$KV.many.k{number}", world.chance.randbytes(300))
        await world.client.flush()
    while (await world.info(_BUCKET))["state"]["messages"] != _KEYS:
        await asyncio.sleep(0.1)


async def _journal(world: World, name: str) -> Journal:
    now = time.monotonic()
    there = {one: Published(held.subject, held.data, now) for one, held in (await live_messages(world, name)).items()}
    return Journal(world.configs[name].get("max_msgs_per_subject", 0), there)


async def _write(world: World, name: str, journal: Journal, stop: asyncio.Event) -> None:
    chance = random.Random(world.chance.random())
    while not stop.is_set():
        there = [one for one in journal.published if one not in journal.removed]
        asked = time.monotonic()
        if chance.random() < 0.85 or not there:
            subject, data = subject_of(name, chance), chance.randbytes(chance.randint(0, 120))
            answer = await world.publish(subject, data)
            journal.published[answer["seq"]] = Published(subject.encode(), data, time.monotonic())
            journal.replace_older(subject.encode(), asked)
        else:
            sequence = chance.choice(there)
            await world.ask(f"STREAM.MSG.DELETE.{name}", {"seq": sequence})
            journal.removed[sequence] = Removed(asked, time.monotonic(), replaced=False)
        await asyncio.sleep(_PAUSE_SECONDS)


async def _overwrite(world: World, stop: asyncio.Event) -> None:
    chance = random.Random(world.chance.random())
    while not stop.is_set():
        for _ in range(_OVERWRITES):
            await world.client.publish(f"$KV.many.k{chance.randrange(_KEYS)}", chance.randbytes(300))
        await world.client.flush()
        await asyncio.sleep(_OVERWRITE_SECONDS)


def _wrong(journal: Journal, stored: dict[int, Held], began: float, ended: float) -> JSON:
    """What does not hold of a backup that began and ended then."""
    before = {sequence for sequence, one in journal.published.items() if one.at < began}
    gone = {sequence for sequence, one in journal.removed.items() if one.answered < began}
    lasting = {one for one in before if one not in journal.removed or journal.removed[one].asked > ended}
    found = {
        "other content": [one for one, held in stored.items() if not _published(journal.published.get(one), held)],
        "lost": sorted(lasting - stored.keys()),
        "not gone": sorted(gone & stored.keys()),
        "keys lost": _lost_keys(journal, stored, before - gone, began, ended) if journal.limit == 1 else [],
    }
    return {what: some[:_SHOWN] for what, some in found.items() if some}


def _published(one: Published | None, held: Held) -> bool:
    return one is not None and (one.subject, one.data) == (held.subject, held.data)


def _lost_keys(journal: Journal, stored: dict[int, Held], before: set[int], began: float, ended: float) -> list[str]:
    """Keys that had a value when the backup began, and have no revision in it that is as new."""
    newest = {journal.published[sequence].subject: sequence for sequence in sorted(before)}
    backed_up = {stored[sequence].subject: sequence for sequence in sorted(stored)}
    deleted = [
        (journal.published[sequence].subject, sequence)
        for sequence, one in journal.removed.items()
        if not one.replaced and one.answered >= began and one.asked <= ended
    ]
    return [
        subject.decode()
        for subject, sequence in newest.items()
        if backed_up.get(subject, 0) < sequence
        and not any(other == subject and when >= sequence for other, when in deleted)
    ]
