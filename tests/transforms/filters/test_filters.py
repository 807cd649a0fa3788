from __future__ import annotations

from collections import Counter
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import UsageError
from jsbackup.transforms.filters.filters import Filters
from tests.harness.servers import EXPLORE
from tests.transforms.filters.judging import filters, is_wanted
from tests.transforms.messages import Message, batch_of, literals

block = st.none() | st.sampled_from(
    [b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nX-User: eve\r\n\r\n", b"NATS/1.0\r\nx-user: b\r\nno: 1\r\n\r\n"]
)
payload = st.sampled_from([b"", b'{"m":1}', b"xyz", b"X\xff", b"1}"])


@settings(deadline=None, max_examples=300 if EXPLORE else 50)
@given(filters(), st.lists(st.tuples(literals, block, payload), max_size=12))
def test_rows_are_those_that_the_rule_keeps(wanted: Filters, rows: list[tuple[str, bytes | None, bytes]]) -> None:
    messages = [Message(n, n, subject, headers, data) for n, (subject, headers, data) in enumerate(rows, start=1)]
    kept = wanted.rows(batch_of(messages))
    expected = [is_wanted(message, wanted) for message in messages]
    assert ([True] * len(messages) if kept is None else kept.to_pylist()) == expected
    assert bool(wanted) == bool(wanted.words)
    assert kept is None or wanted


@settings(deadline=None)
@given(filters())
def test_what_was_typed_brings_back_every_filter(wanted: Filters) -> None:
    typed = {field.name: [str(rule) for rule in getattr(wanted, field.name)] for field in fields(wanted)}
    assert Filters.parse(typed) == wanted
    assert len(wanted.words) == sum(map(len, typed.values()))


def test_each_condition_counts_what_meets_it_among_those_that_come_to_it() -> None:
    x, y = (b"NATS/1.0\r\n%s: 1\r\n\r\n" % name for name in (b"X", b"Y"))
    messages = [
        Message(1, 1, "a", x, b"1"),
        Message(2, 2, "a", y, b"12"),
        Message(3, 3, "b", x, b"1"),
        Message(4, 4, "a", None, b"1"),
    ]
    wanted = Filters.parse({"subject": ["a"], "header": ["x", "y", "z"], "payload_match": ["2", "1", "3"]})
    matched: Counter[str] = Counter()
    wanted.rows(batch_of(messages), matched)
    wanted.rows(batch_of(messages[:1]), matched)
    assert matched == {
        "--header x": 2,
        "--header y": 1,
        "--header z": 0,
        "--header": 4,
        "--payload-match": 3,
        "--payload-match 2": 1,
        "--payload-match 1": 3,
        "--payload-match 3": 0,
    }


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("exclude_subject", "a..b", "--exclude-subject: not a subject"),
        ("header", "a b", "--header: not a header"),
        ("payload_match", "a(", "--payload-match: not a regular expression: 'a(': missing )"),
        ("payload_match", "\\C", "--payload-match: \\C is not supported"),
    ],
)
def test_an_error_names_its_option(name: str, text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        Filters.parse({name: [text]})
    assert said in caught.value.message
