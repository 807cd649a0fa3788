"""Streams that cannot take what is put back: one sentence and an exit code, and nothing is written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from tests.harness.api import call, headers
from tests.harness.servers import NEWEST, NatsServer
from tests.putting_back.scenes import (
    actions,
    back_up,
    delete,
    held,
    in_client,
    last_sequence,
    make,
    publish,
    put_back,
    run,
)

pytestmark = pytest.mark.nats

Starter = Callable[..., NatsServer]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A stream S with ten messages, in a backup, and deleted since: the subjects are free. A mirror's origin ORIGIN."""
    repo = tmp_path_factory.mktemp("refusals") / "repo"
    with NatsServer(NEWEST) as server:
        run(make(server.url, "S", subjects=["s.>"]))
        run(make(server.url, "ORIGIN"))
        run(publish(server.url, [(f"s.{n % 2}", None, b"x" * 100) for n in range(10)]))
        back_up(server.url, repo)
        run(in_client(server.url, lambda nc: call(nc, "STREAM.DELETE.S")))
        yield server.url, repo


# configuration of the target, exit code, part of the sentence
CONFIGS: dict[str, tuple[dict[str, Any], int, str]] = {
    "mirror": ({"mirror": {"name": "ORIGIN"}}, 15, "is a mirror of ORIGIN"),
    "counter": ({"subjects": ["s.>"], "allow_msg_counter": True, "allow_direct": True}, 15, "counts"),
    "some subjects": ({"subjects": ["s.0"]}, 15, "does not listen to its subject"),
    "message size": ({"subjects": ["s.>"], "max_msg_size": 120}, 15, "max_msg_size"),
    "full": ({"subjects": ["s.>"], "max_msgs": 5, "discard": "new"}, 16, "is full"),
    "drops by size": ({"subjects": ["s.>"], "max_bytes": 1500}, 16, "would drop its oldest messages"),
    "drops by subject": ({"subjects": ["s.>"], "max_msgs_per_subject": 3}, 16, "would drop another message"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_stream_that_cannot_take_it(shop: tuple[str, Path], name: str) -> None:
    url, repo = shop
    config, code, sentence = CONFIGS[name]
    run(in_client(url, lambda nc: call(nc, "STREAM.CREATE.TARGET", {"name": "TARGET", **config})))
    try:
        found = put_back(url, repo, "latest", "S", "--subject", ">", "--to", "TARGET")
        assert (found.code, found.document["result"], found.document["written"]) == (code, "refused", 0)
        message = found.document["error"]["message"]
        assert message.startswith("nothing was written: ") and sentence in message, message
        assert run(held(url, "TARGET")) == []
    finally:
        run(in_client(url, lambda nc: call(nc, "STREAM.DELETE.TARGET")))


@pytest.mark.parametrize("name", ["drops by subject", "drops by size"])
def test_what_limits_drop_is_dropped_when_told_to(shop: tuple[str, Path], name: str) -> None:
    url, repo = shop
    config = CONFIGS[name][0]
    run(in_client(url, lambda nc: call(nc, "STREAM.CREATE.TARGET", {"name": "TARGET", **config})))
    try:
        found = put_back(url, repo, "latest", "S", "--subject", ">", "--to", "TARGET", "--overwrite").ok()
        assert found.document["written"] == 10 and found.document["replaced"] == 10 - len(run(held(url, "TARGET")))
    finally:
        run(in_client(url, lambda nc: call(nc, "STREAM.DELETE.TARGET")))


def test_schedules_and_counters_are_not_put_back(nats_server: Starter, tmp_path: Path) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    run(make(server.url, "P", subjects=["p.>"], allow_msg_schedules=True, allow_rollup_hdrs=True))
    run(make(server.url, "C", subjects=["c.>"], allow_msg_counter=True, allow_direct=True))
    run(make(server.url, "PLAIN", subjects=["plain"]))
    schedule = headers(("Nats-Schedule", "@at 2099-01-01T00:00:00Z"), ("Nats-Schedule-Target", "p.target"))
    acks = run(
        publish(
            server.url,
            [("p.plan", schedule, b"later"), ("p.plain", None, b"1"), ("c.n", headers(("Nats-Incr", "2")), b"")],
        )
    )
    assert all("error" not in ack for ack in acks)
    back_up(server.url, repo)
    run(delete(server.url, "P", [1, 2]))
    found = put_back(server.url, repo, "latest", "P", "--subject", ">", "--partial")
    assert (found.code, actions(found)) == (3, {1: "refused", 2: "written"})
    assert "schedule" in found.document["messages"][0]["reason"]
    counted = put_back(server.url, repo, "latest", "C", "--subject", ">")
    assert counted.code == 15 and "counter" in counted.document["error"]["message"]
    elsewhere = put_back(server.url, repo, "latest", "C", "--subject", ">", "--to", "PLAIN")
    assert elsewhere.code == 15 and run(last_sequence(server.url, "PLAIN")) == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["latest", "S"], 2),
        (["latest", "S", "--key", "a"], 2),
        (["latest", "S", "--object", "a"], 2),
        (["latest", "NOPE", "--subject", ">"], 2),
        (["latest", "S", "--subject", "a..b"], 2),
        (["latest", "S", "--subject", ">", "--at", "5"], 2),
        (["latest", "S", "--subject", ">", "--key", "k"], 2),
        (["latest", "S", "--sequence", "3", "--last-per-subject", "1"], 2),
        (["latest", "S", "--sequence", "4711", "--to", "ORIGIN"], 1),
        (["latest", "S", "--subject", ">", "--to", "NOPE"], 15),
        (["latest", "S", "--subject", ">", "--to", "a b"], 2),
        (["latest", "S", "--subject", ">"], 15),
    ],
)
def test_a_request_that_cannot_be_met_is_one_sentence(shop: tuple[str, Path], arguments: list[str], code: int) -> None:
    url, repo = shop
    found = put_back(url, repo, *arguments)
    assert found.code == code, found.out
    assert "\n" not in found.document["error"]["message"]


