"""What `./scripts/demo` runs: two nats-servers, a few real streams, and every command typed as a user would.

The last part is a query on an embedded Spark. Where Spark or Java is missing, the demo says so and leaves it out.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import nats
from nats.js.api import ConsumerConfig, RetentionPolicy, StreamConfig

from jsbackup.errors import UnsupportedError
from jsbackup.pipeline.session.java import find_java

BIN = Path(sys.executable).parent
MESSAGES = 20_000
QUERY = (
    "SELECT get_json_object(text, '$.customer') AS customer, count(*) AS n "
    "FROM ORDERS GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 3"
)

# The parts so far, each with the moment it began.
parts: list[tuple[str, float]] = []


def say(text: str) -> None:
    print(f"\n\033[1m==> {text}\033[0m", flush=True)


def begin(text: str) -> None:
    """Begin a part of the demo, whose time is shown at the end."""
    parts.append((text, time.monotonic()))
    say(text)


def tell_times() -> None:
    ends = [began for _, began in parts[1:]] + [time.monotonic()]
    for (text, began), end in zip(parts, ends, strict=True):
        print(f"{end - began:6.1f} s  {text}")
    print(f"{ends[-1] - parts[0][1]:6.1f} s  in all")


def missing_for_spark() -> str:
    """Say why there is no Spark on this machine; nothing if there is."""
    if find_spec("pyspark") is None:
        return "Spark is not installed"
    try:
        find_java(os.environ)
    except UnsupportedError as error:
        return error.message
    return ""


def run(*arguments: str) -> None:
    """Type a jsbackup command, show it and what it prints, and stop the demo if it fails."""
    shown = " ".join(["jsbackup", *arguments])
    print(f"\033[36m$ {shown}\033[0m", flush=True)
    subprocess.run([str(BIN / "jsbackup"), *arguments], check=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def server(name: str, folder: Path) -> Iterator[str]:
    """A nats-server with JetStream on a free port of the loopback interface; ended when the demo ends."""
    port = free_port()
    log = (folder / f"{name}.log").open("wb")
    command = [str(BIN / "nats-server"), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder / name)]
    process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"nats-server did not start; see {log.name}")
                time.sleep(0.05)
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()
        log.close()


async def fill(url: str) -> None:
    """A stream with a consumer half-way through, a work queue, a key-value bucket and an object store."""
    nc = await nats.connect(url)
    js = nc.jetstream()
    await js.add_stream(StreamConfig(name="ORDERS", subjects=["orders.>"]))
    await js.add_consumer("ORDERS", ConsumerConfig(durable_name="billing", ack_policy="explicit"))  # type: ignore[arg-type]
    for first in range(0, MESSAGES, 1000):
        await asyncio.gather(
            *(
                js.publish(
                    f"orders.{'eu' if n % 3 else 'us'}.{n % 7}",
                    json.dumps({"order": n, "amount": n * 1.5, "customer": f"customer {n % 50}"}).encode(),
                    headers={"Nats-Msg-Id": f"order-{n}"},
                )
                for n in range(first, first + 1000)
            )
        )
    billing = await js.pull_subscribe_bind("billing", stream="ORDERS")
    for message in await billing.fetch(100):
        if int(message.metadata.sequence.stream) % 2:
            await message.ack_sync()
    await js.delete_msg("ORDERS", 4711)
    await js.add_stream(StreamConfig(name="JOBS", subjects=["jobs"], retention=RetentionPolicy.WORK_QUEUE))
    for n in range(100):
        await js.publish("jobs", f"job {n}".encode())
    bucket = await js.create_key_value(bucket="settings", history=5)
    for n in range(10):
        await bucket.put("theme", f"revision {n}".encode())
    await bucket.put("language", "español".encode())
    await bucket.delete("language")
    store = await js.create_object_store("reports")
    await store.put("2026.pdf", os.urandom(1_000_000))
    await nc.close()


async def look(url: str) -> dict[str, list[object]]:
    """What an ordinary client sees of every stream: state, a few messages, consumers."""
    nc = await nats.connect(url)
    js = nc.jetstream()
    seen: dict[str, list[object]] = {}
    for info in await js.streams_info():
        state = info.state
        name = str(info.config.name)
        facts: list[object] = [state.messages, state.bytes, state.first_seq, state.last_seq]
        for sequence in {state.first_seq, (state.first_seq + state.last_seq) // 2, state.last_seq}:
            message = await js.get_msg(name, sequence)
            facts.append((message.seq, message.subject, message.data, message.headers, str(message.time)))
        for consumer in await js.consumers_info(name):
            for at in (consumer.ack_floor, consumer.delivered):
                facts.append((consumer.name, at.consumer_seq, at.stream_seq, consumer.num_ack_pending))
        seen[name] = facts
    await nc.close()
    return seen


def main() -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jsbackup-demo-")))
        os.chdir(folder)
        begin("starting two nats-servers")
        source = stack.enter_context(server("source", folder))
        target = stack.enter_context(server("target", folder))
        print(f"source {source}\ntarget {target}")

        begin(f"filling the source: a stream of {MESSAGES} orders, a work queue, a key-value bucket, an object store")
        asyncio.run(fill(source))

        begin("backing up every stream")
        run("backup", "-s", source, "-r", "repo")

        begin("what the repository holds")
        run("list", "-r", "repo")
        run("show", "latest", "-r", "repo")

        begin("verifying every stored message")
        run("verify", "-r", "repo", "--level", "data")

        begin("restoring into the second server, with proof")
        run("restore", "latest", "-s", target, "-r", "repo")

        begin("looking at both servers with an ordinary client")
        before, after = asyncio.run(look(source)), asyncio.run(look(target))
        for name, facts in sorted(before.items()):
            same = facts == after.get(name)
            print(f"{name:<14} {facts[0]:>7} messages   {'equal' if same else 'DIFFERENT'}")
            if not same:
                sys.exit(f"{name} is not what it was:\n{facts}\n{after.get(name)}")

        begin("a backup is plain Parquet: any reader opens it")
        import pyarrow.parquet as pq

        segment = next(Path("repo/segments").glob("ORDERS-*/*.parquet"))
        print(pq.read_table(segment, columns=["sequence", "timestamp_ns", "subject"]).slice(0, 3).to_pylist())

        if lacking := missing_for_spark():
            begin(f"no query on Spark: {lacking}")
        else:
            begin("querying the backup on an embedded Spark, which takes most of the time to start")
            run("query", "latest", QUERY, "--spark", "local", "-r", "repo")
    say("how long it took")
    tell_times()
    say("done: everything above ran for real, and nothing is left behind")


if __name__ == "__main__":
    main()
