"""Restores into servers of older releases: what they lack, and what is the same although it looks different
(points 12 and 13)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.harness.api import JSON, call, connected
from tests.harness.servers import NEWEST, NatsServer
from tests.trials.accounts import Type, typing

pytestmark = [pytest.mark.nats, pytest.mark.timeout(120)]


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
    with NatsServer(NEWEST) as newer, NatsServer("2.10.26") as older:
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
