"""Counts, durations, times, names, equal texts and untrusted text as people read them, on terminals and pages."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Hashable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

__all__ = [
    "NAMED",
    "alike",
    "clip",
    "column_width",
    "count_are",
    "count_were",
    "display_width",
    "format_count",
    "format_seconds",
    "format_width",
    "in_sentences",
    "in_short",
    "of_streams",
    "one_line",
    "printable",
    "span",
    "time_to_second",
    "without_name",
]

NAMED = 4
"""Number of names in a shared line, and of texts of one kind before they share a line."""

_Item = TypeVar("_Item")


def in_short(names: Sequence[str], *, most: int = NAMED) -> str:
    """Return the first names, at `most` so many, and the number of the others."""
    more = f" and {format_count(len(names) - most)} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def of_streams(names: Sequence[str], text: str, *, example: bool = False) -> str:
    """Return `stream A: text`, `each of the streams A, B: text`, or `each of 9 streams (A, B, C, D and 5 more): text`:
    texts are about one stream. An `example` is not what is true of each.
    """
    if len(names) < 2:
        return f"stream {names[0]}: {text}" if names else text
    if len(names) > NAMED:
        return f"{'' if example else 'each of '}{format_count(len(names), 'stream')} ({in_short(names)}): {text}"
    return f"{'' if example else 'each of the '}streams {', '.join(names)}: {text}"


def in_sentences(reasons: Iterable[tuple[str, str]]) -> list[str]:
    """Return sentences of `of_streams` for names with their texts, which are equal if they are without the name."""
    groups = alike(((name, text), name, without_name(name, text), None) for name, text in reasons)
    sentences = []
    for group in groups:
        (name, text), names = group[0], [name for name, _ in group if name]
        same = all(other == text for _, other in group)
        sentences.append(of_streams(names, text if same else without_name(name, text)))
    return sentences


def without_name(name: str, text: str) -> str:
    """Return `text` without the stream's name."""
    return re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "<stream>", text) if name and name in text else text


def alike(items: Iterable[tuple[_Item, str, Hashable, Hashable]]) -> list[list[_Item]]:
    """Group items, each given with its name, its text and its kind; None: of no kind.

    Items of equal text are together. Of one kind, texts that at most `NAMED` items share are together if they are more
    than `NAMED`: all of them if they have more names than that, else those after the first `NAMED`. Groups are in the
    order of their first items.
    """
    texts: dict[Hashable, list[_Item]] = {}
    kinds: dict[Hashable, Hashable] = {}
    names: dict[Hashable, set[str]] = {}
    for item, name, text, kind in items:
        texts.setdefault(text, []).append(item)
        kinds[text] = kind
        names.setdefault(text, set()).add(name)
    rare: dict[Hashable, list[Hashable]] = {}
    for text, group in texts.items():
        if kinds[text] is not None and len(group) <= NAMED:
            rare.setdefault(kinds[text], []).append(text)
    for several in rare.values():
        if len(several) > NAMED:
            few = len(set().union(*(names[text] for text in several))) <= NAMED
            first, *others = several[NAMED:] if few else several
            texts[first] = [*texts[first], *(item for other in others for item in texts.pop(other))]
    return list(texts.values())


def format_count(count: int, noun: str = "") -> str:
    """Format `1,234`, or with a noun `1 stream`, `1,234 streams`."""
    return f"{count:,}" + (f" {noun}{'' if count == 1 else 's'}" if noun else "")


def count_are(count: int, noun: str) -> str:
    """Format `1 message is`, `1,234 messages are`."""
    return f"{format_count(count, noun)} {'is' if count == 1 else 'are'}"


def count_were(count: int, noun: str) -> str:
    """Format `1 message was`, `1,234 messages were`."""
    return f"{format_count(count, noun)} {'was' if count == 1 else 'were'}"


def format_seconds(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def time_to_second(ns: int) -> str:
    """Format a time as RFC 3339 to the second, UTC; `-` for none."""
    if not ns:
        return "-"
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_width(seconds: int) -> str:
    """Format the width of a bucket of time: `30 s`, `5 min`, `7 d`."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def printable(text: str, encoding: str = "utf-8") -> str:
    """Return `text` with everything escaped that is not a visible character or that `encoding` cannot express.

    That is control characters, marks that change the direction of writing, and lone surrogates.
    """
    shown = text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def display_width(text: str) -> int:
    """Return how many columns `text` takes."""
    if text.isascii():
        return len(text)
    return sum(map(column_width, text))


def column_width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "FW" else 1


def clip(text: str, columns: int) -> str:
    """Return `text`, or as much of its start as fits, followed by an ellipsis."""
    if display_width(text) <= columns:
        return text
    kept, used = [], 0
    for character in text:
        used += column_width(character)
        if used > columns - 1:
            break
        kept.append(character)
    return "".join(kept) + "…"


def span(seconds: float) -> str:
    """Format a duration: `36 h`, `3 d 4 h`, `90 s`."""
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h" + (f" {minutes} min" if minutes else "")
    days, hours = divmod(hours, 24)
    return f"{days} d" + (f" {hours} h" if hours else "")


def one_line(text: str, limit: int = 300) -> str:
    """Return `text` without control characters and line breaks, trimmed to `limit` characters: safe to print
    and log.
    """
    clean = "".join(char if char.isprintable() else " " for char in text[: 4 * limit])
    clean = " ".join(clean.split())
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"
