"""A backup beside the real streams it was made of, before and after they changed, and beside a restored copy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.api import PATIENCE_SECONDS, call, connected
from tests.harness.commands import jsbackup
from tests.harness.filling import fill, publish
from tests.harness.servers import ENDS, NEWEST, NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]

Starter = Callable[..., NatsServer]

STREAMS: dict[str, dict[str, Any]] = {
    "ORDERS": {"metadata": {"owner": "shop"}},
    "KEYS": {"max_msgs_per_subject": 1},
    "QUEUE": {"retention": "workqueue"},
    "MEMORY": {"storage": "memory"},
    "AGAIN": {},
    "GONE": {},
}
COUNT = 100


async def fill_all(url: str) -> None:
    async with connected(url) as nc:
        for name, config in STREAMS.items():
            await fill(nc, name, COUNT if name != "GONE" else 7, subject=f"{name}.{{}}", **(base(name) | config))
        for stream in ("ORDERS", "QUEUE"):
            durable = {"durable_name": "worker", "ack_policy": "explicit"}
            await call(nc, f"CONSUMER.DURABLE.CREATE.{stream}.worker", {"stream_name": stream, "config": durable})


def base(name: str) -> dict[str, Any]:
    return {"subjects": [f"{name}.>"], "retention": "limits", "storage": "file", "num_replicas": 1}


async def change(url: str) -> None:
    async with connected(url) as nc:
        for sequence in (7, 8, 60):
            await call(nc, "STREAM.MSG.DELETE.ORDERS", {"seq": sequence})
        await call(nc, "STREAM.PURGE.MEMORY", {"seq": 11})
        config = (await call(nc, "STREAM.INFO.ORDERS"))["config"]
        await call(nc, "STREAM.UPDATE.ORDERS", config | {"max_msgs": 100_000, "metadata": {"owner": "new"}})
        inbox = await nc.subscribe("taken")
        await nc.publish("$JS.API.CONSUMER.MSG.NEXT.QUEUE.worker", b'{"batch":1}', reply="taken")
        await nc.request((await inbox.next_msg(timeout=PATIENCE_SECONDS)).reply, b"+ACK", timeout=PATIENCE_SECONDS)
        await call(nc, "STREAM.DELETE.GONE")
        await call(nc, "STREAM.DELETE.AGAIN")
        await fill(nc, "AGAIN", 1, subject="AGAIN.1", **base("AGAIN"))
        await fill(nc, "NEW", 0)
        for subject in ("ORDERS.new", "ORDERS.new", "KEYS.5"):
            await publish(nc, subject)


def summary(stream: dict[str, Any]) -> tuple[int, int, int]:
    return stream["added"], stream["removed"], stream["changed"]


def test_a_diff_tells_what_became_of_streams(nats_server: Starter, tmp_path: Path) -> None:
    server, repo = nats_server(ENDS[0]), tmp_path / "repo"
    asyncio.run(fill_all(server.url))
    first = jsbackup("backup", "-s", server.url, "-r", repo).ok().document["backup"]
    line = ("-s", server.url, "-r", repo)
    same = jsbackup("diff", first, "live", *line).ok().document
    assert same["equal"] and len(same["streams"]) == len(STREAMS)

    asyncio.run(change(server.url))
    done = jsbackup("diff", "latest", "live", *line)
    found = {one["stream"]: one for one in done.document["streams"]}
    assert done.code == 1 and not done.document["failed"], done
    assert {name: summary(one) for name, one in found.items()} == {
        "ORDERS": (2, 3, 0),
        "KEYS": (1, 1, 0),
        "QUEUE": (0, 1, 0),
        "MEMORY": (0, 10, 0),
        "AGAIN": (0, COUNT - 1, 1),
        "GONE": (0, 7, 0),
        "NEW": (0, 0, 0),
    }
    orders = found["ORDERS"]
    assert [(r["change"], r["first_seq"], r["last_seq"], r["messages"]) for r in orders["ranges"]] == [
        ("removed", 7, 8, 2),
        ("removed", 60, 60, 1),
        ("added", COUNT + 1, COUNT + 2, 2),
    ]
    assert [(m["sequence"], m["subject"]) for m in orders["messages"]][-1] == (COUNT + 2, "ORDERS.new")
    assert {c["field"]: (c["from"], c["to"]) for c in orders["config_changes"]} == {
        "max_msgs": (-1, 100_000),
        "metadata.owner": ("shop", "new"),
    }
    assert not orders["recreated"] and found["AGAIN"]["recreated"]
    assert (found["GONE"]["only_in"], found["NEW"]["only_in"]) == ("a", "b")
    (worker,) = found["QUEUE"]["consumer_changes"]
    assert {c["field"] for c in worker["state_changes"]} >= {"ack_floor.stream_seq", "delivered.stream_seq"}

    # Two backups differ as the first one and the server did; and from the other side the other way round.
    second = jsbackup("backup", *line).ok().document["backup"]
    stored = jsbackup("diff", first, second, "-r", repo)
    assert stored.code == 1
    assert {one["stream"]: summary(one) for one in stored.document["streams"]} == {
        name: summary(one) for name, one in found.items()
    }
    backwards = jsbackup("diff", "live", first, *line).document["streams"]
    assert {one["stream"]: summary(one) for one in backwards} == {
        name: (one["removed"], one["added"], one["changed"]) for name, one in found.items()
    }
    assert jsbackup("diff", second, "live", *line).ok().document["equal"]

    # What is restored elsewhere is equal, whatever release it comes from.
    target = nats_server(NEWEST)
    jsbackup("restore", second, "-s", target.url, "-r", repo).ok()
    assert jsbackup("diff", second, "live", "-s", target.url, "-r", repo).ok().document["equal"]
