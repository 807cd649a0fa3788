"""Restores into servers of older releases: what they lack, and what is the same although it looks different."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.harness.api import JSON, call, connected
from tests.harness.servers import ENDS, NEWEST, NatsServer
from tests.trials.accounts import Type, typing

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    return typing(capsys, monkeypatch)


def calls(url: str, *requests: tuple[str, JSON]) -> None:
    async def run() -> None:
        async with connected(url) as nc:
            for subject, body in requests:
                await call(nc, subject, body)

    asyncio.run(run())


def test_what_an_older_release_was_given_does_not_differ_from_its_backup(typed: Type, tmp_path: Path) -> None:
    repo = ("-r", tmp_path / "repo")
    patient = {"ack_policy": "explicit", "ack_wait": 3_600_000_000_000}
    with NatsServer(NEWEST) as newer, NatsServer(ENDS[0]) as older:
        calls(
            newer.url,
            ("STREAM.CREATE.S", {"name": "S", "subjects": ["s.*"]}),
            ("STREAM.CREATE.COPY", {"name": "COPY", "sources": [{"name": "S"}], "duplicate_window": 120_000_000_000}),
            ("STREAM.CREATE.MIRROR", {"name": "MIRROR", "mirror": {"name": "S"}}),
            ("CONSUMER.DURABLE.CREATE.S.c", {"stream_name": "S", "config": {"durable_name": "c", **patient}}),
            ("CONSUMER.PAUSE.S.c", {"pause_until": "2090-01-01T00:00:00Z"}),
            ("CONSUMER.PAUSE.S.c", {}),
        )
        assert typed("backup", "-s", newer.url, *repo).code == 0
        done = typed("restore", "latest", "-s", older.url, *repo)
        assert done.code == 0, done.err
        differing = typed("diff", "latest", "live", "-s", older.url, *repo, "--json")
        assert (differing.code, differing.document["equal"]) == (0, True), differing.out


TTL = {"max_msgs_per_subject": 1, "allow_rollup_hdrs": True, "allow_direct": True, "allow_msg_ttl": True}


async def _buckets(url: str) -> None:
    """KV_plain sets what it does not use, KV_short has a key that lives for an hour."""
    async with connected(url) as nc:
        js = nc.jetstream()
        for name in ("plain", "short"):
            config = {"name": f"KV_{name}", "subjects": [f"$KV.{name}.>"], "subject_delete_marker_ttl": 10**10}
            await call(nc, f"STREAM.CREATE.KV_{name}", {**config, **TTL})
            for number in range(3):
                await js.publish(f"$KV.{name}.k{number}", b"v", headers={"X-Other": "Nats-TTL: 1h"})
        await js.publish("$KV.short.k", b"v", headers={"Nats-TTL": "1h"})
        await call(nc, "STREAM.CREATE.BATCHED", {"name": "BATCHED", "subjects": ["b.*"], "allow_atomic": True})


def test_what_the_target_does_not_know_is_left_out_where_nothing_needs_it(typed: Type, tmp_path: Path) -> None:
    repo = ("-r", tmp_path / "repo")
    with NatsServer(NEWEST) as newer, NatsServer(ENDS[0]) as older:
        asyncio.run(_buckets(newer.url))
        assert typed("backup", "-s", newer.url, *repo).code == 0
        to = ("-s", older.url, *repo)
        refused = typed("plan", "latest", *to)
        assert refused.code == 15
        for verb in ("plan", "restore"):
            refused = typed(verb, "latest", *to, "--adapt", "--json")
            assert refused.code == 15
            assert "message 4 of stream KV_short has the header Nats-TTL" in refused.out
            if verb == "plan":
                assert [one["stream"] for one in refused.document["refusals"]] == ["KV_short"]
        done = typed("restore", "latest", *to, "--adapt", "--exclude", "KV_short", "--json")
        assert done.code == 0, done.err
        notes = {one["name"]: one["notes"] for one in done.document["streams"]}
        knows_not = "is left out: nats-server 2.10.26 does not know it"
        assert f"allow_atomic {knows_not}" in notes["BATCHED"]
        for field in ("allow_msg_ttl", "subject_delete_marker_ttl"):
            assert f"{field} {knows_not}; a message with the header Nats-TTL stops the restore" in notes["KV_plain"]
        # What is about the future only can be left out of the other one by hand.
        by_hand = ("--set", "allow_msg_ttl=null", "--set", "subject_delete_marker_ttl=null")
        assert typed("restore", "latest", "KV_short", *to, *by_hand).code == 0
