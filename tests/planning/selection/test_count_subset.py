"""What a restore keeps, counted from messages: as the rule says, and without reading what it does not have to."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import PlanRefused, UsageError
from jsbackup.formats.digest import Digester
from jsbackup.model import ConsumerState, Fidelity, PendingAck, SequencePair, StreamState
from jsbackup.planning.selection.kept_messages import estimate, reshaped_messages, survey
from jsbackup.planning.selection.subset import kept_by_bounds
from jsbackup.repository import layout
from jsbackup.repository.manifest import ArchiveFormat, Captured, ConsumerBackup, StreamBackup, total_of
from jsbackup.repository.objects import Objects
from jsbackup.repository.write.segment_writer import SegmentWriter
from jsbackup.repository.write.stream_objects import store_consumer
from jsbackup.stores.memory import MemoryStore
from jsbackup.transforms.cut import AtSequence, AtTime, Cut, Edge
from jsbackup.transforms.filters.filters import Filters
from jsbackup.transforms.mask import Masks
from jsbackup.transforms.reshape import Reshape
from tests.harness.batches import Message, batch_of
from tests.harness.batches import messages_of as as_messages
from tests.harness.servers import EXPLORE

NOW = "2026-11-21T01:45:00Z"
FOLDER = layout.stream_folder("S", "1a2b3c4d")


class Watched(MemoryStore):
    """Remembers what was read of it."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def get(self, key: str) -> bytes:
        self.read.append(key)
        return super().get(key)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        self.read.append(key)
        return super().get_range(key, offset, length)


def stored(objects: Objects, messages: list[Message], *, beyond: int = 0, segment_bytes: int = 250) -> StreamBackup:
    """A stream with these messages, and `beyond` deleted ones at its end."""
    writer = SegmentWriter(objects, FOLDER, segment_bytes=segment_bytes)
    writer.add(batch_of(messages))
    segments = tuple(writer.finish())
    total = total_of(segments)
    first, last = (messages[0], messages[-1]) if messages else (Message(0), Message(0))
    state = StreamState(
        messages=len(messages),
        first_seq=first.sequence,
        first_ns=first.timestamp_ns,
        last_seq=last.sequence + beyond,
        last_ns=last.timestamp_ns,
    )
    captured = Captured.of(total, NOW, NOW)
    config = {"name": "S", "subjects": ["a.>"]}
    return StreamBackup("S", "i", config, NOW, state, captured, ArchiveFormat.V2, total.digest, segments)


edges: st.SearchStrategy[Edge | None] = (
    st.none() | st.builds(AtSequence, st.integers(1, 90)) | st.builds(AtTime, st.integers(0, 70))
)


@st.composite
def streams(draw: st.DrawFn) -> list[Message]:
    sequence = 0
    rows = []
    for step, time, data in draw(
        st.lists(st.tuples(st.integers(1, 5), st.integers(1, 60), st.binary(max_size=30)), min_size=1, max_size=30)
    ):
        sequence += step
        rows.append(Message(sequence, time, f"a.{sequence % 3}", None, data))
    if draw(st.booleans()):
        times = sorted(row.timestamp_ns for row in rows)
        rows = [row._replace(timestamp_ns=time) for row, time in zip(rows, times, strict=True)]
    return rows


def by_hand(cut: Cut, wanted: int | None, message: Message) -> bool:
    def value(edge: Edge) -> tuple[int, int]:
        return (
            (message.sequence, edge.sequence) if isinstance(edge, AtSequence) else (message.timestamp_ns, edge.time_ns)
        )

    if cut.since is not None and value(cut.since)[0] < value(cut.since)[1]:
        return False
    if cut.until is not None and value(cut.until)[0] > value(cut.until)[1]:
        return False
    return wanted is None or message.sequence % 3 == wanted


