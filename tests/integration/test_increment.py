"""Increments of real streams are what a whole reading of the same streams is, or the streams are read whole."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jsbackup.config.connection import ConnectionOptions, source_connection
from jsbackup.engine.backup.backup import BackupReport, run_backup
from jsbackup.engine.backup.run import BackupOptions, BackupRun
from jsbackup.engine.link.jetstream import connect_jetstream
from jsbackup.engine.read.increment import Incremental, Whole
from jsbackup.engine.read.join import Joined, take_increment
from jsbackup.errors import KeyUnavailable
from jsbackup.model import Fidelity
from jsbackup.repository.crypto.access import GivenKeys
from jsbackup.repository.crypto.age import random_identity
from jsbackup.repository.crypto.new_keys import NewKeys, make_new_keys
from jsbackup.repository.manifest import ConsumerBackup, FactKind, ReadAs, SegmentRef, StreamBackup, total_of
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.new_backup import StoredStream
from jsbackup.repository.write.segment_writer import SegmentWriter
from jsbackup.stores.local import LocalStore
from jsbackup.stores.memory import MemoryStore
from tests.harness.api import Wire, call, connected, headers, paged
from tests.harness.awkward import fill, keys
from tests.harness.commands import jsbackup
from tests.harness.held import held
from tests.harness.oracle import compare
from tests.harness.servers import NatsServer
from tests.integration.witness import announced, restore, seen

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

THREE = ("2.10.26", "2.12.8", "2.15.1")

Segments = Callable[[int], None]


@pytest.fixture
def segments_of(monkeypatch: pytest.MonkeyPatch) -> Segments:
    """`segments_of(4000)` makes segments of 4000 bytes from then on, so that a few messages are many segments."""
    defaults = SegmentWriter.__init__.__kwdefaults__
    assert defaults and "segment_bytes" in defaults
    return lambda size: monkeypatch.setitem(defaults, "segment_bytes", size)


@dataclass(frozen=True, slots=True)
class Bench:
    """A server and a repository."""

    url: str
    folder: Path
    repository: Repository

    @classmethod
    def make(cls, url: str, tmp_path: Path, new_keys: NewKeys | None = None, store: MemoryStore | None = None) -> Bench:
        folder = tmp_path / "repo"
        made = Repository.create(
            store or LocalStore(folder),
            repository_id="00ff",
            created="2026-11-21T01:45:00Z",
            tool="tests",
            new_keys=new_keys,
        )
        return cls(url, folder, made)

    def back_up(self, incremental: Incremental, *, user: str = "", check: bool = False) -> dict[str, StoredStream]:
        """Streams by name; all of them are in the backup."""
        url = self.url.replace("://", f"://{user}:{user}@") if user else self.url
        connection = source_connection(ConnectionOptions(server=url), {"HOME": "/nonexistent"})
        options = BackupOptions(incremental=incremental, check=check)
        report: BackupReport = asyncio.run(
            run_backup(BackupRun(connection, self.repository, options), held(self.repository.store))
        )
        assert report.failures == ()
        return {result.stream.name: result for result in report.streams}

    def both(self) -> tuple[dict[str, StoredStream], dict[str, StoredStream]]:
        """An increment, and all of the same streams."""
        return self.back_up(Incremental.ALWAYS), self.back_up(Incremental.NEVER)

    def call(self, *requests: tuple[str, dict[str, Any]]) -> None:
        async def ask() -> None:
            async with connected(self.url) as nc:
                for subject, body in requests:
                    await call(nc, subject, body)

        asyncio.run(ask())

    def states(self) -> dict[str, dict[str, Any]]:
        """What the server says of each stream, the number of its consumers included."""

        async def ask() -> dict[str, dict[str, Any]]:
            async with connected(self.url) as nc:
                return {one["config"]["name"]: one["state"] for one in await paged(nc, "STREAM.LIST", "streams")}

        return asyncio.run(ask())

    def create(self, name: str, **config: Any) -> None:
        base = {"name": name, "subjects": [f"{name}.>"], "retention": "limits", "storage": "file", "num_replicas": 1}
        self.call((f"STREAM.CREATE.{name}", base | config))

    def publish(self, name: str, numbers: range, *, keys: int = 1_000_000) -> None:
        async def send() -> None:
            wire = await Wire.open(self.url)
            for number in numbers:
                block = headers(("Number", str(number)), ("Number", "again")) if number % 3 == 0 else None
                await wire.send(f"{name}.{number % keys}", b"%d " % number * 60, block)
            await wire.replies()
            await wire.close()

        asyncio.run(send())

    def consume(self, name: str, consumer: str, *, ack: int, leave: int = 0) -> None:
        """Acknowledge some messages and leave some unacknowledged."""

        async def pull() -> None:
            async with connected(self.url) as nc:
                subscription = await nc.jetstream().pull_subscribe_bind(durable=consumer, stream=name)
                for message in (await subscription.fetch(ack + leave, timeout=5))[:ack]:
                    await message.ack_sync()

        asyncio.run(pull())

    def messages(self, segments: Iterable[SegmentRef]) -> Iterator[tuple[int, str]]:
        """Sequence and subject of what is stored."""
        reader = SegmentReader(self.repository.objects)
        for ref in segments:
            for batch in reader.read(ref):
                yield from zip(batch.column("sequence").to_pylist(), batch.column("subject").to_pylist(), strict=True)


def how(result: StoredStream) -> tuple[ReadAs, str]:
    assert result.stream.read is not None
    return result.stream.read.how, result.stream.read.why


def check_equal(left: StoredStream, right: StoredStream) -> None:
    """Two backups of the same quiet stream, however each was made."""
    one, other = left.stream, right.stream
    assert (one.name, one.config, one.state, one.digest) == (other.name, other.config, other.state, other.digest)
    assert replace(one.captured, begun="", ended="") == replace(other.captured, begun="", ended="")
    assert total_of(one.segments) == total_of(other.segments)


def undated(stream: StreamBackup) -> list[ConsumerBackup]:
    """Its consumers; 2.10 and 2.11 report with a drift when they were made."""
    return [replace(consumer, created="") for consumer in stream.consumers]


def exact(stream: StreamBackup) -> list[ConsumerBackup]:
    return [consumer for consumer in stream.consumers if consumer.fidelity is Fidelity.EXACT]


def earlier(stream: StreamBackup) -> StreamBackup:
    """The stream as a backup would have had it that was made when half of it was there."""
    segments = stream.segments[: len(stream.segments) // 2]
    total = total_of(segments)
    captured = replace(
        stream.captured,
        messages=total.messages,
        bytes=total.bytes,
        first_seq=total.first_seq,
        last_seq=total.last_seq,
    )
    state = replace(stream.state, last_seq=total.last_seq)
    return replace(stream, segments=segments, captured=captured, state=state, digest=total.digest)


# One message fills a segment of these, so that half of every stream with two messages is a backup to build on.
@pytest.mark.by_turns
def test_every_awkward_message_is_read_apart_as_it_is_in_a_snapshot(
    nats_server: Callable[..., NatsServer], segments_of: Segments, tmp_path: Path
) -> None:
    segments_of(40)
    bench = Bench.make(nats_server("2.15.1").url, tmp_path, store=MemoryStore())
    chosen = [key for key in keys("2.15.1") if not key.startswith(("BIG", "MANY_SUBJECTS"))]

    async def make() -> None:
        async with connected(bench.url) as nc:
            await fill(nc, "2.15.1", only=chosen)

    asyncio.run(make())
    before = bench.states()
    whole = bench.back_up(Incremental.NEVER)
    manifest = bench.repository.manifest(bench.repository.backups()[-1])
    halves = tuple(earlier(stream) for stream in manifest.streams)
    bench.repository.commit(replace(manifest, id="20991121T014500Z-000001", streams=halves))
    apart = bench.back_up(Incremental.ALWAYS)
    for name, result in apart.items():
        check_equal(result, whole[name])
        parts = len(whole[name].stream.segments)
        assert how(result)[0] == (ReadAs.INCREMENT if parts > 1 else ReadAs.SNAPSHOT), (name, how(result))
        same = {consumer.name: consumer.state for consumer in exact(whole[name].stream)}
        for consumer in exact(result.stream):
            assert consumer.state == same.get(consumer.name, consumer.state), (name, consumer)
    assert bench.states() == before


@pytest.mark.by_turns
@pytest.mark.parametrize("version", THREE)
def test_increments_of_changed_streams_are_what_a_whole_reading_is(
    version: str, nats_server: Callable[..., NatsServer], segments_of: Segments, tmp_path: Path
) -> None:
    segments_of(4000)
    bench = Bench.make(nats_server(version).url, tmp_path)
    configs: dict[str, dict[str, Any]] = {
        "PLAIN": {},
        "SAME": {},
        "MIDDLE": {},
        "PURGED": {},
        "FRONT": {"max_msgs": 100},
        "KEYS": {"max_msgs_per_subject": 1},
        "QUEUE": {"retention": "workqueue"},
        "INTEREST": {"retention": "interest"},
        "TAIL": {},
        "TAIL_AND_MORE": {},
        "EMPTIED": {},
        "RECREATED": {},
        "MEMORY": {"storage": "memory"},
    }
    for name, config in configs.items():
        bench.create(name, **config)
        for consumer in ("busy", "idle"):
            create = {"durable_name": consumer, "ack_policy": "explicit", "deliver_policy": "all"}
            if name != "QUEUE" or consumer == "busy":
                subject = f"CONSUMER.DURABLE.CREATE.{name}.{consumer}"
                bench.call((subject, {"stream_name": name, "config": create}))
        bench.publish(name, range(100), keys=60 if name == "KEYS" else 7 if name == "PURGED" else 1000)
    assert {how(result) for result in bench.back_up(Incremental.ALWAYS).values()} == {
        (ReadAs.SNAPSHOT, "there is no earlier backup of it")
    } | ({(ReadAs.MESSAGES, "there is no earlier backup of it")} if version != "2.15.1" else set())

    for sequence in (30, 31, 50):
        bench.call(("STREAM.MSG.DELETE.MIDDLE", {"seq": sequence}))
    bench.call(("STREAM.PURGE.PURGED", {"filter": "PURGED.3", "seq": 40}))
    for name in ("TAIL", "TAIL_AND_MORE"):
        bench.call(*((f"STREAM.MSG.DELETE.{name}", {"seq": sequence}) for sequence in (99, 100)))
    bench.call(("STREAM.PURGE.EMPTIED", {}), ("STREAM.DELETE.RECREATED", {}))
    bench.create("RECREATED")
    bench.consume("QUEUE", "busy", ack=40)
    bench.consume("INTEREST", "busy", ack=40)
    bench.consume("INTEREST", "idle", ack=20)
    for name in set(configs) - {"SAME", "TAIL", "EMPTIED"}:
        bench.publish(name, range(100, 130), keys=60 if name == "KEYS" else 7 if name == "PURGED" else 1000)
    apart, whole = bench.both()
    for name, result in apart.items():
        check_equal(result, whole[name])
        assert undated(result.stream) == undated(whole[name].stream)
    told = {name: how(result) for name, result in apart.items()}
    assert told.pop("RECREATED") == (ReadAs.SNAPSHOT, "there is no earlier backup of it")
    assert told.pop("EMPTIED")[0] == ReadAs.SNAPSHOT
    assert told.pop("SAME") == (ReadAs.INCREMENT, "nothing has changed since the last backup")
    assert {kind for kind, _why in told.values()} == {ReadAs.INCREMENT}

    # What cannot be told message by message: the whole where it is for the tool to choose, and said where it is not.
    bench.consume("PLAIN", "busy", ack=3, leave=2)
    bench.publish("PLAIN", range(130, 140))
    chosen = bench.back_up(Incremental.AUTO)
    assert how(chosen["PLAIN"]) == (
        ReadAs.SNAPSHOT,
        "only a snapshot shows which messages consumer busy has not acknowledged",
    )
    assert exact(chosen["PLAIN"].stream) == list(chosen["PLAIN"].stream.consumers)
    assert {how(chosen[name])[0] for name in configs if name not in ("PLAIN", "EMPTIED")} == {ReadAs.INCREMENT}
    bench.publish("PLAIN", range(140, 150))
    before = seen(bench.url)
    last = bench.back_up(Incremental.ALWAYS)
    assert how(last["PLAIN"])[0] == ReadAs.INCREMENT
    assert [consumer.fidelity for consumer in last["PLAIN"].stream.consumers] == [Fidelity.FLOOR, Fidelity.EXACT]

    target = nats_server(version)
    without = () if version == "2.15.1" else ("--exclude", "MEMORY")
    restored = restore(target.url, bench.folder, *without)
    ignore = announced(restored)
    expected = {name: stream for name, stream in before.items() if name not in without}
    assert compare(expected, seen(target.url), ignore=ignore) == []


@pytest.mark.by_turns
@pytest.mark.parametrize("version", THREE)
def test_a_stream_that_lost_its_end_and_went_on_is_read_whole(
    version: str, segments_of: Segments, tmp_path: Path
) -> None:
    segments_of(4000)
    with NatsServer(version, directory=tmp_path / "server") as server:
        bench = Bench.make(server.url, tmp_path)
        names = ("SHORTER", "LONGER", "SAME_LENGTH", "WITHIN_A_SEGMENT", "NOT_CONCERNED")
        for name in names:
            bench.create(name)
            bench.publish(name, range(100))
        bench.publish("NOT_CONCERNED", range(100, 140))
        server.stop()
        shutil.copytree(server.store_directory, tmp_path / "old")
        server.start()
        for name in names[:3]:
            bench.publish(name, range(100, 140))
        bench.publish("WITHIN_A_SEGMENT", range(100, 102))
        first = bench.back_up(Incremental.NEVER)
        server.stop()
        shutil.rmtree(server.store_directory)
        shutil.copytree(tmp_path / "old", server.store_directory)
        server.start()
        bench.publish("SHORTER", range(200, 220))
        bench.publish("LONGER", range(200, 260))
        bench.publish("SAME_LENGTH", range(200, 240))
        bench.publish("WITHIN_A_SEGMENT", range(200, 202))
        bench.publish("NOT_CONCERNED", range(140, 150))
        apart, whole = bench.both()
    told = {name: how(result) for name, result in apart.items()}
    assert told["SHORTER"] == (ReadAs.SNAPSHOT, "it ends at sequence 120 and ended at 140 in the last backup")
    for name in ("LONGER", "SAME_LENGTH", "WITHIN_A_SEGMENT"):
        assert told[name][0] == ReadAs.SNAPSHOT
        assert "other messages took their place" in told[name][1]
        assert apart[name].stream.incarnation == first[name].stream.incarnation
    assert told["NOT_CONCERNED"][0] == ReadAs.INCREMENT
    for name, result in apart.items():
        check_equal(result, whole[name])
        assert bool(result.stream.fact(FactKind.LOST_SINCE)) == (name != "NOT_CONCERNED")


def test_a_host_that_cannot_read_the_backups_makes_increments(
    nats_server: Callable[..., NatsServer], segments_of: Segments, tmp_path: Path
) -> None:
    segments_of(4000)
    reader = random_identity()
    assert reader.recipient is not None
    new_keys = make_new_keys("00ff", [reader.recipient], None, os.urandom)
    bench = Bench.make(nats_server("2.12.8").url, tmp_path, new_keys)
    bench.create("MIDDLE")
    bench.publish("MIDDLE", range(100))
    (first,) = bench.back_up(Incremental.AUTO).values()
    (checked,) = bench.back_up(Incremental.ALWAYS, check=True).values()
    assert how(checked) == (ReadAs.SNAPSHOT, "the server checks its store when it makes a snapshot")
    # What wrote it can read it, as long as it runs. So another one.
    writer = GivenKeys(writer=new_keys.writer_key)
    bench = replace(bench, repository=Repository.open(LocalStore(bench.folder), writer))
    with pytest.raises(KeyUnavailable):
        list(bench.messages(first.stream.segments))
    for sequence in (30, 31, 100):
        bench.call(("STREAM.MSG.DELETE.MIDDLE", {"seq": sequence}))
    bench.publish("MIDDLE", range(100, 110))
    apart, whole = bench.both()
    check_equal(apart["MIDDLE"], whole["MIDDLE"])
    assert how(apart["MIDDLE"])[0] == ReadAs.INCREMENT
    assert apart["MIDDLE"].segments_reused > 3
    opened = Repository.open(LocalStore(bench.folder), GivenKeys(identities=(reader,)))
    stored = replace(bench, repository=opened).messages(apart["MIDDLE"].stream.segments)
    assert [sequence for sequence, _subject in stored] == [s for s in range(1, 111) if s not in (30, 31, 100)]


# --- what happens while it is read ---


class Meanwhile:
    """Announces readings, and with each does something to the stream, as long as there is something to do."""

    def __init__(self, *doings: Callable[[], object]) -> None:
        self.doings = list(doings)

    def __call__(self, _bytes: int, _messages: int) -> None:
        if self.doings:
            # In a thread: it has a loop of its own.
            thread = threading.Thread(target=self.doings.pop(0))
            thread.start()
            thread.join()


def take(bench: Bench, name: str, *doings: Callable[[], object]) -> Joined | Whole:
    """An increment of a stream to which things happen between the question for its state and the reading."""
    previous = next(
        stream for stream in bench.repository.manifest(bench.repository.backups()[-1]).streams if stream.name == name
    )

    folder = previous.segments[0].key.rpartition("/")[0]

    async def run() -> Joined | Whole:
        connection = source_connection(ConnectionOptions(server=bench.url), {"HOME": "/nonexistent"})
        async with connect_jetstream(connection) as js:
            return await take_increment(
                js,
                Incremental.ALWAYS,
                previous,
                previous.segments,
                new_writer=lambda: SegmentWriter(bench.repository.objects, folder, previous.segments),
                start=Meanwhile(*doings),
                advance=lambda _bytes, _messages: None,
                consumers=True,
            )

    return asyncio.run(run())


def test_what_changes_while_it_is_read_is_as_it_was_at_one_moment(
    nats_server: Callable[..., NatsServer], segments_of: Segments, tmp_path: Path
) -> None:
    segments_of(4000)
    bench = Bench.make(nats_server("2.12.8").url, tmp_path)
    bench.create("KEYS", max_msgs_per_subject=1)
    bench.create("PLAIN")
    bench.create("QUEUE", retention="workqueue")
    for name in ("KEYS", "PLAIN", "QUEUE"):
        bench.publish(name, range(100))
    bench.back_up(Incremental.NEVER)
    for name in ("KEYS", "PLAIN", "QUEUE"):
        bench.publish(name, range(100, 120))

    # Each key has a message at every moment. One that got a newer one meanwhile must not be missing.
    def replace_newest(key: int) -> Callable[[], None]:
        return lambda: bench.publish("KEYS", range(key, key + 1))

    done = take(bench, "KEYS", replace_newest(119))
    assert isinstance(done, Joined)
    assert (done.info.state.messages, done.info.state.last_seq) == (120, 121)
    stored = dict.fromkeys(subject for _sequence, subject in bench.messages(done.segments))
    assert set(stored) == {f"KEYS.{key}" for key in range(120)}
    assert total_of(done.segments).messages == 120
    # Of what is written after that it has nothing: at the moment that it is of, nothing was missing.
    assert [sequence for sequence, _subject in bench.messages(done.segments)][-1] == 121

    # Of other streams, what went meanwhile went.
    for name in ("PLAIN", "QUEUE"):
        gone = take(bench, name, partial(bench.call, (f"STREAM.MSG.DELETE.{name}", {"seq": 115})))
        assert isinstance(gone, Joined)
        assert [sequence for sequence, _subject in bench.messages(gone.segments)] == [
            sequence for sequence in range(1, 121) if sequence != 115
        ]

    # The anchor loses a message: it is planned again, with another anchor.
    anchored = take(bench, "PLAIN", lambda: bench.call(("STREAM.MSG.DELETE.PLAIN", {"seq": 99})))
    assert isinstance(anchored, Joined)
    assert 99 not in dict(bench.messages(anchored.segments))
    assert total_of(anchored.segments).messages == 118

    def recreate() -> None:
        bench.call(("STREAM.DELETE.PLAIN", {}))
        bench.create("PLAIN")
        bench.publish("PLAIN", range(120))

    assert isinstance(take(bench, "PLAIN", recreate), Whole)


# --- who may ---

_SNAPSHOT = (
    "$JS.API.INFO",
    "$JS.API.STREAM.LIST",
    "$JS.API.STREAM.INFO.*",
    "$JS.API.CONSUMER.LIST.*",
    "$JS.API.STREAM.SNAPSHOT.*",
    "$JS.SNAPSHOT.ACK.>",
)
_USERS = {
    "all": (">",),
    "snapshot": _SNAPSHOT,
    "gets": (*_SNAPSHOT, "$JS.API.STREAM.MSG.GET.*"),
    "reader": (*_SNAPSHOT, "$JS.API.CONSUMER.CREATE.>", "$JS.API.CONSUMER.DELETE.*.*"),
}


def test_who_may_not_read_apart_reads_all(
    nats_server: Callable[..., NatsServer], segments_of: Segments, tmp_path: Path
) -> None:
    segments_of(4000)
    users = ", ".join(
        f"{{ user: {name}, password: {name}, permissions: "
        f'{{ publish: {{ allow: {json.dumps(allowed)} }}, subscribe: {{ allow: ["_INBOX.>"] }} }} }}'
        for name, allowed in _USERS.items()
    )
    server = nats_server(
        "2.12.8",
        config=f"accounts {{ A {{ jetstream: enabled, users: [ {users} ] }}, SYS {{ users: [] }} }}\n"
        "system_account: SYS",
    )
    bench = Bench.make(server.url.replace("://", "://all:all@"), tmp_path)
    bench.create("PLAIN")
    bench.publish("PLAIN", range(100))
    told = {}
    results = {}
    for user in ("all", "snapshot", "gets", "reader"):
        bench.publish("PLAIN", range(3))
        (result,) = replace(bench, url=server.url).back_up(Incremental.ALWAYS, user=user).values()
        told[user] = how(result)
        results[user] = result
        check_equal(result, bench.back_up(Incremental.NEVER)["PLAIN"])
    assert told["snapshot"][0] == ReadAs.SNAPSHOT
    assert "STREAM.MSG.GET" in told["snapshot"][1]
    assert (told["gets"][0], told["reader"][0]) == (ReadAs.INCREMENT, ReadAs.INCREMENT)


@pytest.mark.by_turns
@pytest.mark.parametrize("version", THREE)
@pytest.mark.parametrize("incremental", ["auto", "never"])
def test_what_the_server_has_lost_since_the_last_backup_is_no_success(
    version: str, incremental: str, tmp_path: Path
) -> None:
    """The backup is made of what is left, and says once, by its exit code, what the server has lost."""
    folder = tmp_path / "repo"
    with NatsServer(version, directory=tmp_path / "server") as server:
        bench = Bench.make(server.url, tmp_path)
        at = ("-s", server.url, "-r", folder)
        for name in ("LOSES", "KEEPS"):
            bench.create(name)
            bench.publish(name, range(30))
        server.stop()
        shutil.copytree(server.store_directory, tmp_path / "old")
        server.start()
        bench.publish("LOSES", range(30, 40))
        first = jsbackup("backup", *at).ok().document["backup"]
        server.stop()
        shutil.rmtree(server.store_directory)
        shutil.copytree(tmp_path / "old", server.store_directory)
        server.start()
        lossy = jsbackup("backup", "--incremental", incremental, *at)
        assert lossy.code == 3
        warnings = {one["name"]: one["warnings"] for one in lossy.document["streams"]}
        assert warnings["KEEPS"] == []
        (warning,) = warnings["LOSES"]
        assert "it ends at sequence 30 and ended at 40 in the last backup" in warning
        assert f"(40 in backup {first}, made " in warning
        assert any("LOSES: The server has lost messages" in note for note in lossy.document["notes"])
        status = jsbackup("status", "-r", folder)
        assert status.code == 17 and "incomplete-backup" in status.out
        assert jsbackup("show", "latest", "-r", folder).ok().document["backup"] == first
        planned = jsbackup("plan", lossy.document["backup"], "--if-exists", "replace", *at).ok().document
        (finding,) = (one for one in planned["warnings"] if one["rule"] == "server-loss")
        assert finding["stream"] == "LOSES" and first in finding["reason"]
        assert jsbackup("backup", *at).ok().document["result"] == "complete"
