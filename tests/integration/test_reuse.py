"""A second backup of real streams stores what is new, and stands without the first one."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from jsbackup.config import Glob
from jsbackup.config.connection import ConnectionOptions, source_connection
from jsbackup.engine.backup import stream_backup
from jsbackup.engine.backup.backup import run_backup
from jsbackup.engine.backup.run import BackupOptions, BackupRun
from jsbackup.engine.read.increment import Incremental
from jsbackup.formats.archive.archive import ArchiveEnd
from jsbackup.formats.sequences import SequenceSet
from jsbackup.repository.crypto.access import GivenKeys
from jsbackup.repository.crypto.age import random_identity
from jsbackup.repository.crypto.new_keys import make_new_keys
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.read.segments import SegmentReader, read_stream
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.new_backup import StoredStream
from jsbackup.repository.write.segment_writer import SegmentWriter
from jsbackup.stores.local import LocalStore
from tests.harness.api import Wire, call, connected
from tests.harness.commands import jsbackup
from tests.harness.held import held
from tests.harness.s3server import BUCKET, S3Server
from tests.harness.servers import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

Starter = Callable[..., NatsServer]

STREAMS: dict[str, dict[str, Any]] = {
    "RANDOM": {},
    "JSON": {},
    "KEYS": {"max_msgs_per_subject": 1},
    "QUEUE": {"retention": "workqueue"},
    "PURGED": {},
    "SAME": {},
}
# Messages before the first backup and how many more before the second; bytes of each; how many subjects.
SIZES = {
    "RANDOM": (800, 8, 16_000, 7),
    "JSON": (10_000, 100, 1_000, 7),
    "KEYS": (2_000, 20, 1_000, 2_000),
    "QUEUE": (2_000, 20, 1_000, 7),
    "PURGED": (2_000, 20, 1_000, 7),
    "SAME": (100, 0, 1_000, 7),
}


async def create(url: str) -> None:
    async with connected(url) as nc:
        for name, config in STREAMS.items():
            base = {"name": name, "subjects": [f"{name}.>"], "retention": "limits", "storage": "file"}
            await call(nc, f"STREAM.CREATE.{name}", {**base, "num_replicas": 1, **config})
        durable = {"durable_name": "worker", "ack_policy": "explicit"}
        await call(nc, "CONSUMER.DURABLE.CREATE.QUEUE.worker", {"stream_name": "QUEUE", "config": durable})


async def publish(url: str, *, more: bool) -> None:
    wire = await Wire.open(url)
    for name, (before, after, size, subjects) in SIZES.items():
        chance = random.Random(f"{name} {more}")
        for number in range(before, before + after) if more else range(before):
            data = chance.randbytes(size)
            if name != "RANDOM":
                data = b'{"number":%d,"text":"%s"}' % (number, data[: size // 4].hex().encode() * 2)
            await wire.send(f"{name}.{number % subjects}", data)
    await wire.replies()
    await wire.close()


async def remove(url: str) -> None:
    async with connected(url) as nc:
        await call(nc, "STREAM.PURGE.PURGED", {"seq": 1000})
        subscription = await nc.jetstream().pull_subscribe_bind(durable="worker", stream="QUEUE")
        for message in await subscription.fetch(200, timeout=30):
            await message.ack_sync()


def back_up(url: str, repository: Path, incremental: str) -> tuple[str, dict[str, Any]]:
    document = jsbackup("backup", "-s", url, "-r", repository, "--incremental", incremental).ok().document
    return document["backup"], {stream["name"]: stream for stream in document["streams"]}


@pytest.mark.by_turns
@pytest.mark.parametrize(("version", "incremental"), [("2.12.8", "never"), ("2.15.1", "never"), ("2.15.1", "always")])
def test_a_second_backup_stores_what_is_new_and_needs_no_other(
    version: str, incremental: str, nats_server: Starter, tmp_path: Path
) -> None:
    repository = tmp_path / "repo"
    server = nats_server(version)
    asyncio.run(create(server.url))
    asyncio.run(publish(server.url, more=False))
    first, before = back_up(server.url, repository, incremental)
    asyncio.run(publish(server.url, more=True))
    asyncio.run(remove(server.url))
    second, after = back_up(server.url, repository, incremental)

    for name in ("RANDOM", "JSON"):
        assert after[name]["messages"] == sum(SIZES[name][:2])
        assert after[name]["stored_bytes_added"] <= 0.02 * before[name]["stored_bytes_added"]
        assert after[name]["segments_reused"] == after[name]["segments"] - 1 > 0
    assert after["SAME"]["stored_bytes_added"] == 0
    assert after["SAME"]["segments_reused"] == after["SAME"]["segments"] == 1
    _, anew = back_up(server.url, tmp_path / "other", "never")
    for name, stream in anew.items():
        assert stream["digest"] == after[name]["digest"], name
        assert stream["messages"] == after[name]["messages"], name
    third, again = back_up(server.url, repository, incremental)
    assert {name: stream["digest"] for name, stream in again.items()} == {n: s["digest"] for n, s in after.items()}

    (repository / "backups" / f"{first}.json").unlink()
    (repository / "backups" / f"{third}.json").unlink()
    jsbackup("verify", "-r", repository, second, "--level", "data").ok()
    with NatsServer("2.15.1") as target:
        restored = jsbackup("restore", second, "-s", target.url, "-r", repository).ok().document
        assert {stream["name"]: stream["digest"] for stream in restored["streams"]} == {
            name: stream["digest"] for name, stream in after.items()
        }


@pytest.mark.by_turns
@pytest.mark.s3
def test_the_same_in_s3_encrypted_by_a_host_that_cannot_read_it(
    nats_server: Starter, s3_server: S3Server, tmp_path: Path
) -> None:
    identity = random_identity()
    assert identity.recipient is not None and identity.text is not None
    (tmp_path / "identity").write_text(identity.text)
    host = s3_server.environment | {
        "JSBACKUP_REPO": f"s3://{BUCKET}/reuse/{tmp_path.name}",
        "JSBACKUP_WRITER_KEY_FILE": str(tmp_path / "writer"),
    }
    reader = host | {"JSBACKUP_IDENTITY_FILE": str(tmp_path / "identity")}
    init = ("init", "--encrypt-to", identity.recipient.label, "--writer-key", tmp_path / "writer")
    jsbackup(*init, **{name: value for name, value in host.items() if name != "JSBACKUP_WRITER_KEY_FILE"}).ok()
    server = nats_server("2.15.1")
    asyncio.run(create(server.url))
    asyncio.run(publish(server.url, more=False))
    made = []
    for incremental in ("never", "never", "always"):
        made.append(jsbackup("backup", "-s", server.url, "--incremental", incremental, **host).ok().document)
        if len(made) == 1:
            asyncio.run(publish(server.url, more=True))
            asyncio.run(remove(server.url))
    first, second, third = ({stream["name"]: stream for stream in document["streams"]} for document in made)
    for name in ("RANDOM", "JSON"):
        assert second[name]["stored_bytes_added"] <= 0.02 * first[name]["stored_bytes_added"]
    assert {stream["stored_bytes_added"] for stream in third.values()} == {0}
    jsbackup("forget", made[0]["backup"], made[2]["backup"], "--prune", "--grace", "0s", **host).ok()
    jsbackup("verify", "--level", "objects", **host).ok()
    with NatsServer("2.15.1") as target:
        restored = jsbackup("restore", made[1]["backup"], "-s", target.url, **reader).ok().document
    assert {stream["name"]: stream["digest"] for stream in restored["streams"]} == {
        name: stream["digest"] for name, stream in second.items()
    }


def test_a_late_deletion_in_a_segment_that_cannot_be_read_is_captured_again(
    nats_server: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = nats_server("2.12.8").url
    store = LocalStore(tmp_path / "repo")
    reader = random_identity()
    assert reader.recipient is not None
    new_keys = make_new_keys("00ff", [reader.recipient], None, os.urandom)
    Repository.create(store, repository_id="00ff", created="2026-11-21T01:45:00Z", tool="tests", new_keys=new_keys)
    monkeypatch.setitem(SegmentWriter.__init__.__kwdefaults__, "segment_bytes", 100_000)

    async def send(*numbers: int) -> None:
        wire = await Wire.open(url)
        for number in numbers:
            await wire.send("SAME.a", b"%d" % number * 500)
        await wire.replies()
        await wire.close()

    async def delete(sequence: int) -> None:
        async with connected(url) as nc:
            await call(nc, "STREAM.MSG.DELETE.SAME", {"seq": sequence})

    async def back_up() -> StoredStream:
        # Whoever wrote a segment can read it as long as it runs: each backup is another process.
        repository = Repository.open(store, GivenKeys(writer=new_keys.writer_key))
        connection = source_connection(ConnectionOptions(server=url), {"HOME": "/nonexistent"})
        options = BackupOptions(streams=(Glob("SAME"),), incremental=Incremental.NEVER)
        report = await run_backup(BackupRun(connection, repository, options), held(store))
        assert report.failures == ()
        return report.streams[0]

    asked: list[int] = []

    def late(_end: ArchiveEnd, _config: object, segments: Sequence[SegmentRef], _reader: SegmentReader) -> SequenceSet:
        """Message 30 goes while the snapshot runs."""
        if not asked:
            asyncio.run(delete(30))
        asyncio.run(send(1))  # and so the count is not that of the beginning
        asked.append(len(segments))
        return SequenceSet([30])

    asyncio.run(create(url))
    asyncio.run(send(*range(1000)))
    first = asyncio.run(back_up()).stream
    monkeypatch.setattr(stream_backup, "messages_to_remove", late)
    second = asyncio.run(back_up())
    assert len(asked) == 2
    hit = [ref for ref in first.segments if ref.first_seq <= 30 <= ref.last_seq]
    assert [ref for ref in first.segments if ref not in second.stream.segments] == hit
    assert second.segments_reused == len(first.segments) - 1 > 5
    objects = Repository.open(store, GivenKeys(identities=(reader,))).objects
    read = [batch.column("sequence").to_pylist() for batch in read_stream(objects, second.stream)]
    assert [sequence for some in read for sequence in some] == [n for n in range(1, 1002) if n != 30]
