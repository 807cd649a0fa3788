"""Both ways with what people use: jsm.go's backups (and the `nats` tool's, where there is one), on real servers.

What a server held is told by the witness, message by message. Differences are allowed only where the server or the tool
is known for them, with the reason.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from jsbackup.model import Fidelity
from jsbackup.repository.manifest import StreamBackup
from jsbackup.repository.repository import Repository
from jsbackup.repository.verify import Level, verify_backup
from jsbackup.stores.local import LocalStore
from jsbackup.stores.memory import MemoryStore
from tests.exchange.folders import V1, V2, imported, stored_messages, take_in
from tests.formats.exchange import restore
from tests.harness.api import connected
from tests.harness.awkward import fill
from tests.harness.awkward_bench import Storage
from tests.harness.backups import make_repository
from tests.harness.batches import Message
from tests.harness.clusters import NatsCluster
from tests.harness.commands import jsbackup
from tests.harness.natscli import ToolFailed, jsm_account_backup, jsm_restore, run_nats
from tests.harness.oracle import STREAM_DEFAULTS, ObservedStream, compare, normal_config, observe
from tests.harness.servers import NEWEST, NatsServer, version_tuple

# The first use builds the driver, which takes Go half a minute or more.
pytestmark = [pytest.mark.nats, pytest.mark.natscli, pytest.mark.timeout(600)]

Observed = dict[str, ObservedStream]

VERSIONS = ("2.10.26", "2.14.6", NEWEST)
OLDEST = VERSIONS[0]

# Every kind of stream that makes a difference in an archive.
ONLY = (
    "OPTIONS", "ROLLED_UP", "SEALED", "TRANSFORM", "MIRROR", "SOURCES",
    "WORKQUEUE", "INTEREST", "PULL", "STARTS", "SETTINGS", "PUSH", "PENDING_DELETED", "PAUSED", "PRIORITY",
    "PAYLOADS", "HEADERS", "UNICODE", "LONG_NAMES", "NOT_UTF8",
    "GAPS", "DELETED_TAIL", "DELETED_ENDS", "PURGED_KEEP", "EMPTIED", "EMPTIED_CONSUMED", "NEVER_USED_FIRST",
    "PER_SUBJECT_1", "PER_SUBJECT_5", "MAX_MSGS", "COMPRESSED", "TTL", "COUNTER", "SCHEDULES", "KV", "OBJECTS",
)  # fmt: skip


async def _fill(url: str, version: str, only: tuple[str, ...], storage: Storage = "file") -> Observed:
    async with connected(url) as nc:
        await fill(nc, version, only, storage=storage)
        return await observe(nc)


async def _observe(url: str) -> Observed:
    async with connected(url) as nc:
        return await observe(nc)


@dataclass(frozen=True, slots=True)
class Taken:
    """A server's streams, and the folder of `nats account backup` that they were backed up to."""

    version: str
    streams: Observed
    folder: Path

    @property
    def known_differences(self) -> list[str]:
        """What no archive of this server brings back, or no restore of an archive v1."""
        known = ["SETTINGS:state.consumer_count", "SETTINGS:consumer.memory*"]  # kept in memory
        if version_tuple(self.version) < (2, 11):
            known += ["STARTS:consumer.last.delivered", "STARTS:consumer.last.num_pending"]  # a start is not stored
        return known


@pytest.fixture(scope="module", params=VERSIONS)
def taken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Taken]:
    version: str = request.param
    folder = tmp_path_factory.mktemp("taken")
    with NatsServer(version) as server:
        before = asyncio.run(_fill(server.url, version, ONLY))
        jsm_account_backup(server.url, before, folder)
        assert compare(before, asyncio.run(_observe(server.url))) == []
    yield Taken(version, before, folder)


def as_messages(stream: ObservedStream) -> list[Message]:
    return [
        Message(one.sequence, one.time_ns, _text(one.subject), one.header_block or None, one.data)
        for one in stream.messages
    ]


