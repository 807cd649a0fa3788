"""What the nats CLI makes of backups without a server, and of subscriptions: imported as what it is."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from jsbackup.repository.repository import Repository
from jsbackup.stores.memory import MemoryStore
from tests.exchange.folders import imported, stored_messages, take_in
from tests.exchange.nats_tool import assert_valid, export, filled, restored_by_nats
from tests.harness.api import connected
from tests.harness.backups import make_repository
from tests.harness.commands import jsbackup
from tests.harness.natscli import ToolFailed, nats_backup_account, nats_restore_stream, recording, run_nats
from tests.harness.oracle import compare
from tests.harness.servers import NEWEST, NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.natscli]

STREAMS = ("GAPS", "PULL", "DELETED_TAIL", "EMPTIED", "COUNTER", "NOT_UTF8", "TTL", "KV")


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("edited") / "account"
    with NatsServer(NEWEST) as server:
        filled(server.url, NEWEST, STREAMS)
        nats_backup_account(server.url, folder)
    yield folder


@pytest.mark.by_turns
@pytest.mark.parametrize(
    "options",
    [
        ("--first-seq", "7", "--last-seq", "25"),
        ("--last-per-subject", "1"),
        ("--renumber",),
        ("--subject", "nothing.at.all"),
        ("--obfuscate",),
    ],
    ids=lambda options: options[0],
)
def test_an_edited_backup_is_imported_and_restored_as_the_nats_tool_restores_it(
    account: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    edited = tmp_path / "edited"
    edited.mkdir()
    for folder in account.iterdir():
        run_nats("backup", "edit", folder, edited / folder.name, *options, "--no-progress")
    by_theirs = tmp_path / "theirs"
    by_theirs.mkdir()
    for folder in edited.iterdir():
        if folder.is_dir():  # obfuscated ones have their keys beside them
            folder.rename(by_theirs / folder.name)
    theirs = restored_by_nats(NEWEST, by_theirs)

    taken = jsbackup("import", by_theirs, "-r", tmp_path / "repo").ok()
    assert taken.document["skipped"] == []
    assert all("edited with 'nats backup edit'" in stream["warnings"][0] for stream in taken.document["streams"])
    assert not any("reports sequences" in text for stream in taken.document["streams"] for text in stream["warnings"])
    export(tmp_path / "repo", tmp_path / "out", "--archive", "v2")
    ours = restored_by_nats(NEWEST, tmp_path / "out")
    # An edit keeps the place where the stream once began, and we say where it begins now: what a consumer had
    # before that is no longer there.
    ignore = ["state.first_ts", "state.last_ts", "*.ack_floor", "*.delivered"]
    assert compare(theirs, ours, ignore=ignore) == []
    if "--obfuscate" not in options:
        assert_valid(tmp_path / "out", theirs)


def test_a_recorded_subscription_is_imported(tmp_path: Path) -> None:
    async def publish(url: str) -> None:
        async with connected(url) as nc:
            for number in range(20):
                await nc.publish(f"cap.{number % 3}", b"%d" % number, headers={"A": "b"} if number % 2 else None)
            await nc.flush()

    with NatsServer(NEWEST) as server, recording(server, "cap.>", tmp_path / "cap", 20):
        asyncio.run(publish(server.url))
    repository: Repository = make_repository(MemoryStore())
    stream = imported(take_in(tmp_path / "cap", repository))["cap"]
    assert [(one.sequence, one.subject, one.data) for one in stored_messages(repository.store, stream)] == [
        (number + 1, f"cap.{number % 3}", b"%d" % number) for number in range(20)
    ]
    assert stream.warnings == ("it was recorded with 'nats sub --backup': it has no consumers",)


def test_a_folder_with_two_archives_is_refused_by_both(account: Path, tmp_path: Path) -> None:
    both = tmp_path / "both"
    shutil.copytree(account / "GAPS", both)
    shutil.copy(both / "stream.arc.s2", both / "stream.tar.s2")
    with (
        NatsServer(NEWEST) as server,
        pytest.raises(ToolFailed, match=r"holds both stream\.arc\.s2 and stream\.tar\.s2"),
    ):
        nats_restore_stream(server.url, both)
    refused = jsbackup("import", both, "-r", tmp_path / "repo")
    assert refused.code == 2
    assert "holds both stream.tar.s2 and stream.arc.s2" in refused.document["error"]["message"]
    assert not (tmp_path / "repo").exists()
