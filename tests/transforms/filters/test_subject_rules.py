from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.transforms.batches import SUBJECT
from jsbackup.transforms.filters.filters import subject_rows
from tests.transforms.messages import Message, batch_of, literals, patterns
from tests.transforms.test_subjects import by_the_rule


@settings(deadline=None)
@given(st.lists(patterns(), min_size=1, max_size=3), st.lists(literals, max_size=20))
def test_rows_are_those_whose_subject_any_pattern_matches(wanted: list[str], subjects: list[str]) -> None:
    batch = batch_of([Message(n, n, subject, None, b"") for n, subject in enumerate(subjects, start=1)])
    rows = subject_rows(batch.column(SUBJECT), tuple(wanted)).to_pylist()
    assert rows == [any(by_the_rule(pattern, subject) for pattern in wanted) for subject in subjects]


def test_subjects_that_are_not_utf8_are_matched_too() -> None:
    batch = batch_of([Message(1, 1, "a.\udcff", None, b""), Message(2, 2, "b.\udcff", None, b"")])
    assert subject_rows(batch.column(SUBJECT), ("a.*",)).to_pylist() == [True, False]


def test_signs_of_expressions_and_line_breaks_mean_themselves() -> None:
    batch = batch_of([Message(n, n, subject, None, b"") for n, subject in enumerate(("a.b+", "a.bb", "a.\n"), start=1)])
    assert subject_rows(batch.column(SUBJECT), ("a.b+",)).to_pylist() == [True, False, False]
    assert subject_rows(batch.column(SUBJECT), ("*.b+", "x")).to_pylist() == [True, False, False]
    assert subject_rows(batch.column(SUBJECT), ("a.>",)).to_pylist() == [True, True, True]