def _text(subject: bytes) -> str | bytes:
    try:
        return subject.decode()
    except UnicodeDecodeError:
        return subject


def plain(message: Message) -> Message:
    return message._replace(subject=_text(message.subject) if isinstance(message.subject, bytes) else message.subject)


def restored_by_jsm(version: str, folder: Path, streams: Observed) -> Observed:
    with NatsServer(version) as server:
        for name in streams:
            jsm_restore(server.url, name, folder / name)
        return asyncio.run(_observe(server.url))


def export(repository: Path, out: Path, *arguments: str) -> None:
    jsbackup("export", "latest", *arguments, "-r", repository, "--format", "nats-cli", "--output", out).ok()


def test_an_import_holds_what_the_server_held(taken: Taken) -> None:
    repository = make_repository(MemoryStore())
    report = take_in(taken.folder, repository)
    assert report.failures == ()
    streams = imported(report)
    assert streams.keys() == taken.streams.keys()
    for name, stream in streams.items():
        _compare_stream(taken, repository, stream, taken.streams[name])
    assert report.manifest is not None
    assert list(verify_backup(repository.objects, report.manifest, Level.DATA)) == []


def _compare_stream(taken: Taken, repository: Repository, stream: StreamBackup, before: ObservedStream) -> None:
    assert [plain(one) for one in stored_messages(repository.store, stream)] == as_messages(before)
    assert normal_config(stream.config, {**STREAM_DEFAULTS, "compression": "none"}) == normal_config(
        before.config, {**STREAM_DEFAULTS, "compression": "none"}
    )
    assert stream.state.last_seq == before.state["last_seq"]
    missing = before.consumers.keys() - {consumer.name for consumer in stream.consumers}
    if version_tuple(taken.version) < (2, 15):
        assert missing == ({"memory"} if stream.name == "SETTINGS" else set())
        assert bool(stream.warnings) is bool(missing)
    else:
        assert (missing, stream.warnings) == (set(), ())
    for consumer in stream.consumers:
        info = before.consumers[consumer.name]
        if consumer.fidelity is not Fidelity.EXACT:
            assert (stream.name, consumer.name) == ("STARTS", "last")
            assert version_tuple(taken.version) < (2, 11)
            continue
        assert consumer.state is not None
        assert consumer.state.delivered.consumer == info["delivered"]["consumer_seq"]
        assert len(consumer.state.pending) == info["num_ack_pending"]
        floor = consumer.state.ack_floor
        assert floor.consumer == info["ack_floor"]["consumer_seq"]
        assert len(consumer.state.redelivered) >= info["num_redelivered"]


def test_an_import_is_exported_and_restored_by_jsm(taken: Taken, tmp_path: Path) -> None:
    repository = tmp_path / "repo"
    jsbackup("import", taken.folder, "-r", repository).ok()
    export(repository, tmp_path / "out")
    after = restored_by_jsm(taken.version, tmp_path / "out", taken.streams)
    assert compare(taken.streams, after, ignore=taken.known_differences) == []


def test_an_import_is_restored_by_jsbackup(taken: Taken, tmp_path: Path) -> None:
    repository = tmp_path / "repo"
    jsbackup("import", taken.folder, "-r", repository).ok()
    with NatsServer(taken.version) as server:
        restored = jsbackup("restore", "latest", "-r", repository, "-s", server.url).ok()
        assert all(stream["verified"] for stream in restored.document["streams"])
        after = asyncio.run(_observe(server.url))
    assert compare(taken.streams, after, ignore=[*taken.known_differences, "*:state.last_ts"]) == []


