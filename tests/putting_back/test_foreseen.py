"""What a plan foresees and says: messages with one id, messages older than a stream keeps them, names of keys."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.js.api import KeyValueConfig

from jsbackup.putting_back.headers import message_id
from tests.harness.api import call, headers
from tests.harness.servers import NEWEST, NatsServer
from tests.putting_back.scenes import (
    VERSIONS,
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


@pytest.mark.parametrize("version", VERSIONS)
def test_of_messages_with_one_id_one_is_written_in_a_run(nats_server: Starter, tmp_path: Path, version: str) -> None:
    server, repo = nats_server(version), tmp_path / "repo"
    run(make(server.url, "IDS", duplicate_window=100_000_000))
    for n in range(3):
        run(publish(server.url, [("ids.a", headers(("Nats-Msg-Id", "x")), b"same%d" % n)]))
        time.sleep(0.5)
    run(publish(server.url, [("ids.a", headers(("nats-msg-id", "x")), b"no id of a server"), ("ids.b", None, b"none")]))
    assert run(last_sequence(server.url, "IDS")) == 5
    back_up(server.url, repo)
    run(delete(server.url, "IDS", range(1, 6)))

    chosen = ("latest", "IDS", "--subject", ">")
    planned = put_back(server.url, repo, *chosen, "--dry-run")
    expected = {1: "write", 2: "duplicate", 3: "duplicate", 4: "write", 5: "write"}
    assert (planned.code, actions(planned), planned.document["duplicate"]) == (3, expected, 2)
    assert "message 1 has its message id" in planned.document["messages"][1]["reason"]
    for written in ({1, 4, 5}, {2}, {3}):
        time.sleep(0.5)
        made = put_back(server.url, repo, *chosen)
        assert {row["sequence"] for row in made.document["messages"] if row["action"] == "written"} == written
        assert made.code == (0 if written == {3} else 3)
    assert [one.data for one in run(held(server.url, "IDS")) if one.subject == b"ids.a"] == [
        b"same0",
        b"no id of a server",
        b"same1",
        b"same2",
    ]


def test_the_message_id_is_the_one_that_a_server_sees() -> None:
    assert message_id(None) == message_id(b"") == message_id(headers(("A", "1"))) == b""
    assert message_id(headers(("A", "Nats-Msg-Id:y"), ("Nats-Msg-Id", " x "), ("Nats-Msg-Id", "z"))) == b"x"
    assert message_id(headers(("nats-msg-id", "x"), ("Nats-Msg-Id2", "y"))) == b""


def test_messages_that_had_expired_begin_anew_which_is_said(nats_server: Starter, tmp_path: Path) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"

    async def fill(nc: Client) -> None:
        await (await nc.jetstream().create_key_value(bucket="b")).put("k", b"v")
        await (await nc.jetstream().create_object_store("files")).put("f", b"content")

    async def limit(nc: Client) -> None:
        for name in ("AGED", "KV_b", "OBJ_files"):
            config = (await call(nc, f"STREAM.INFO.{name}"))["config"]
            aged = {**config, "max_age": 2_000_000_000, "duplicate_window": 100_000_000}
            await call(nc, f"STREAM.UPDATE.{name}", aged)

    run(make(server.url, "AGED"))
    run(publish(server.url, [("aged.a", None, b"1"), ("aged.a", None, b"2")]))
    run(in_client(server.url, fill))
    back_up(server.url, repo)
    run(in_client(server.url, limit))
    while run(held(server.url, "AGED")) or run(held(server.url, "KV_b")) or run(held(server.url, "OBJ_files")):
        time.sleep(0.2)
    for chosen, count in (
        (("AGED", "--subject", ">"), "are 2 messages"),
        (("b", "--key", "k"), "is 1 message"),
        (("files", "--object", "f"), "is 1 message"),
    ):
        found = put_back(server.url, repo, "latest", *chosen, "--dry-run").ok().document
        [note] = found["notes"]
        assert f"there {count} older than stream {found['to']} keeps them (max_age 2.0 s)" in note


def test_a_subject_that_is_none_of_a_key_is_not_shown_as_one(nats_server: Starter, tmp_path: Path) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"

    async def bucket(nc: Client) -> None:
        await nc.jetstream().create_key_value(KeyValueConfig(bucket="settings"))

    run(make(server.url, "ORDERS"))
    run(publish(server.url, [("orders.eu.1", None, b"1")]))
    run(in_client(server.url, bucket))
    back_up(server.url, repo)
    found = put_back(server.url, repo, "latest", "ORDERS", "--sequence", "1", "--to", "KV_settings")
    assert found.code == 15
    assert found.document["messages"][0]["name"] is None
    assert "message 1: stream KV_settings does not listen to its subject" in found.document["error"]["message"]
