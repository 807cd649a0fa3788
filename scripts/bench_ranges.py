"""Whether one huge stream is read faster in ranges, from several replicas at once: `scripts/bench ranges`.

A cluster of three servers has a stream of three replicas. It is read, by clients that do nothing else, in three ways:

    snapshot     the whole stream from its leader, as a backup does
    consumer     a range of sequences by an ordered consumer
    direct get   a range of sequences by batched direct gets, answered by the replica that the client is connected to

by one client and by three at once, each at another server and with another third of the stream. A backup at full speed
(`jsbackup backup`) stands beside them: it says what one executor does with what it reads.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from scripts.bench_cases import busy_seconds, run
from scripts.bench_load import Text, Wire, fill, receive, request
from scripts.bench_tables import markdown
from tests.harness.clusters import NatsCluster
from tests.harness.commands import command_line
from tests.harness.servers import NEWEST

__all__: list[str] = []

STREAM = "S"
MESSAGE_BYTES = 1024
READERS = 3
ROW = ("seconds_per_gb", "client_seconds_per_gb", "server_seconds_per_gb")
_BATCH = 5000  # messages of a direct get
_BATCH_BYTES = 8 << 20

# Prints its processor seconds after what it read.
READER = "import resource, sys; from scripts.bench_ranges import read; read(*sys.argv[1:])"


def read(way: str, url: str, first: str, last: str) -> None:
    """Read messages and forget them; print their bytes and what that took: a process of its own."""
    import resource

    began = time.monotonic()
    total = receive(url, STREAM) if way == "snapshot" else sum(WAYS[way](url, int(first), int(last)))
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps([total, time.monotonic() - began, used.ru_utime + used.ru_stime]))


def consume(url: str, first: int, last: int) -> Iterator[int]:
    """Yield the sizes of a range of messages, by an ordered consumer."""
    wire = Wire(url)
    to = wire.inbox + b".deliver"
    wire.send(b"SUB %b 1\r\n" % to)
    config = {
        "deliver_subject": to.decode(),
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": first,
        "ack_policy": "none",
        "max_deliver": 1,
        "mem_storage": True,
        "num_replicas": 1,
        "flow_control": True,
        "idle_heartbeat": 5 * 10**9,
        "inactive_threshold": 60 * 10**9,
    }
    wire.ask(f"$JS.API.CONSUMER.CREATE.{STREAM}", {"stream_name": STREAM, "config": config})
    left = last - first + 1
    while left:
        reply, _, size = wire.message()
        if reply.startswith(b"$JS.ACK."):
            left -= 1
            yield size
        elif reply:  # flow control
            wire.send(b"PUB %b 0\r\n\r\n" % reply)
    wire.socket.close()


def get_directly(url: str, first: int, last: int) -> Iterator[int]:
    """Yield the sizes of a range of messages, by batched direct gets."""
    wire = Wire(url)
    wire.send(b"SUB %b.answers 1\r\n" % wire.inbox)
    at = first
    while at <= last:
        asked = {"seq": at, "batch": min(_BATCH, last - at + 1), "max_bytes": _BATCH_BYTES}
        body = json.dumps(asked).encode()
        subject = f"$JS.API.DIRECT.GET.{STREAM}".encode()
        wire.send(b"PUB %b %b.answers %d\r\n%b\r\n" % (subject, wire.inbox, len(body), body))
        while True:
            _, body, size = wire.message()
            if not size and body.startswith(b"NATS/1.0 204"):
                break
            if not size:
                raise RuntimeError(body.decode())
            at += 1
            yield size
    wire.socket.close()


WAYS = {"consumer": consume, "direct get": get_directly}


def measure(cluster: NatsCluster, way: str, urls: Sequence[str], messages: int) -> dict[str, Any]:
    """Let a client for each of these servers read its part at the same time."""
    part = messages // len(urls)
    before = [busy_seconds(server) for server in cluster.servers]
    began = time.monotonic()
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", READER, way, url, str(number * part + 1), str((number + 1) * part)],
            stdout=subprocess.PIPE,
        )
        for number, url in enumerate(urls)
    ]
    told = [json.loads(reader.communicate(timeout=600)[0]) for reader in readers]
    seconds = time.monotonic() - began
    server = sum(busy_seconds(one) - start for one, start in zip(cluster.servers, before, strict=True))
    read_bytes = part * len(urls) * MESSAGE_BYTES
    return _row(f"{way}, {len(urls)} at once" if len(urls) > 1 else way, read_bytes, seconds, told, server)


def _row(what: str, size: int, seconds: float, told: Sequence[Sequence[float]], server: float) -> dict[str, Any]:
    return {
        "what": what,
        "seconds_per_gb": seconds / size * 1e9,
        "client_seconds_per_gb": sum(busy for _, _, busy in told) / size * 1e9,
        "server_seconds_per_gb": server / size * 1e9,
    }


def backed_up(cluster: NatsCluster, size: int, folder: Path) -> dict[str, Any]:
    """A backup into a folder."""
    before = [busy_seconds(server) for server in cluster.servers]
    command = command_line("backup", "-s", cluster.servers[0].url, "-r", folder / "repo", "--json")
    done = run([*command, "--no-progress"])
    server = sum(busy_seconds(one) - start for one, start in zip(cluster.servers, before, strict=True))
    return _row("jsbackup backup", size, done.seconds, [(size, done.seconds, done.busy_seconds)], server)


def measured(size: int) -> list[dict[str, Any]]:
    """All rows, for a stream of so many bytes."""
    text, messages = Text(), size // MESSAGE_BYTES
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jsbackup-ranges-")))
        cluster = stack.enter_context(NatsCluster(NEWEST, READERS))
        urls = [server.url for server in cluster.servers]
        config = {"name": STREAM, "subjects": ["s.>"], "num_replicas": READERS, "allow_direct": True}
        request(urls[0], f"STREAM.CREATE.{STREAM}", config)
        fill(urls[0], lambda number: f"s.{number % 100}", lambda number: text.record(number, 1000), range(messages))
        rows = [measure(cluster, "snapshot", urls[:1], messages)]
        for way in WAYS:
            rows += [measure(cluster, way, urls[:1], messages), measure(cluster, way, urls, messages)]
        return [*rows, backed_up(cluster, size, folder)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench ranges", description=__doc__)
    parser.add_argument("--bytes", type=float, default=600e6, help="of the stream")
    parser.add_argument("--short", action="store_true", help="20 MB: seconds")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    asked = parser.parse_args()
    rows = measured(20_000_000 if asked.short else int(asked.bytes))
    if asked.json:
        print(json.dumps({"rows": rows}, indent=2))
        return
    print(markdown(["read by", "seconds a GB", "processor seconds of clients", "of servers"]))
    print(markdown(["---", "---:", "---:", "---:"]))
    for row in rows:
        print(markdown([row["what"], *(f"{row[key]:.1f}" for key in ROW)]))


if __name__ == "__main__":
    main()