def test_markers_of_the_server_are_no_messages_and_no_values(nats_server: Starter, tmp_path: Path) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    marking = {"allow_msg_ttl": True, "subject_delete_marker_ttl": 3_600_000_000_000, "allow_rollup_hdrs": True}
    run(make(server.url, "M", max_msgs_per_subject=1, **marking))
    run(publish(server.url, [("m.a", None, b"1"), ("m.b", None, b"2")]))
    first = back_up(server.url, repo)
    run(publish(server.url, [("m.a", headers(("Nats-TTL", "1s")), b"newer, for a second")]))
    while b"Nats-Marker-Reason" not in (run(held(server.url, "M"))[-1].header_block or b""):
        time.sleep(0.2)
    marker = run(held(server.url, "M"))[-1]
    second = back_up(server.url, repo)
    found = put_back(server.url, repo, second, "M", "--subject", ">").ok()
    assert actions(found) == {2: "there", marker.sequence: "left out"}
    made = put_back(server.url, repo, first, "M", "--subject", "m.a").ok().document
    assert made["written"] == 1 and made["messages"][0]["expected_last"] == marker.sequence
    assert run(held(server.url, "M"))[-1].data == b"1"


def test_missing_permissions_are_named_and_nothing_is_written(nats_server: Starter, tmp_path: Path) -> None:
    """The permissions are those of the manual."""
    allowed = ['"$JS.API.INFO"', '"$JS.API.STREAM.INFO.*"', '"$JS.API.STREAM.MSG.GET.*"', '"s.>"', '"$KV.b.>"']
    allowed += ['"$JS.API.CONSUMER.CREATE.>"', '"$JS.API.CONSUMER.DELETE.*.*"', '"$JS.FC.>"']

    def user(name: str, publish: list[str]) -> str:
        granted = f'publish: [{", ".join(publish)}], subscribe: ["_INBOX.>"]'
        return f"{{ user: {name}, password: x, permissions: {{ {granted} }} }}"

    needed = [one for one in allowed if "CONSUMER" not in one and "FC" not in one and 'INFO"' not in one]
    users = ["{ user: all, password: x }", user("enough", allowed), user("few", needed)]
    users += [user(f"less{at}", [other for other in allowed if other != one]) for at, one in enumerate(needed)]
    server = nats_server(NEWEST, config=f"accounts {{ A {{ jetstream: enabled, users: [ {', '.join(users)} ] }} }}")
    repo = tmp_path / "repo"

    def url(name: str) -> str:
        return server.url.replace("//", f"//{name}:x@")

    run(make(url("all"), "S"))

    async def bucket(nc: Client) -> None:
        kv = await nc.jetstream().create_key_value(bucket="b")
        await kv.put("k", b"v")

    run(in_client(url("all"), bucket))
    run(publish(url("all"), [("s.a", None, b"1")]))
    made = back_up(url("all"), repo)
    run(delete(url("all"), "S", [1]))
    run(in_client(url("all"), lambda nc: call(nc, "STREAM.PURGE.KV_b")))
    chosen = {"S": ("S", "--subject", ">"), "KV_b": ("b", "--key", "k")}
    for at, grant in enumerate(needed):
        for stream, arguments in chosen.items():
            if grant == ('"$KV.b.>"' if stream == "S" else '"s.>"'):
                continue
            before = run(last_sequence(url("all"), stream))
            found = put_back(url(f"less{at}"), repo, made, *arguments)
            assert found.code == 20 and "does not allow" in found.document["error"]["message"], (grant, found.out)
            assert run(last_sequence(url("all"), stream)) == before
    for arguments in chosen.values():
        assert put_back(url("enough"), repo, made, *arguments).ok().document["written"] == 1
        assert put_back(url("few"), repo, made, *arguments).ok().document["there"] == 1
