"""A page that is lost or damaged while `follow` runs: as soon as `verify` has found it, backups are whole again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from jsbackup.errors import IntegrityError
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.pages.segment_list import SegmentList
from tests.harness.api import Wire, call, connected
from tests.harness.commands import jsbackup
from tests.harness.oracle import compare
from tests.harness.servers import NatsServer, wait_until
from tests.integration.test_follow import Following, following, newest, reaches, wait_for
from tests.integration.witness import restore, seen

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

MANY = 100  # streams, so that a backup has pages of them
LONG = 600  # messages of 1 KB, in segments of 4 KiB: a stream with pages of segments


def _change(path: Path, damage: str) -> None:
    data = path.read_bytes()
    path.unlink()
    if damage == "flipped":
        path.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])


def _page_of_segments(repo: Path, manifest: Manifest) -> Path:
    (segments,) = (one.segments for one in manifest.streams)
    assert isinstance(segments, SegmentList)
    return repo / next(page for page in segments.pages() if page.level == 0).key


def _page_of_streams(repo: Path, manifest: Manifest) -> Path:
    """One without the stream that changes."""
    pages, last = manifest.stream_pages, f"S{MANY - 1:03}"
    listed = [one.name for one in manifest.streams]
    ends = [listed.index(page.first) for page in pages[1:]] + [len(listed)]
    return repo / next(
        page.key
        for page, end in zip(pages, ends, strict=True)
        if last not in listed[listed.index(page.first) : end] and page.streams > 1
    )


def _wait_for(repo: Path, what: Callable[[Manifest], bool], process: Following) -> str:
    """Return the id of the first backup that has it. The newest one may not be readable until then."""

    def there() -> bool:
        assert process.process.poll() is None, process.process.communicate()
        with suppress(IntegrityError):
            manifest = newest(repo)
            assert manifest is not None
            if what(manifest):
                found.append(manifest.id)
        return bool(found)

    found: list[str] = []
    wait_until(there, "a backup that has it and can be read", seconds=60)
    return found[0]


@pytest.mark.by_turns
@pytest.mark.parametrize(("kind", "damage"), [("streams", "removed"), ("segments", "flipped")])
def test_follow_stores_a_page_again_that_verify_found_damaged(
    kind: str, damage: str, nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    repo, server = tmp_path / "repo", nats_server("2.15.3")
    names = [f"S{number:03}" for number in range(MANY if kind == "streams" else 1)]
    each = LONG if kind == "segments" else 3

    async def create() -> None:
        async with connected(server.url) as nc:
            for name in names:
                config = {"name": name, "subjects": [f"{name}.>"], "storage": "file", "num_replicas": 1}
                await call(nc, f"STREAM.CREATE.{name}", config)

    async def publish(some: list[str], count: int) -> None:
        wire = await Wire.open(server.url)
        for name in some:
            for number in range(count):
                await wire.send(f"{name}.{number}", number.to_bytes(4, "big") * 250)
        await wire.replies()
        await wire.close()

    asyncio.run(create())
    asyncio.run(publish(names, each))
    jsbackup("init", "-r", repo, "--segment-size", "4KiB").ok()
    with following(repo, server.url) as follow:
        wait_for(repo, reaches(names[-1], each), follow)
        manifest = newest(repo)
        assert manifest is not None
        page = _page_of_streams(repo, manifest) if kind == "streams" else _page_of_segments(repo, manifest)
        _change(page, damage)
        found = jsbackup("verify", manifest.id, "-r", repo)
        assert found.code == 14 and page.name in found.out, found
        backups = []
        for number in range(1, 4):
            asyncio.run(publish(names[-1:], 5))
            backups.append(_wait_for(repo, reaches(names[-1], each + 5 * number), follow))
        code, document, said = follow.end()
        assert code == 0 and "Traceback" not in said, (document, said)
    verified = {backup: jsbackup("verify", backup, "--level", "data", "-r", repo).code for backup in backups}
    assert set(verified.values()) == {0}, verified
    other = nats_server("2.15.3")
    restore(other.url, repo)
    assert compare(seen(server.url), seen(other.url)) == []
