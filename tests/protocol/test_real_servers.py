"""The dialogues and the typed answers against real servers of every version, with the public schemas as the witness."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jsbackup.errors import ApiError, JsBackupError, TargetConflict, TransferError, UnsupportedError
from jsbackup.model import JsonObject, StreamState
from jsbackup.protocol import api
from jsbackup.protocol.advisories import Advisory, AdvisoryKind, advisory_subjects, decode_advisory
from jsbackup.protocol.api import ApiPrefix, Request
from jsbackup.protocol.dialogue import ChunkReceived, Event, RestoreDone, SnapshotStarted
from jsbackup.protocol.info import (
    StreamInfo,
    account_info,
    consumer_info,
    stored_message,
    stream_info,
)
from jsbackup.protocol.paging import Pager, stream_list_page, stream_names_page
from jsbackup.protocol.responses import decode_response, is_unknown_field
from jsbackup.protocol.restore import RestoreSender
from jsbackup.protocol.restore import RestoreState as RestoreState
from jsbackup.protocol.snapshot import SnapshotReceiver
from tests.harness.clusters import NatsCluster
from tests.harness.servers import NEWEST, VERSIONS, NatsServer, version_tuple
from tests.protocol.schemas import follows, schema
from tests.protocol.wire import Wire

pytestmark = pytest.mark.nats

P = ApiPrefix()
Starter = Callable[..., NatsServer]
ClusterStarter = Callable[..., NatsCluster]
# What the schemas insist on in a stream's configuration.
REQUIRED: JsonObject = {
    "retention": "limits",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
    "num_replicas": 1,
}
SCHEMALESS = {"stream_update_response", "stream_msg_get_response", "consumer_delete_response"}
CONSUMERS: list[JsonObject] = [
    {
        "durable_name": "worker",
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "replay_policy": "instant",
        "backoff": [10**9, 2 * 10**9],
        "max_deliver": 5,
        "filter_subjects": ["a.1", "a.2"],
    },
    {
        "name": "pushed",
        "ack_policy": "none",
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": 2,
        "replay_policy": "instant",
        "deliver_subject": "pushed.here",
        "inactive_threshold": 10**12,
    },
]


@pytest.fixture(scope="module", params=VERSIONS)
def server(request: pytest.FixtureRequest) -> Iterator[NatsServer]:
    with NatsServer(request.param) as started:
        yield started
        started.kill()  # in an orderly end it would wait for the restores that tests left unfinished


@pytest.fixture
def wire(server: NatsServer) -> Iterator[Wire]:
    with Wire(server.port) as connected:
        yield connected
        for name in names(connected):
            ask(connected, api.stream_delete(P, name))


def ask(wire: Wire, request: Request) -> JsonObject:
    """The decoded answer, which follows its schema."""
    payload = wire.ask(request)
    name = request.response_type.rpartition(".")[2]
    if name in SCHEMALESS:
        assert schema(name) is None, f"{name} has a schema by now: use it"
    else:
        follows(payload, name)
    return decode_response(payload, request.response_type)


# A name is never used twice: where a deletion follows another one of the same name before the server has removed the
# files of that, it leaves its own behind, and the next stream of the name finds the old messages (measured: all
# versions).
_FRESH = itertools.count(1)


def fresh() -> str:
    return f"ÖRDERS-{next(_FRESH)}"


def names(wire: Wire, prefix: ApiPrefix = P) -> list[str]:
    pager: Pager[None] = Pager("streams")
    while (offset := pager.offset) is not None:
        pager.receive(stream_names_page(ask(wire, api.stream_names(prefix, offset))))
    return list(pager.result.entries)


def store(wire: Wire, count: int, size: int = 10) -> None:
    for index in range(count):
        json.loads(wire.request(f"a.{index % 7}", os.urandom(size)))["seq"]


def make(wire: Wire, name: str, **config: object) -> StreamInfo:
    return stream_info(
        ask(wire, api.stream_create(P, {"name": name, "subjects": ["a.>"], "storage": "file", **config}))
    )


class Snapshot:
    """A snapshot on its way, driven step by step."""

    counter = 0

    def __init__(self, wire: Wire, stream: str, prefix: ApiPrefix = P, **options: object) -> None:
        Snapshot.counter += 1
        self.wire = wire
        self.answers = f"{wire.inbox}.answer{Snapshot.counter}"
        inbox = f"_SNAP.{id(wire)}.{Snapshot.counter}"
        wire.subscribe(inbox)
        self.receiver = SnapshotReceiver(stream, inbox, **options)  # type: ignore[arg-type]
        request = self.receiver.request(prefix)
        wire.publish(request.subject, request.payload, self.answers)
        self.started: SnapshotStarted | None = None
        self.chunks: list[ChunkReceived] = []
        self.others: list[bytes] = []

    def step(self) -> list[Event]:
        message = self.wire.receive()
        if message.subject == self.answers:
            follows(message.data, "stream_snapshot_response")
            events = self.receiver.receive_response(message.data)
        elif message.subject == self.receiver.deliver_subject:
            events = self.receiver.receive(message)
        else:
            self.others.append(message.data)
            return []
        for event in events:
            if isinstance(event, SnapshotStarted):
                self.started = event
            elif isinstance(event, ChunkReceived):
                self.chunks.append(event)
        return events

    def run(self) -> bytes:
        while not self.receiver.done:
            for event in self.step():
                if isinstance(event, ChunkReceived):
                    self.receiver.release(event)
            self.wire.send(self.receiver.to_send())
        return b"".join(chunk.data for chunk in self.chunks)


def restore(
    wire: Wire, config: JsonObject, state: StreamState, archive: bytes, others: list[bytes], prefix: ApiPrefix = P
) -> RestoreDone:
    sender = RestoreSender(config, state, max_chunk=4096, window_size=32768)
    request = sender.request(prefix)
    follows(request.payload, "stream_restore_request")
    payload = wire.ask(request)
    follows(payload, "stream_restore_response")
    sender.receive_response(payload)
    sent = 0
    replies = f"{wire.inbox}.{id(sender)}"
    while True:
        while sent < len(archive) and sender.room:
            chunk = archive[sent : sent + sender.room]
            sender.send(chunk, f"{replies}.{sent}")
            sent += len(chunk)
        if sent == len(archive) and sender.state is RestoreState.OPEN:
            sender.finish(f"{replies}.end")
        wire.send(sender.to_send())
        message = wire.receive()
        if not message.subject.startswith(replies):
            others.append(message.data)
            continue
        if message.subject.endswith(".end"):
            follows(message.data, "stream_create_response")
        for event in sender.receive(message):
            if isinstance(event, RestoreDone):
                return event


def restore_in_cluster(wire: Wire, config: JsonObject, state: StreamState, archive: bytes) -> RestoreDone:
    """Restore as the engine does: the server that answers may not know yet that another one takes the chunks."""
    for _ in range(9):
        try:
            return restore(wire, config, state, archive, [])
        except TransferError:
            time.sleep(1.0)
    return restore(wire, config, state, archive, [])


def advisories(wire: Wire, others: list[bytes], *kinds: AdvisoryKind) -> dict[AdvisoryKind, Advisory]:
    """Those in `others` and as many more as it takes to have each of `kinds`, all following their schemas."""
    found: dict[AdvisoryKind, Advisory] = {}
    while True:
        for payload in others:
            advisory = decode_advisory(payload)
            if advisory is not None:
                follows(payload, f"advisory_{advisory.kind.value}")
                found[advisory.kind] = advisory
        if set(found) >= set(kinds):
            return found
        others = [wire.receive().data]


def test_every_answer_follows_its_schema_and_is_understood(wire: Wire, server: NatsServer) -> None:
    assert names(wire) == []
    created = make(wire, "S", description="x", metadata={"k": "v"}, republish={"src": "a.>", "dest": "r.>"})
    ask(wire, api.stream_create(P, {"name": "M", "mirror": {"name": "S"}}))
    ask(wire, api.stream_create(P, {"name": "F", "sources": [{"name": "S", "filter_subject": "a.1"}]}))
    store(wire, 10)
    for config in CONSUMERS:
        made = consumer_info(ask(wire, api.consumer_create(P, "S", config)))
        info = consumer_info(ask(wire, api.consumer_info(P, "S", made.name)))
        assert info.stream == "S" and info.config == made.config and info.created == made.created
        assert info.ack_floor.consumer == 0 and info.cluster is None
    assert ask(wire, api.consumer_list(P, "S"))["total"] == 2

    wire.request("$JS.API.STREAM.MSG.DELETE.S", b'{"seq":4}')
    info = stream_info(ask(wire, api.stream_info(P, "S")))
    assert info.deleted is None and info.state.deleted == 1 and info.created == created.created
    document = ask(wire, api.stream_info(P, "S", deleted_details=True, subjects_filter="a.>"))
    assert stream_info(document).deleted == (4,)
    first, last = (stored_message(ask(wire, api.message_get(P, "S", seq))) for seq in (1, 10))
    assert first.timestamp_ns == info.state.first_ns and last.timestamp_ns == info.state.last_ns
    assert stored_message(ask(wire, api.message_get_next(P, "S", 4))).sequence == 5
    with pytest.raises(ApiError) as caught:
        ask(wire, api.message_get(P, "S", 4))
    assert caught.value.err_code == 10037

    listed = dict(stream_list_page(ask(wire, api.stream_list(P))).entries)
    assert sorted(listed) == names(wire) == ["F", "M", "S"]
    assert listed["M"].mirror is not None and listed["M"].mirror.name == "S"
    assert [source.name for source in listed["F"].sources] == ["S"]
    # A server that is busy counts consumers of its own, of a mirror and of a source that it has begun anew: for more
    # than a minute, seen with 2.12.8 and 2.15.2.
    account = account_info(ask(wire, api.account_info(P)))
    assert account.usage.streams == 3 and 2 <= account.usage.consumers <= 4
    assert (
        account.api_level == {(2, 10): 0, (2, 11): 1, (2, 12): 3, (2, 14): 4, (2, 15): 5}[version_tuple(server.version)]
    )

    updated = stream_info(ask(wire, api.stream_update(P, {**created.config, "description": "y"})))
    assert updated.config["description"] == "y"
    assert ask(wire, api.consumer_delete(P, "S", "worker"))["success"] is True
    for request in (api.stream_info(P, "NONE"), api.consumer_list(P, "NONE")):
        with pytest.raises(ApiError) as caught:
            ask(wire, request)
        assert caught.value.err_code == 10059


def test_a_snapshot_goes_there_and_back(wire: Wire) -> None:
    for subject in advisory_subjects():
        wire.subscribe(subject)
    name = fresh()
    made = make(wire, name)
    store(wire, 200, 500)
    for config in CONSUMERS:
        ask(wire, api.consumer_create(P, name, config))
    before = stream_info(ask(wire, api.stream_info(P, name)))
    snapshot = Snapshot(wire, name, chunk_size=4096, window_size=16384)
    archive = snapshot.run()
    assert snapshot.started is not None and snapshot.started.state == before.state
    assert snapshot.started.config["name"] == name
    assert len(snapshot.chunks) > 10 and archive.startswith(b"\xff\x06\x00\x00S2sTwO")
    told = advisories(wire, snapshot.others, AdvisoryKind.SNAPSHOT_CREATE, AdvisoryKind.SNAPSHOT_COMPLETE)
    assert {advisory.stream for advisory in told.values()} == {name}
    assert told[AdvisoryKind.SNAPSHOT_CREATE].messages == 200

    ask(wire, api.stream_delete(P, name))
    others: list[bytes] = []
    info = restore(wire, snapshot.started.config, snapshot.started.state, archive, others).info
    assert (info.state.messages, info.state.bytes, info.state.last_seq) == (200, before.state.bytes, 200)
    assert (info.state.first_ns, info.state.last_ns) == (before.state.first_ns, before.state.last_ns)
    assert info.config["subjects"] == made.config["subjects"]
    told = advisories(wire, others, AdvisoryKind.RESTORE_CREATE, AdvisoryKind.RESTORE_COMPLETE)
    # Servers that stage may leave out chunks that they have taken: a hint, no count.
    assert 0 <= (told[AdvisoryKind.RESTORE_COMPLETE].bytes or 0) <= len(archive)
    after = stream_info(ask(wire, api.stream_info(P, name)))
    assert after.state == before.state


def test_a_snapshot_without_consumers_with_a_check_and_without_a_window(wire: Wire) -> None:
    name = fresh()
    make(wire, name)
    store(wire, 20)
    snapshot = Snapshot(wire, name, include_consumers=False, check=True, window_size=None)
    assert snapshot.run()


def test_a_second_snapshot_at_a_time_is_recognised_and_a_silent_receiver_is_dropped(
    wire: Wire, server: NatsServer
) -> None:
    name = fresh()
    make(wire, name)
    store(wire, 24, 1_000_000)
    first = Snapshot(wire, name, chunk_size=1 << 20, window_size=1 << 20)
    while not first.chunks:
        first.step()
    with Wire(server.port) as other:
        second = Snapshot(other, name)
        if version_tuple(server.version) >= (2, 15):
            assert len(second.run()) > 24_000_000
        else:
            with pytest.raises(TransferError, match="another snapshot of this stream is running"):
                second.run()
    if server.version in (VERSIONS[0], NEWEST):  # the wait of 2 and 5 seconds is the server's
        with pytest.raises(TransferError, match="408 No Flow Response"):
            while True:
                first.step()


def test_a_stream_in_memory_is_unsupported_before_2_15(wire: Wire, server: NatsServer) -> None:
    name = fresh()
    make(wire, name, storage="memory")
    store(wire, 20)
    snapshot = Snapshot(wire, name)
    if version_tuple(server.version) >= (2, 15):
        assert snapshot.run() and len(snapshot.chunks) == 1
    else:
        with pytest.raises(UnsupportedError):
            snapshot.run()


def test_what_is_in_the_way_of_a_restore_is_told_apart(wire: Wire) -> None:
    info = make(wire, fresh())
    sender = RestoreSender(info.config, info.state)
    with pytest.raises(TargetConflict, match="already in use"):
        sender.receive_response(wire.ask(sender.request(P)))
    sender = RestoreSender({**info.config, "name": "OTHER", "subjects": ["b"], "num_replicas": 7}, info.state)
    with pytest.raises(ApiError, match="maximum replicas"):
        sender.receive_response(wire.ask(sender.request(P)))
    assert names(wire) == [info.name]


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [({}, TargetConflict, "subjects overlap"), ({"num_replicas": 3, "subjects": ["b"]}, ApiError, "replicas > 1")],
)
def test_other_streams_and_a_missing_cluster_are_in_the_way_only_at_the_end(
    wire: Wire, change: JsonObject, kind: type[JsBackupError], text: str
) -> None:
    name, other = fresh(), fresh()
    make(wire, name)
    store(wire, 10)
    snapshot = Snapshot(wire, name)
    archive = snapshot.run()
    assert snapshot.started is not None
    ask(wire, api.stream_delete(P, name))
    make(wire, other)
    with pytest.raises(kind, match=text) as caught:
        restore(wire, {**snapshot.started.config, **change}, snapshot.started.state, archive, [])
    assert caught.value.hint is not None
    assert names(wire) == [other]


def test_bytes_that_are_no_archive_fail_on_the_way_or_at_the_end(wire: Wire) -> None:
    config: JsonObject = {"name": "BROKEN", "subjects": ["b"], "storage": "file"}
    with pytest.raises(JsBackupError) as caught:
        restore(wire, config | REQUIRED, StreamState(), os.urandom(50_000), [])
    # A chunk behind the one that failed finds nobody on servers from 2.12.6 to 2.14; which reply is first may vary.
    assert isinstance(caught.value, (ApiError, TransferError))
    assert names(wire) == []


# Only these give up at once, at the first bad chunk, and not after five seconds of silence.
@pytest.mark.parametrize("version", ["2.12.8", "2.14.6"])
def test_chunks_that_nobody_takes_any_more_say_that_the_server_gave_up(version: str, nats_server: Starter) -> None:
    with Wire(nats_server(version).port) as wire:
        sender = RestoreSender({"name": "BROKEN", "subjects": ["b"], "storage": "file"}, StreamState())
        sender.receive_response(wire.ask(sender.request(P)))
        assert sender.deliver_subject is not None
        while not wire.request(sender.deliver_subject, os.urandom(1000)):
            pass
        sender.send(b"x", f"{wire.inbox}.late")
        wire.send(sender.to_send())
        with pytest.raises(TransferError, match="gave up"):
            sender.receive(wire.receive())


def test_lists_are_read_to_the_end_across_pages(wire: Wire) -> None:
    for index in range(300):
        request = api.stream_create(P, {"name": f"S{index:03}", "subjects": [f"s.{index}"], "storage": "memory"})
        decode_response(wire.ask(request), request.response_type)
    pager: Pager[StreamInfo] = Pager("streams")
    offsets = []
    while (offset := pager.offset) is not None:
        offsets.append(offset)
        pager.receive(stream_list_page(ask(wire, api.stream_list(P, offset))))
    assert offsets == [0, 248] and list(pager.result.entries) == [f"S{index:03}" for index in range(300)]


def test_behind_a_domain_and_below_a_prefix_the_dialogues_are_the_same(nats_server: Starter) -> None:
    for version in (VERSIONS[0], NEWEST):
        server = nats_server(version, domain="hub")
        with Wire(server.port) as wire:
            for subject in advisory_subjects():
                wire.subscribe(subject)
            prefix = ApiPrefix("$JS.hub.API")
            name = fresh()
            ask(wire, api.stream_create(prefix, {"name": name, "subjects": ["a.>"]}))
            store(wire, 10)
            snapshot = Snapshot(wire, name, prefix)
            archive = snapshot.run()
            assert snapshot.started is not None
            advisories(wire, snapshot.others, AdvisoryKind.SNAPSHOT_CREATE, AdvisoryKind.SNAPSHOT_COMPLETE)
            ask(wire, api.stream_delete(prefix, name))
            others: list[bytes] = []
            started = snapshot.started
            assert restore(wire, started.config, started.state, archive, others, prefix).info.state.messages == 10
            advisories(wire, others, AdvisoryKind.RESTORE_CREATE, AdvisoryKind.RESTORE_COMPLETE)
            assert account_info(ask(wire, api.account_info(prefix))).domain == "hub"
            ask(wire, api.stream_delete(prefix, name))


@pytest.mark.parametrize("version", ["2.11.11", NEWEST])
def test_a_cluster_answers_in_the_same_shapes(version: str, nats_cluster: ClusterStarter) -> None:
    cluster = nats_cluster(version)
    with Wire(cluster.servers[0].port) as wire:
        make(wire, "S", num_replicas=3)
        cluster.wait_current("S")
        store(wire, 50, 500)
        ask(wire, api.consumer_create(P, "S", CONSUMERS[0]))
        listed = dict(stream_list_page(ask(wire, api.stream_list(P))).entries)["S"]
        info = stream_info(ask(wire, api.stream_info(P, "S")))
        for each in (listed, info):
            assert each.cluster is not None and each.cluster.name == "c1" and len(each.cluster.replicas) == 2
            assert each.cluster.leader == cluster.leader_of("S").name
        assert ask(wire, api.consumer_list(P, "S"))["total"] == 1
        assert ask(wire, api.consumer_list(P, "NONE"))["total"] == 0, (
            "a cluster lists nothing for a stream that is none"
        )
        snapshot = Snapshot(wire, "S", chunk_size=4096)
        archive = snapshot.run()
        assert snapshot.started is not None
        ask(wire, api.stream_delete(P, "S"))
        done = restore_in_cluster(wire, snapshot.started.config, snapshot.started.state, archive)
        assert done.info.state.messages == 50
    for server in cluster.servers:
        server.kill()


def test_a_strict_server_that_does_not_know_the_window_says_so(tmp_path: Path, nats_server: Starter) -> None:
    config = f"jetstream {{ store_dir: {json.dumps(str(tmp_path))}, strict: true }}"
    server = nats_server("2.11.11", jetstream=False, config=config)
    with Wire(server.port) as wire:
        make(wire, "S")
        store(wire, 3)
        with pytest.raises(ApiError) as caught:
            Snapshot(wire, "S").run()
        assert is_unknown_field(caught.value, "window_size")
        assert Snapshot(wire, "S", window_size=None).run()
