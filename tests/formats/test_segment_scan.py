"""Parts of segments: the columns and row groups that are asked for, and proper errors for everything damaged."""

from __future__ import annotations

import io
import itertools

import pyarrow as pa
import pytest

from jsbackup.errors import FormatError
from jsbackup.formats.segment import GroupBounds, Probe, SegmentEncoder, scan_segment
from tests.harness.batches import Message, batch_of, some_messages


def _segment(messages: list[Message]) -> bytes:
    encoder = SegmentEncoder()
    encoder.write(batch_of(messages))
    return bytes(encoder.finish())


def test_columns_and_groups_are_chosen() -> None:
    messages = some_messages(1000, 10_000)
    seen: list[GroupBounds] = []

    def second(group: GroupBounds) -> bool:
        seen.append(group)
        return len(seen) == 2

    batches = list(scan_segment(io.BytesIO(_segment(messages)), ["subject", "sequence"], second))
    assert all(batch.schema.names == ["subject", "sequence"] for batch in batches)
    found = list(itertools.chain.from_iterable(batch.column("sequence").to_pylist() for batch in batches))
    low, high = seen[1].sequence or (0, 0)
    assert found == [m.sequence for m in messages if low <= m.sequence <= high] and 100 < len(found) < 900
    assert seen[0].subject == (b"orders.0", b"orders.6") and seen[0].timestamp_ns is not None
    assert seen[0].timestamp_ns[0] == messages[0].timestamp_ns


class _Meter(io.BytesIO):
    """Counts what is read of it."""

    count = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data


def test_what_a_probe_does_not_want_is_read_no_further() -> None:
    messages = [m._replace(subject="rare" if n == 700 else "s") for n, m in enumerate(some_messages(1000, 10_000))]
    file = _Meter(_segment(messages))
    asked: list[pa.RecordBatch] = []

    def wanted(batch: pa.RecordBatch) -> bool:
        asked.append(batch)
        return "rare" in batch.column("subject").to_pylist()

    probe = Probe(("subject", "sequence"), wanted)
    batches = list(scan_segment(file, ["data", "subject"], lambda _group: True, probe))
    found = [subject for batch in batches for subject in batch.column("subject").to_pylist()]
    assert all(batch.schema.names == ["data", "subject"] for batch in batches)
    assert {batch.schema.names[0] for batch in asked} <= {"subject", "sequence"}
    assert sum(batch.num_rows for batch in asked) == 1000 and 300 < len(found) < 500 and "rare" in found
    assert file.count < 5_000_000  # of ten million, a row group and little more


def test_subjects_that_are_not_utf8_come_as_bytes() -> None:
    data = _segment([Message(1, subject=b"\xff"), Message(2, subject=b"ok")])
    bounds: list[GroupBounds] = []
    (batch,) = scan_segment(io.BytesIO(data), ["subject"], lambda group: bounds.append(group) is None)
    assert batch.column("subject").to_pylist() == [b"\xff", b"ok"]


@pytest.mark.parametrize("columns", [["sequence"], ["data", "headers", "subject"]])
def test_a_segment_cut_short_is_an_error(columns: list[str]) -> None:
    data = _segment(some_messages(5, 20))
    for length in range(len(data)):
        with pytest.raises(FormatError):
            list(scan_segment(io.BytesIO(data[:length]), columns, lambda _group: True))


def test_a_flipped_bit_is_an_error_or_changes_nothing_that_was_asked_for() -> None:
    messages = some_messages(5, 20)
    data = _segment(messages)
    footer = len(data) - int.from_bytes(data[-8:-4], "little") - 8
    for at in range(footer):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        try:
            batches = list(scan_segment(io.BytesIO(bytes(damaged)), ["sequence", "data"], lambda _group: True))
        except FormatError:
            continue
        found = [row for batch in batches for row in batch.to_pylist()]
        assert found == [{"sequence": m.sequence, "data": m.data} for m in messages]
