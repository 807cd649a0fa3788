"""A page or a segment of a long list is lost: what can be saved is saved, and no backup builds on the loss once it is
known.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from copy import copy
from pathlib import Path

import pytest

from jsbackup.repository.objects import PageRef, SegmentRef
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

    def copied(self, folder: Path) -> Scene:
        """With a copy of the repository, so that this one stays."""
        scene = copy(self)
        scene.repo = Path(shutil.copytree(self.repo, folder / "repo"))
        return scene

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


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One of many tests, which publish more to LONG; they damage copies of its backup."""
    with NatsServer(NEWEST) as server:
        yield Scene(server, tmp_path_factory.mktemp("standing"))


@pytest.fixture
def scene(nats_server: Callable[..., NatsServer], tmp_path: Path) -> Scene:
    return Scene(nats_server(NEWEST), tmp_path)


@pytest.mark.by_turns
def test_a_segment_that_verify_misses_is_stored_again_by_the_next_backup(
    scene: Scene, nats_server: Callable[..., NatsServer]
) -> None:
    (scene.repo / scene.segments()[9].key).unlink()
    assert scene.verify().code == 14
    asyncio.run(_publish(scene.server.url, ["LONG"], 5))
    scene.back_up().ok()
    assert scene.verify("latest", "--level", "data").code == 0
    assert scene.restored(nats_server(NEWEST)) == []


# The way of reading and which page it is decide what is read again; the damage, only how it is found out.
@pytest.mark.by_turns
@pytest.mark.parametrize(
    ("which", "damage", "options"),
    [
        *(
            (which, "missing", options)
            for which in (0, 3, -1)
            for options in ((), ("--incremental", "never"), ("--incremental", "always"))
        ),
        (3, "cut", ()),
    ],
)
def test_a_page_that_verify_misses_is_stored_again_by_the_next_backup(
    standing: Scene,
    nats_server: Callable[..., NatsServer],
    tmp_path: Path,
    options: tuple[str, ...],
    damage: str,
    which: int,
) -> None:
    scene = standing.copied(tmp_path)
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


@pytest.mark.by_turns
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


@pytest.mark.by_turns
def test_follow_goes_on_after_a_page_was_lost(scene: Scene, nats_server: Callable[..., NatsServer]) -> None:
    for page in scene.pages():
        (scene.repo / page.key).unlink(missing_ok=True)
    assert scene.verify().code == 14
    asyncio.run(_publish(scene.server.url, ["LONG"], 5))
    jsbackup("follow", "-s", scene.server.url, "-r", scene.repo, "--for", "3s", *PATIENT).ok()
    assert scene.verify("latest", "--level", "data").code == 0
    assert scene.restored(nats_server(NEWEST)) == []


def test_pages_are_repaired_from_a_copy(scene: Scene, tmp_path: Path) -> None:
    other = Path(shutil.copytree(scene.repo, tmp_path / "copy"))
    page, *others = [page.key for page in scene.pages() if page.level == 0]
    below = scene.segments()[0].key  # it only shows when the page that lists it is there again
    lost = [page, below]
    for key in lost:
        (scene.repo / key).unlink()
    (scene.repo / others[-1]).write_bytes(b"{}")
    assert scene.verify().code == 14
    asked = jsbackup("repair", "--from", other, "-r", scene.repo, "--dry-run")
    assert asked.code == 0 and not any((scene.repo / key).exists() for key in lost)
    done = jsbackup("repair", "--from", other, "-r", scene.repo)
    assert (done.code, done.document["mended"]) == (0, 3), done.document
    assert asked.document == {**done.document, "dry_run": True}
    again = jsbackup("repair", "--from", other, "-r", scene.repo)
    assert (again.code, again.document["objects"], again.document["sound"]) == (0, [], 0)
    for key in (*lost, others[-1]):
        assert (scene.repo / key).read_bytes() == (other / key).read_bytes()
    assert scene.verify("--level", "data").code == 0


@pytest.mark.by_turns
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


@pytest.fixture(scope="module")
def standing_broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Five backups; all list a page of LONG that is missing. SHORT ends in short segments."""
    with NatsServer(NEWEST) as server:
        scene = Scene(server, tmp_path_factory.mktemp("broken"))
        for _ in range(4):
            asyncio.run(_publish(server.url, ["SHORT"], 1))
            scene.back_up().ok()
        page = next(page for page in scene.pages() if page.level == 0)
        (scene.repo / page.key).unlink()
        yield scene


@pytest.fixture
def broken(standing_broken: Scene, tmp_path: Path) -> Scene:
    """A copy of its repository. Its server gets more messages in LONG only."""
    return standing_broken.copied(tmp_path)


def _named(done: Ran, code: int) -> None:
    """It did without LONG, and says so."""
    (failed,) = done.document["failed"]
    assert (done.code, failed["name"], failed["code"]) == (code, "LONG", 14) and "is missing" in failed["reason"]


def test_streams_are_compared_beside_one_with_a_lost_page(broken: Scene) -> None:
    old, new = Repository.open(LocalStore(broken.repo)).backups()[0], "latest"
    asyncio.run(_publish(broken.server.url, ["LONG"], 5))
    broken.back_up("--incremental", "always")
    for page in broken.pages():
        (broken.repo / page.key).unlink(missing_ok=True)
    done = jsbackup("diff", old, new, "-r", broken.repo)
    _named(done, 14)
    (short,) = done.document["streams"]
    assert (short["stream"], short["added"]) == ("SHORT", 4)


@pytest.mark.parametrize("cut", [(), ("--subject", "*.1"), ("--since", "5"), ("--until", "30")])
def test_streams_are_planned_beside_one_with_a_lost_page(
    broken: Scene, nats_server: Callable[..., NatsServer], cut: tuple[str, ...]
) -> None:
    line = [*cut, "-s", nats_server(NEWEST).url, "-r", broken.repo]
    done = jsbackup("plan", "latest", *line)
    assert done.code == 14
    (refusal,) = done.document["refusals"]
    assert (refusal["stream"], refusal["rule"]) == ("LONG", "object-lost") and "is missing" in refusal["reason"]
    assert "SHORT" in [action["stream"] for action in done.document["actions"]]
    alone = jsbackup("plan", "latest", "LONG", *line)
    assert alone.code == 14 and "LONG" in alone.out and "is missing" in alone.out
    assert jsbackup("plan", "latest", "SHORT", *line).code == 0


@pytest.mark.spark
def test_spark_counts_streams_beside_one_with_a_lost_page(broken: Scene) -> None:
    done = jsbackup("stats", "latest", "-r", broken.repo)
    _named(done, 3)
    assert [(one["stream"], one["messages"]) for one in done.document["streams"]] == [("SHORT", 44)]
    _alone(jsbackup("stats", "latest", "LONG", "-r", broken.repo))


@pytest.mark.parametrize("kind", ["nats-cli", pytest.param("jsonl", marks=pytest.mark.spark)])
def test_streams_are_exported_beside_one_with_a_lost_page(broken: Scene, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    line = ["--format", kind, "--output", out, "-r", broken.repo]
    _alone(jsbackup("export", "latest", "LONG", *line))
    assert not out.exists()
    done = jsbackup("export", "latest", *line)
    _named(done, 3)
    assert done.document["rows"] == 44 and [path.name for path in out.iterdir()] == ["SHORT"]


def _alone(done: Ran) -> None:
    assert done.code == 14 and done.document["error"]["message"].startswith("stream LONG cannot be read: ")
