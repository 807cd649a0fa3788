"""What was found damaged is stored again, by whoever has the bytes (point 4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jsbackup.repository.manifest import Manifest
from tests.harness.api import call, connected, until_stored
from tests.harness.servers import NEWEST, NatsServer, wait_until
from tests.integration.test_follow import following, newest
from tests.trials.accounts import Type, ask, delete, typing

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
    """With 300 messages in a stream S. No stream outlives the test."""
    publish(started.url, "S", 300)
    yield started
    for name in ask(started.url, "STREAM.NAMES", {})["streams"]:
        delete(started.url, name)


def publish(where: str, stream: str, count: int) -> None:
    """So many messages more, in a stream that is made if there is none."""

    async def work() -> None:
        async with connected(where) as nc:
            await call(nc, f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [f"{stream}.>"]})
            for number in range(count):
                await nc.publish(f"{stream}.{number}", b"text %d" % number * 20)
            await until_stored(nc, f"{stream}.0")

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


@pytest.mark.parametrize("found_by", ["drill", "restore", "export", "copy"])
def test_what_another_command_found_damaged_is_stored_again(
    server: NatsServer, typed: Type, tmp_path: Path, nats_server: Callable[..., NatsServer], found_by: str
) -> None:
    """`verify` is not the only one who reads."""
    repo = tmp_path / "repo"
    line = ("backup", "-s", server.url, "-r", repo, "--json")
    assert typed(*line).code == 0
    flip(*segments(repo))
    finding = {
        "drill": ("drill", "-r", repo),
        "restore": ("restore", "latest", "-r", repo, "-s", nats_server(NEWEST).url),
        "export": ("export", "latest", "-r", repo, "--format", "nats-cli", "--output", tmp_path / "out"),
        "copy": ("copy", "-r", repo, "--to-repo", tmp_path / "other"),
    }
    failed = typed(*finding[found_by])
    assert failed.code != 0 and "has changed since it was stored" in failed.out + failed.err, failed
    again = typed(*line)
    assert again.code == 0 and again.document["streams"][0]["stored_bytes_added"] > 0
    assert typed("verify", again.document["backup"], "-r", repo).code == 0


def is_newer(repo: Path, before: Manifest | None) -> bool:
    found = newest(repo)
    return found != before and found is not None and found.result == "complete"


def test_what_is_found_damaged_while_streams_are_followed_is_stored_again(
    server: NatsServer, tmp_path: Path, typed: Type
) -> None:
    publish(server.url, "T", 1)
    repo = tmp_path / "repo"
    with following(repo, server.url) as follow:
        wait_until(lambda: newest(repo) is not None, "a first backup")
        for segment in repo.rglob("S-*/*.parquet"):
            flip(segment)
        assert typed("verify", "-r", repo).code == 14
        before = newest(repo)
        publish(server.url, "T", 1)  # S has nothing new
        # It may take a moment to read, and be left out of a partial backup.
        wait_until(lambda: is_newer(repo, before), "another backup")
        assert typed("verify", "latest", "--level", "data", "-r", repo).code == 0
        before = newest(repo)
        publish(server.url, "S", 10)
        assert follow.end()[0] == 0
    assert newest(repo) != before and typed("verify", "latest", "--level", "data", "-r", repo).code == 0
    restored = typed("drill", "-r", repo, "--json").document["streams"]
    assert [(one["name"], one["messages"]) for one in restored] == [("S", 310), ("T", 2)]


def test_repair_brings_back_the_right_bytes_from_a_copy_or_the_server(
    server: NatsServer, typed: Type, tmp_path: Path
) -> None:
    repo, second = tmp_path / "repo", tmp_path / "second"
    back_up = ("backup", "-s", server.url, "-r", repo, "--json")
    assert typed(*back_up).code == 0
    publish(server.url, "S", 3000)
    assert typed(*back_up).code == 0
    assert typed("copy", "--to-repo", second, "-r", repo).code == 0
    assert typed("repair", "-r", repo).code == 2
    nothing = typed("repair", "--from", second, "-r", repo)
    assert nothing.code == 0 and "no object is missing" in nothing.out

    for source in (("--from", second), ("-s", server.url)):
        first, other, *_ = stored = segments(repo)
        whole = {path: path.read_bytes() for path in stored}
        flip(first)
        other.unlink()
        assert typed("verify", "-r", repo).code == 14
        line = ("repair", *source, "-r", repo, "--json")
        dry = typed(*line, "--dry-run")
        assert (dry.code, dry.document["mended"], other.exists()) == (0, 2, False)
        done = typed(*line)
        assert (done.code, done.document["mended"], done.document["lost"]) == (0, 2, 0), done
        assert {path: path.read_bytes() for path in segments(repo)} == whole
        assert typed("verify", "--level", "data", "-r", repo).code == 0
    # What is sound again is built on again.
    flip(first)
    assert typed("verify", "-r", repo).code == 14
    assert typed("repair", "--from", second, "-r", repo).code == 0
    again = typed(*back_up)
    assert again.code == 0 and again.document["streams"][0]["stored_bytes_added"] == 0
    # Whichever verify has found it.
    flip(first)
    assert typed("verify", "--level", "data", "-r", repo).code == 14
    assert typed("repair", "--from", second, "-r", repo).code == 0
    assert "damaged-objects" not in typed("status", "-r", repo).out


def test_repair_names_what_stays_lost(server: NatsServer, typed: Type, tmp_path: Path) -> None:
    repo, empty = tmp_path / "repo", tmp_path / "empty"
    made = typed("backup", "-s", server.url, "-r", repo, "--json").document["backup"]
    assert typed("init", "-r", empty).code == 0
    (segment,) = segments(repo)
    flip(segment)
    damaged = segment.read_bytes()
    # Without a verify it is not known, and --check finds it.
    assert typed("repair", "--from", empty, "-r", repo).code == 0
    lost = typed("repair", "--check", "--from", empty, "-r", repo, "--json")
    assert lost.code == 3
    (one,) = lost.document["objects"]
    assert (one["outcome"], one["messages"], one["backups"]) == ("lost", 300, [made])
    assert "has no copy of this object" in one["reason"]
    assert typed("repair", "--from", repo, "-r", repo).code == 2
    assert typed("repair", "--from", tmp_path / "none", "-r", repo).code == 10
    ask(server.url, "STREAM.MSG.DELETE.S", {"seq": 16})
    both = typed("repair", "--check", "--from", empty, "-s", server.url, "-r", repo, "--json")
    (one,) = both.document["objects"]
    assert both.code == 3 and one["reason"].endswith(
        "has no copy of this object; the server no longer has all of these messages"
    )
    # A stream of that name that is another one has no messages of ours, nor has one that has lost some.
    ask(server.url, "STREAM.MSG.DELETE.S", {"seq": 17})
    for why in ("no longer has all of these messages", "is a different stream"):
        done = typed("repair", "--check", "-s", server.url, "-r", repo)
        assert done.code == 3 and why in done.out, done
        delete(server.url, "S")
        publish(server.url, "S", 300)
    assert segment.read_bytes() == damaged


def test_status_tells_of_damage_that_others_found_and_of_objects_that_are_gone(
    server: NatsServer, typed: Type, tmp_path: Path
) -> None:
    repo = tmp_path / "repo"
    line = ("backup", "-s", server.url, "-r", repo)
    assert typed(*line).code == 0
    assert typed("status", "-r", repo).code == 0
    (segment,) = segments(repo)
    flip(segment)
    assert typed("copy", "-r", repo, "--to-repo", tmp_path / "other").code == 14
    assert typed(*line).code == 0  # what it stores is sound, and the backup before is not
    status = typed("status", "-r", repo)
    assert status.code == 17 and "damaged-objects: 1 backup is known to be damaged" in status.out
    for path in segments(repo):
        path.unlink()
    status = typed("status", "-r", repo)
    assert status.code == 17 and "1 stored object is missing, or not of the size that was stored" in status.out


@pytest.mark.parametrize("command", ["verify", "repair"])
def test_what_was_put_right_by_hand_is_sound_again_after_verify_or_repair(
    server: NatsServer, typed: Type, tmp_path: Path, command: str
) -> None:
    repo, second = tmp_path / "repo", tmp_path / "second"
    assert typed("backup", "-s", server.url, "-r", repo).code == 0
    assert typed("copy", "--to-repo", second, "-r", repo).code == 0
    segment = segments(repo)[0]
    whole = segment.read_bytes()
    flip(segment)
    assert typed("verify", "-r", repo).code == 14
    segment.write_bytes(whole)
    status = typed("status", "-r", repo)
    assert status.code == 17 and "damaged-objects: 1 backup is known to be damaged" in status.out
    assert "put them right otherwise, the next 'jsbackup verify' records it" in status.out
    if command == "repair":
        done = typed("repair", "--from", second, "--dry-run", "-r", repo)
        assert done.code == 0 and "1 object that is recorded as damaged is sound\n" in done.out
        assert typed("status", "-r", repo).code == 17
        done = typed("repair", "--from", second, "-r", repo)
        assert done.code == 0 and "1 object that is recorded as damaged is sound; recorded\n" in done.out
        assert "no other object is missing" in done.out
        assert typed("repair", "--from", second, "-r", repo, "--json").document["sound"] == 0
    else:
        assert typed("verify", "-r", repo).code == 0
    status = typed("status", "-r", repo)
    assert "damaged-objects" not in status.out, status
