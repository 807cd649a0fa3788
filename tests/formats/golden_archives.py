"""A small stream with every kind of deletion, and its snapshots by real servers, kept in `golden/`.

    .venv/bin/python -m tests.formats.golden_archives      # captures them anew from every version

`archive-<version>.s2` is the snapshot as it came, `archive-<version>.json` what the server said about the stream at the
same time: its state with the deleted sequences, each message by itself, each consumer's info.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
from pathlib import Path
from typing import Any

from jsbackup.formats.sequences import SequenceSet
from tests.formats.exchange import snapshot
from tests.harness.api import Wire, connect, headers
from tests.harness.awkward_bench import Bench
from tests.harness.batches import Message
from tests.harness.oracle import ObservedStream, observe, time_ns
from tests.harness.servers import VERSIONS, NatsServer, version_tuple

GOLDEN = Path(__file__).parent / "golden"
STREAM = "GOLDEN"


async def fill(nc: Any, wire: Wire, version: str) -> None:
    """Makes the stream: 21 sequences, of which 13 are left."""
    bench = Bench(nc, wire, version_tuple(version), "file", 1, "$JS.API", STREAM, "g", random.Random(1))
    await bench.create(max_msgs_per_subject=3)
    # The first two make room for others by the limit per subject: the head moves, without a tombstone.
    await bench.publish(*((f"g.key.{number % 2}", b"%d" % number, None) for number in range(8)))
    # These leave gaps without a tombstone.
    await bench.publish(*(("g.gap", b"v%d" % number, None) for number in range(5)))
    await bench.publish(
        ("g.empty", b"", None),
        ("g.headers", b"", headers(("A", "1"), ("A", ""), ("Ümlaut", "日本"))),
        ("g.größe", "日本".encode(), headers()),
        ("g.work", b"delivered and acknowledged", None),
        ("g.work", b"delivered", None),
        ("g.tail", b"marked as deleted", None),
        ("g.tail", b"overwritten", None),
        ("g.tail", b"the last sequence", None),
    )
    await bench.delete(16)
    await bench.delete(20, secure=True)
    await bench.delete(19, 21)
    await bench.consumer("pull", ack_wait=3600 * 10**9, filter_subject="g.work")
    first, second = await bench.pull("pull", 2)
    await bench.ack(first)
    await bench.ack(second, verb=b"-NAK")
    await bench.pull("pull", 1)
    await bench.consumer("größe", durable=False, inactive_threshold=3600 * 10**9, deliver_policy="last")


def expectation(observed: ObservedStream) -> dict[str, Any]:
    return {
        "created": observed.created,
        "config": observed.config,
        "state": observed.state,
        "deleted": observed.deleted,
        "messages": [
            {
                "sequence": one.sequence,
                "time_ns": one.time_ns,
                "subject": one.subject.decode(),
                "headers": None if one.header_block is None else base64.b64encode(one.header_block).decode(),
                "data": base64.b64encode(one.data).decode(),
            }
            for one in observed.messages
        ],
        "consumers": observed.consumers,
    }


async def capture(version: str) -> tuple[bytes, dict[str, Any]]:
    with NatsServer(version) as server:
        nc, wire = await connect(server.url), await Wire.open(server.url)
        await fill(nc, wire, version)
        observed = (await observe(nc, [STREAM]))[STREAM]
        taken = await snapshot(nc, STREAM)
        await wire.close()
        await nc.close()
        return taken.raw, expectation(observed)


class Golden:
    """One version's captured snapshot and what it must decode to."""

    def __init__(self, version: str) -> None:
        self.raw = (GOLDEN / f"archive-{version}.s2").read_bytes()
        expected = json.loads((GOLDEN / f"archive-{version}.json").read_text())
        self.created: str = expected["created"]
        self.config: dict[str, Any] = expected["config"]
        self.state: dict[str, Any] = expected["state"]
        self.deleted = SequenceSet(expected["deleted"])
        self.consumers: dict[str, Any] = expected["consumers"]
        self.messages = [
            Message(
                one["sequence"],
                one["time_ns"],
                one["subject"],
                None if one["headers"] is None else base64.b64decode(one["headers"]),
                base64.b64decode(one["data"]),
            )
            for one in expected["messages"]
        ]

    @property
    def last_ns(self) -> int:
        return time_ns(self.state["last_ts"])


async def main() -> None:
    for version in VERSIONS:
        raw, expected = await capture(version)
        (GOLDEN / f"archive-{version}.s2").write_bytes(raw)
        text = json.dumps(expected, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
        (GOLDEN / f"archive-{version}.json").write_text(text)


if __name__ == "__main__":
    asyncio.run(main())
