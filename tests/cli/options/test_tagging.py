"""Tags, origins and the end of a lock are parsed from what was typed, or refused with a sentence."""

from __future__ import annotations

import pytest

from jsbackup.cli.parsing.typed_values import parse_lock_end, parse_origin, parse_tag_rule, parse_tags
from jsbackup.errors import UsageError
from jsbackup.repository.keep.retention import TagRule


def test_tags_are_names_with_values() -> None:
    assert parse_tags(("a=b", "c=", "d=e=f", "a=z")) == {"a": "z", "c": "", "d": "e=f"}
    for text in ("a", "=b", ""):
        with pytest.raises(UsageError, match="not a tag"):
            parse_tags((text,))


def test_a_rule_may_leave_the_value_open() -> None:
    assert parse_tag_rule("env") == TagRule("env", None)
    assert parse_tag_rule("env=prod") == TagRule("env", "prod")
    assert parse_tag_rule("env=") == TagRule("env", "")
    with pytest.raises(UsageError):
        parse_tag_rule("=prod")


def test_a_lock_ends_at_a_time_or_after_a_duration() -> None:
    assert parse_lock_end("2027-01-01T00:00:00Z") == (1798761600.0, None)
    assert parse_lock_end("90d") == (None, 90 * 86400.0)
    with pytest.raises(UsageError):
        parse_lock_end("tomorrow-ish")


def test_an_origin_is_a_name_or_a_pattern() -> None:
    assert parse_origin("shop-*").matches("shop-eu")
    for text in ("", "\t", "a\x00b"):
        with pytest.raises(UsageError):
            parse_origin(text)
