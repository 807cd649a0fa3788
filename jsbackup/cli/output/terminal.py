"""Untrusted text for terminals: names come from servers and archives, and may contain escape sequences.

A name may have any characters except blanks, dots and wildcards, so text output passes through `printable`; JSON keeps
names exact and writes such characters as escapes. Widths are columns of a terminal, where Chinese, Japanese and Korean
characters and most emoji take two and combining marks none.
"""

from __future__ import annotations

import json
from typing import Any

from jsbackup.readable import clip, display_width, printable

__all__ = ["clip", "display_width", "pad", "printable", "to_json"]


def to_json(document: Any, *, indent: int | None = None, encoding: str = "utf-8") -> str:
    """Encode JSON that is safe on a terminal, and valid in any encoding: characters that are not printable are
    escaped.
    """
    text = json.dumps(document, indent=indent, ensure_ascii=encoding.lower().replace("-", "") != "utf8")
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """Return `text` padded with spaces after it or (`right`) before it."""
    blanks = " " * max(0, columns - display_width(text))
    return blanks + text if right else text + blanks
