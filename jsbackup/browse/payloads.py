"""Payloads as people read them: JSON with line breaks, text, or bytes in hex. Large ones are cut, and this is said."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import takewhile, zip_longest
from typing import Literal

from jsbackup.readable import clip, printable

__all__ = [
    "MarkedLine",
    "ShownPayload",
    "hex_of",
    "marked",
    "payload_preview",
    "show_payload",
    "visible",
]

_MOST_BYTES = 64 << 10
_MOST_HEX = 4 << 10
_MOST_JSON = 256 << 10
_DEEPEST = 40
_MOST_LINES = 150
_WORD = re.compile(r"\w{1,24}|\W")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


@dataclass(frozen=True, slots=True)
class ShownPayload:
    """`text` is safe to show. `shown` of `size` bytes are in it; those of `binary` ones in hex."""

    kind: Literal["empty", "JSON", "text", "binary"]
    text: str
    size: int
    shown: int

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
    text = text.replace("\r\n", "\n")
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def payload_preview(data: bytes, size: int) -> str:
    """Return the start of a payload of `size` bytes for a table."""
    if not size:
        return ""
    text = _text(data, whole=len(data) == size)
    if text is None:
        return clip(data[:32].hex(" "), 90)
    return clip(printable(" ".join(text.split())), 120)


def show_payload(data: bytes) -> ShownPayload:
    size = len(data)
    if not size:
        return ShownPayload("empty", "", 0, 0)
    if size <= _MOST_JSON and data[:1024].lstrip()[:1] in (b"{", b"["):
        pretty = _pretty(data)
        if pretty is not None and len(pretty) <= 2 * _MOST_BYTES:
            return ShownPayload("JSON", visible(pretty), size, size)
    head = data[:_MOST_BYTES]
    text = _text(head, whole=len(head) == size)
    if text is None:
        head = data[:_MOST_HEX]
        return ShownPayload("binary", hex_of(head), size, len(head))
    return ShownPayload("text", visible(text), size, len(head))


def hex_of(data: bytes) -> str:
    """Return bytes as `hexdump -C` shows them."""
    rows = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        signs = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{at:08x}  {row.hex(' '):<47}  {signs}")
    return "\n".join(rows)


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
    old, new = left.split("\n"), right.split("\n")
    start, end = _common(old, new)
    ours, theirs = old[start : len(old) - end], new[start : len(new) - end]
    blocks = [("replace", 0, len(ours), 0, len(theirs))]
    # Comparing takes up to the third power of the number of lines, and what is compared is not trusted.
    if max(len(ours), len(theirs)) <= _MOST_LINES:
        blocks = list(SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes())
    pairs = [pair for _, a, b, c, d in blocks for pair in zip_longest(ours[a:b], theirs[c:d])]
    both = [*zip(old[:start], new, strict=False), *pairs, *((line, line) for line in old[len(old) - end :])]
    return (
        [_marked_line(line, other) for line, other in both if line is not None],
        [_marked_line(line, other) for other, line in both if line is not None],
    )


def _marked_line(line: str, other: str | None) -> MarkedLine:
    """Mark what is between the equal beginnings and ends of two lines, in whole words unless they are long."""
    if line == other:
        return MarkedLine(line, "", "", False)
    words, others = _WORD.findall(line), _WORD.findall(other or "")
    start, end = _common(words, others)
    rest = len(words) - end
    return MarkedLine("".join(words[:start]), "".join(words[start:rest]), "".join(words[rest:]), True)


def _common(old: list[str], new: list[str]) -> tuple[int, int]:
    """Return how many items two lists have in common at their beginnings, and of the others at their ends."""
    start = _equal(zip(old, new, strict=False))
    return start, _equal(zip(reversed(old[start:]), reversed(new[start:]), strict=False))


def _equal(pairs: Iterable[tuple[str, str]]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
