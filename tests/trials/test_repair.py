"""What was found damaged is stored again, by whoever has the bytes (point 4)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.api import call, connected
from tests.harness.servers import NEWEST, NatsServer
from tests.trials.accounts import Type, delete, typing

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

AGE_RECIPIENT = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    return typing(capsys, monkeypatch)


@pytest.fixture(scope="module")
def started() -> Iterator[NatsServer]:
    with NatsServer(NEWEST) as server:
        yield server


@pytest.fixture
def server(started: NatsServer) -> Iterator[NatsServer]:
    """With 300 messages in a stream S."""
    publish(started.url, "S", 300)
    yield started
    delete(started.url, "S")


def publish(where: str, stream: str, count: int) -> None:
    """So many messages more, in a stream that is made if there is none."""

    async def work() -> None:
        async with connected(where) as nc:
            await call(nc, f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [f"{stream}.>"]})
            for number in range(count):
                await nc.publish(f"{stream}.{number}", b"text %d" % number * 20)
            await nc.flush()

    asyncio.run(work())


def flip(segment: Path) -> None:
    """Another bit in the middle, where nothing but its SHA-256 tells."""
    data = bytearray(segment.read_bytes())
    data[len(data) // 3] ^= 4
    segment.chmod(0o600)
    segment.write_bytes(data)


def segments(repo: Path) -> list[Path]:
    return sorted(repo.rglob("*.parquet*"))


@pytest.mark.parametrize(("kind", "incremental"), [("plain", "auto"), ("plain", "never"), ("encrypted", "auto")])
def test_what_verify_found_damaged_is_stored_again(
    server: NatsServer, typed: Type, tmp_path: Path, kind: str, incremental: str
) -> None:
    repo, keys = tmp_path / "repo", list[str | Path]()
    if kind == "encrypted":
        keys = ["--writer-key", tmp_path / "writer.key"]
        line = ("init", "--encrypt-to", AGE_RECIPIENT, *keys, "-r", repo)
        assert typed(*line).code == 0
    line = ("backup", "-s", server.url, "-r", repo, *keys, "--json")
    assert typed(*line).code == 0
    (first,) = segments(repo)
    publish(server.url, "S", 40)
    assert typed(*line).code == 0
    whole = segments(repo)
    flip(first)
    assert typed("verify", "-r", repo, *keys).code == 14
    again = typed(*line, "--incremental", incremental)
    assert again.code == 0
    (stream,) = again.document["streams"]
    assert stream["messages"] == 340 and stream["stored_bytes_added"] > 0
    made = [path for path in segments(repo) if path not in whole]
    assert len(made) == 1
    assert typed("verify", again.document["backup"], "-r", repo, *keys).code == 0
    # The next one builds on what is sound.
    publish(server.url, "S", 1)
    last = typed(*line)
    assert last.code == 0 and last.document["streams"][0]["stored_bytes_added"] < made[0].stat().st_size
    assert typed("verify", last.document["backup"], "-r", repo, *keys).code == 0
