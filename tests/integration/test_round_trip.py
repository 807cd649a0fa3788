"""Every awkward stream from every server into every server, read back by the witness and compared.

For each pair of versions all that the target can hold comes back exactly, and what it cannot is refused before anything
starts. What is not exact is announced by the tool itself; those announcements are what the tests allow. The streams of
many megabytes go from the oldest and the newest version to the newest one: others would take the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.api import connected
from tests.harness.awkward import LARGE, fill, keys
from tests.harness.awkward_bench import Storage
from tests.harness.commands import PATIENT, Ran, jsbackup
from tests.harness.oracle import ObservedStream, compare, observe, unused_floors
from tests.harness.oracle_features import config_can_go, consumer_can_go
from tests.harness.servers import ENDS, NEWEST, PAIRS, VERSIONS, NatsServer, version_tuple
from tests.integration.witness import seen

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]

Observed = dict[str, ObservedStream]


async def _fill_and_observe(url: str, version: str, storage: Storage, *, large: bool = False) -> Observed:
    async with connected(url) as nc:
        await fill(nc, version, [key for key in keys(version) if large or key not in LARGE], storage=storage)
        return await observe(nc)


def _not_for(target: str, before: Observed) -> set[str]:
    """Streams that use a feature the target lacks, by the witness's own table."""
    return {
        name
        for name, stream in before.items()
        if config_can_go(stream.config, target)
        or any(consumer_can_go(consumer["config"], target) for consumer in stream.consumers.values())
    }


def _announced(restored: Ran) -> list[str]:
    """Differences that the tool has announced, as patterns for the witness."""
    allowed = []
    for stream in restored.document["streams"]:
        for note in stream["notes"]:
            if note.startswith("first_seq is left out"):
                allowed.append(f"{stream['as']}:config.first_seq")
            if "would be copied again" in note:
                allowed += [f"{stream['as']}:message.headers", f"{stream['as']}:state.bytes"]
            if note.startswith("its last message was deleted"):
                allowed.append(f"{stream['as']}:state.last_ts")
        for consumer in stream["consumers"]:
            if consumer["fidelity"] != "exact":
                assert consumer["note"], consumer
                for field in ("delivered", "ack_floor", "num_ack_pending", "num_redelivered", "num_pending"):
                    allowed.append(f"{stream['as']}:consumer.{consumer['name']}.{field}")
    return allowed


def _back_up(server: NatsServer, repository: Path) -> Ran:
    backup = jsbackup("backup", "-s", server.url, "-r", repository, *PATIENT).ok()
    assert backup.document["result"] == "complete"
    assert backup.document["skipped"] == []
    verified = jsbackup("verify", "-r", repository, "--level", "data").ok()
    assert [document["ok"] for document in verified.document["backups"]] == [True]
    return backup


def _restore(server: NatsServer, repository: Path, leave_out: set[str], *options: str, wire: str = "auto") -> Ran:
    excluded = [text for name in sorted(leave_out) for text in ("--exclude", name)]
    line = ("restore", "latest", "-s", server.url, "-r", repository, *PATIENT, *excluded, *options)
    restored = jsbackup(*line, wire=wire).ok()
    assert restored.document["failed"] == []
    assert all(stream["verified"] for stream in restored.document["streams"])
    return restored


@pytest.mark.explore
@pytest.mark.parametrize("source", VERSIONS)
def test_file_streams_of_any_server_come_back_on_every_server(
    source: str, nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    origin = nats_server(source)
    before = asyncio.run(_fill_and_observe(origin.url, source, "file", large=source in ENDS))
    _back_up(origin, tmp_path / "repo")
    origin.stop()
    for target in [target for origin_version, target in PAIRS if origin_version == source]:
        with NatsServer(target) as server:
            lacking = _not_for(target, before)
            if lacking:
                refused = jsbackup("restore", "latest", "-s", server.url, "-r", tmp_path / "repo")
                assert refused.code == 15
                assert "needs nats-server" in refused.document["error"]["message"]
                assert seen(server.url) == {}
            if target != NEWEST:
                lacking |= LARGE & before.keys()
            restored = _restore(server, tmp_path / "repo", lacking)
            after = seen(server.url)
        ignore = _announced(restored)
        if version_tuple(source) < (2, 11):
            # 2.10 calls the first message of a stream emptied by deletes one of 1970, others one of the year 1.
            ignore.append("state.first_ts")
        expected = {name: stream for name, stream in before.items() if name not in lacking}
        assert compare(expected, after, ignore=ignore) == [], f"{source} → {target}"


def test_archives_v2_bring_file_streams_back_too(nats_server: Callable[..., NatsServer], tmp_path: Path) -> None:
    """A restore prefers v1, which is faster."""
    origin = nats_server(NEWEST)
    before = asyncio.run(_fill_and_observe(origin.url, NEWEST, "file", large=True))
    _back_up(origin, tmp_path / "repo")
    target = nats_server(NEWEST)
    restored = _restore(target, tmp_path / "repo", set(), wire="v2")
    assert {stream["wire"] for stream in restored.document["streams"]} == {"v2"}
    after = seen(target.url)
    assert compare(before, after, ignore=[*_announced(restored), *unused_floors(before, after)]) == []


@pytest.mark.parametrize("source", ENDS)
def test_memory_streams_of_any_server_come_back_on_2_15(
    source: str, nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    origin = nats_server(source)
    before = asyncio.run(_fill_and_observe(origin.url, source, "memory"))
    backup = _back_up(origin, tmp_path / "repo")
    if version_tuple(source) < (2, 15):
        assert all("message by message" in stream["warnings"][0] for stream in backup.document["streams"])
    origin.stop()
    target = nats_server(NEWEST)
    restored = _restore(target, tmp_path / "repo", set())
    after = seen(target.url)
    assert compare(before, after, ignore=[*_announced(restored), *unused_floors(before, after)]) == []
