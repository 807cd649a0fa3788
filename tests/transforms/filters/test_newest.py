"""The newest messages of each subject, against a list in Python."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.transforms.filters import newest
from jsbackup.transforms.filters.key_marker import KeyOperation, operation_of
from jsbackup.transforms.filters.newest import NewestFinder, NewestRule, find_newest, newest_rows, rows_of_subjects
from tests.transforms.messages import Message, batch_of

GONE = b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"
subjects = st.sampled_from(["a", "b", "a.b", "é", "x.\udcff", "zz"])
rules = st.one_of(st.integers(1, 4).map(NewestRule), st.just(NewestRule(compact=True)))


@st.composite
def streams(draw: st.DrawFn) -> list[Message]:
    sequences = sorted(draw(st.sets(st.integers(1, 100), max_size=40)))
    headers = st.sampled_from([None, GONE])
    return [Message(n, n, draw(subjects), draw(headers), b"") for n in sequences]


def by_the_list(messages: Sequence[Message], rule: NewestRule) -> list[int]:
    kept: list[int] = []
    for subject in {message.subject for message in messages}:
        of_subject = [message for message in messages if message.subject == subject][-rule.count :]
        if not (rule.compact and operation_of(of_subject[-1].headers) is not KeyOperation.PUT):
            kept += [message.sequence for message in of_subject]
    return sorted(kept)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "_LEAST_ROWS", 3)


@settings(deadline=None)
@given(streams(), rules, st.integers(1, 9), st.sampled_from([1, 60, 200, 1 << 20]), st.randoms(use_true_random=False))
def test_the_newest_of_each_subject(
    messages: list[Message], rule: NewestRule, step: int, most_bytes: int, random: object
) -> None:
    parts = [messages[at : at + step] for at in range(0, len(messages), step)]
    random.shuffle(parts)  # type: ignore[attr-defined]
    tables = [rows_of_subjects(batch_of(part), rule) for part in parts]
    reads = []

    def read() -> list[pa.Table]:
        reads.append(1)
        return [newest_rows(table, rule) if len(reads) % 2 else table for table in tables]

    assert find_newest(rule, read, most_bytes).array().to_pylist() == by_the_list(messages, rule)
    assert most_bytes < 1 << 20 or len(reads) == 1


def test_a_pass_holds_no_more_than_it_may() -> None:
    rule = NewestRule()
    finder = NewestFinder(rule, most_bytes=20_000)
    for at in range(100):
        batch = batch_of([Message(at * 100 + n, 1, f"subject.{at * 100 + n}", None, b"") for n in range(1, 101)])
        finder.add(rows_of_subjects(batch, rule))
    finder.sequences()
    assert finder.high is not None
    assert finder._found.nbytes <= 20_000
