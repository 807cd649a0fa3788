from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import UsageError
from jsbackup.transforms.batches import Subjects
from jsbackup.transforms.subject_filter import SubjectFilter
from tests.transforms.messages import Message, batch_of, literals, messages_of, patterns
from tests.transforms.test_subjects import by_the_rule


@settings(deadline=None)
@given(st.lists(patterns(), min_size=1, max_size=3), st.lists(literals, max_size=20))
def test_messages_of_other_subjects_fall_out(wanted: list[str], subjects: list[str]) -> None:
    messages = [Message(n, n, subject, None, b"") for n, subject in enumerate(subjects, start=1)]
    batch = batch_of(messages)
    kept = batch.filter(SubjectFilter.parse(wanted).rows(Subjects(batch)))
    assert messages_of([kept]) == [m for m in messages if any(by_the_rule(p, m.subject) for p in wanted)]


def test_subjects_that_are_not_utf8_are_filtered_too() -> None:
    messages = [Message(1, 1, "a.\udcff", None, b""), Message(2, 2, "b.\udcff", None, b"")]
    batch = batch_of(messages)
    assert messages_of([batch.filter(SubjectFilter.parse(["a.*"]).rows(Subjects(batch)))]) == messages[:1]


def test_no_subject_at_all_is_refused() -> None:
    with pytest.raises(UsageError):
        SubjectFilter.parse([])


@settings(deadline=None)
@given(st.text(max_size=20))
def test_any_text_is_a_filter_or_a_usage_error(text: str) -> None:
    with suppress(UsageError):
        assert SubjectFilter.parse([text]).patterns == (text,)
