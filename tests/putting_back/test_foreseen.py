"""What a plan foresees and says: messages with one id, messages older than a stream keeps them, names of keys."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jsbackup.putting_back.headers import message_id
from tests.harness.api import headers
from tests.harness.servers import NatsServer
from tests.putting_back.scenes import (
    VERSIONS,
    actions,
    back_up,
    delete,
    held,
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
