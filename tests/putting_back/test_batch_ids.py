"""Ids of the rows of a micro-batch: the same in any partitions and any order, and others for other rows."""

from __future__ import annotations

import random
from uuid import uuid4

import pytest

from jsbackup.putting_back.batch_ids import (
    BatchId,
    BatchPart,
    RowIds,
    StoredRows,
    count_rows,
    id_once_more,
    packed,
    row_in,
    rows_too_many,
)
from jsbackup.putting_back.new_rows import NewRow

QUERY = "0f8fad5b-d9cb-469f-a165-70867728950e"
BATCH = BatchId(QUERY, 17)
ROWS = [NewRow(b"s.%d" % n, b"%d" % (n // 3), None, None) for n in range(30)]


def ids(rows: list[NewRow], batch: BatchId = BATCH) -> list[str]:
    made = RowIds(batch)
    return [made.of(row) for row in rows]


def test_rows_have_the_same_ids_in_any_order_and_any_partitions() -> None:
    rows = [*ROWS, *ROWS[:5], *ROWS[:2]]
    found = ids(rows)
    assert len(set(found)) == len(rows)
    assert [one.rpartition("-")[2] for one in found[-7:]] == ["1", "1", "1", "1", "1", "2", "2"]
    shuffled = random.Random(1).sample(rows, len(rows))
    assert set(ids(shuffled)) == set(found)
    # Those that are equal in two partitions have the same.
    assert ids(ROWS[:10]) + ids(ROWS[10:]) == found[:30]
    assert all(one.startswith("s0f8fad5bd9cb469f-17-") for one in found)
    assert {BATCH.content_in(one.encode()) for one in found} == {one.encode() for one in found[:30]}
    assert row_in(id_once_more(found[-1], 4711).encode()) == found[-1].encode() == row_in(found[-1].encode())
    assert BATCH.content_in(id_once_more(found[-1], 4711).encode()) == BATCH.content_in(found[-1].encode())
    assert {BATCH.number_in(one.encode()) for one in found} == {17}


def test_all_that_is_in_a_row_counts() -> None:
    row = NewRow(b"s.1", b"x", b"NATS/1.0\r\n\r\n", "id", b"place")
    others = [
        NewRow(b"s.1x", b"", row.headers, "id", b"place"),
        row._replace(subject=b"s.2"),
        row._replace(data=b"y"),
        row._replace(headers=None),
        row._replace(headers=b""),
        row._replace(message_id=None),
        row._replace(message_id=""),
        row._replace(place=b"other"),
    ]
    assert len(set(ids([row, *others]))) == 9


def test_what_was_in_a_row_cannot_be_tried_out_with_its_id() -> None:
    """The id has only a part of the query's, and the digest depends on all of it."""
    other = BatchId(QUERY[:19] + str(uuid4())[19:], 17)
    assert str(other) == str(BATCH)
    assert not set(ids(ROWS, other)) & set(ids(ROWS))


@pytest.mark.parametrize(
    "text", [b"", b"17-x", b"s0f8fad5bd9cb469f-", b"s0f8fad5bd9cb469f-x-1", b"s0f8fad5bd9cb4690-17-x"]
)
def test_ids_of_others_are_told_apart(text: bytes) -> None:
    assert BATCH.number_in(text) is None


def test_sequences_that_stand_for_several_rows_are_found() -> None:
    many = random.Random(2).sample(range(1, 1 << 40), 1000)
    parts = [
        BatchPart(0, fresh=packed([5, 3, 9]), known=packed([])),
        BatchPart(1, fresh=packed(many), known=packed([1 << 62, 9])),
        BatchPart(2, known=packed([3, 9, 1 << 62, 77])),
    ]
    assert rows_too_many(parts) == {3, 9, 1 << 62}
    assert count_rows(parts, {3, 5, 6, 9, 77, 1 << 62}) == {3: 2, 5: 1, 9: 3, 77: 1, 1 << 62: 2}
    assert count_rows(parts, set(many)) == dict.fromkeys(many, 1)
    assert not count_rows([], {1}) and not rows_too_many([])
    assert len(packed(range(10_000, 60_000))) < 5000


def test_equal_rows_have_several_sequences() -> None:
    rows = StoredRows()
    assert not rows and rows.of(b"a") == 0 and rows.more(b"a") == ()
    for row_id, sequence in ((b"a", 1), (b"b", 2), (b"a-1", 3), (b"a-1", 4), (b"a", 9), (b"a-3", 10)):
        rows.add(row_id, row_id[:1], sequence)
    other = rows.copy()
    other.add(b"a", b"a", 11)
    assert rows and [rows.of(one) for one in (b"a", b"a-1", b"a-2", b"a-3", b"b")] == [9, 4, 0, 10, 2]
    assert rows.more(b"a") == [3, 1] and rows.more(b"b") == ()
    assert other.of(b"a") == 11 and other.more(b"a") == [3, 1, 9]
