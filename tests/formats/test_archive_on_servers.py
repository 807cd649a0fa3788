"""Archives against the real thing: what servers send is what they hold, and what we write is what they then hold.

The witness is `tests/harness/oracle.py`, which reads servers message by message.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from copy import copy
from typing import Any

import pytest
from nats.aio.client import Client

from jsbackup.formats.archive.archive import ArchiveDecoder, ArchiveV2Writer, late_deletions
from jsbackup.formats.archive.archive_v1_writer import ArchiveV1Writer
from jsbackup.formats.archive.tar import TAR_END, TarReader, tar_header, tar_padding
from jsbackup.formats.sequences import SequenceSet
from jsbackup.model import ArchivedConsumer, ConsumerState, JsonObject, PendingAck, SequencePair
from tests.formats.archives import in_s2, read, state_of, written
from tests.formats.exchange import restore, snapshot
from tests.harness.api import JSON, Wire, call, connect, headers
from tests.harness.awkward import fill
from tests.harness.batches import Message, batch_of
from tests.harness.oracle import ObservedStream, observe, time_ns
from tests.harness.servers import ENDS, MINORS, NEWEST, NatsServer

pytestmark = pytest.mark.nats

Start = Callable[..., NatsServer]

T0 = 1_790_000_000_123_456_789
LAST_NS = T0 + 99
HOUR_NS = 3600 * 10**9
CREATED = "2026-01-02T03:04:05.123456789Z"

# Streams of the harness in which every kind of deletion occurs, and every kind of consumer state.
DELETIONS = ("GAPS", "DELETED_TAIL", "DELETED_ENDS", "PURGED_SEQ", "PURGED_KEEP", "PURGED_FILTER", "EMPTIED",
             "EMPTIED_BY_DELETE", "NEVER_USED", "FIRST_SEQ", "PER_SUBJECT_1", "MAX_MSGS", "NOT_UTF8", "HEADERS", "KV",
             "COMPRESSED", "WORKQUEUE", "PULL", "PUSH", "PENDING_DELETED")  # fmt: skip


@pytest.mark.by_turns
@pytest.mark.parametrize("version", MINORS)
@pytest.mark.parametrize("forewarned", [True, False], ids=["deletions known", "deletions unknown"])
def test_a_snapshot_decodes_to_what_the_server_holds(nats_server: Start, version: str, forewarned: bool) -> None:
    async def run() -> None:
        async with connected(nats_server(version)) as nc:
            await fill(nc, version, only=DELETIONS)
            for name, held in (await observe(nc)).items():
                taken = await snapshot(nc, name)
                decoder = ArchiveDecoder()
                if forewarned:
                    decoder = ArchiveDecoder(taken.state["first_seq"], SequenceSet(held.deleted))
                content = read(decoder, [taken.raw])
                late = late_deletions(content.end)
                assert not late.doubtful
                assert not (forewarned and late.certain)
                messages = [message for message in content.messages if message.sequence not in late.certain]
                assert messages == expected_messages(held), name
                assert content.end.last_seq == held.state["last_seq"], name
                assert {one.name for one in content.consumers} == set(held.consumers), name
                for consumer in content.consumers:
                    assert_same_position(consumer.state, held.consumers[consumer.name])

    asyncio.run(run())


def expected_messages(held: ObservedStream) -> list[Message]:
    return [Message(one.sequence, one.time_ns, _text(one.subject), one.header_block, one.data) for one in held.messages]


def _text(subject: bytes) -> str | bytes:
    try:
        return subject.decode()
    except UnicodeDecodeError:
        return subject


def assert_same_position(state: ConsumerState | None, info: JSON) -> None:
    assert state is not None
    for pair, key in ((state.delivered, "delivered"), (state.ack_floor, "ack_floor")):
        assert (pair.consumer, pair.stream) == (info[key]["consumer_seq"], info[key]["stream_seq"]), info["name"]
    assert len(state.pending) == info["num_ack_pending"]


# --- restores ---


def messages(*sequences: int, size: int = 10) -> list[Message]:
    return [Message(s, T0 + s * 1000, f"t.{s % 3}", None, bytes([65 + s % 26]) * size) for s in sequences]


CONSUMERS = (
    ArchivedConsumer(
        "pull",
        {"durable_name": "pull", "name": "pull", "ack_policy": "explicit", "ack_wait": HOUR_NS},
        ConsumerState(
            SequencePair(7, 9),
            SequencePair(2, 4),
            {7: PendingAck(4, T0), 9: PendingAck(7, T0)},
            {7: 3},
        ),
        CREATED,
    ),
    ArchivedConsumer(
        "ephemeral",
        {"name": "ephemeral", "ack_policy": "none", "inactive_threshold": HOUR_NS},
        ConsumerState(SequencePair(3, 8), SequencePair(3, 8)),
        CREATED,
    ),
)
STARTING = ArchivedConsumer(
    "starting", {"durable_name": "starting", "deliver_policy": "new", "ack_policy": "all"}, None
)


class Case:
    """A stream to be restored: messages, the last sequence and time, config fields, consumers."""

    def __init__(
        self,
        rows: list[Message],
        last_seq: int | None = None,
        *,
        since: str = "2.10",
        consumers: Iterable[ArchivedConsumer] = (),
        **config: Any,
    ) -> None:
        self.rows = rows
        self.state = state_of(rows, last_seq, LAST_NS)
        self.since = since
        self.consumers = tuple(consumers)
        self.config: JsonObject = {"storage": "file", "num_replicas": 1, **config}

    def called(self, name: str) -> Case:
        """The same with a name (of three letters: sizes count) and subjects of its own: all fit on one server."""
        case = copy(self)
        case.config = {**self.config, "name": name, "subjects": [f"{name}.>"]}
        case.rows = [row._replace(subject=_moved(row.subject, name)) for row in self.rows]
        return case

    @property
    def name(self) -> str:
        name: str = self.config["name"]
        return name

    @property
    def deleted(self) -> int:
        return self.state.last_seq + 1 - self.state.first_seq - len(self.rows) if self.state.last_seq else 0


def _moved(subject: str | bytes, name: str) -> str | bytes:
    return name + subject[1:] if isinstance(subject, str) else name.encode() + subject[1:]


SCHEDULE = headers(("Nats-Schedule", "@at 2099-01-01T00:00:00Z"), ("Nats-Schedule-Target", "{name}.target"))
CASES = {
    "plain": Case(messages(*range(1, 60))),
    "interior gaps": Case(messages(3, 4, 7, 8, 9, 20, 21)),
    "deleted tail": Case(messages(3, 4, 7), 12),
    "purged head": Case(messages(5_000_000_000, 5_000_000_002)),
    "gaps too large for a block": Case(messages(1, 2, 5_000_000, 5_000_001), 9_000_000),
    "emptied": Case([], 99),
    "emptied after one": Case([], 1),
    "never used": Case([]),
    "never used, first_seq": Case([], 999, first_seq=1000),
    "first_seq": Case(messages(1002, 1004), 1005, first_seq=1000),
    "no payload": Case([Message(1, T0, "t.0"), Message(2, T0, "t.1", b"NATS/1.0\r\n\r\n")]),
    "headers and Unicode": Case(
        [
            Message(1, T0, "t.größe.日本", headers(("A", "1"), ("A", ""), ("Ü", "日本")), b"\x00\xff"),
            Message(2, T0, "t." + "x" * 3000, headers(), b"y"),
        ]
    ),
    "subjects that are not UTF-8": Case(
        [Message(1, T0, b"t.gr\xf6\xdfe"), Message(2, T0, "t.ok")], allow_direct=True
    ),
    "limits that are just kept": Case(
        messages(2, 3, 5, 7), max_msgs_per_subject=2, max_msgs=4, discard="new", max_age=20_000 * HOUR_NS
    ),
    "compressed": Case(messages(*range(1, 100), size=4000), 120, compression="s2"),
    "one message of 1 MiB": Case([Message(1, T0, "t.0", None, os.urandom(1 << 20)), Message(2, T0, "t.0")], 4),
    "one message of 8 MiB": Case([Message(1, T0, "t.0", None, os.urandom(8 << 20)), Message(2, T0, "t.0")], 4),
    "the largest message": Case([Message(7, T0, "t.0", None, bytes((32 << 20) - 35)), Message(9, T0, "t.0")]),
    "a first record that looks compressed": Case(
        [Message(n, T0, "t.0", None, bytes(0x706D63 - 35)) for n in (1, 2)], 3
    ),
    "times to live": Case(
        [Message(n, T0 + n, "t.0", headers(("Nats-TTL", "87600h"))) for n in (1, 3)], allow_msg_ttl=True, since="2.11"
    ),
    "schedules": Case(
        [Message(2, T0, "t.0", SCHEDULE)],
        allow_msg_schedules=True,
        allow_msg_ttl=True,
        since="2.12",
    ),
    "a counter": Case(
        [Message(n, T0, "t.0", headers(("Nats-Incr", "+1")), b'{"val":"%d"}' % n) for n in (1, 2)],
        allow_msg_counter=True,
        since="2.12",
    ),
    "consumers": Case(messages(*range(3, 30)), 40, consumers=[*CONSUMERS, STARTING]),
    "a work queue": Case(messages(7, 9, 10, 11), 11, retention="workqueue", consumers=CONSUMERS[:1]),
    "interest": Case(messages(7, 9, 10, 11), 11, retention="interest", consumers=CONSUMERS[:1]),
}  # fmt: skip
# Read back with every version once, not in every combination.
LARGE = {"one message of 8 MiB", "the largest message", "a first record that looks compressed"}


def cases(version: str, *, large: bool = False) -> list[Case]:
    names = [name for name, case in CASES.items() if case.since <= version and (large or name not in LARGE)]
    return [CASES[name].called(f"s{number:02}") for number, name in enumerate(names)]


@asynccontextmanager
async def connected(server: NatsServer) -> AsyncIterator[Client]:
    nc = await connect(server.url)
    try:
        yield nc
    finally:
        await nc.close()


def without_index(archive: bytes) -> bytes:
    out, content = b"", b""
    for piece in TarReader().feed(archive):
        content += piece.data
        if piece.is_last:
            if piece.name != "msgs/index.db":
                out += tar_header(piece.name, piece.size) + content + tar_padding(piece.size)
            content = b""
    return out + TAR_END


def v1(case: Case) -> bytes:
    half = len(case.rows) // 2
    batches = [batch_of(case.rows[:half]), batch_of(case.rows[half:])]
    return written(ArchiveV1Writer(case.config, CREATED, case.state, case.consumers), batches)


def v2(case: Case) -> bytes:
    consumers = [consumer for consumer in case.consumers if consumer.state is not None]
    return written(ArchiveV2Writer(case.state, consumers), [batch_of(case.rows)])


async def assert_restored(nc: Client, case: Case) -> None:
    if case.deleted > 1_000_000:
        # Too wide to be read sequence by sequence; and a server asked for the list of deletions would make it.
        state = (await call(nc, f"STREAM.INFO.{case.name}"))["state"]
        for row in case.rows:
            await call(nc, f"STREAM.MSG.GET.{case.name}", {"seq": row.sequence})
    else:
        held = (await observe(nc, [case.name]))[case.name]
        state = held.state
        assert expected_messages(held) == case.rows
        assert len(held.deleted) == case.deleted
        assert held.subjects == Counter(_shown(row.subject) for row in case.rows)
        assert {key: held.config.get(key) for key in case.config} == case.config
        assert set(held.consumers) == {consumer.name for consumer in case.consumers}
        for consumer in case.consumers:
            info = held.consumers[consumer.name]
            assert {key: info["config"].get(key) for key in consumer.config} == consumer.config
            start = SequencePair(stream=case.state.last_seq)
            assert_same_position(consumer.state or ConsumerState(start, start), _at_start(info, consumer))
    assert (state["messages"], state["num_deleted"]) == (len(case.rows), case.deleted)
    assert (state["first_seq"], state["last_seq"]) == (max(case.state.first_seq, 1), case.state.last_seq)


def _shown(subject: str | bytes) -> str:
    return subject if isinstance(subject, str) else subject.decode(errors="replace")


def _at_start(info: JSON, consumer: ArchivedConsumer) -> JSON:
    # Servers before 2.14 show an ack floor of 0 until there is a first ack.
    if consumer.state is None and info["ack_floor"]["stream_seq"] == 0:
        return {**info, "ack_floor": info["delivered"]}
    return info


async def next_sequence(server: NatsServer, case: Case) -> int:
    wire = await Wire.open(server.url)
    try:
        await wire.send(f"{case.name}.next", b"")
        (reply,) = await wire.replies()
        sequence: int = json.loads(reply.data)["seq"]
        return sequence
    finally:
        await wire.close()


async def restore_and_prove(server: NatsServer, all_cases: list[Case], archive: Callable[[Case], bytes]) -> None:
    """Restores, compares, restarts, compares again, and sees which sequence comes next."""
    async with connected(server) as nc:
        for case in all_cases:
            await restore(nc, case.config, in_s2(archive(case)))
            await assert_restored(nc, case)
    server.restart()
    async with connected(server) as nc:
        for case in all_cases:
            await assert_restored(nc, case)
            if not case.rows and case.state.last_seq and "first_seq" not in case.config:
                info = await call(nc, f"STREAM.INFO.{case.name}")
                assert time_ns(info["state"]["last_ts"]) == LAST_NS
    for case in all_cases:
        if not case.config.keys() & {"discard", "allow_msg_counter"}:
            assert await next_sequence(server, case) == case.state.last_seq + 1


@pytest.mark.by_turns
@pytest.mark.parametrize("version", MINORS)
def test_archive_v1_is_restored_exactly_by_every_server(nats_server: Start, version: str) -> None:
    server = nats_server(version, max_payload_bytes=64 << 20)
    asyncio.run(restore_and_prove(server, cases(version, large=True), v1))


@pytest.mark.by_turns
@pytest.mark.parametrize("version", ENDS)
def test_archive_v1_means_the_same_without_its_index(nats_server: Start, version: str) -> None:
    asyncio.run(restore_and_prove(nats_server(version), cases(version), lambda case: without_index(v1(case))))


@pytest.mark.by_turns
@pytest.mark.parametrize("version", ENDS)
def test_archive_v1_is_restored_exactly_by_encrypted_servers(nats_server: Start, version: str) -> None:
    # 2.10 and 2.11 would walk from sequence 0 to 5 000 000 000 without the index, and again at the restart had they not
    # written one of their own.
    server = nats_server(version, key="a key for tests only", cipher="aes" if version == NEWEST else "chacha")
    asyncio.run(restore_and_prove(server, [one for one in cases(version) if not_odd(one)], v1))


def not_odd(case: Case) -> bool:
    """Whether the server accepts an index for it."""
    return all(isinstance(row.subject, str) for row in case.rows)


def test_archive_v2_is_restored_by_the_newest_server(nats_server: Start) -> None:
    async def run() -> None:
        async with connected(nats_server(NEWEST)) as nc:
            for case in cases(NEWEST):
                await restore(nc, case.config, in_s2(v2(case)))
                if case.deleted > 1_000_000:
                    continue
                held = (await observe(nc, [case.name]))[case.name]
                assert expected_messages(held) == case.rows
                assert len(held.deleted) == case.deleted
                assert (held.state["messages"], held.state["last_seq"]) == (len(case.rows), case.state.last_seq)
                assert held.state["first_seq"] == max(case.state.first_seq, 1)
                for consumer in case.consumers:
                    if consumer.state is not None:
                        info = held.consumers[consumer.name]
                        assert info["delivered"]["stream_seq"] == consumer.state.delivered.stream
                        assert info["num_ack_pending"] == len(consumer.state.pending)

    asyncio.run(run())


def test_archive_v2_restores_memory_streams(nats_server: Start) -> None:
    case = Case(messages(3, 4, 7), 12, consumers=CONSUMERS, storage="memory").called("one")

    async def run() -> None:
        async with connected(nats_server(NEWEST)) as nc:
            await restore(nc, case.config, in_s2(v2(case)))
            await assert_restored(nc, case)
            taken = read(ArchiveDecoder(), [(await snapshot(nc, "one")).raw])
            assert taken.messages == case.rows
            assert {one.name: one.state for one in taken.consumers} == {one.name: one.state for one in CONSUMERS}

    asyncio.run(run())


def test_a_state_behind_where_its_consumer_would_start_is_not_lost_in_v2(nats_server: Start) -> None:
    # As servers before 2.14 have them: the ack floor is 0 until the first ack.
    behind = ArchivedConsumer(
        "c",
        {"durable_name": "c", "ack_policy": "explicit", "deliver_policy": "by_start_sequence", "opt_start_seq": 51},
        ConsumerState(SequencePair(2, 52), SequencePair(0, 0), {51: PendingAck(1, T0), 52: PendingAck(2, T0)}),
    )
    case = Case(messages(*range(20, 60)), consumers=[behind]).called("one")

    async def run() -> None:
        async with connected(nats_server(NEWEST)) as nc:
            await restore(nc, case.config, in_s2(v2(case)))
            info = await call(nc, "CONSUMER.INFO.one.c")
            assert (info["delivered"]["stream_seq"], info["num_ack_pending"], info["num_pending"]) == (52, 2, 7)

    asyncio.run(run())


@pytest.mark.parametrize("version", MINORS)
def test_what_was_restored_is_sent_back_the_same(nats_server: Start, version: str) -> None:
    case = CASES["consumers"].called("one")

    async def run() -> None:
        async with connected(nats_server(version)) as nc:
            await restore(nc, case.config, in_s2(v1(case)))
            taken = await snapshot(nc, "one")
            content = read(ArchiveDecoder(taken.state["first_seq"]), [taken.raw])
            assert content.messages == case.rows
            assert content.end.last_seq == case.state.last_seq
            states = {one.name: one.state for one in content.consumers}
            whole_second = T0 // 10**9 * 10**9
            assert states["pull"] == ConsumerState(
                SequencePair(7, 9),
                SequencePair(2, 4),
                {7: PendingAck(4, whole_second), 9: PendingAck(7, whole_second)},
                {7: 3},
            )
            assert states["ephemeral"] == CONSUMERS[1].state

    asyncio.run(run())
