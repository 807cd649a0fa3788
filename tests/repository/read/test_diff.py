"""A diff of backups is the set difference of their messages, and reads no more than it has to."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError, KeyUnavailable, UnsupportedError
from jsbackup.model import ConsumerState, Fidelity, JsonObject, PendingAck, SequencePair, StreamState
from jsbackup.progress import NullProgress
from jsbackup.repository.crypto.access import GivenKeys
from jsbackup.repository.manifest import (
    ArchiveFormat,
    BackupResult,
    Captured,
    ConsumerBackup,
    Manifest,
    SkippedStream,
    Source,
    StreamBackup,
    total_of,
)
from jsbackup.repository.objects import Objects
from jsbackup.repository.read import message_diff
from jsbackup.repository.read.diff import (
    AlongSegments,
    DiffRun,
    FieldChange,
    Side,
    StreamDiff,
    diff_backups,
    diff_configs,
    diff_consumers,
    diff_stream,
)
from jsbackup.repository.read.message_diff import Change, DifferenceTally, Merger, MessageDiff, Range
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.segment_writer import SegmentWriter
from jsbackup.repository.write.stream_objects import store_consumer
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import CREATED, FIRST, INCARNATION, SECOND, large_state, store_opaque
from tests.harness.batches import Message, batch_of, cut_anywhere, message_lists, some_messages
from tests.harness.history import IDENTITY, new_keys_of
from tests.harness.stores import FaultStore

ALL = 10_000


def stored(objects: Objects, messages: Sequence[Message], segment_bytes: int = 300) -> StreamBackup:
    folder = objects.sealing.folder("S", INCARNATION)
    writer = SegmentWriter(objects, folder, segment_bytes=segment_bytes)
    if messages:
        writer.add(batch_of(messages))
    segments = writer.finish()
    total = total_of(segments)
    return StreamBackup(
        "S",
        INCARNATION,
        {"name": "S"},
        CREATED,
        StreamState(),
        Captured.of(total, CREATED, CREATED),
        ArchiveFormat.V2,
        total.digest,
        tuple(segments),
    )


def diff(objects: Objects, a: StreamBackup, b: StreamBackup, named: int = ALL) -> StreamDiff:
    return diff_stream(objects, a, b, NullProgress(), consumers=True, named=named)


def _plain(message: Message) -> tuple[object, ...]:
    subject = message.subject.encode() if isinstance(message.subject, str) else message.subject
    return message.timestamp_ns, subject, message.headers or b"", message.data


def expected(a: Sequence[Message], b: Sequence[Message]) -> tuple[dict[Change, list[int]], list[Range]]:
    """Sequences of each kind, and their ranges, by plain Python."""
    old, new = ({m.sequence: _plain(m) for m in some} for some in (a, b))
    kinds: dict[Change, list[int]] = {change: [] for change in Change}
    ranges: list[Range] = []
    before = None
    for sequence in sorted(old.keys() | new.keys()):
        change = None
        if sequence not in new:
            change = Change.REMOVED
        elif sequence not in old:
            change = Change.ADDED
        elif old[sequence] != new[sequence]:
            change = Change.CHANGED
        if change is not None:
            kinds[change].append(sequence)
            if change is before:
                ranges[-1] = replace(ranges[-1], last_seq=sequence, messages=ranges[-1].messages + 1)
            else:
                ranges.append(Range(change, sequence, sequence, 1))
        before = change
    return kinds, ranges


def check(found: MessageDiff, a: Sequence[Message], b: Sequence[Message]) -> None:
    kinds, ranges = expected(a, b)
    assert (found.added, found.removed, found.changed) == tuple(len(kinds[c]) for c in Change)
    assert list(found.ranges) == ranges
    assert {c: [e.sequence for e in found.examples if e.change is c] for c in Change} == kinds
    subjects = {m.sequence: m.subject for m in (*b, *a)}
    for example in found.examples:
        subject = subjects[example.sequence]
        text = subject if isinstance(subject, str) else subject.decode("utf-8", "backslashreplace")
        assert example.subject == text
        assert bool(example.what) == (example.change is Change.CHANGED)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Message], list[Message]]:
    """A stream, and what became of it: messages went, came and changed."""
    base = draw(message_lists(binary=True, max_size=40))
    sides: list[list[Message]] = []
    for _ in range(2):
        side = []
        for message in base:
            what = draw(st.sampled_from(["keep"] * 12 + ["drop", "data", "headers", "time", "subject"]))
            if what == "data":
                message = message._replace(data=message.data + b"!")
            elif what == "headers":
                message = message._replace(headers=b"" if message.headers is None else message.headers + b"!")
            elif what == "time":
                message = message._replace(timestamp_ns=message.timestamp_ns // 2)
            elif what == "subject":
                message = message._replace(subject="another")
            if what != "drop":
                side.append(message)
        last = base[-1].sequence if base else 0
        side += [m._replace(sequence=m.sequence + last) for m in some_messages(draw(st.integers(0, 5)), 20)]
        sides.append(side)
    return sides[0], sides[1]


@settings(deadline=None, max_examples=60)
@given(histories(), st.integers(100, 2000), st.integers(100, 2000))
def test_a_diff_is_the_set_difference(both: tuple[list[Message], list[Message]], a_bytes: int, b_bytes: int) -> None:
    a, b = both
    objects = Objects(MemoryStore())
    old, new = stored(objects, a, a_bytes), stored(objects, b, b_bytes)
    found = diff(objects, old, new)
    check(found.messages, a, b)
    assert found.equal == (not any(expected(a, b)[0].values()))
    backwards = diff(objects, new, old).messages
    assert (backwards.added, backwards.removed, backwards.changed) == (
        found.messages.removed,
        found.messages.added,
        found.messages.changed,
    )


@settings(deadline=None, max_examples=60)
@given(histories(), st.integers(100, 2000), st.randoms(use_true_random=False), st.sampled_from(Side))
def test_what_is_read_elsewhere_is_compared_as_if_it_were_stored(
    both: tuple[list[Message], list[Message]], segment_bytes: int, chance: random.Random, side: Side
) -> None:
    ours, theirs = both
    objects = Objects(MemoryStore())
    refs = stored(objects, ours, segment_bytes).segments
    end = theirs[len(theirs) * 3 // 4].sequence if theirs else 0
    sink = AlongSegments(SegmentReader(objects), refs, end, side, named=ALL)
    for batch in cut_anywhere(batch_of(theirs), chance):
        sink.add(batch)
    theirs = [m for m in theirs if m.sequence <= end]
    check(sink.finish(), *((ours, theirs) if side is Side.A else (theirs, ours)))


# --- what is read ---


def test_what_adds_up_is_not_read_however_it_is_cut() -> None:
    store = FaultStore(MemoryStore())
    objects = Objects(store)
    messages = some_messages(200, 50)
    changed = [m._replace(data=b"other") if m.sequence == messages[100].sequence else m for m in messages]
    # As two writers cut: of one a segment is exactly two of the other.
    fine, coarse = stored(objects, messages, 400), stored(objects, messages, 10_000)
    store.log.clear()
    assert diff(objects, fine, replace(coarse, digest=coarse.digest + coarse.digest)).equal and not store.log
    other = stored(objects, changed, 400)
    store.log.clear()
    found = diff(objects, fine, other)
    assert (found.messages.changed, found.messages.examples[0].what) == (1, ("payload",))
    read = [key for operation, key in store.log if operation.startswith("get")]
    shared = {ref.key for ref in fine.segments} & {ref.key for ref in other.segments}
    assert 2 <= len(read) <= 6 and not shared & set(read)


def test_a_segment_that_one_side_has_alone_is_read_only_to_name_its_messages() -> None:
    store = FaultStore(MemoryStore())
    objects = Objects(store)
    messages = some_messages(200, 50)
    long = stored(objects, messages, 400)
    cut = long.segments[:-3]
    total = total_of(cut)
    short = replace(long, segments=cut, digest=total.digest, captured=replace(long.captured, messages=total.messages))
    gone = sum(ref.messages for ref in long.segments[-3:])
    for named, reads in ((0, 0), (2, 1)):
        store.log.clear()
        found = diff(objects, long, short, named).messages
        assert (found.removed, len(found.examples)) == (gone, min(named, gone))
        assert len([o for o, _ in store.log if o.startswith("get")]) == reads
        assert found.ranges == (Range(Change.REMOVED, long.segments[-3].first_seq, long.segments[-1].last_seq, gone),)
    sink = AlongSegments(SegmentReader(objects), long.segments, messages[-1].sequence, Side.A, named=0)
    store.log.clear()
    sink.add(batch_of([m for m in messages if m.sequence <= total.last_seq]))
    assert sink.finish().removed == gone and not store.log


def test_without_a_key_whole_segments_are_told_apart_and_nothing_else() -> None:
    store = MemoryStore()
    new_keys = new_keys_of("encrypted", "00ff")
    assert new_keys is not None
    Repository.create(store, repository_id="00ff", created=CREATED, tool="t", new_keys=new_keys)
    messages = some_messages(60, 50)
    changed = [m._replace(data=b"other") if m is messages[30] else m for m in messages]
    # Whoever wrote a segment can read it as long as it runs.
    writer = Repository.open(store, GivenKeys(new_keys.writer_key)).objects
    whole, other = stored(writer, messages), stored(writer, changed)
    cut = whole.segments[:-2]
    short = replace(whole, segments=cut, digest=total_of(cut).digest)
    host = Repository.open(store, GivenKeys(new_keys.writer_key)).objects
    assert diff(host, whole, whole).equal
    found = diff(host, short, whole)
    assert found.messages.added == sum(ref.messages for ref in whole.segments[-2:])
    assert not found.messages.examples and len(found.notes) == 1 and "without a key" in found.notes[0]
    with pytest.raises(KeyUnavailable):
        diff(host, whole, other)
    reader = Repository.open(store, GivenKeys(identities=(IDENTITY,))).objects
    check(diff(reader, whole, other).messages, messages, changed)
    # What is read elsewhere and is the same, needs no key either.
    sink = AlongSegments(SegmentReader(host), whole.segments, messages[-1].sequence, Side.A, named=ALL)
    sink.add(batch_of(messages))
    assert sink.finish().equal


def test_ranges_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_diff, "MOST_RANGES", 3)
    messages = [Message(sequence) for sequence in range(1, 101)]
    merger = Merger([batch_of(messages)], tally := DifferenceTally(1), Change.REMOVED)
    merger.add(batch_of(messages[::2]))
    merger.finish()
    found = tally.result()
    assert (found.removed, len(found.ranges), found.ranges_left_out, len(found.examples)) == (50, 3, 47, 1)


class Meter(NullProgress):
    """How much Arrow holds, at most, when a batch has been read."""

    def __init__(self) -> None:
        self.peak_bytes = 0

    def advance(self, name: str, byte_count: int, messages: int) -> None:
        self.peak_bytes = max(self.peak_bytes, pa.total_allocated_bytes())


def test_memory_does_not_hold_streams() -> None:
    objects = Objects(MemoryStore())
    messages = [Message(n, data=random.Random(n).randbytes(20_000)) for n in range(1, 601)]
    changed = [m._replace(data=m.data[:-1] + b"!") for m in messages]
    # Cut so that 182 messages pass from one sequence where segments of both sides end to the next.
    a, b = stored(objects, messages, 300_000), stored(objects, changed, 270_000)
    assert (a.segments[0].messages, b.segments[0].messages) == (14, 13)
    before, meter = pa.total_allocated_bytes(), Meter()
    found = diff_stream(objects, a, b, meter, consumers=True, named=1)
    assert found.messages.changed >= 590
    assert 0 < meter.peak_bytes - before < 100 * 20_000


def test_sequences_that_do_not_rise_are_refused() -> None:
    objects = Objects(MemoryStore())
    one = batch_of([Message(5)])
    merger = Merger([one, one], DifferenceTally(0), Change.REMOVED)
    with pytest.raises(FormatError):
        merger.finish()
    merger = Merger([], DifferenceTally(0), Change.REMOVED)
    merger.add(one)
    with pytest.raises(FormatError):
        merger.add(one)
    sink = AlongSegments(SegmentReader(objects), (), 10, Side.A, named=0)
    sink.add(one)
    with pytest.raises(FormatError):
        sink.add(one)


# --- streams ---


def test_streams_and_what_is_known_of_them() -> None:
    objects = Objects(MemoryStore())
    base = stored(objects, some_messages(20, 20))
    renamed = [replace(base, name=name) for name in ("BOTH", "OLD", "OLDER")]
    again = replace(base, name="BOTH", incarnation="99999999", created="2026-11-22T00:00:00Z")
    config = replace(base, name="CONF", archive_format=ArchiveFormat.CONFIG, segments=(), config={"max_age": 5})
    opaque = replace(store_opaque(objects.store, "OPAQUE", b"x" * 3000), name="OPAQUE")
    changed = replace(store_opaque(objects.store, "OPAQUE", b"y" * 3000), name="CHANGED")
    a = Manifest(
        FIRST,
        CREATED,
        "t",
        Source(),
        BackupResult.PARTIAL,
        (*renamed, replace(base, name="CONF"), opaque, replace(opaque, name="CHANGED")),
        (SkippedStream("LOST", "it broke"),),
    )
    b = replace(a, id=SECOND, streams=(again, config, opaque, changed, replace(base, name="LOST")), skipped=())
    report = diff_backups(DiffRun(objects, lambda names: names - {"OLDER"}, consumers=True, named=0), a, b)
    found = {one.name: one for one in report.streams}
    assert list(found) == ["BOTH", "CONF", "OLD", "OPAQUE"]
    assert found["BOTH"].equal and found["BOTH"].recreated and found["BOTH"].created[1] == again.created
    assert found["CONF"].messages.equal and "configuration only" in found["CONF"].notes[0]
    assert found["CONF"].config == (FieldChange("max_age", None, 5), FieldChange("name", "S", None))
    assert found["OLD"].only_in is Side.A and found["OLD"].messages.removed == 20 and not found["OLD"].equal
    assert found["OPAQUE"].equal
    assert {name: type(error).exit_code for name, error in report.failures.items()} == {"CHANGED": 13, "LOST": 3}
    assert isinstance(report.failures["CHANGED"], UnsupportedError)


@pytest.mark.parametrize(
    ("a", "b", "changes"),
    [
        ({}, {"deny_delete": False, "subjects": [], "description": "", "max_age": 0, "mirror": None}, []),
        ({"max_age": 1}, {}, [FieldChange("max_age", 1, None)]),
        ({"x": True}, {"x": 1}, [FieldChange("x", True, 1)]),
        ({}, {"mirror": {}}, [FieldChange("mirror", None, {})]),
        ({"metadata": {}}, {"metadata": {"_nats.req.level": "0"}}, []),
        (
            {"metadata": {"owner": "a", "team": "t"}, "subjects": ["a"]},
            {"metadata": {"owner": "b", "team": "t"}, "subjects": ["a", "b"]},
            [FieldChange("metadata.owner", "a", "b"), FieldChange("subjects", ["a"], ["a", "b"])],
        ),
    ],
)
def test_fields_are_compared_and_those_that_say_nothing_are_not(
    a: JsonObject, b: JsonObject, changes: list[FieldChange]
) -> None:
    assert list(diff_configs(a, b)) == changes
    assert list(diff_configs(b, a)) == [FieldChange(c.field, c.new, c.old) for c in changes]


def test_consumers_are_compared_by_what_both_sides_know() -> None:
    objects = Objects(MemoryStore())
    pending = {5: PendingAck(7, 1), 6: PendingAck(8, 1)}
    state = ConsumerState(SequencePair(9, 8), SequencePair(4, 4), pending, {6: 2})
    base = ConsumerBackup("c", {"durable_name": "c"}, CREATED, Fidelity.EXACT, state)

    def changes(a: ConsumerBackup, b: ConsumerBackup) -> list[tuple[str, object, object]]:
        return [(f.field, f.old, f.new) for c in diff_consumers(objects, [a], [b]) for f in (*c.config, *c.state)]

    assert changes(base, base) == changes(base, replace(base, config=base.config | {"name": "c"})) == []
    assert changes(base, replace(base, config={"durable_name": "c", "ack_wait": 5})) == [("ack_wait", None, 5)]
    moved = replace(base, state=replace(state, delivered=SequencePair(10, 9), pending={5: pending[5]}, redelivered={}))
    assert changes(base, moved) == [
        ("delivered.consumer_seq", 9, 10),
        ("delivered.stream_seq", 8, 9),
        ("pending", 2, 1),
        ("redelivered", 1, 0),
    ]
    other = replace(base, state=replace(state, pending={5: pending[5], 7: pending[6]}))
    assert changes(base, other) == [("pending.first_seq", 6, 7)]
    floor = replace(base, fidelity=Fidelity.FLOOR, state=ConsumerState(SequencePair(4, 4), SequencePair(4, 4)))
    assert changes(base, floor) == []
    assert changes(base, replace(base, state=None, fidelity=Fidelity.CONFIG_ONLY)) == []
    large = replace(base, state=large_state())
    kept = store_consumer(objects, objects.sealing.folder("S", INCARNATION), large)
    assert kept.pending is not None and changes(large, kept) == changes(kept, kept) == []
    alone = diff_consumers(objects, [base], [replace(base, name="d")])
    assert [(c.name, c.change) for c in alone] == [("c", Change.REMOVED), ("d", Change.ADDED)]
