"""Traffic on a server while something else looks at it, with a ledger by which every message can be judged.

All publishes, deletions and acknowledgements are requests that were answered, so the ledger knows of each message when
it was there for certain, and when it was gone for certain. Moments are numbers that rise with every entry.

    traffic = Traffic(nc, random.Random(seed))
    await traffic.begin()                   # streams with a past, and workers that go on until `end`
    begin = await traffic.moment()          # every worker is past it
    …
    end = await traffic.moment()
    await traffic.end()
    traffic.ledgers["KV_LIVE"].lasting(begin, end)
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count

from nats.aio.client import Client
from nats.errors import NoRespondersError

from tests.harness.api import JSON, PATIENCE_SECONDS, Refused, call
from tests.harness.awkward_bench import LONG_NS, SECOND_NS, delivery, until

NEVER = 1 << 62
# 2.10 deletes nothing while it makes a snapshot.
_SNAPSHOT_IN_PROGRESS = 10057
_PAST = 3000  # messages of each stream before the traffic
_AT_ONCE = 10  # requests under way for one worker
_SUBJECTS = 150
# Operations of each worker after which a moment counts as one within the traffic.
_WARM = 30


@dataclass(slots=True)
class Entry:
    """One message: moments between which it arrived and, if it was removed, left."""

    subject: str
    data: bytes
    sent: int
    stored: int
    removing: int = NEVER
    removed: int = NEVER


@dataclass(slots=True)
class Ledger:
    """Sequence → message, of one stream that keeps `per_subject` messages of each subject (0: all)."""

    per_subject: int = 0
    entries: dict[int, Entry] = field(default_factory=dict)
    steps: int = 0

    def settle(self) -> None:
        """Enter what newer messages of their subjects removed. Call it when the traffic has ended."""
        subjects: dict[str, list[int]] = defaultdict(list)
        for sequence in sorted(self.entries):
            subjects[self.entries[sequence].subject].append(sequence)
        for sequences in subjects.values() if self.per_subject else ():
            for old, new in zip(sequences, sequences[self.per_subject :], strict=False):
                entry, cause = self.entries[old], self.entries[new]
                entry.removing = min(entry.removing, cause.sent)
                entry.removed = min(entry.removed, cause.stored)

    def lasting(self, begin: int, end: int) -> set[int]:
        """Sequences of messages that were there from `begin` to `end`."""
        return {sequence for sequence, one in self.entries.items() if one.stored < begin and one.removing > end}

    def gone(self, begin: int) -> set[int]:
        """Sequences of messages that were not there any more at `begin`."""
        return {sequence for sequence, one in self.entries.items() if one.removed < begin}

    def written(self, begin: int, end: int) -> int:
        return sum(begin < one.stored < end for one in self.entries.values())

    def taken(self, begin: int, end: int) -> int:
        return sum(begin < one.removing < end for one in self.entries.values())


class Traffic:
    """Publishers and consumers on the server behind `nc`, from `begin` to `end`."""

    def __init__(self, nc: Client, seeded: random.Random) -> None:
        self._nc = nc
        self._random = seeded
        self._clock = count(1)
        self._ended = asyncio.Event()
        self._workers: list[asyncio.Task[None]] = []
        self.ledgers = {"KV_LIVE": Ledger(1), "HISTORY": Ledger(5), "QUEUE": Ledger(), "PLAIN": Ledger()}

    async def begin(self) -> None:
        """Makes the streams, gives them a past, and starts the workers."""
        for name, ledger in self.ledgers.items():
            config: JSON = {"name": name, "subjects": [f"{name}.>"], "storage": "file", "retention": "limits"}
            if ledger.per_subject:
                config |= {"max_msgs_per_subject": ledger.per_subject}
            if name == "QUEUE":
                config |= {"retention": "workqueue"}
            await call(self._nc, f"STREAM.CREATE.{name}", config)
            for _ in range(0, _PAST, 100):
                await asyncio.gather(*(self._publish(name) for _ in range(100)))
        consumer = {"name": "worker", "durable_name": "worker", "ack_policy": "explicit", "ack_wait": LONG_NS}
        request = {"stream_name": "QUEUE", "config": consumer | {"max_ack_pending": -1}, "action": "create"}
        await call(self._nc, "CONSUMER.CREATE.QUEUE.worker", request)
        self._deliveries = await self._nc.subscribe(self._nc.new_inbox())
        for _ in range(20):
            await self._take()
            await self._delete()
        # Acknowledged is not gone yet: from here on it is.
        queue = self.ledgers["QUEUE"].entries.values()
        await until(self._drained)
        for entry in queue:
            entry.removed = next(self._clock) if entry.removing < NEVER else NEVER
        self._workers = [
            asyncio.create_task(self._work(name, step))
            for name, step in (
                ("KV_LIVE", lambda: self._publish("KV_LIVE")),
                ("HISTORY", lambda: self._publish("HISTORY")),
                ("QUEUE", self._feed_and_take),
                ("PLAIN", self._append_and_delete),
            )
        ]

    async def moment(self) -> int:
        """A moment that has traffic of every kind before it, since the last one."""
        before = {name: ledger.steps for name, ledger in self.ledgers.items()}
        await until(lambda: self._went_on(before))
        return next(self._clock)

    async def end(self) -> None:
        """Ends the traffic; the ledgers are complete then."""
        self._ended.set()
        await asyncio.gather(*self._workers)
        for ledger in self.ledgers.values():
            ledger.settle()

    async def _went_on(self, before: dict[str, int]) -> bool:
        for worker in self._workers:
            if worker.done():
                worker.result()
        return all(self.ledgers[name].steps >= steps + _WARM for name, steps in before.items())

    async def _work(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        while not self._ended.is_set():
            await asyncio.gather(*(step() for _ in range(_AT_ONCE)))
            self.ledgers[name].steps += _AT_ONCE

    async def _publish(self, stream: str) -> None:
        subject = f"{stream}.{self._random.randrange(_SUBJECTS)}"
        data = self._random.randbytes(self._random.choice((0, 20, 300, 2000)))
        sent = next(self._clock)
        reply = await self._nc.request(subject, data, timeout=PATIENCE_SECONDS)
        answer = json.loads(reply.data)
        if error := answer.get("error"):
            raise Refused(subject, error)
        self.ledgers[stream].entries[answer["seq"]] = Entry(subject, data, sent, next(self._clock))

    async def _feed_and_take(self) -> None:
        await self._publish("QUEUE")
        await self._take()

    async def _take(self) -> None:
        """Takes one message of the queue and acknowledges it, mostly."""
        request = json.dumps({"batch": 1, "expires": SECOND_NS}).encode()
        await self._nc.publish("$JS.API.CONSUMER.MSG.NEXT.QUEUE.worker", request, reply=self._deliveries.subject)
        # One answer for each pull, be it a message or that there is none.
        message = await self._deliveries.next_msg(timeout=PATIENCE_SECONDS)
        if not message.reply or self._random.random() < 0.1:
            return
        sequence = delivery(message.reply, message.subject).stream_sequence
        removing = next(self._clock)
        await self._nc.request(message.reply, b"+ACK", timeout=PATIENCE_SECONDS)
        # The publisher of a message may hear of it after its consumer did.
        await until(lambda: self._is_entered("QUEUE", sequence))
        self.ledgers["QUEUE"].entries[sequence].removing = removing

    async def _append_and_delete(self) -> None:
        await self._publish("PLAIN")
        if self._random.random() < 0.3:
            await self._delete()

    async def _delete(self) -> None:
        """Deletes one message of the plain stream: any, or one of the last."""
        entries = self.ledgers["PLAIN"].entries
        there = [sequence for sequence, entry in entries.items() if entry.removing == NEVER]
        sequence = self._random.choice(there[-20:] if self._random.random() < 0.5 else there)
        entries[sequence].removing = next(self._clock)
        request = {"seq": sequence, "no_erase": self._random.random() < 0.5}
        try:
            await call(self._nc, "STREAM.MSG.DELETE.PLAIN", request)
        except Refused as refused:
            if refused.err_code != _SNAPSHOT_IN_PROGRESS:
                raise
            entries[sequence].removing = NEVER
        else:
            entries[sequence].removed = next(self._clock)

    async def _is_entered(self, stream: str, sequence: int) -> bool:
        return sequence in self.ledgers[stream].entries

    async def _drained(self) -> bool:
        info = await call(self._nc, "STREAM.INFO.QUEUE")
        entries = self.ledgers["QUEUE"].entries.values()
        messages: int = info["state"]["messages"]
        return messages == sum(entry.removing == NEVER for entry in entries)


class NotTaken(Exception):
    """No stream took the message until it was given up."""


async def insist(nc: Client, subject: str, data: bytes, given_up: Callable[[], bool]) -> int:
    """Publishes until a stream takes it; its sequence there. NotTaken, or Refused where a stream does not want it."""
    while True:
        try:
            reply = await nc.request(subject, data, timeout=PATIENCE_SECONDS)
        except NoRespondersError:
            if given_up():
                raise NotTaken(subject) from None
            await asyncio.sleep(0.002)
            continue
        answer = json.loads(reply.data)
        if error := answer.get("error"):
            raise Refused(subject, error)
        sequence: int = answer["seq"]
        return sequence
