"""Payloads as people read them: JSON with line breaks, text, or bytes in hex. Large ones are cut, and this is said."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum
from itertools import islice, takewhile

from jsbackup.readable import clip, printable

__all__ = [
    "MarkedLine",
    "PayloadKind",
    "ShownPayload",
    "hex_of",
    "marked",
    "narrow_hex_of",
    "payload_preview",
    "show_payload",
    "visible",
]

_MOST_BYTES = 64 << 10
_MOST_HEX = 4 << 10
_MOST_JSON = 256 << 10
_DEEPEST = 40
_MOST_LINES = 150
_LONGEST_WORD = 24
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


class PayloadKind(StrEnum):
    EMPTY = "empty"
    JSON = "JSON"
    TEXT = "text"
    BINARY = "binary"


@dataclass(frozen=True, slots=True)
class ShownPayload:
    """`text` is safe to show. `shown` of `size` bytes are in it. `narrow` has bytes in hex for narrow windows."""

    kind: PayloadKind
    text: str
    size: int
    shown: int
    narrow: str = ""

    @property
    def cut(self) -> bool:
        return self.shown < self.size


@dataclass(frozen=True, slots=True)
class MarkedLine:
    """A line of one of two texts, in three pieces of which the `middle` may be
    `different`."""

    before: str
    middle: str
    after: str
    different: bool


def visible(text: str) -> str:
    """Return text with its line breaks and tabs; all else that is not visible is escaped."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in lines)


def payload_preview(data: bytes, size: int) -> str:
    """Return the start of a payload of `size` bytes for a table."""
    if not size:
        return ""
    text = _text(data, whole=len(data) == size)
    if text is None:
        return clip(" ".join(f"{byte:02x}" for byte in data[:32]), 90)
    return clip(printable(" ".join(text.split())), 120)


def show_payload(data: bytes) -> ShownPayload:
    size = len(data)
    if not size:
        return ShownPayload(PayloadKind.EMPTY, "", 0, 0)
    if size <= _MOST_JSON and data[:1024].lstrip()[:1] in (b"{", b"["):
        pretty = _pretty(data)
        if pretty is not None and len(pretty) <= 2 * _MOST_BYTES:
            return ShownPayload(PayloadKind.JSON, visible(pretty), size, size)
    head = data[:_MOST_BYTES]
    text = _text(head, whole=len(head) == size)
    if text is None:
        head = data[:_MOST_HEX]
        return ShownPayload(PayloadKind.BINARY, hex_of(head), size, len(head), narrow_hex_of(head))
    return ShownPayload(PayloadKind.TEXT, visible(text), size, len(head))


def hex_of(data: bytes) -> str:
    """Return bytes as `hexdump -C` shows them."""
    return "\n".join(f"{at:08x}  {pairs:<47}  {signs}" for at, pairs, signs in _hex_rows(data, 16))


def narrow_hex_of(data: bytes) -> str:
    """Return bytes in rows of half the width; of at most 64 KiB."""
    return "\n".join(f"{at:04x} {pairs:<23} {signs}" for at, pairs, signs in _hex_rows(data, 8))


def _hex_rows(data: bytes, width: int) -> Iterator[tuple[int, str, str]]:
    for at in range(0, len(data), width):
        row = data[at : at + width]
        signs = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield at, " ".join(f"{byte:02x}" for byte in row), signs


def _text(data: bytes, *, whole: bool) -> str | None:
    """Return the bytes as text, None if they are not. A character that is cut at the end is left out."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if whole or error.end < len(data) or error.start < len(data) - 3:
            return None
        text = data[: error.start].decode()
    odd = sum(c < " " and c not in "\n\r\t" for c in text)
    return text if odd * 5 <= len(text) else None


def _pretty(data: bytes) -> str | None:
    """Return JSON with line breaks, None if it is not JSON. Numbers and texts stay as they are written.

    So it is not read by `strict_json`, which refuses numbers and texts that a payload may well have.
    """
    try:
        text = data.decode()
        json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    parts: list[str] = []
    depth = 0
    tokens = _TOKEN.findall(text)
    for at, token in enumerate(tokens):
        if token in "}]":
            depth -= 1
            if tokens[at - 1] not in "{[":
                parts.append(_line(depth))
            parts.append(token)
        else:
            if at and (tokens[at - 1] in "{[,"):
                parts.append(_line(depth))
            parts.append(": " if token == ":" else token)
            depth += token in "{["
    return "".join(parts)


def _line(depth: int) -> str:
    return "\n" + "  " * min(depth, _DEEPEST)


def marked(left: str, right: str) -> tuple[list[MarkedLine], list[MarkedLine]]:
    """Return the lines of two texts with what is different marked."""
    one, two = left.split("\n"), right.split("\n")
    start = 0
    while start < min(len(one), len(two)) and one[start] == two[start]:
        start += 1
    end = 0
    while end < min(len(one), len(two)) - start and one[-1 - end] == two[-1 - end]:
        end += 1
    ours, theirs = _marked(one[start : len(one) - end], two[start : len(two) - end])
    head, tail = ([MarkedLine(line, "", "", False) for line in some] for some in (one[:start], one[len(one) - end :]))
    return [*head, *ours, *tail], [*head, *theirs, *tail]


def _marked(one: list[str], two: list[str]) -> tuple[list[MarkedLine], list[MarkedLine]]:
    ours: list[MarkedLine] = []
    theirs: list[MarkedLine] = []
    # Comparing takes up to the third power of the number of lines, and what is compared is not trusted.
    few = max(len(one), len(two)) <= _MOST_LINES
    whole = [("replace", 0, len(one), 0, len(two))]
    for kind, a, b, c, d in SequenceMatcher(None, one, two, autojunk=False).get_opcodes() if few else whole:
        if kind == "equal":
            ours += [MarkedLine(line, "", "", False) for line in one[a:b]]
            theirs += [MarkedLine(line, "", "", False) for line in two[c:d]]
            continue
        both = min(b - a, d - c)
        for old, new in zip(one[a : a + both], two[c : c + both], strict=True):
            first, second = _pieces(old, new)
            ours.append(first)
            theirs.append(second)
        ours += [MarkedLine("", line, "", True) for line in one[a + both : b]]
        theirs += [MarkedLine("", line, "", True) for line in two[c + both : d]]
    return ours, theirs


def _pieces(old: str, new: str) -> tuple[MarkedLine, MarkedLine]:
    """Mark what is between the equal beginnings and ends of two lines, in whole words unless they are long."""
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    if any(_is_word(line[start : start + 1]) for line in (old, new)):
        start -= _word_length(reversed(old[:start]))
    if any(_is_word(line[len(line) - end - 1 : len(line) - end]) for line in (old, new)):
        end -= _word_length(iter(old[len(old) - end :]))
    first, second = (
        MarkedLine(line[:start], line[start : len(line) - end], line[len(line) - end :], True) for line in (old, new)
    )
    return first, second


def _is_word(text: str) -> bool:
    return text.isalnum() or text == "_"


def _word_length(text: Iterator[str]) -> int:
    """Return how many characters of a word a text begins with; 0 if it is longer than is read at a glance."""
    found = sum(1 for _ in takewhile(_is_word, islice(text, _LONGEST_WORD + 1)))
    return found if found <= _LONGEST_WORD else 0
