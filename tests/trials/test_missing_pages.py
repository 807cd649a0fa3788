"""A page or a segment of a long list is lost: what can be saved is saved, and no backup builds on the loss once it is
known.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from jsbackup.repository.refs import PageRef, SegmentRef
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.harness.api import Wire, call, connected
from tests.harness.commands import PATIENT, Ran, jsbackup
from tests.harness.oracle import compare
from tests.harness.servers import NEWEST, NatsServer
from tests.integration.witness import seen

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]


async def _fill(url: str, names: list[str], count: int) -> None:
    async with connected(url) as nc:
        for name in names:
            config = {"name": name, "subjects": [f"{name}.>"], "storage": "file", "num_replicas": 1}
            await call(nc, f"STREAM.CREATE.{name}", config)
    await _publish(url, names, count)


async def _publish(url: str, names: list[str], count: int) -> None:
    wire = await Wire.open(url)
    for name in names:
        for number in range(count):
            await wire.send(f"{name}.{number % 5}", b"%d " % number * 200)
    await wire.replies()
    await wire.close()


class Scene:
    """A backup of LONG, which has pages, and of SHORT, which has none."""

    def __init__(self, server: NatsServer, folder: Path) -> None:
        self.server, self.repo = server, folder / "repo"
        jsbackup("init", "-r", self.repo, "--segment-size", "4KiB").ok()
        asyncio.run(_fill(server.url, ["LONG", "SHORT"], 0))
        asyncio.run(_publish(server.url, ["LONG"], 1500))
        asyncio.run(_publish(server.url, ["SHORT"], 40))
        self.back_up().ok()

    def back_up(self, *options: str) -> Ran:
        return jsbackup("backup", "-s", self.server.url, "-r", self.repo, *PATIENT, *options)

    def verify(self, *options: str) -> Ran:
        return jsbackup("verify", *options, "-r", self.repo)

    def segments(self) -> list[SegmentRef]:
        repository = Repository.open(LocalStore(self.repo))
        return list(repository.manifest(repository.backups()[-1]).streams[0].segments)

    def pages(self) -> list[PageRef]:
        repository = Repository.open(LocalStore(self.repo))
        return list(repository.manifest(repository.backups()[-1]).streams[0].pages)

    def restored(self, server: NatsServer) -> list[str]:
        jsbackup("restore", "latest", "-s", server.url, "-r", self.repo, *PATIENT).ok()
        return compare(seen(self.server.url), seen(server.url))


@pytest.fixture
def scene(nats_server: Callable[..., NatsServer], tmp_path: Path) -> Scene:
    return Scene(nats_server(NEWEST), tmp_path)


def test_a_segment_that_verify_misses_is_stored_again_by_the_next_backup(
    scene: Scene, nats_server: Callable[..., NatsServer]
) -> None:
    (scene.repo / scene.segments()[9].key).unlink()
    assert scene.verify().code == 14
    asyncio.run(_publish(scene.server.url, ["LONG"], 5))
    scene.back_up().ok()
    assert scene.verify("latest", "--level", "data").code == 0
    assert scene.restored(nats_server(NEWEST)) == []


@pytest.mark.parametrize("options", [(), ("--incremental", "never"), ("--incremental", "always")])
@pytest.mark.parametrize("damage", ["missing", "cut"])
@pytest.mark.parametrize("which", [0, 3, -1])
def test_a_page_that_verify_misses_is_stored_again_by_the_next_backup(
    scene: Scene, nats_server: Callable[..., NatsServer], options: tuple[str, ...], damage: str, which: int
) -> None:
    page = scene.repo / scene.pages()[which].key
    data = page.read_bytes()
    page.unlink()
    if damage == "cut":
        page.write_bytes(data[:-7])
    assert scene.verify("--level", "manifest").code == 14
    asyncio.run(_publish(scene.server.url, ["LONG"], 5))
    scene.back_up(*options).ok()
    assert scene.verify("latest", "--level", "data").code == 0
    assert scene.restored(nats_server(NEWEST)) == []


def test_a_stream_with_a_page_that_is_missed_by_its_next_backup_is_read_again(
    scene: Scene, nats_server: Callable[..., NatsServer]
) -> None:
    for page in scene.pages():
        if page.level == 0:
            (scene.repo / page.key).unlink()

    async def delete() -> None:
        async with connected(scene.server.url) as nc:
            for sequence in range(20, 1480, 60):
                await call(nc, "STREAM.MSG.DELETE.LONG", {"seq": sequence})

    asyncio.run(delete())
    scene.back_up().ok()
    assert scene.verify("latest", "--level", "data").code == 0
    assert scene.restored(nats_server(NEWEST)) == []


def test_follow_goes_on_after_a_page_was_lost(scene: Scene, nats_server: Callable[..., NatsServer]) -> None:
    for page in scene.pages():
        (scene.repo / page.key).unlink(missing_ok=True)
    assert scene.verify().code == 14
    asyncio.run(_publish(scene.server.url, ["LONG"], 5))
    jsbackup("follow", "-s", scene.server.url, "-r", scene.repo, "--for", "3s", *PATIENT).ok()
    assert scene.verify("latest", "--level", "data").code == 0
    assert scene.restored(nats_server(NEWEST)) == []


def test_pages_are_repaired_from_a_copy(scene: Scene, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(scene.repo, copy)
    first, *others = [page.key for page in scene.pages()]
    (scene.repo / first).unlink()
    (scene.repo / others[-1]).write_bytes(b"{}")
    assert scene.verify().code == 14
    done = jsbackup("repair", "--from", copy, "-r", scene.repo)
    assert done.code == 0, done.document
    assert (scene.repo / first).read_bytes() == (copy / first).read_bytes()
    assert scene.verify("--level", "data").code == 0


def test_what_a_lost_page_does_not_list_is_restored_in_part(
    scene: Scene, nats_server: Callable[..., NatsServer]
) -> None:
    page = next(page for page in scene.pages() if page.level == 0 and page.first_seq > 50)
    (scene.repo / page.key).unlink()
    target = nats_server(NEWEST)
    refused = jsbackup("restore", "latest", "-s", target.url, "-r", scene.repo, *PATIENT)
    assert refused.code == 14 and "LONG" in refused.out
    done = jsbackup("restore", "latest", "--partial", "-s", target.url, "-r", scene.repo, *PATIENT)
    assert done.code == 3, done.err
    before, after = seen(scene.server.url), seen(target.url)
    assert compare({"SHORT": before["SHORT"]}, {"SHORT": after["SHORT"]}) == []
    left = [one for one in before["LONG"].messages if not page.first_seq <= one.sequence <= page.last_seq]
    assert len(left) < 1500 and list(after["LONG"].messages) == left
