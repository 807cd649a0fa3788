"""Filters become bounds that never lose a message, and spare what nobody asked for."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)
from pyspark.sql.types import BinaryType, LongType, StringType, StructType, TimestampType

from jsbackup.formats import segment
from jsbackup.formats.digest import StreamDigest
from jsbackup.formats.segment import GroupBounds
from jsbackup.pipeline.messages.bounds import ALL, bounds_of
from jsbackup.pipeline.messages.columns import as_text_subjects
from jsbackup.pipeline.messages.source import BackupSource
from jsbackup.pipeline.messages.source_options import options_of
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.objects import Objects
from jsbackup.repository.pages.segment_list import SegmentList, parts_where
from jsbackup.repository.refs import AnyRef, PageRef
from jsbackup.stores.memory import MemoryStore
from tests.harness import backups
from tests.harness.backups import FIRST, make_repository, store_backup
from tests.harness.batches import Message, batch_of, message_lists, some_messages
from tests.harness.small_pages import make_pages_small
from tests.pipeline.places import Kept, keep

ROOT = Path(__file__).parent.parent.parent.parent
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TYPES = {
    "stream": StringType(),
    "sequence": LongType(),
    "timestamp_ns": LongType(),
    "time": TimestampType(),
    "subject": StringType(),
    "headers": BinaryType(),
    "data": BinaryType(),
}

_COMPARED = {
    EqualTo: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
}


def _time(message: Message) -> datetime:
    return _EPOCH + timedelta(microseconds=message.timestamp_ns // 1000)


_VALUES: dict[str, Callable[[Message], object]] = {
    "sequence": lambda message: message.sequence,
    "timestamp_ns": lambda message: message.timestamp_ns,
    "time": _time,
    "subject": lambda message: message.subject,
}


@st.composite
def _cases(draw: st.DrawFn) -> tuple[list[Message], list[Filter], list[Message]]:
    """Messages, filters with values of theirs or near them, and which messages they leave."""
    messages = draw(message_lists(max_size=20))
    filters: list[Filter] = []
    left = messages
    for _ in range(draw(st.integers(0, 3))):
        column = draw(st.sampled_from(sorted(_VALUES)))
        value_of = _VALUES[column]
        near = [value_of(message) for message in messages] or [1 if column != "subject" else "x"]
        if column == "time" and not messages:
            near = [_EPOCH]
        if draw(st.booleans()):
            some = draw(st.lists(st.sampled_from(near), max_size=3))
            filters.append(In((column,), tuple(some)))
            left = [message for message in left if value_of(message) in some]
        elif column == "subject" and draw(st.booleans()):
            prefix = str(draw(st.sampled_from(near)))[: draw(st.integers(0, 3))]
            filters.append(StringStartsWith((column,), prefix))
            left = [message for message in left if str(message.subject).startswith(prefix)]
        else:
            kind, value = draw(st.sampled_from(sorted(_COMPARED, key=str))), draw(st.sampled_from(near))
            filters.append(kind((column,), value))
            compare = _COMPARED[kind]
            left = [message for message in left if compare(value_of(message), value)]
    return messages, filters, left


@settings(max_examples=300, deadline=None)
@given(_cases())
def test_no_message_is_lost(case: tuple[list[Message], list[Filter], list[Message]]) -> None:
    messages, filters, left = case
    bounds = bounds_of(filters)
    kept = set(bounds.keep(as_text_subjects(batch_of(messages))).column("sequence").to_pylist())
    assert {message.sequence for message in left} <= kept
    assert kept <= {message.sequence for message in messages}


@settings(max_examples=300, deadline=None)
@given(_cases())
def test_no_segment_and_no_row_group_with_a_wanted_message_is_skipped(
    case: tuple[list[Message], list[Filter], list[Message]],
) -> None:
    messages, filters, left = case
    bounds = bounds_of(filters)
    if not messages:
        return
    first, last = messages[0].sequence, messages[-1].sequence
    times = sorted(message.timestamp_ns for message in messages)
    subjects = sorted(str(message.subject).encode() for message in messages)
    group = GroupBounds((first, last), (times[0], times[-1]), (subjects[0], subjects[-1]))
    ref = SegmentRef("", first, last, 1, 1, times[0], times[-1], 1, "", "", StreamDigest())
    assert not left or (bounds.wants_part(ref) and bounds.wants_group(group))
    assert not left or bounds.wants_group(GroupBounds(None, None, None))
    # Of one message statistics say all, so that they decide alone; but subjects are not looked at for their order.
    ordered = GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
    if len(messages) == 1 and not any(isinstance(one, ordered) and one.attribute == ("subject",) for one in filters):
        assert bounds.wants_group(group) == bool(left)


@pytest.mark.parametrize(
    "unknown",
    [
        Not(EqualTo(("sequence",), 1)),
        StringContains(("subject",), "x"),
        IsNotNull(("subject",)),
        EqualTo(("sequence",), None),
        EqualTo(("headers", "a"), "b"),
        EqualTo(("data",), b"x"),
        GreaterThan(("subject",), "a"),
        GreaterThan(("stream",), "a"),
    ],
)
def test_what_is_not_understood_leaves_all(unknown: Filter) -> None:
    assert bounds_of([unknown]) == ALL


def _read(kept: Kept, columns: list[str], filters: list[Filter], monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Rows that come, and objects that are read, as an executor would do it."""
    read: list[str] = []
    fetch = Objects.fetch

    def counting(objects: Objects, ref: AnyRef) -> bytes:
        read.append(ref.key)
        return fetch(objects, ref)

    monkeypatch.setattr(Objects, "fetch", counting)
    schema = StructType()
    for name in columns:
        schema.add(name, _TYPES[name])
    reader = BackupSource({**options_of(kept.place), "pushdown": "true"}).reader(schema)
    assert list(reader.pushFilters(filters)) == filters
    batches = itertools.chain.from_iterable(reader.read(part) for part in reader.partitions())
    rows = sum(batch.num_rows for batch in batches)
    monkeypatch.setattr(Objects, "fetch", fetch)
    return rows, len(read)


