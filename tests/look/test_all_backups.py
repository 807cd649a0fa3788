"""Messages over all backups: which ones have them and when they went, compared with what the server held each time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from jsbackup.look.all_backups import changes_of, read_series, search_series
from jsbackup.look.message import ALL_MESSAGES, MessageFilter
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from jsbackup.transforms.filters.filters import Filters
from tests.harness.api import call, connected
from tests.harness.commands import jsbackup
from tests.harness.oracle import ObservedMessage, observe
from tests.harness.servers import NEWEST, NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]


@dataclass
class Archive:
    """A repository, and what the stream S held at each of its backups."""

    repo: Path
    held: dict[str, list[ObservedMessage]]

    @property
    def repository(self) -> Repository:
        return Repository.open(LocalStore(self.repo))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    chance, made = random.Random(3), Archive(tmp_path_factory.mktemp("all") / "repo", {})

    async def change(url: str, step: int) -> list[ObservedMessage]:
        async with connected(url) as nc:
            js = nc.jetstream()
            if step in (0, 5):
                await call(nc, "STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
            if step == 6:
                return (await observe(nc, ["S"]))["S"].messages
            for _ in range(20):
                headers = {"Who": chance.choice(["eve", "bob"])} if chance.random() < 0.5 else None
                await js.publish(
                    f"s.{chance.choice('abc')}.{chance.choice('12')}", chance.randbytes(20), headers=headers
                )
            found = (await observe(nc, ["S"]))["S"].messages
            for one in chance.sample(list(found), 6):
                await call(nc, "STREAM.MSG.DELETE.S", {"seq": one.sequence})
            return (await observe(nc, ["S"]))["S"].messages

    async def remove(url: str) -> None:
        async with connected(url) as nc:
            await call(nc, "STREAM.DELETE.S")
            await call(nc, "STREAM.CREATE.T", {"name": "T", "subjects": ["t"]})

    with NatsServer(NEWEST) as server:
        for step in range(7):
            if step == 4:
                asyncio.run(remove(server.url))
                held: list[ObservedMessage] = []
            else:
                held = list(asyncio.run(change(server.url, step)))
            done = jsbackup("backup", "-s", server.url, "-r", made.repo, "--allow-nothing")
            made.held[done.document["backup"]] = held
    return made


def _all(_manifest: Manifest) -> bool:
    return True


FILTERS: list[tuple[MessageFilter, Callable[[ObservedMessage], bool]]] = [
    (ALL_MESSAGES, lambda m: True),
    (MessageFilter(subjects=("s.a.*",)), lambda m: m.subject.startswith(b"s.a.")),
    (MessageFilter(subjects=("s.b.1", "s.*.2")), lambda m: m.subject == b"s.b.1" or m.subject.endswith(b".2")),
    (MessageFilter(others=Filters.parse({"header": ["who:eve"]})), lambda m: b"Who: eve" in (m.header_block or b"")),
    (MessageFilter(text=b"\x07"), lambda m: b"\x07" in m.data),
    (MessageFilter(subjects=("none",)), lambda m: False),
]


@pytest.mark.parametrize(("wanted", "matches"), FILTERS)
def test_each_message_is_found_once_with_the_backups_that_have_it(
    archive: Archive, wanted: MessageFilter, matches: Callable[[ObservedMessage], bool]
) -> None:
    series, unread = read_series(archive.repository, _all, lambda name: name == "S")
    found, more = search_series(archive.repository, series, wanted, most=10_000)
    ids = list(archive.held)
    truth = {}
    for backup, held in archive.held.items():
        for one in filter(matches, held):
            truth.setdefault((one.sequence, one.time_ns, one.data), []).append(backup)
    told = {(one.sequence, one.timestamp_ns, one.start): list(one.backups) for one in found}
    assert (told, more, unread, len(found)) == (truth, False, [], len(truth))
    for one in found:
        after = ids[ids.index(one.backups[-1]) + 1 :]
        assert one.gone == (after[0] if after else "")


def test_a_stream_came_changed_went_and_was_replaced(archive: Archive) -> None:
    (series,), _ = read_series(archive.repository, _all, lambda name: name == "S")
    ids = list(archive.held)
    changes = [(one.change, one.backup, one.messages) for one in changes_of(series)]
    kinds = ["came", "changed", "changed", "changed", "gone", "came"]
    backups = [*ids[:4], ids[4], ids[5]]
    assert changes == [(kind, backup, len(archive.held[backup])) for kind, backup in zip(kinds, backups, strict=True)]


def test_a_backup_that_cannot_be_read_is_named(archive: Archive, tmp_path: Path) -> None:
    ids = list(archive.held)
    second = tmp_path / "second"
    jsbackup("copy", "--to-repo", second, "-r", archive.repo).ok()
    manifest = second / "backups" / f"{ids[1]}.json"
    manifest.chmod(0o600)
    manifest.write_text("[]")
    series, unread = read_series(Repository.open(LocalStore(second)), _all, lambda name: name == "S")
    assert [one.backup for one in unread] == [ids[1]] and len(series) == 1
    done = jsbackup("history", "S", "-r", second)
    assert done.code == 14 and [one["backup"] for one in done.document["unread"]] == [ids[1]]
