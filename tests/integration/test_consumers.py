"""What a result says of consumers is what arrived, in numbers (point 11)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from tests.harness.api import call, connected
from tests.harness.sending import send_as
from tests.harness.servers import NEWEST, NatsServer
from tests.trials.accounts import Type, ask, typing

pytestmark = [pytest.mark.nats, pytest.mark.timeout(120)]

LARGE = 200_000  # bytes of a message: more of them than wait between the two servers


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    return typing(capsys, monkeypatch)


async def _fill(url: str, name: str, size: int, **config: str) -> None:
    """40 messages, of which 10 were delivered; acknowledged are 1 to 5 and 8."""
    async with connected(url) as nc:
        js = nc.jetstream()
        await call(nc, f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.*"], **config})
        for number in range(40):
            await js.publish(f"{name}.{number}", bytes(size))
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


def _acks(url: str, stream: str) -> tuple[int, int]:
    info = ask(url, f"CONSUMER.INFO.{stream}.reader")
    return info["ack_floor"]["stream_seq"], info["num_ack_pending"]


@pytest.mark.parametrize("version", ["2.12.8", NEWEST])
def test_a_clone_says_of_consumers_what_arrived(version: str, typed: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    with NatsServer(version) as source, NatsServer(NEWEST) as target:
        asyncio.run(_fill(source.url, "SMALL", 10))
        asyncio.run(_fill(source.url, "LARGE", LARGE))
        send_as(monkeypatch, "v2")
        done = typed("clone", "*", "-s", source.url, "--to-server", target.url, "--json")
        assert done.code == 0, done.err
        small, large = _told(done.document, "SMALL"), _told(done.document, "LARGE")
        assert small == {"name": "reader", "fidelity": "exact", "note": "", "may_come_again": 4}
        assert _acks(target.url, "SMALL") == (5, 4)
        if version == NEWEST:
            assert large == small
        else:  # by v2 consumers go first, and 2.12 tells of its own last: 8 comes again although it was acknowledged
            assert (large["fidelity"], large["may_come_again"]) == ("floor", 5) and "ack floor" in large["note"]
            assert _acks(target.url, "LARGE") == (5, 0)


def test_a_restore_says_in_numbers_what_comes_again(typed: Type, tmp_path: Path) -> None:
    repo = ("-r", tmp_path / "repo")
    with NatsServer("2.12.8") as source, NatsServer(NEWEST) as target:
        asyncio.run(_fill(source.url, "SMALL", 10))
        asyncio.run(_fill(source.url, "MEMORY", 10, storage="memory"))
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
