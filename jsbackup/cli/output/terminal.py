"""Text for terminals: untrusted names made safe, columns, and colours for words that name a state.

A name may have any characters except blanks, dots and wildcards, so text output passes through `printable`; JSON keeps
names exact and writes such characters as escapes. Widths are columns of a terminal, where Chinese, Japanese and Korean
characters and most emoji take two and combining marks none.

Words mean the same without their colours. Nothing is coloured in a pipe or a file, if NO_COLOR is set
(https://no-color.org), or if TERM is `dumb` or not set.
"""

from __future__ import annotations

import json
from typing import Any, TextIO

import click

from jsbackup.cli.output.result import State
from jsbackup.config import environment
from jsbackup.readable import clip, display_width, printable

__all__ = ["bold", "clip", "display_width", "pad", "paint", "printable", "to_json", "wants_colour"]

_COLOURS = {
    **dict.fromkeys(("error", "failed", "refused", "lost", "problem", "cannot be read", "not copied"), "red"),
    **dict.fromkeys(("damaged", "DAMAGED", "BREACH", "NOT all restored and proved"), "red"),
    **dict.fromkeys(("warning", "partial", "missing", "skipped", "not verified"), "yellow"),
    **dict.fromkeys(("ok", "complete", "verified", "all is well", "all restored and proved"), "green"),
}


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


def wants_colour(stream: TextIO) -> bool:
    """Return whether output to the stream may have colours."""
    variables = environment()
    return stream.isatty() and not variables.get("NO_COLOR") and (variables.get("TERM") or "dumb") != "dumb"


def paint(text: str) -> str:
    """Return the text in its colour, if it is a state that has one."""
    colour = _COLOURS.get(text.partition(",")[0]) if isinstance(text, State) else None
    return text if colour is None else click.style(text, fg=colour)


def bold(text: str) -> str:
    """Return the text in bold, for headings."""
    return click.style(text, bold=True)
