"""What an increment joins is what the stream holds, whatever went meanwhile; wrong answers are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.engine.read import join
from jsbackup.engine.read.increment import Incremental, Whole, plan_increment
from jsbackup.engine.read.join import Joined, read_increment, take_increment
from jsbackup.errors import DigestMismatch, FormatError, IntegrityError, JsBackupError, TransferError, UnsupportedError
from jsbackup.formats.digest import StreamDigest, digest_rows, encode_rows
from jsbackup.protocol.info import StreamInfo
from jsbackup.repository.manifest import ArchiveFormat, Captured, StreamBackup, total_of
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.write.segment_writer import SegmentWriter
from jsbackup.stores.memory import MemoryStore
from tests.engine.read.test_increment import CREATED, stream
from tests.engine.restores import connection_to
from tests.engine.scripted_streams import ScriptedStream, consumer_info
from tests.harness.batches import Message, batch_of, messages_of
from tests.harness.peer import ScriptedPeer

FOLDER = "segments/S-00000000"
FAR_SECONDS = 100.0


def message(sequence: int, data: bytes = b"") -> Message:
    return Message(sequence, sequence, f"s.{sequence % 3}", None, data or b"%d" % sequence)


@dataclass
class Model:
    """A stream: what it holds, and its last sequence. `lists`: its server lists deleted sequences."""

    held: dict[int, Message]
    last: int
    lists: bool = True
    created: str = CREATED

    @property
    def info(self) -> StreamInfo:
        info = stream(sorted(self.held), self.last, deleted=self.lists)
        return replace(info, created=self.created)

    async def stream(self, _name: str, *, deleted_details: bool = False) -> StreamInfo:
        """As `JetStream.stream`."""
        return self.info


@dataclass
class Stored:
    """The last backup of a stream, in memory, and the increment on it."""

    objects: Objects = field(default_factory=lambda: Objects(MemoryStore()))
    previous: StreamBackup | None = None

    def back_up(self, model: Model, segment_bytes: int) -> StreamBackup:
        writer = SegmentWriter(self.objects, FOLDER, segment_bytes=segment_bytes)
        for sequence in sorted(model.held):
            writer.add(batch_of([model.held[sequence]]))
        refs = tuple(writer.finish())
        totals = total_of(refs)
        self.previous = StreamBackup(
            *("S", "00000000", {}, CREATED, model.info.state, Captured.of(totals, CREATED, CREATED), ArchiveFormat.V2),
            segments=refs,
            digest=totals.digest,
        )
        return self.previous

    def join(self, model: Model, read: Read, segment_bytes: int) -> Joined | Whole:
        """What the increment on the stream as it is comes to; while it is read, `read` delivers."""
        assert self.previous is not None
        writer = SegmentWriter(self.objects, FOLDER, self.previous.segments, segment_bytes=segment_bytes)
        info = model.info
        writer.cuts.losing_front = info.state.first_seq > self.previous.segments[0].first_seq
        plan = plan_increment(self.previous, self.previous.segments, info, writer.cuts)
        if isinstance(plan, Whole):
            return plan
        joining = read_increment(
            cast(JetStream, model), info, plan, None, writer=writer, read=read, read_on=_no_reading_on
        )
        return asyncio.run(joining)

    def messages(self, joined: Joined) -> list[Message]:
        reader = SegmentReader(self.objects)
        return messages_of(batch for ref in joined.segments for batch in reader.prove(ref))


Read = Callable[[StreamInfo, int, int], AsyncGenerator[pa.RecordBatch, None]]


def _no_reading_on(*_arguments: Any) -> Any:
    raise AssertionError("nothing is overwritten in this stream")


def delivering(*batches: list[Message]) -> Read:
    """These batches, whatever was asked for."""

    async def read(_info: StreamInfo, _first: int, _last: int) -> AsyncGenerator[pa.RecordBatch, None]:
        for batch in batches:
            yield batch_of(batch)

    return read


def reading(model: Model, cuts: list[int], going: list[set[int]]) -> Read:
    """What was asked for, in batches of these sizes; before each of them some messages go from the stream."""

    async def read(_info: StreamInfo, first: int, last: int) -> AsyncGenerator[pa.RecordBatch, None]:
        at = first
        while at <= last:
            if going:
                for gone in going.pop():
                    model.held.pop(gone, None)
            stop = at + (cuts.pop() if cuts else last)
            batch = [model.held[s] for s in sorted(model.held) if at <= s < stop and s <= last]
            if batch:
                yield batch_of(batch)
            at = stop

    return read


# -------------------------------------------------------------------------------------------------- against the model

SEQUENCES = st.integers(1, 60)
SEGMENT_BYTES = st.sampled_from([40, 150, 600, 5000])


@given(st.sets(SEQUENCES, min_size=1), st.sets(SEQUENCES), st.sets(st.integers(61, 90)), SEGMENT_BYTES)
def test_kept_segments_and_read_messages_are_together_what_the_stream_holds(
    old: set[int], gone: set[int], new: set[int], segment_bytes: int
) -> None:
    stored = Stored()
    previous = stored.back_up(Model({s: message(s) for s in old}, 60), segment_bytes)
    model = Model({s: message(s) for s in (old - gone) | new}, max([60, *new]))
    joined = stored.join(model, reading(model, [], []), segment_bytes)
    if isinstance(joined, Whole):
        assert joined.why == "every segment of the last backup has changed"
        assert all(any(ref.first_seq <= s <= ref.last_seq for s in old & gone) for ref in previous.segments)
        return
    assert stored.messages(joined) == [model.held[s] for s in sorted(model.held)]
    assert joined.info == model.info
    batch = batch_of(model.held[s] for s in sorted(model.held))
    assert total_of(joined.segments).digest == (digest_rows(encode_rows(batch)) if model.held else StreamDigest())


@given(
    st.sets(SEQUENCES, min_size=1),
    st.sets(SEQUENCES, max_size=3),
    st.sets(st.integers(61, 90)),
    st.lists(st.integers(1, 20), max_size=20),
    st.lists(st.sets(st.integers(1, 90), max_size=4), max_size=8),
)
def test_what_goes_while_it_is_read_is_in_the_backup_or_not_but_nothing_else_is_missing(
    old: set[int], gone: set[int], new: set[int], cuts: list[int], going: list[set[int]]
) -> None:
    stored = Stored()
    stored.back_up(Model({s: message(s) for s in old}, 60), 150)
    model = Model({s: message(s) for s in (old - gone) | new}, max([60, *new]))
    before = dict(model.held)
    try:
        joined = stored.join(model, reading(model, cuts, going), 150)
    except TransferError as error:
        # Then the anchor is not whole any more, and another plan is needed.
        assert "next to the join were deleted" in error.message
        return
    if isinstance(joined, Joined):
        found = {one.sequence: one for one in stored.messages(joined)}
        assert model.held.items() <= found.items() <= before.items()


@given(st.sets(SEQUENCES, min_size=1), st.integers(1, 60), st.sets(st.integers(61, 90)), SEGMENT_BYTES)
def test_a_stream_that_lost_its_end_and_has_others_in_its_place_is_never_joined(
    old: set[int], lost_from: int, new: set[int], segment_bytes: int
) -> None:
    """The sequences are the same, as are the sizes; of the messages those from some point on are others."""
    lost = {s for s in old if s >= lost_from} or {max(old)}
    stored = Stored()
    stored.back_up(Model({s: message(s) for s in old}, max(old)), segment_bytes)
    held = {s: message(s, b"x" * len(b"%d" % s) if s in lost else b"") for s in old | new | {91}}
    model = Model(held, 91)
    with pytest.raises(DigestMismatch, match="the stream has lost its end"):
        stored.join(model, reading(model, [], []), segment_bytes)


# ------------------------------------------------------------------------------------------------------ wrong answers

OLD = range(1, 21)
NEW = range(21, 31)


def joined(read: Read, *, held: Any = (*OLD, *NEW), now: Callable[[Model], None] = lambda model: None) -> list[int]:
    """The sequences of the increment, where `read` delivers; `now` changes the stream after it was described.

    Four messages make a segment. So the last of them is read again: from 17 on.
    """
    stored = Stored()
    stored.back_up(Model({s: message(s) for s in OLD}, 20), 80)
    model = Model({s: message(s) for s in held}, 30)

    async def then(info: StreamInfo, first: int, last: int) -> AsyncGenerator[pa.RecordBatch, None]:
        assert (first, last) == (17, 30)
        now(model)
        async for batch in read(info, first, last):
            yield batch

    made = stored.join(model, then, 80)
    assert isinstance(made, Joined)
    return [one.sequence for one in stored.messages(made)]


def rows(*sequences: int) -> list[Message]:
    return [message(s) for s in sequences]


LAST = rows(*range(17, 31))


def test_the_examples_below_differ_only_in_what_is_wrong() -> None:
    assert joined(delivering(LAST)) == [*OLD, *NEW]
    assert joined(delivering(LAST[:5], LAST[5:])) == [*OLD, *NEW]


@pytest.mark.parametrize(
    ("batches", "kind", "words"),
    [
        ([LAST[:6], LAST[5:]], FormatError, "delivered more messages"),  # one twice, in two batches
        ([[*LAST[:6], *LAST[5:]]], FormatError, "delivered more messages"),  # one twice, in one batch
        ([[*LAST[:6], *LAST[5:9], *LAST[10:]]], FormatError, "sequence 22 after 22"),  # and another one not at all
        ([[*LAST[:5], LAST[6], LAST[5], *LAST[7:]]], FormatError, "sequence 22 after 23"),  # out of order
        ([LAST[:4], LAST[9:], LAST[4:9]], FormatError, "delivered more messages"),  # out of order, batch by batch
        ([[*rows(16), *LAST]], FormatError, "delivered more messages"),  # before the beginning
        ([[*LAST, *rows(31)]], FormatError, "delivered more messages"),  # past the end
        ([LAST, rows(31)], FormatError, "delivered more messages"),
        ([LAST[:-1], rows(31)], FormatError, "delivered more messages"),  # past the end, in place of the last
        ([[*LAST[:-1], *rows(31)]], FormatError, "delivered more messages"),
        ([LAST[:9], LAST[10:]], IntegrityError, "sequence 26 of S exists and was not delivered"),
        ([LAST[:-1]], IntegrityError, "sequence 30 of S exists and was not delivered"),
        ([], TransferError, "next to the join were deleted"),
        ([LAST[1:]], TransferError, "next to the join were deleted"),
        ([[message(17, b"xx"), *LAST[1:]]], DigestMismatch, "the stream has lost its end"),
        ([[LAST[0]._replace(timestamp_ns=99), *LAST[1:]]], DigestMismatch, "the stream has lost its end"),
    ],
)
def test_a_wrong_delivery_is_refused(batches: list[list[Message]], kind: type[JsBackupError], words: str) -> None:
    with pytest.raises(kind, match=words):
        joined(delivering(*batches))


def test_what_was_deleted_before_the_description_is_dropped_if_a_replica_still_has_it() -> None:
    there = [s for s in (*OLD, *NEW) if s != 25]
    assert joined(delivering(LAST), held=there) == there


def test_what_did_not_come_has_to_be_gone_by_the_word_of_the_server() -> None:
    without = [one for one in LAST if one.sequence not in (22, 30)]

    def delete(model: Model) -> None:
        del model.held[22], model.held[30]

    assert joined(delivering(without), now=delete) == [s for s in (*OLD, *NEW) if s not in (22, 30)]


def test_what_did_not_come_is_not_excused_by_a_server_that_cannot_list_what_is_deleted() -> None:
    def forget(model: Model) -> None:
        del model.held[22]
        model.lists = False

    with pytest.raises(IntegrityError, match="not known which messages of S were deleted"):
        joined(delivering([one for one in LAST if one.sequence != 22]), now=forget)


def test_what_did_not_come_is_not_excused_by_a_stream_that_was_made_anew() -> None:
    def recreate(model: Model) -> None:
        del model.held[22]
        model.created = "2026-11-22T00:00:00Z"

    with pytest.raises(IntegrityError, match="not known which messages of S were deleted"):
        joined(delivering([one for one in LAST if one.sequence != 22]), now=recreate)


def test_a_stream_that_is_being_emptied_is_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "_MAX_MISSING", 3)
    with pytest.raises(UnsupportedError, match="deleted faster than they can be read"):
        joined(delivering(LAST[:4], LAST[8:]))


# ----------------------------------------------------------------------------------------------------- with its server

Script = Callable[[ScriptedStream], Awaitable[None]]
SECOND = 1_000_000_000


def timed(*sequences: int) -> list[Message]:
    return [message(s)._replace(timestamp_ns=s * SECOND) for s in sequences]


def taken(script: Script, *, consumers: bool = False, **config: Any) -> tuple[Joined | Whole, list[int]]:
    """What the increment on a backup of OLD comes to, and its sequences; the server holds those of NEW too."""
    stored = Stored()
    old = {one.sequence: one for one in timed(*OLD)}
    previous = replace(stored.back_up(Model(old, 20), 80), name="ORDERS", created="2026-01-01T00:00:00Z")

    def new_writer() -> SegmentWriter:
        return SegmentWriter(stored.objects, FOLDER, previous.segments, segment_bytes=80)

    async def main() -> Joined | Whole:
        async with ScriptedPeer() as peer, connect_jetstream(connection_to(peer.url)) as js:
            stream = ScriptedStream(peer, timed(*OLD, *NEW), **config)
            task = asyncio.create_task(
                take_increment(
                    *(js, Incremental.ALWAYS, previous, previous.segments),
                    new_writer=new_writer,
                    start=lambda byte_count, messages: None,
                    advance=lambda byte_count, messages: None,
                    consumers=consumers,
                )
            )
            try:
                await script(stream)
                return await asyncio.wait_for(task, FAR_SECONDS)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    made = asyncio.run(main())
    return made, [] if isinstance(made, Whole) else [one.sequence for one in stored.messages(made)]


async def deliver_all(stream: ScriptedStream) -> None:
    await (await stream.expect_consumer()).say_all()


def test_what_is_new_is_read_from_the_last_segment_on_and_joined() -> None:
    async def script(stream: ScriptedStream) -> None:
        reader = await stream.expect_consumer()
        assert reader.first == 17
        await reader.say_all()

    made, sequences = taken(script)
    assert sequences == [*OLD, *NEW]
    assert isinstance(made, Joined) and made.reused == 4


@pytest.mark.parametrize(
    ("sequences", "words"),
    [
        ((17, 19, 18), "sequence 18 came after 19"),
        ((17, 18, 18), "sequence 18 came after 18"),
        ((17, 18, 3), "sequence 3 came after 18"),
    ],
)
def test_a_consumer_that_does_not_deliver_in_order_is_replaced_and_given_up_after_three(
    sequences: tuple[int, ...], words: str
) -> None:
    async def script(stream: ScriptedStream) -> None:
        for _ in range(3):
            await (await stream.expect_consumer()).say_all(timed(*sequences))
        await stream.peer.silence(0.05)

    made, _ = taken(script)
    assert made == Whole(f"reading ORDERS: {words}")


def test_after_a_lost_connection_the_stream_is_described_and_read_again() -> None:
    async def script(stream: ScriptedStream) -> None:
        await (await stream.expect_consumer()).say_all(timed(17, 18))
        stream.delete(25)
        stream.peer.drop()
        await deliver_all(stream)

    _, sequences = taken(script)
    assert sequences == [s for s in (*OLD, *NEW) if s != 25]


def test_what_a_consumer_delivers_past_the_end_is_left_to_the_next_backup() -> None:
    async def script(stream: ScriptedStream) -> None:
        reader = await stream.expect_consumer()
        await reader.say_all()
        await reader.say_all(timed(31, 32))

    assert taken(script)[1] == [*OLD, *NEW]


def test_a_consumer_that_skips_the_last_message_for_a_later_one_is_not_believed() -> None:
    async def script(stream: ScriptedStream) -> None:
        stream.write(timed(31))
        reader = await stream.expect_consumer()
        await reader.say_all(timed(*range(17, 30), 31))

    made, _ = taken(script)
    assert made == Whole("sequence 30 of ORDERS exists and was not delivered")


def test_a_message_that_is_deleted_before_its_delivery_is_not_waited_for() -> None:
    async def script(stream: ScriptedStream) -> None:
        reader = await stream.expect_consumer()
        stream.delete(30)
        await reader.say_all()
        reader.pending = 0
        await stream.peer.say(reader.deliver, headers=b"NATS/1.0 100 Idle Heartbeat\r\n\r\n")

    assert taken(script)[1] == [*OLD, *range(21, 30)]


def test_an_answer_about_another_message_than_was_asked_for_is_refused() -> None:
    """As work queues are read, with one request for each message."""

    async def script(stream: ScriptedStream) -> None:
        stream.answers_next = True
        await stream.peer.silence(0.05)

    made, _ = taken(script, retention="workqueue")
    assert isinstance(made, Whole)
    assert made.why.startswith("stream ORDERS: asked for message ")


def test_a_work_queue_is_read_with_one_request_for_each_message() -> None:
    async def script(stream: ScriptedStream) -> None:
        await stream.peer.silence(0.05)

    assert taken(script, retention="workqueue")[1] == [*OLD, *NEW]


def test_a_stream_that_goes_while_it_is_joined_is_an_error_for_who_reads_it_whole() -> None:
    async def script(stream: ScriptedStream) -> None:
        reader = await stream.expect_consumer()
        stream.gone = True
        await reader.say_all(timed(*range(17, 30)))
        reader.pending = 0
        await stream.peer.say(reader.deliver, headers=b"NATS/1.0 100 Idle Heartbeat\r\n\r\n")

    made, _ = taken(script)
    assert isinstance(made, Whole) and "stream not found" in made.why


def test_consumers_are_those_from_before_the_messages() -> None:
    async def script(stream: ScriptedStream) -> None:
        reader = await stream.expect_consumer()
        stream.consumers = [consumer_info("ORDERS", {"name": "late"})]
        await reader.say_all()

    made, _ = taken(script, consumers=True)
    assert isinstance(made, Joined) and made.consumers and not made.consumers.entries
