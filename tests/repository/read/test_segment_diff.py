"""Spans of sequences are compared in parts, anywhere: their tallies come to that of the whole."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import IntegrityError
from jsbackup.repository.manifest import Manifest, Result, Source, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.read import message_diff
from jsbackup.repository.read.diff import DiffRun, DiffWork, Tallies, diff_backups
from jsbackup.repository.read.message_diff import Change, DifferenceTally, MessageDiff
from jsbackup.repository.read.segment_diff import compare_span, find_spans, split_span
from jsbackup.repository.segments import SegmentReader
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import CREATED, FIRST, SECOND
from tests.harness.batches import Message, some_messages
from tests.repository.read.test_diff import check, diff, histories, stored


def _split(objects: Objects, a: StreamBackup, b: StreamBackup, limit_bytes: int, named: int) -> MessageDiff:
    """The difference, put together from that of parts, each of which has travelled."""

    def compare(work: Sequence[DiffWork], named: int) -> Iterator[Tallies]:
        return (_tallies(one, named) for one in work)

    def _tallies(work: DiffWork, named: int) -> Tallies:
        for span in work.spans:
            whole = DifferenceTally(named)
            for part in split_span(span, limit_bytes):
                tally = compare_span(SegmentReader(objects), part, named, lambda _bytes, _messages: None)
                whole.absorb(pickle.loads(pickle.dumps(tally)))
            yield whole

    manifests = [
        Manifest(backup, CREATED, "t", Source(), Result.COMPLETE, (stream,))
        for backup, stream in ((FIRST, a), (SECOND, b))
    ]
    run = DiffRun(objects, lambda names: names, consumers=True, named=named)
    report = diff_backups(run, *manifests, compare)
    return report.streams[0].messages


@settings(deadline=None, max_examples=60)
@given(
    histories(), st.tuples(*[st.integers(100, 2000)] * 3), st.sampled_from([0, 2, 10_000]), st.sampled_from([2, 1000])
)
def test_parts_come_to_the_whole(
    both: tuple[list[Message], list[Message]], sizes: tuple[int, int, int], named: int, most_ranges: int
) -> None:
    a_bytes, b_bytes, limit = sizes
    objects = Objects(MemoryStore())
    a, b = stored(objects, both[0], a_bytes), stored(objects, both[1], b_bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_diff, "MOST_RANGES", most_ranges)
        found = _split(objects, a, b, limit, named)
        assert found == diff(objects, a, b, named).messages
    if named == 10_000 and most_ranges == 1000:
        check(found, *both)


def test_a_long_span_is_cut_where_segments_end_and_nothing_is_lost_between() -> None:
    objects = Objects(MemoryStore())
    messages = some_messages(600, 100)
    a = stored(objects, messages, 3000)
    b = stored(objects, [m._replace(data=m.data + b"!") for m in messages], 3300)
    (span, *_few) = find_spans(a.segments, b.segments)
    parts = split_span(span, 10_000)
    assert 5 < len(parts) < 20 and max(part.bytes for part in parts) < 20_000
    assert [part.first_seq for part in parts] == [span.first_seq, *(part.last_seq + 1 for part in parts[:-1])]
    assert parts[-1].last_seq == span.last_seq
    assert split_span(span, 1 << 40) == [span]
    # One long segment on one side is read with each part; those of the other once or twice.
    thin = stored(objects, messages[::50], 1 << 20)
    (span,) = find_spans(thin.segments, a.segments)
    parts = split_span(span, 10_000)
    assert len(parts) > 4 and all(part.a == thin.segments for part in parts)
    assert sum(len(part.b) for part in parts) == len(span.b) > 20


def test_what_goes_wrong_with_a_stream_costs_that_stream_alone() -> None:
    objects = Objects(MemoryStore())
    messages = some_messages(20, 20)
    changed = [m._replace(data=b"other") for m in messages]

    def compare(work: Sequence[DiffWork], named: int) -> Iterator[Tallies]:
        return (_fail(one) if one.stream == "B" else _one(named) for one in work)

    def _fail(work: DiffWork) -> Tallies:
        raise IntegrityError(f"{work.stream} is damaged")
        yield

    def _one(named: int) -> Tallies:
        tally = DifferenceTally(named)
        tally.note(Change.CHANGED, 1, 50, 20)
        yield tally

    a, b = (
        Manifest(backup, CREATED, "t", Source(), Result.COMPLETE, tuple(replace(some, name=name) for name in "ABC"))
        for backup, some in ((FIRST, stored(objects, messages)), (SECOND, stored(objects, changed)))
    )
    report = diff_backups(DiffRun(objects, lambda found: found, consumers=True, named=0), a, b, compare)
    assert [(one.name, one.messages.changed) for one in report.streams] == [("A", 20), ("C", 20)]
    assert [(one.name, one.error.message) for one in report.failures] == [("B", "B is damaged")]
