"""What may be a token or a subject is what the server permits, no less and no more."""

from __future__ import annotations

import pytest

from jsbackup.errors import UsageError
from jsbackup.names import check_name, check_subject, has_blank, is_name, is_new_name, is_subject


@pytest.mark.parametrize("name", ["A", "ORDERS-1_x", "$KV", "ÖRDERS", "注文", "a/b", "\x7f\x01", "a\u00a0b", "x" * 255])
def test_names_the_server_permits(name: str) -> None:
    assert is_name(name)
    assert check_name("stream", name) == name


@pytest.mark.parametrize(
    "name", ["", "a b", "a\tb", "a\r\nb", "a\fb", "a.b", "*", "a*", ">", "x" * 256, "é" * 128, "\ud800"]
)
def test_names_that_would_break_a_subject(name: str) -> None:
    assert not is_name(name)
    with pytest.raises(UsageError, match="not a stream name"):
        check_name("stream", name)


@pytest.mark.parametrize("subject", ["a", "a.b.c", "$JS.API.INFO", "_INBOX.x.1", "ü.注", "a*.b>c"])
def test_literal_subjects(subject: str) -> None:
    assert is_subject(subject)
    assert check_subject("deliver subject", subject) == subject


@pytest.mark.parametrize("subject", ["", ".", "a.", ".a", "a..b", "a.*", "a.>", ">", "a b", "a\r\nPUB b 0", "x" * 4097])
def test_what_cannot_be_published_to(subject: str) -> None:
    assert not is_subject(subject)
    with pytest.raises(UsageError, match="not a deliver subject"):
        check_subject("deliver subject", subject)


def test_what_can_be_made_is_less_than_what_can_be_listed() -> None:
    assert all(is_new_name(name) for name in ("A", "a\u00a0b", "\u2028", "\x0b\x1c\x85"))
    assert not any(is_new_name(name) for name in ("", "a b", "a/b", "a\\b", "a\0b", "a.b"))
    assert is_name("a/b") and is_name("a\0b")


def test_blank_is_what_the_server_takes_for_white_space() -> None:
    every = (chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
    assert [one for one in every if has_blank(one)] == ["\0", "\t", "\n", "\f", "\r", " "]
