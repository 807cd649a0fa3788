"""What was written to a bucket of a real server, and so what its keys were at any moment."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from nats.aio.client import Client

from jsbackup.times import parse_time
from jsbackup.transforms.cut import AtSequence, AtTime, Edge
from tests.harness.api import JSON, Refused, call

SUBJECT = "$KV.b."
KEYS = ("a", "b.c", "d", "never")

_TTL_SECONDS = 1
_HEADERS = {
    "delete": {"KV-Operation": "DEL"},
    "purge": {"KV-Operation": "PURGE", "Nats-Rollup": "sub"},
    "short": {"Nats-TTL": f"{_TTL_SECONDS}s"},
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """A bucket, and how often what is done to it. `config` as of clients, unless it says something else.

    put, delete, purge  as clients do
    short               a value with a TTL
    compact             all of a key is purged, if it is deleted: `nats kv compact`
    erase               a single message is deleted
    """

    name: str
    history: int
    what: dict[str, int]
    config: JSON = field(default_factory=dict)
    counts: tuple[int, ...] = (6, 12, 25)  # of things done before a backup
    backups: int = 4

    @property
    def stream(self) -> JSON:
        return {
            "name": "KV_b",
            "subjects": [f"{SUBJECT}>"],
            "max_msgs_per_subject": self.history,
            "discard": "new",
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": True,
            **self.config,
        }


@dataclass(frozen=True, slots=True)
class Written:
    """A revision. `value` is None for a marker; from `gone_ns` on it may have been removed, though older ones stay."""

    sequence: int
    time_ns: int
    value: bytes | None
    gone_ns: float = float("inf")


@dataclass
class Recording:
    revisions: dict[str, list[Written]] = field(default_factory=dict)
    last_seq: int = 0

    @property
    def values(self) -> dict[int, bytes | None]:
        """By revision."""
        return {one.sequence: one.value for all_of in self.revisions.values() for one in all_of}

    def possible(self, key: str, at: Edge) -> set[bytes | None]:
        """The values that the key may have had then: more than one if something was removed at about that time."""
        found: set[bytes | None] = set()
        for one in reversed(self.revisions.get(key, [])):
            number, edge = (one.sequence, at.sequence) if isinstance(at, AtSequence) else (one.time_ns, at.time_ns)
            if number > edge:
                continue
            found.add(one.value)
            if one.gone_ns > self._latest_ns(at):
                return found
        return {*found, None}

    def _latest_ns(self, at: Edge) -> float:
        if not isinstance(at, AtSequence):
            return at.time_ns
        every = (one for all_of in self.revisions.values() for one in all_of)
        return min((one.time_ns for one in every if one.sequence > at.sequence), default=float("inf"))

    def moments(self, chance: random.Random, upto: int, count: int) -> list[Edge]:
        times = [one.time_ns for all_of in self.revisions.values() for one in all_of if one.sequence <= upto]
        found: list[Edge] = [AtSequence(chance.randint(1, upto)) for _ in range(count)]
        return found + [AtTime(chance.choice(times) + chance.choice([-1, 0, 1])) for _ in range(count)]


async def write(nc: Client, recording: Recording, scenario: Scenario, chance: random.Random, count: int) -> None:
    """Do so many things at random, and record them."""
    kinds, weights = list(scenario.what), list(scenario.what.values())
    for number in range(count):
        key, kind = chance.choice(KEYS[:3]), chance.choices(kinds, weights)[0]
        done = recording.revisions.setdefault(key, [])
        if kind == "compact":
            if done and done[-1].value is None:
                await call(nc, "STREAM.PURGE.KV_b", {"filter": SUBJECT + key})
        elif kind == "erase":
            await _erase(nc, done, chance)
        else:
            await _publish(nc, recording, key, kind, chance.randbytes(chance.choice([0, 3, 40])) + b"%d" % number)
        if scenario.what.get("short") and number % 8 == 0:
            await asyncio.sleep(0.2)
    recording.last_seq = (await call(nc, "STREAM.INFO.KV_b"))["state"]["last_seq"]


async def _publish(nc: Client, recording: Recording, key: str, kind: str, value: bytes) -> None:
    is_value = kind in ("put", "short")
    ack = await nc.jetstream().publish(SUBJECT + key, value if is_value else b"", headers=_HEADERS.get(kind))
    stored = (await call(nc, "STREAM.MSG.GET.KV_b", {"seq": ack.seq}))["message"]
    time_ns = parse_time(stored["time"])
    gone_ns = time_ns + _TTL_SECONDS * 10**9 if kind == "short" else float("inf")
    recording.revisions[key].append(Written(ack.seq, time_ns, value if is_value else None, gone_ns))


async def _erase(nc: Client, done: list[Written], chance: random.Random) -> None:
    if not done:
        return
    row = chance.randrange(max(0, len(done) - 3), len(done))
    one = done[row]
    # The server's clock now is not after that of the next answer.
    before_ns = parse_time((await call(nc, "STREAM.INFO.KV_b"))["ts"])
    try:
        await call(nc, "STREAM.MSG.DELETE.KV_b", {"seq": one.sequence})
    except Refused:  # it is gone already
        return
    done[row] = Written(one.sequence, one.time_ns, one.value, min(one.gone_ns, before_ns))
