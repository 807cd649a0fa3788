"""Colour on a terminal, for words that say how something stands. They say the same without it.

Nothing is coloured in a pipe or a file, where NO_COLOR is set (https://no-color.org), or where TERM is `dumb` or not
set.
"""

from __future__ import annotations

from typing import TextIO

import click

from jsbackup.config import environment

__all__ = ["State", "bold", "paint", "wants_colour"]

_RED = {"error", "failed", "refused", "lost", "problem", "cannot be read", "not copied", "DAMAGED", "BREACH"}
_YELLOW = {"warning", "partial", "missing", "skipped", "not verified"}
_GREEN = {"ok", "complete", "verified", "all is well", "all restored and proved"}
_COLOURS = {
    **dict.fromkeys(_RED | {"NOT all restored and proved"}, "red"),
    **dict.fromkeys(_YELLOW, "yellow"),
    **dict.fromkeys(_GREEN, "green"),
}


class State(str):
    """A word of our own that says how something stands, and more behind a comma."""

    __slots__ = ()


def wants_colour(stream: TextIO) -> bool:
    """Whether what is written there may have colours."""
    variables = environment()
    return stream.isatty() and not variables.get("NO_COLOR") and (variables.get("TERM") or "dumb") != "dumb"


def paint(text: str) -> str:
    """In its colour, if it is a state that has one."""
    colour = _COLOURS.get(text.partition(",")[0]) if isinstance(text, State) else None
    return text if colour is None else click.style(text, fg=colour)


def bold(text: str) -> str:
    """As headings are."""
    return click.style(text, bold=True)
