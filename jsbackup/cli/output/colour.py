"""Colour on a terminal, for words that name a state. They mean the same without it.

Nothing is coloured in a pipe or a file, if NO_COLOR is set (https://no-color.org), or if TERM is `dumb` or not set.
"""

from __future__ import annotations

from typing import TextIO

import click

from jsbackup.config import environment

__all__ = ["State", "bold", "paint", "wants_colour"]

_RED = {"error", "failed", "refused", "lost", "problem", "cannot be read", "not copied", "damaged", "DAMAGED", "BREACH"}
_YELLOW = {"warning", "partial", "missing", "skipped", "not verified"}
_GREEN = {"ok", "complete", "verified", "all is well", "all restored and proved"}
_COLOURS = {
    **dict.fromkeys(_RED | {"NOT all restored and proved"}, "red"),
    **dict.fromkeys(_YELLOW, "yellow"),
    **dict.fromkeys(_GREEN, "green"),
}


class State(str):
    """One of our words for a state, perhaps followed by a comma and more text."""

    __slots__ = ()


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
