"""What a result says of consumers is what arrived, in numbers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from tests.harness.api import connected
from tests.harness.filling import fill
from tests.harness.servers import ENDS, NEWEST, NatsServer
from tests.trials.accounts import Type, typing

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    return typing(capsys, monkeypatch)


async def _fill(url: str, name: str, **config: str) -> None:
    """40 messages, of which 10 were delivered; acknowledged are 1 to 5 and 8."""
    async with connected(url) as nc:
        js = nc.jetstream()
        await fill(nc, name, 40, **config)
        patient = ConsumerConfig(ack_wait=3600, ack_policy=AckPolicy.EXPLICIT)
        reader = await js.pull_subscribe("", "reader", stream=name, config=patient)
        for number, message in enumerate(await reader.fetch(10), start=1):
            if number in (1, 2, 3, 4, 5, 8):
                await message.ack_sync()


def _told(document: dict[str, Any], stream: str) -> dict[str, Any]:
    (found,) = [one for one in document["streams"] if one["name"] == stream]
    (consumer,) = found["consumers"]
    assert not [note for note in found["notes"] if "redelivered" in note]
    told: dict[str, Any] = consumer
    return told


def test_a_restore_says_in_numbers_what_comes_again(typed: Type, tmp_path: Path) -> None:
    repo = ("-r", tmp_path / "repo")
    with NatsServer(ENDS[0]) as source, NatsServer(NEWEST) as target:
        asyncio.run(_fill(source.url, "SMALL"))
        asyncio.run(_fill(source.url, "MEMORY", storage="memory"))
        assert typed("backup", "-s", source.url, *repo).code == 0
        planned = typed("plan", "latest", "-s", target.url, *repo)
        assert "may be redelivered to consumers of which only the ack floor is known: reader (at most 5)" in planned.out
        done = typed("restore", "latest", "-s", target.url, *repo, "--json")
        assert _told(done.document, "SMALL")["may_come_again"] == 4
        kept = _told(done.document, "MEMORY")
        assert (kept["fidelity"], kept["may_come_again"]) == ("floor", 5)
        done = typed("restore", "latest", "-s", target.url, *repo, "--if-exists", "replace")
        assert "consumer reader: floor: " in done.out and "; up to 5 messages redelivered" in done.out
        done = typed("restore", "latest", "-s", target.url, *repo, "--if-exists", "replace", "--consumers", "config")
        assert "consumer reader: config only: starts from its beginning; up to 40 messages redelivered" in done.out
