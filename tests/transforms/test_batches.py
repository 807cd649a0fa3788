from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError
from jsbackup.transforms.batches import Subjects, rebatch, surviving
from tests.transforms.messages import Message, batch_of, literals, messages_of, patterns
from tests.transforms.test_subjects import by_the_rule

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


@settings(deadline=None)
@given(st.lists(literals | st.just("a.\udcff"), max_size=6), st.lists(patterns(), min_size=1, max_size=70))
def test_subjects_are_matched_and_mapped_by_the_rule(subjects: list[str], wanted: list[str]) -> None:
    batch = batch_of([Message(n, n, s, None, b"") for n, s in enumerate(subjects, start=1)])
    found = Subjects(batch)
    matching = [tuple(n for n, one in enumerate(wanted) if by_the_rule(one, s)) for s in subjects]
    assert found.matches(wanted).to_pylist() == [bool(one) for one in matching]
    numbers, sets = found.sets(wanted)
    assert [sets[number] for number in memoryview(numbers).cast("i")] == matching
    assert len(set(sets)) == len(sets)
    mapped = found.mapped([[(one.encode(), [b"t"]) for one in wanted[:3]], [(b"t", [b"u", b"v"])]])
    after = ["u.v" if s == "t" or any(n < 3 for n in some) else s for s, some in zip(subjects, matching, strict=True)]
    assert (
        after == subjects
        if mapped is None
        else mapped.cast(pa.binary()).to_pylist() == [s.encode("utf-8", "surrogateescape") for s in after]
    )


def test_other_columns_are_a_format_error() -> None:
    with pytest.raises(FormatError):
        Subjects(pa.RecordBatch.from_pydict({"subject": ["a"]}))


def test_what_survives_is_read_off_the_batches() -> None:
    batch = batch_of([Message(n, n, "a", None, b"") for n in (2, 3, 7)])
    assert surviving(batch, {1, 3, 7, 2**64 - 1}) == {3, 7}
    assert surviving(batch, set()) == set()