def test_an_archive_of_the_newest_server_reaches_the_oldest_by_jsm(tmp_path: Path) -> None:
    portable = ("WORKQUEUE", "PULL", "HEADERS", "GAPS", "DELETED_TAIL", "EMPTIED", "PER_SUBJECT_5", "KV", "OBJECTS")
    with NatsServer(NEWEST) as server:
        before = asyncio.run(_fill(server.url, NEWEST, portable))
        jsm_account_backup(server.url, before, tmp_path / "taken")
    with pytest.raises(ToolFailed):
        restored_by_jsm(OLDEST, tmp_path / "taken", before)
    jsbackup("import", tmp_path / "taken", "-r", tmp_path / "repo").ok()
    export(tmp_path / "repo", tmp_path / "out")
    after = restored_by_jsm(OLDEST, tmp_path / "out", before)
    # 2.15 counts the floor of a consumer that acknowledged nothing from the first sequence, which means the same.
    assert compare(before, after, ignore=["config.allow_msg_ttl", "*.ack_floor"]) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_our_own_backup_is_exported_and_restored_by_jsm(version: str, tmp_path: Path) -> None:
    with NatsServer(version) as server:
        before = asyncio.run(
            _fill(server.url, version, ("WORKQUEUE", "PULL", "GAPS", "DELETED_ENDS", "KV", "SETTINGS"))
        )
        jsbackup("backup", "-s", server.url, "-r", tmp_path / "repo").ok()
    export(tmp_path / "repo", tmp_path / "out")
    after = restored_by_jsm(version, tmp_path / "out", before)
    ignore = ["SETTINGS:consumer.memory.*"]  # a v1 restore starts consumers anew that are kept in memory
    if version_tuple(version) < (2, 12):
        ignore += ["SETTINGS:consumer.memory", "SETTINGS:state.consumer_count"]
    assert compare(before, after, ignore=ignore) == []


def test_a_memory_stream_goes_out_as_v2_and_comes_back(tmp_path: Path) -> None:
    async def send(url: str, folder: Path) -> Observed:
        async with connected(url) as nc:
            for path in sorted(folder.iterdir()):
                config = json.loads((path / "backup.json").read_text())["config"]
                # jsm.go sends the same; up to 0.4.1 it refuses to for streams kept in memory.
                await restore(nc, config, (path / V2).read_bytes())
            return await observe(nc)

    with NatsServer(NEWEST) as server:
        before = asyncio.run(_fill(server.url, NEWEST, ("WORKQUEUE", "PULL", "GAPS", "KV"), "memory"))
        jsbackup("backup", "-s", server.url, "-r", tmp_path / "repo").ok()
    export(tmp_path / "repo", tmp_path / "out")
    assert {path.name for path in (tmp_path / "out" / "M_GAPS").iterdir()} == {V2, "backup.json"}
    with NatsServer(NEWEST) as server:
        after = asyncio.run(send(server.url, tmp_path / "out"))
    # 2.15 counts the floor of a consumer that acknowledged nothing from the first sequence, which means the same.
    assert compare(before, after, ignore=["M_WORKQUEUE:consumer.high.ack_floor"]) == []


def test_an_archive_v2_is_taken_by_jsm_under_the_name_that_it_knows(tmp_path: Path) -> None:
    with NatsServer(NEWEST) as server:
        before = asyncio.run(_fill(server.url, NEWEST, ("PULL", "GAPS", "SETTINGS")))
        jsbackup("backup", "-s", server.url, "-r", tmp_path / "repo").ok()
    export(tmp_path / "repo", tmp_path / "out", "--archive", "v2")
    for name in before:
        with pytest.raises(ToolFailed, match=r"stream\.tar\.s2"):
            restored_by_jsm(NEWEST, tmp_path / "out", {name: before[name]})
        (tmp_path / "out" / name / V2).rename(tmp_path / "out" / name / V1)
    assert compare(before, restored_by_jsm(NEWEST, tmp_path / "out", before)) == []


def test_an_export_restores_into_a_server_with_encryption_at_rest(tmp_path: Path) -> None:
    with NatsServer(OLDEST) as server:
        before = asyncio.run(_fill(server.url, OLDEST, ("GAPS", "PULL")))
        jsm_account_backup(server.url, before, tmp_path / "taken")
    report = take_in(tmp_path / "taken", make_repository(LocalStore(tmp_path / "repo")))
    assert imported(report).keys() == before.keys()
    export(tmp_path / "repo", tmp_path / "out")
    with NatsServer(OLDEST, key="0123456789abcdef0123456789abcdef") as server:
        for name in before:
            jsm_restore(server.url, name, tmp_path / "out" / name)
        assert compare(before, asyncio.run(_observe(server.url))) == []


