"""Conditions judged by hand, message by message; and how hypothesis makes some."""

from __future__ import annotations

import re

from hypothesis import strategies as st

from jsbackup.transforms.filters.filters import Filters
from tests.transforms.filters.test_header_rule import has
from tests.transforms.messages import Message, patterns
from tests.transforms.test_subjects import by_the_rule

some_patterns = st.lists(patterns(), max_size=2)
some_headers = st.lists(st.sampled_from(["X-User", "x-user:b", "X-User:eve", "Nats-Schedule-Target", "no"]), max_size=2)
# In these Python's expressions mean the same as those of RE2.
some_expressions = st.lists(st.sampled_from(['"m"', "^$", "(?i)X", "[0-9]+}$", "nothing", ""]), max_size=2)


def filters(
    subjects: st.SearchStrategy[list[str]] = some_patterns,
    headers: st.SearchStrategy[list[str]] = some_headers,
    expressions: st.SearchStrategy[list[str]] = some_expressions,
) -> st.SearchStrategy[Filters]:
    names = {
        "subject": subjects,
        "exclude_subject": subjects,
        "header": headers,
        "payload_match": expressions,
    }
    return st.fixed_dictionaries({}, optional=names).map(Filters.parse)


def _finds(expression: str, text: str) -> bool:
    """As Go and RE2: `$` is the end, where Python's may also be before a last line break."""
    return re.search(expression.replace("$", r"\Z"), text) is not None


def is_wanted(message: Message, wanted: Filters) -> bool:
    text = message.data.decode("utf-8", "replace")
    kinds = (
        (wanted.subject, wanted.exclude_subject, lambda rule: by_the_rule(rule, message.subject)),
        (wanted.header, (), lambda rule: has(message.headers, rule)),
        (wanted.payload_match, (), lambda rule: _finds(str(rule), text)),
    )
    return all(
        (not keeping or any(map(meets, keeping))) and not any(map(meets, excluding))
        for keeping, excluding, meets in kinds
    )
