"""Expressions against Python's, on text as Go reads it. `tests/exchange/test_edited_alike.py` has Go itself."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import UsageError
from jsbackup.transforms.filters.filters import PayloadRule, as_text
from tests.harness.servers import EXPLORE

# They mean the same in Python and in RE2, where \Z is written \z.
ALIKE = [
    *(
        "a",
        "",
        ".",
        "^.$",
        "^..$",
        "(?s)^.$",
        "(?m)^a$",
        r"\Aa",
        r"a\Z",
        "[^a]",
        "[é-ü]",
        "(?i)É",
        "(?i)k",
        "�",
        "[�x]",
    ),
    *("a{2,3}", "(a|é)+b", r"\x00", "a.b", "(?s)a.b", r"\ba\b", "(?i:A)b", "€?", "^(?:[^,]*,){2}x"),
]
pieces = st.sampled_from(
    [b"a", b"b", b"\n", b"x", b",", b"\x00", "é".encode(), "€".encode(), b"\xff", b"\xe2\x82", b"k"]
)
payloads = st.lists(pieces, max_size=6).map(b"".join)


def as_go_reads(data: bytes) -> str:
    """Decode as Go's `utf8.DecodeRune` does: a byte of no character is U+FFFD by itself."""
    out, at = "", 0
    while at < len(data):
        for size in (1, 2, 3, 4):
            try:
                out += data[at : at + size].decode()
            except UnicodeDecodeError:
                continue
            at += size
            break
        else:
            out, at = out + "\ufffd", at + 1
    return out


@settings(deadline=None, max_examples=500 if EXPLORE else 50)
@given(st.sampled_from(ALIKE), st.lists(payloads, max_size=8))
def test_a_match_is_one_of_the_text_that_go_reads(expression: str, data: list[bytes]) -> None:
    # Python has `$` before a last line break too, and letters that are not ASCII at the sides of \b.
    theirs = re.compile(re.sub(r"(?<!m\)\^a)\$$", r"\\Z", expression), re.ASCII if "\\b" in expression else 0)
    rule = PayloadRule.parse("--payload-match", expression.replace("\\Z", "\\z"))
    found = rule.rows(as_text(pa.array(data, pa.binary()))).to_pylist()
    assert found == [theirs.search(as_go_reads(one)) is not None for one in data]


def test_text_takes_time_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    """An expression that takes a backtracking engine the age of the universe."""
    rule = PayloadRule.parse("--payload-match", "^(a+)+$")
    assert rule.rows(pa.array(["a" * 100_000 + "!"])).to_pylist() == [False]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a(", "missing )"),
        ("*", "no argument for repetition operator"),
        ("(?=a)", "invalid perl operator"),
        (r"(a)\1", "invalid escape sequence"),
        ("\udcff", "it is not UTF-8"),
    ],
)
def test_what_is_no_expression_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        PayloadRule.parse("--payload-match", text)
    assert caught.value.message.startswith(f"--payload-match: not a regular expression: {text!r}: {reason}")


@pytest.mark.parametrize(("text", "refused"), [(r"\C", True), (r"a\\\C", True), (r"\\C", False), (r"\Q\C\E", False)])
def test_single_bytes_are_refused(text: str, refused: bool) -> None:
    if refused:
        with pytest.raises(UsageError, match="is not supported"):
            PayloadRule.parse("--payload-match", text)
    else:
        PayloadRule.parse("--payload-match", text)
