"""Untrusted text for terminals: names come from servers and archives, and may contain escape sequences.

A name may have any characters except blanks, dots and wildcards, so text output passes through `printable`; JSON keeps
names exact and writes such characters as escapes. Widths are columns of a terminal, where Chinese, Japanese and Korean
characters and most emoji take two and combining marks none.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Any

__all__ = ["clip", "display_width", "pad", "printable", "to_json"]


def printable(text: str, encoding: str = "utf-8") -> str:
    """Return `text` with everything escaped that is not a visible character or that `encoding` cannot express.

    That is control characters, marks that change the direction of writing, and lone surrogates.
    """
    shown = text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def to_json(document: Any, *, indent: int | None = None, encoding: str = "utf-8") -> str:
    """Encode JSON that is safe on a terminal, and valid in any encoding: characters that are not printable are
    escaped.
    """
    text = json.dumps(document, indent=indent, ensure_ascii=encoding.lower().replace("-", "") != "utf8")
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def display_width(text: str) -> int:
    """Return how many columns `text` takes."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "FW" else 1


def clip(text: str, columns: int) -> str:
    """Return `text`, or as much of its start as fits, followed by an ellipsis."""
    if display_width(text) <= columns:
        return text
    kept, used = [], 0
    for character in text:
        used += _columns(character)
        if used > columns - 1:
            break
        kept.append(character)
    return "".join(kept) + "…"


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """Return `text` padded with spaces after it or (`right`) before it."""
    blanks = " " * max(0, columns - display_width(text))
    return blanks + text if right else text + blanks
