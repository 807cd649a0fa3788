from __future__ import annotations

import json
import os
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError, JsBackupError
from jsbackup.formats.archive.archive import ArchiveV2Reader, ArchiveV2Writer
from jsbackup.model import ArchivedConsumer, ConsumerState, PendingAck, SequencePair, StreamState
from tests.formats.archives import CONSUMERS, Content, as_stored, read, state_of, written
from tests.harness.batches import Message, batch_of, cut_anywhere, message_lists

END = bytes(5)
STATE = {
    "messages": 2,
    "bytes": 99,
    "first_seq": 5,
    "first_ts": "2026-11-21T07:55:28.852386779Z",
    "last_seq": 9,
    "last_ts": "2026-11-21T07:55:28.8Z",
    "num_subjects": 2,
    "num_deleted": 2,
    "consumer_count": 0,
}


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def entry(name: str | bytes, content: bytes = b"", sequence: int = 0, headers: int = 0, time: int = 0) -> bytes:
    raw = name.encode() if isinstance(name, str) else name
    numbers = (len(raw), time * 2, sequence, headers, len(content) - headers)
    return b"".join(map(varint, numbers)) + raw + content


def archive(state: Any, *entries: bytes, end: bytes = END) -> bytes:
    content = state if isinstance(state, bytes) else json.dumps(state).encode()
    return b"NATSARC1" + entry("state.json", content, time=1795247728852386779) + b"".join(entries) + end


def consumer(name: str = "c", **value: Any) -> bytes:
    return entry(f"consumers/{name}", json.dumps({"config": {"name": name}, "state": {}, **value}).encode())


def decode(raw: bytes) -> Content:
    return read(ArchiveV2Reader(), [raw])


@settings(max_examples=80, deadline=None)
@given(message_lists(binary=True), st.integers(0, 5), st.randoms(use_true_random=False))
def test_any_messages_come_back(messages: list[Message], tail: int, chance: random.Random) -> None:
    last = messages[-1].sequence + tail if messages else tail
    state = state_of(messages, last)
    consumers = [consumer for consumer in CONSUMERS if consumer.name == "größe" or state.first_seq < 5 <= last]
    raw = written(ArchiveV2Writer(state, consumers), cut_anywhere(batch_of(messages), chance))
    cuts = sorted(chance.randrange(len(raw)) for _ in range(5))
    content = read(ArchiveV2Reader(), [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)])
    assert content.messages == as_stored(messages)
    assert [one.name for one in content.consumers] == [one.name for one in consumers]
    assert content.meta.config is None
    assert content.meta.state is not None
    assert (content.meta.state.first_seq, content.meta.state.last_seq) == (state.first_seq, last)
    assert content.meta.state.consumers == len(consumers)
    assert (content.end.messages, content.end.last_seq) == (len(messages), last)


def test_a_state_comes_back_with_its_times() -> None:
    state = StreamState(3, 400, 7, 1795247728852386779, 12, -5, 0, 3)
    assert decode(written(ArchiveV2Writer(state), [])).meta.state == state
    assert decode(written(ArchiveV2Writer(StreamState()), [])).meta.state == StreamState()


def test_what_a_server_writes_is_read() -> None:
    raw = archive(
        {**STATE, "consumer_count": 1, "unknown": [1]},
        consumer(state={"delivered": {"consumer_seq": 2, "stream_seq": 6}, "pending": {"6": {"Sequence": 2}}}),
        entry("a.b", b"NATS/1.0\r\n\r\nxy", 5, 12, time=17),
        entry(b"\xff", b"", 8),
    )
    content = decode(raw)
    assert content.messages == [
        Message(5, 17, "a.b", b"NATS/1.0\r\n\r\n", b"xy"),
        Message(8, 0, b"\xff", None, b""),
    ]
    assert content.consumers == [
        ArchivedConsumer("c", {"name": "c"}, ConsumerState(SequencePair(2, 6), pending={6: PendingAck(2, 0)}))
    ]
    assert content.end.last_seq == 9


