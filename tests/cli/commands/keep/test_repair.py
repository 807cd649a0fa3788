"""`repair`, and what was found damaged and is stored again, against a server that still has the messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jsbackup.repository.crypto.signing import encode_writer_key
from jsbackup.repository.manifest import Manifest
from tests.cli.typed import Typed
from tests.harness.api import call, connected
from tests.harness.backups import store_stream
from tests.harness.batches import some_messages
from tests.harness.damage import DAMAGES, flip
from tests.harness.filling import fill, publish
from tests.harness.history import Scene, initialise
from tests.harness.many_streams import manifest_of, many_streams, pages_in
from tests.harness.servers import NEWEST, NatsServer, wait_until
from tests.integration.test_follow import following, newest

Type = Callable[..., Typed]

NOTHING = "no object is missing, has a wrong size, or is recorded as damaged"


@pytest.mark.parametrize(("kind", "how"), [("plain", "missing"), ("encrypted", "flipped")])
def test_a_page_of_streams_is_repaired_from_a_copy(kind: str, how: str, typed: Type, tmp_path: Path) -> None:
    scene = Scene(kind)
    initialise(scene, scene.store)
    repository = scene.open()
    repository.commit(manifest_of([store_stream(repository.objects, "A", some_messages(40, 100)), *many_streams(150)]))
    for name in ("repo", "copy"):
        for info in scene.store.list():
            (tmp_path / name / info.key).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / info.key).write_bytes(scene.store.get(info.key))
    page = tmp_path / "repo" / min(pages_in(scene.store))
    before = page.read_bytes()
    changed = DAMAGES[how](before)
    page.unlink()
    if changed is not None:
        page.write_bytes(changed)
    line: list[str | Path] = ["-r", tmp_path / "repo"]
    if scene.new_keys is not None:
        (tmp_path / "writer.key").write_text(encode_writer_key(scene.new_keys.writer_key))
        (tmp_path / "writer.key").chmod(0o600)
        line += ["--writer-key", tmp_path / "writer.key"]
    assert typed("verify", *line).code == 14
    assert "damaged-objects" in typed("status", *line).out
    tried = typed("repair", "--from", tmp_path / "copy", "--dry-run", *line)
    assert (tried.code, tried.out.splitlines()[-1]) == (0, "1 object would be repaired, 0 lost")
    assert typed("verify", *line).code == 14
    assert typed("repair", "--from", tmp_path / "copy", *line).code == 0
    assert page.read_bytes() == before and "damaged-objects" not in typed("status", *line).out
    again = typed("repair", "--from", tmp_path / "copy", *line)
    assert again.code == 0 and again.out.startswith(f"{NOTHING}; objects were not read: --check reads them all\n")
    assert typed("verify", *line).code == 0


# --- where a server still has the messages ---

AGE_RECIPIENT = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"


@pytest.fixture(scope="module")
def started() -> Iterator[NatsServer]:
    with NatsServer(NEWEST) as server:
        yield server


def ask(url: str, *subjects: str, **request: object) -> None:
    async def work() -> None:
        async with connected(url) as nc:
            for subject in subjects:
                await call(nc, subject, request)

    asyncio.run(work())


@pytest.fixture
def url(started: NatsServer) -> Iterator[str]:
    """Of a server with 300 messages in a stream S."""
    asyncio.run(fill(started.url, "S", TEXTS))
    yield started.url
    ask(started.url, "STREAM.DELETE.S")


TEXTS = [b"text %d" % number * 20 for number in range(300)]


def more(url: str, count: int) -> None:
    asyncio.run(publish(url, "s.{}", TEXTS[:count]))


def change(segment: Path) -> None:
    segment.chmod(0o600)
    segment.write_bytes(flip(segment.read_bytes()))


def segments(repo: Path) -> list[Path]:
    return sorted(repo.rglob("*.parquet*"))


@pytest.mark.nats
@pytest.mark.parametrize(("kind", "incremental"), [("plain", "never"), ("encrypted", "auto")])
def test_a_backup_stores_again_what_verify_found_damaged(
    url: str, typed: Type, tmp_path: Path, kind: str, incremental: str
) -> None:
    repo, keys = tmp_path / "repo", list[str | Path]()
    if kind == "encrypted":
        keys = ["--writer-key", tmp_path / "writer.key"]
        assert typed("init", "--encrypt-to", AGE_RECIPIENT, *keys, "-r", repo).code == 0
    line = ("backup", "-s", url, "-r", repo, *keys, "--json")
    assert typed(*line).code == 0
    (first,) = segments(repo)
    more(url, 40)
    assert typed(*line).code == 0
    whole = segments(repo)
    change(first)
    assert typed("verify", "-r", repo, *keys).code == 14
    again = typed(*line, "--incremental", incremental)
    (stream,) = again.document["streams"]
    assert again.code == 0 and stream["messages"] == 340
    (made,) = [path for path in segments(repo) if path not in whole]
    assert typed("verify", again.document["backup"], "-r", repo, *keys).code == 0
    # The next one builds on what is sound.
    more(url, 1)
    last = typed(*line)
    assert last.code == 0 and last.document["streams"][0]["stored_bytes_added"] < made.stat().st_size
    assert typed("verify", last.document["backup"], "-r", repo, *keys).code == 0


@pytest.mark.nats
@pytest.mark.parametrize("found_by", ["drill", "export", "copy"])
def test_a_backup_stores_again_what_another_command_found_damaged(
    url: str, typed: Type, tmp_path: Path, found_by: str
) -> None:
    repo = tmp_path / "repo"
    line = ("backup", "-s", url, "-r", repo, "--json")
    assert typed(*line).code == 0
    change(*segments(repo))
    finding = {
        "drill": (),
        "export": ("latest", "--format", "nats-cli", "--output", tmp_path / "out"),
        "copy": ("--to-repo", tmp_path / "other"),
    }
    failed = typed(found_by, *finding[found_by], "-r", repo)
    assert failed.code != 0 and "has changed since it was stored" in failed.out + failed.err, failed
    assert typed("status", "-r", repo).code == 17
    again = typed(*line)
    assert again.code == 0 and again.document["streams"][0]["stored_bytes_added"] > 0
    assert typed("verify", again.document["backup"], "-r", repo).code == 0


def is_newer(repo: Path, before: Manifest | None) -> bool:
    found = newest(repo)
    return found != before and found is not None and found.result == "complete"


@pytest.mark.nats
def test_follow_stores_again_what_verify_found_damaged(url: str, tmp_path: Path, typed: Type) -> None:
    asyncio.run(fill(url, "T", 1))
    repo = tmp_path / "repo"
    with following(repo, url) as follow:
        wait_until(lambda: newest(repo) is not None, "a first backup")
        for segment in repo.rglob("S-*/*.parquet"):
            change(segment)
        assert typed("verify", "-r", repo).code == 14
        before = newest(repo)
        asyncio.run(publish(url, "t.0"))  # S has nothing new
        # It may take a moment to read, and be left out of a partial backup.
        wait_until(lambda: is_newer(repo, before), "another backup")
        assert typed("verify", "latest", "--level", "data", "-r", repo).code == 0
        more(url, 10)
        assert follow.end()[0] == 0
    ask(url, "STREAM.DELETE.T")
    restored = typed("drill", "-r", repo, "--json").document["streams"]
    assert [(one["name"], one["messages"]) for one in restored] == [("S", 310), ("T", 2)]


@pytest.mark.nats
def test_repair_brings_back_the_right_bytes_from_a_copy_or_the_server(url: str, typed: Type, tmp_path: Path) -> None:
    repo, second = tmp_path / "repo", tmp_path / "second"
    back_up = ("backup", "-s", url, "-r", repo, "--json")
    assert typed(*back_up).code == 0
    more(url, 300)
    assert typed(*back_up).code == 0
    assert typed("copy", "--to-repo", second, "-r", repo).code == 0
    assert typed("repair", "-r", repo).code == 2
    for source in (("--from", second), ("-s", url)):
        first, other = stored = segments(repo)
        whole = {path: path.read_bytes() for path in stored}
        change(first)
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
    assert typed(*back_up).document["streams"][0]["stored_bytes_added"] == 0
    assert "damaged-objects" not in typed("status", "-r", repo).out


@pytest.mark.nats
def test_repair_names_what_stays_lost(url: str, typed: Type, tmp_path: Path) -> None:
    repo, empty = tmp_path / "repo", tmp_path / "empty"
    made = typed("backup", "-s", url, "-r", repo, "--json").document["backup"]
    assert typed("init", "-r", empty).code == 0
    (segment,) = segments(repo)
    change(segment)
    # Without a verify it is not known, and --check finds it.
    assert typed("repair", "--from", empty, "-r", repo).code == 0
    lost = typed("repair", "--check", "--from", empty, "-r", repo, "--json")
    (one,) = lost.document["objects"]
    assert (lost.code, one["outcome"], one["messages"], one["backups"]) == (3, "lost", 300, [made])
    assert typed("repair", "--from", repo, "-r", repo).code == 2
    assert typed("repair", "--from", tmp_path / "none", "-r", repo).code == 10
    # A stream that has lost some has no messages of ours, nor has another one of that name.
    ask(url, "STREAM.MSG.DELETE.S", seq=17)
    for why in ("no longer has all of these messages", "is a different stream"):
        done = typed("repair", "--check", "--from", empty, "-s", url, "-r", repo)
        assert done.code == 3 and why in done.out, done
        ask(url, "STREAM.DELETE.S")
        asyncio.run(fill(url, "S", TEXTS))