@settings(deadline=None, max_examples=200 if EXPLORE else 40)
@given(streams(), edges, edges, st.none() | st.integers(0, 2), st.integers(0, 3))
def test_what_is_kept_is_what_the_rule_says(
    messages: list[Message], since: Edge | None, until: Edge | None, wanted: int | None, beyond: int
) -> None:
    objects = Objects(MemoryStore())
    entry = stored(objects, messages, beyond=beyond)
    reshape = Reshape(Cut(since, until), Filters() if wanted is None else Filters((f"a.{wanted}",)))
    kept = survey(objects, entry, reshape, b"")
    expected = [message for message in messages if by_hand(reshape.cut, wanted, message)]
    assert as_messages(reshaped_messages(objects, kept.entry, reshape, b"")) == expected
    digester = Digester()
    digester.update(batch_of(expected))
    got = kept.entry.captured
    assert (got.messages, got.bytes, kept.entry.digest) == (
        len(expected),
        digester.raw_bytes,
        digester.stream_digest,
    )
    assert (kept.exact, kept.counted) == (True, True)
    if expected:
        state = kept.entry.state
        assert (got.first_seq, got.last_seq) == (expected[0].sequence, expected[-1].sequence)
        assert (state.first_seq, state.first_ns) == (expected[0].sequence, expected[0].timestamp_ns)
    within = [message for message in messages if by_hand(reshape.cut, None, message)]
    later = [m for m in messages if until is not None and m.sequence > (within[-1].sequence if within else 0)]
    assert kept.first_dropped == ((later[0].sequence, later[0].timestamp_ns) if later else None)
    assert all(any(ref.first_seq <= m.sequence <= ref.last_seq for m in expected) for ref in kept.entry.segments) or (
        wanted is None
    )
    # What is known without reading is never less.
    bounds = kept_by_bounds(entry, reshape).entry
    assert bounds.captured.messages >= len(expected)
    assert {ref.key for ref in kept.entry.segments} <= {ref.key for ref in bounds.segments}
    looked = estimate(objects, entry, reshape)
    assert looked.entry.captured.messages >= len(expected)
    if wanted is None and reshape:
        assert looked.entry == kept.entry


def test_a_cut_reads_the_segments_around_its_ends_only() -> None:
    store = Watched()
    objects = Objects(store)
    messages = [Message(n, 1000 + n, "a.b", None, random.Random(n).randbytes(40)) for n in range(1, 201)]
    entry = stored(objects, messages, segment_bytes=500)
    assert len(entry.segments) > 12
    for cut in (Cut(until=AtSequence(100)), Cut(AtTime(1050), AtTime(1150))):
        store.read.clear()
        survey(objects, entry, Reshape(cut), b"")
        assert 0 < len(set(store.read)) == len(store.read) <= 4


@pytest.mark.parametrize("wanted", [Filters(), Filters(("a.0", "a.1"))])
@pytest.mark.parametrize("large", [False, True])
def test_consumers_are_set_back_with_their_stream(
    wanted: Filters, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jsbackup.repository.write.stream_objects.INLINE_ENTRIES", 1 if large else 100)
    objects = Objects(MemoryStore())
    messages = [Message(n, n, f"a.{n % 3}", None, b"data") for n in range(1, 61)]
    pending = {sequence: PendingAck(sequence, 5) for sequence in (20, 21, 22, 50)}
    state = ConsumerState(SequencePair(55, 55), SequencePair(19, 19), pending, {20: 2, 50: 2})
    consumer = store_consumer(objects, FOLDER, ConsumerBackup("c", {}, NOW, Fidelity.EXACT, state))
    assert (consumer.pending is not None) is large
    entry = replace(stored(objects, messages), consumers=(consumer,))
    kept = survey(objects, entry, Reshape(Cut(until=AtSequence(40)), wanted), b"").entry
    (after,) = kept.consumers
    assert after.pending is None
    assert after.state is not None
    left = {21, 22} if wanted else {20, 21, 22}
    assert (after.state.delivered.stream, set(after.state.pending)) == (40, left)
    assert set(after.state.redelivered) == (set() if wanted else {20})
    assert "from sequence 55 to 40" in after.reason
    assert f"{4 - len(left)} of 4" in after.reason


def test_a_message_that_cannot_be_masked_stops_it_before_anything_is_sent() -> None:
    objects = Objects(MemoryStore())
    entry = stored(objects, [Message(1, 1, "a.b", None, b'{"m": 1}'), Message(2, 2, "a.c", None, b"no JSON")])
    with pytest.raises(PlanRefused, match="message 2 of stream S"):
        survey(objects, entry, Reshape(masks=Masks.parse(["a.>:$.m=redact"])), b"")
    kept = survey(objects, entry, Reshape(masks=Masks.parse(["a.>:$.m=redact"], "drop")), b"")
    assert (kept.entry.captured.messages, kept.masked.dropped, kept.masked.values) == (1, 1, {0: 1})
    hashing = Reshape(masks=Masks.parse(["a.b:$.m=hash"]))
    with pytest.raises(UsageError):
        survey(objects, entry, hashing, b"short")
    ours, theirs = (survey(objects, entry, hashing, secret).entry.digest for secret in (b"1" * 16, b"2" * 16))
    assert ours != theirs