def test_only_the_segments_that_are_needed_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backups, "SEGMENT_BYTES", 1_200_000)
    monkeypatch.setattr(segment, "BATCH_BYTES", 100_000)  # several row groups each
    kept = keep(tmp_path, {"A": some_messages(360, 20_000)})
    (stream,) = kept.manifest.streams
    assert len(stream.segments) >= 6
    middle = some_messages(360, 20_000)[180]
    assert _read(kept, ["subject", "data"], [EqualTo(("sequence",), middle.sequence)], monkeypatch) == (1, 1)
    moment = _time(middle)
    hour: list[Filter] = [
        GreaterThanOrEqual(("time",), moment),
        LessThan(("time",), moment + timedelta(microseconds=5)),
        EqualTo(("subject",), str(middle.subject)),
    ]
    rows, read = _read(kept, ["subject", "data"], hour, monkeypatch)
    assert rows == 1 and read <= 2
    assert _read(kept, ["sequence", "subject"], [], monkeypatch) == (360, len(stream.segments))
    assert _read(kept, ["data"], [EqualTo(("subject",), "nothing")], monkeypatch) == (0, len(stream.segments))
    assert _read(kept, ["data"], [EqualTo(("stream",), "B")], monkeypatch) == (0, 0)


def test_no_damage_of_a_footer_ends_the_process(tmp_path: Path) -> None:
    """It would, and take an executor with it, if bytes were read that nobody has compared."""
    kept = keep(tmp_path, {"A": some_messages(40, 20)})
    code = [sys.executable, "-m", "tests.pipeline.messages.damaged_reads", kept.place.location, "29"]
    done = subprocess.run(code, cwd=ROOT, capture_output=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert int(done.stdout) > 100


def test_binary_subjects_are_compared_as_bytes() -> None:
    batch = as_text_subjects(batch_of([Message(1, subject=b"\xff"), Message(2, subject=b"ok")]))
    assert bounds_of([EqualTo(("subject",), "ok")]).keep(batch).column("sequence").to_pylist() == [2]


def test_pages_without_wanted_messages_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    make_pages_small(monkeypatch)
    repository = make_repository(MemoryStore())
    given_refs = store_backup(repository, FIRST, count=1000).streams[0].segments
    stored = repository.manifest(FIRST).streams[0].segments
    assert isinstance(stored, SegmentList)
    read: list[PageRef] = []

    def noting(page: PageRef) -> Sequence[PageRef | SegmentRef]:
        read.append(page)
        return stored.read(page)

    segments = SegmentList(stored.parts, noting)
    pages = len(list(stored.pages()))
    for ref in given_refs:
        for filters in ([EqualTo(("sequence",), ref.first_seq)], [EqualTo(("timestamp_ns",), ref.max_ns)]):
            read.clear()
            found = list(parts_where(segments, bounds_of(filters).wants_part))
            assert ref in found and all(isinstance(one, SegmentRef) for one in found)
            assert len(found) < len(given_refs) / 4 and len(read) < pages / 3
    read.clear()
    assert list(parts_where(segments, ALL.wants_part)) == list(given_refs) and len(read) == pages
    read.clear()
    assert list(parts_where(segments, bounds_of([LessThan(("sequence",), 0)]).wants_part)) == [] == read