def test_a_message_beyond_the_state_counts_for_the_last_sequence() -> None:
    assert decode(archive(STATE, entry("s", b"", 12))).end.last_seq == 12


def test_batches_are_bounded_and_a_large_message_is_waited_for() -> None:
    sizes = [1 << 20] * 11 + [20 << 20, 3, 1 << 20]
    messages = [Message(n, 0, "s", None, os.urandom(size)) for n, size in enumerate(sizes, 1)]
    raw = written(ArchiveV2Writer(state_of(messages)), [batch_of([message]) for message in messages])
    reader = ArchiveV2Reader()
    found = []
    for at in range(0, len(raw), 1 << 20):
        found += [item for item in reader.feed(raw[at : at + (1 << 20)]) if isinstance(item, pa.RecordBatch)]
    rest, end = reader.finish()
    found += rest
    assert [row for batch in found for row in batch.column(0).to_pylist()] == list(range(1, 15))
    assert max(batch.nbytes for batch in found if batch.num_rows > 1) < (5 << 20) + 1000
    assert end.messages == 14


def test_an_archive_cut_short_anywhere_is_refused() -> None:
    raw = archive({**STATE, "consumer_count": 1}, consumer(), entry("s", b"xyz", 5, 1), entry("s", b"", 300))
    for size in range(len(raw)):
        with pytest.raises(FormatError, match="cut short"):
            decode(raw[:size])
        with pytest.raises(FormatError, match="cut short"):
            read(ArchiveV2Reader(), [raw[at : at + 1] for at in range(size)])


def test_anything_after_the_end_is_refused() -> None:
    raw = archive(STATE, entry("s", b"xyz", 5))
    for more in (b"\0", entry("s", b"", 6), END):
        with pytest.raises(FormatError, match="more after its end"):
            decode(raw + more)
        with pytest.raises(FormatError, match="more after its end"):
            read(ArchiveV2Reader(), [raw, more])


@pytest.mark.parametrize(
    "raw",
    [
        b"NATSARC2" + END,
        b"NATSARC1" + END,
        b"NATSARC1" + entry("state.jsom", b"{}") + END,
        b"NATSARC1" + entry("state.json", b"{}", 1) + END,
        b"NATSARC1" + entry("state.json", b"{}", 0, 1) + END,
        b"NATSARC1" + b"\xff" * 9 + b"\x7f",
        b"NATSARC1" + varint(10) + b"\0\0\0" + varint(1 << 40) + b"state.json",
        b"NATSARC1" + varint(1 << 30) + b"\0\0\0\0",
        archive(b"[]"),
        archive({**STATE, "messages": -1}),
        archive({**STATE, "messages": 1 << 64}),
        archive({**STATE, "messages": "2"}),
        archive({**STATE, "first_ts": "yesterday"}),
        archive({**STATE, "last_ts": 5}),
        archive({**STATE, "last_ts": "2026-13-41T07:55:28Z"}),
        archive({**STATE, "last_ts": "9999-01-01T00:00:00Z"}),
        archive({**STATE, "last_seq": 1 << 62}),
        archive({**STATE, "consumer_count": 1}),
        archive({**STATE, "consumer_count": 1}, entry("s", b"", 5)),
        archive({**STATE, "consumer_count": 1}, consumer(), consumer()),
        archive(STATE, consumer()),
        archive({**STATE, "consumer_count": 1}, entry("consumers/", b"{}")),
        archive({**STATE, "consumer_count": 1}, entry("consumers/a/b", b'{"config": {}, "state": {}}')),
        archive({**STATE, "consumer_count": 1}, entry(b"consumers/\xff", b'{"config": {}, "state": {}}')),
        archive({**STATE, "consumer_count": 1}, consumer(config=None)),
        archive({**STATE, "consumer_count": 1}, consumer(state=None)),
        archive({**STATE, "consumer_count": 1}, consumer(state={"delivered": 1})),
        archive(STATE, entry("s", b"", 5), entry("s", b"", 5)),
        archive(STATE, entry("s", b"", 5), entry("s", b"", 4)),
        archive(STATE, entry("s", b"", 1 << 62)),
        archive(STATE, entry("", b"", 0, 0, time=1)),
        archive(STATE, entry("s")),
        archive(STATE, varint(1) + b"\0" + varint(5) + varint(1 << 60) + b"\0s"),
    ],
)
def test_hostile_archives_are_refused(raw: bytes) -> None:
    with pytest.raises(FormatError):
        decode(raw)
    with pytest.raises(FormatError):
        read(ArchiveV2Reader(), [raw[at : at + 1] for at in range(len(raw))])


