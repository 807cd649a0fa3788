from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError
from jsbackup.transforms.batches import Subjects, keep_rows, rebatch
from tests.transforms.messages import Message, batch_of, literals, messages_of

MIB = 1 << 20


@settings(deadline=None)
@given(st.lists(st.lists(literals | st.just("\udcff"), max_size=4), max_size=8))
def test_batching_anew_keeps_messages_and_their_order(subjects: list[list[str]]) -> None:
    numbers = iter(range(1, 100))
    batches = [batch_of([Message(next(numbers), 5, s, None, b"x") for s in some]) for some in subjects]
    again = list(rebatch(batches))
    assert messages_of(again) == messages_of(batches)
    assert all(batch.num_rows for batch in again)
    assert len(again) <= 1 or len({str(b.schema) for b in batches if b.num_rows}) > 1


def test_batches_come_in_useful_sizes() -> None:
    small = [batch_of([Message(n, n, "a", None, bytes(64 << 10))]) for n in range(1, 129)]
    sizes = [batch.nbytes for batch in rebatch(small)]
    assert sum(sizes) >= 8 * MIB and all(2 * MIB <= size <= 8 * MIB for size in sizes)
    large = batch_of([Message(n, n, "a", None, bytes(1 * MIB)) for n in range(1, 33)])
    assert all(2 * MIB <= batch.nbytes <= 9 * MIB for batch in rebatch([large]))
    right = batch_of([Message(1, 1, "a", None, bytes(4 * MIB))])
    assert next(iter(rebatch([right]))) is right
    huge = batch_of([Message(1, 1, "a", None, bytes(20 * MIB))])
    assert [batch.num_rows for batch in rebatch([huge])] == [1]


def test_subjects_change_by_the_distinct_one() -> None:
    batch = batch_of([Message(n, n, s, None, b"") for n, s in enumerate(["a", "b", "a", "a"], start=1)])
    asked: list[str] = []
    subjects = Subjects(batch)
    assert list(subjects) == ["a", "b", "a", "a"]
    column = subjects.exchanged(lambda s: asked.append(s) or s.upper())  # type: ignore[func-returns-value]
    assert column is not None and column.to_pylist() == ["A", "B", "A", "A"] and asked == ["a", "b"]
    assert subjects.exchanged(lambda s: s) is None


def test_all_rows_kept_is_no_copy() -> None:
    batch = batch_of([Message(1, 1, "a", None, b"")])
    assert keep_rows(batch, pa.array([True])) is batch


def test_other_columns_are_a_format_error() -> None:
    with pytest.raises(FormatError):
        Subjects(pa.RecordBatch.from_pydict({"subject": ["a"]}))
