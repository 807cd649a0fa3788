"""What payloads look like: nothing is lost or invented, and nothing that is not visible stays so."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.browse.payloads import MarkedLine, hex_of, marked, payload_preview, show_payload, visible
from jsbackup.browse.render import browse_environment
from jsbackup.shell import shell_word

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.by_turns
@pytest.mark.slow
@given(st.lists(VALUES) | st.dictionaries(st.text(), VALUES), st.booleans())
def test_pretty_json_is_the_same_json(document: object, ascii_only: bool) -> None:
    data = json.dumps(document, ensure_ascii=ascii_only).encode("utf-8", "replace")
    shown = show_payload(data)
    assert shown.kind == "JSON" and not shown.cut
    if ascii_only:
        assert json.loads(shown.text) == json.loads(data)


def test_numbers_and_repeated_names_stay_as_written() -> None:
    text = '{"a":1.10,"a":1e5,"big":123456789012345678901234567890,"":{},"l":[],"n":[[1]]}'
    shown = show_payload(text.encode()).text
    assert "".join(shown.split()) == text
    assert shown.split("\n")[1:4] == ['  "a": 1.10,', '  "a": 1e5,', '  "big": 123456789012345678901234567890,']


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b"{" * 5, b'{"a":NaN', b"[1,]", b"[" + b"1," * 120_000 + b"1]", b'{"a":"' + b"\\" * 99_999]
)
def test_what_looks_like_json_is_shown_quickly(data: bytes) -> None:
    begin = time.monotonic()
    shown = show_payload(data)
    assert shown.kind == "text" and len(shown.text) <= 65536 and time.monotonic() - begin < 10


def test_bytes_are_shown_in_hex() -> None:
    shown = show_payload(bytes(range(256)) * 100)
    assert (shown.kind, shown.size, shown.shown) == ("binary", 25_600, 4096)
    assert shown.text.split("\n")[2].startswith("00000020  20 21 22") and len(shown.text.split("\n")) == 256
    assert hex_of(b"A\n") == "00000000  41 0a" + " " * 44 + "A."


@given(st.binary(max_size=300))
def test_nothing_invisible_is_left(data: bytes) -> None:
    for text in (show_payload(data).text, payload_preview(data[:256], len(data))):
        assert all(c.isprintable() or c in "\n\t" for c in text)


def test_text_that_is_cut_ends_with_a_character() -> None:
    shown = show_payload("ä".encode() * 40_000)
    assert shown.kind == "text" and shown.cut and shown.text == "ä" * 32768
    assert show_payload(b"x" + "€".encode() * 40_000).text == "x" + "€" * 21_845
    assert payload_preview("€".encode()[:2], 3) == "" and payload_preview(b"\xff\xfe", 2) == "ff fe"
    assert visible("a\r\nb\tc\x1b\u202e") == "a\nb\tc\\x1b\\u202e"


@given(st.lists(st.sampled_from("abc"), max_size=30), st.lists(st.sampled_from("abc"), max_size=30))
def test_marked_lines_are_the_texts(one: list[str], two: list[str]) -> None:
    left, right = "\n".join(one), "\n".join(two)
    for text, lines in zip((left, right), marked(left, right), strict=True):
        assert "\n".join(line.before + line.middle + line.after for line in lines) == text
        if left == right:
            assert not any(line.different for line in lines)


def test_what_differs_in_a_line_is_marked_and_long_texts_take_no_time() -> None:
    left, right = marked('a\n"n": 12,\nz', 'a\n"n": 17,\nz')
    assert left[1] == MarkedLine('"n": ', "12", ",", True) and right[1].middle == "17"
    begin = time.monotonic()
    marked("\n".join("ab"[n % 2] for n in range(30_000)), "\n".join("ba"[n % 3 == 0] for n in range(30_000)))
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize(
    ("old", "new", "marks"),
    [
        ('"on": true,', '"on": false,', ("true", "false")),
        ('"limit": 17', '"limit": 175', ("17", "175")),
        ("orders.eu.1", "orders.eu.2", ("1", "2")),
        ("some_thing", "some_things", ("some_thing", "some_things")),
        ("a word", "a long word", ("", "long ")),
        ("größe 5", "große 5", ("größe", "große")),
        ("x" * 96 + "1" + "x" * 100, "x" * 96 + "2" + "x" * 100, ("1" + "x" * 23, "2" + "x" * 23)),
        ("same", "same", ("", "")),
        ("", "new", ("", "new")),
    ],
)
def test_whole_words_are_marked(old: str, new: str, marks: tuple[str, str]) -> None:
    for one, other, expected in ((old, new, marks), (new, old, marks[::-1])):
        [left], [right] = marked(one, other)
        assert (left.middle, right.middle) == expected
        assert left.before + left.middle + left.after == one and right.before + right.middle + right.after == other


@pytest.mark.parametrize("word", ["plain", "a b", "it's", "$HOME", "tab\there", "\x1b[31m", "\u202e", "a\\b\n'"])
def test_words_of_a_command_line_are_visible_and_mean_the_same(word: str) -> None:
    import subprocess

    written = shell_word(word)
    assert written.isprintable()
    done = subprocess.run(["bash", "-c", f"printf %s {written}"], capture_output=True, check=True)
    assert done.stdout == word.encode()


def test_configurations_have_no_logins_and_an_end() -> None:
    written = browse_environment().filters["config"]
    shown = written({"origin": "nats://eve:secret@host:4222", "m": "<b>\u202e"})
    assert "secret" not in shown and "host:4222" in shown and "&lt;b&gt;\\u202e" in shown
    long = written({"sources": ["x" * 1000] * 1000})
    assert len(long) < 300_000 and "cut here" in long