def test_configs_go_out_are_edited_and_applied(tmp_path: Path) -> None:
    with NatsServer(NEWEST) as server:
        before = asyncio.run(_fill(server.url, NEWEST, ("OPTIONS", "PULL", "MIRROR", "KV", "UNICODE")))
        jsbackup("backup", "-s", server.url, "-r", tmp_path / "repo").ok()
    out = tmp_path / "out"
    jsbackup("export", "latest", "-r", tmp_path / "repo", "--format", "config", "--output", out).ok()
    file = out / "streams" / "PULL.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "max_msgs": 12_345}))
    jsbackup("import", out, "-r", tmp_path / "other").ok()
    with NatsServer(NEWEST) as server:
        jsbackup("restore", "latest", "-r", tmp_path / "other", "-s", server.url).ok()
        after = asyncio.run(_observe(server.url))
    different = compare(before, after, ignore=["messages", "missing", "deleted", "subjects", "state.*"])
    states = ("delivered", "ack_floor", "num_ack_pending", "num_redelivered", "num_pending")
    assert [d for d in different if not any(f".{state}:" in d for state in states)] == [
        "PULL: config.max_msgs: -1 became 12345"
    ]


def test_what_a_cluster_rolled_back_is_not_called_exact(tmp_path: Path) -> None:
    async def work(url: str) -> Observed:
        async with connected(url) as nc:
            await fill(nc, NEWEST, ("PULL",), replicas=3)
            return await observe(nc)

    with NatsCluster(NEWEST) as cluster:
        before = asyncio.run(work(cluster.url))["PULL"]
        jsm_account_backup(cluster.url, ["PULL"], tmp_path)
    stream = imported(take_in(tmp_path, make_repository(MemoryStore())))["PULL"]
    exact = [consumer for consumer in stream.consumers if consumer.fidelity is Fidelity.EXACT]
    floor = {consumer.name for consumer in stream.consumers if consumer.fidelity is Fidelity.FLOOR}
    assert {name for name, info in before.consumers.items() if info["num_ack_pending"]} <= floor
    for consumer in exact:
        assert consumer.state is not None
        assert consumer.state.delivered.consumer == before.consumers[consumer.name]["delivered"]["consumer_seq"]
        assert len(consumer.state.pending) == before.consumers[consumer.name]["num_ack_pending"]


# --- the tool itself, where there is one ---


@pytest.mark.parametrize("version", VERSIONS)
def test_both_ways_with_the_nats_tool(version: str, tmp_path: Path) -> None:
    only = ("WORKQUEUE", "PULL", "GAPS", "DELETED_TAIL", "HEADERS", "KV", "UNICODE")
    with NatsServer(version) as server:
        run_nats("account", "info", url=server.url)
        before = asyncio.run(_fill(server.url, version, only))
        run_nats("account", "backup", str(tmp_path / "account"), "--force", url=server.url)
        run_nats("stream", "backup", "GAPS", str(tmp_path / "stream"), "--no-progress", url=server.url)
    repository = tmp_path / "repo"
    jsbackup("import", tmp_path / "account", "-r", repository).ok()
    export(repository, tmp_path / "out")
    export(repository, tmp_path / "gaps", "GAPS")
    with NatsServer(version) as server:
        run_nats("account", "restore", str(tmp_path / "out"), url=server.url)
        assert compare(before, asyncio.run(_observe(server.url))) == []
    jsbackup("import", tmp_path / "stream", "-r", tmp_path / "other").ok()
    with NatsServer(version) as server:
        run_nats("stream", "restore", str(tmp_path / "gaps"), "--no-progress", url=server.url)
        assert compare({"GAPS": before["GAPS"]}, asyncio.run(_observe(server.url))) == []