def test_sequences_have_to_rise_from_batch_to_batch() -> None:
    reader = ArchiveV2Reader()
    large = bytes(5 << 20)
    list(reader.feed(archive(STATE, entry("s", large, 8), end=b"")))
    with pytest.raises(FormatError, match="sequence 7 after 8"):
        list(reader.feed(entry("s", large, 7)))


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False))
def test_any_mutation_ends_in_content_or_an_error_of_ours(chance: random.Random) -> None:
    raw = bytearray(archive({**STATE, "consumer_count": 1}, consumer(), entry("s", b"xyz", 5, 1), entry("s", b"", 300)))
    for _ in range(chance.randrange(1, 5)):
        at = chance.randrange(len(raw))
        match chance.randrange(3):
            case 0:
                raw[at] = chance.randrange(256)
            case 1:
                del raw[at : at + chance.randrange(1, 30)]
            case 2:
                raw[at:at] = raw[chance.randrange(len(raw)) :][: chance.randrange(1, 30)]
    try:
        decode(bytes(raw))
    except JsBackupError:
        return


# --- writing ---


def test_consumers_are_made_what_a_server_takes_over() -> None:
    ack = PendingAck(3, 1795247728852386779)
    stale = ArchivedConsumer(
        "c",
        {"durable_name": "c", "opt_start_seq": 4},
        ConsumerState(SequencePair(5, 20), SequencePair(), {2: ack, 9: ack}),
    )
    for first_seq, floor in ((1, 3), (4, 3), (8, 7)):
        state = StreamState(first_seq=first_seq, last_seq=30)
        (found,) = decode(written(ArchiveV2Writer(state, [stale]), [])).consumers
        assert found.config == {"durable_name": "c", "opt_start_seq": 4, "name": "c"}
        assert found.state == ConsumerState(SequencePair(5, 20), SequencePair(0, floor), {9: ack})


def test_a_consumer_without_a_state_cannot_be_written() -> None:
    with pytest.raises(FormatError, match="c has no state"):
        ArchiveV2Writer(StreamState(), [ArchivedConsumer("c", {}, None)])


@pytest.mark.parametrize("name", ["", "a/b", "a.b", "\ud800"])
def test_names_that_no_server_takes_are_not_written(name: str) -> None:
    with pytest.raises(FormatError, match="name"):
        ArchiveV2Writer(StreamState(), [ArchivedConsumer(name, {}, ConsumerState())])


@pytest.mark.parametrize(("first", "last"), [(5, 3), (-1, 3), (1, 1 << 62), (0, -1)])
def test_states_of_no_stream_are_not_written(first: int, last: int) -> None:
    with pytest.raises(FormatError, match=r"bad sequences|no server can have the sequence 4611686018427387904 "):
        ArchiveV2Writer(StreamState(first_seq=first, last_seq=last))


def test_messages_out_of_order_or_beyond_the_state_are_not_written() -> None:
    for later in (5, 4, 0, -3, 11):
        writer = ArchiveV2Writer(StreamState(first_seq=5, last_seq=10))
        writer.write(batch_of([Message(5)]))
        with pytest.raises(FormatError, match="out of order or range"):
            writer.write(batch_of([Message(later)]))
