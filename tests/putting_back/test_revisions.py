"""Revisions of a bucket that are chosen as messages are: by header, sequence or time."""

from __future__ import annotations

from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.js.api import KeyValueConfig

from tests.harness.servers import NEWEST, NatsServer
from tests.putting_back.scenes import actions, back_up, in_client, keys_of, put_back, run

pytestmark = pytest.mark.nats


async def _fill(nc: Client) -> None:
    js = nc.jetstream()
    bucket = await js.create_key_value(KeyValueConfig(bucket="settings", history=5))
    await js.publish("$KV.settings.a", b"one", headers={"By": "ops"})  # 1
    await js.publish("$KV.settings.b", b"one", headers={"By": "ops"})  # 2
    await bucket.put("a", b"two")  # 3
    await bucket.put("c", b"one")  # 4
    await bucket.delete("c")  # 5
    await js.create_key_value(KeyValueConfig(bucket="copy"))


async def _lose(nc: Client) -> None:
    bucket = await nc.jetstream().key_value("settings")
    for key in "ab":
        await bucket.purge(key)


def test_keys_are_put_back_by_conditions_of_their_messages(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    with NatsServer(NEWEST) as server:
        url = server.url
        run(in_client(url, _fill))
        named = back_up(url, repo)
        run(in_client(url, _lose))
        done = put_back(url, repo, named, "settings", "--header", "By:ops", "--dry-run").ok()
        assert done.document["stream"] == "KV_settings" and actions(done) == {1: "write", 2: "write"}
        done = put_back(url, repo, named, "settings", "--header", "By:ops").ok()
        assert {one["name"] for one in done.document["messages"]} == {"a", "b"}
        assert run(keys_of(url, "settings", "a", "b")) == {"a": b"one", "b": b"one"}
        # Something newer is refused, as with --key; the newest of each key counts.
        done = put_back(url, repo, named, "KV_settings", "--sequence", "1-3")
        assert done.code == 16 and actions(done) == {1: "left out", 2: "there", 3: "refused"}
        done = put_back(url, repo, named, "settings", "--sequence", "1-3", "--overwrite").ok()
        assert run(keys_of(url, "settings", "a", "b")) == {"a": b"two", "b": b"one"}
        # A delete is not put back, and no value before it.
        done = put_back(url, repo, named, "settings", "--subject", "$KV.settings.c").ok()
        assert actions(done) == {4: "left out", 5: "left out"} and done.document["written"] == 0
        # The name of the other bucket may be given as that of this one.
        put_back(url, repo, named, "settings", "--header", "By:ops", "--to", "copy").ok()
        assert run(keys_of(url, "copy", "a", "b")) == {"a": b"one", "b": b"one"}
        none = put_back(url, repo, named, "setings", "--header", "By:ops")
        assert none.code == 2 and "Did you mean KV_settings?" in none.document["error"]["hint"]
