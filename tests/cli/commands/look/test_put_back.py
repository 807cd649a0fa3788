"""`--sequence` of put-back: a sequence or a range, and a sentence for anything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.cli.commands.look.put_back import parse_range
from jsbackup.errors import UsageError


@given(st.integers(1, (1 << 63) - 1), st.integers(0, 1000))
def test_ranges_are_what_was_typed(first: int, more: int) -> None:
    last = min(first + more, (1 << 63) - 1)
    assert parse_range(str(first)) == (first, first)
    assert parse_range(f"{first}-{last}") == (first, last)


@given(st.text(max_size=12))
def test_anything_else_is_refused_with_a_sentence(text: str) -> None:
    try:
        first, last = parse_range(text)
    except UsageError as error:
        assert error.message.startswith("--sequence: not a sequence")
    else:
        assert 0 < first <= last and text.strip() in (str(first), f"{first}-{last}", text.strip())


@pytest.mark.parametrize("text", ["0", "-1", "1-", "-", "2-1", "1-2-3", "9" * 19, "9223372036854775808", "١"])
def test_ranges_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        parse_range(text)
