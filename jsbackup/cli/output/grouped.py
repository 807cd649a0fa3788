"""Print findings about streams, one line each; equal ones of many streams as one line with their number.

A text often contains the stream's name, in a subject or a command: texts are equal if they are without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jsbackup.cli.output.colour import State
from jsbackup.cli.output.output import Output, format_count
from jsbackup.errors import JsBackupError
from jsbackup.model import JsonObject

if TYPE_CHECKING:
    from jsbackup.repository.checks.verify import Problem

__all__ = ["NAMED", "Said", "broken_json", "in_short", "tell_broken", "tell_each", "without"]

NAMED = 4  # number of streams named in a shared line


@dataclass(frozen=True, slots=True)
class Said:
    """`word: name: text`, with a hint below it; and the messages lost because of it."""

    word: str
    name: str
    text: str
    hint: str = ""
    lost: Problem | None = None

    def of_any(self) -> Said:
        """Return it without what is specific to this stream."""
        text = re.sub(r"\d+", "…", self.text.replace(self.lost.key, "…")) if self.lost and self.lost.key else self.text
        return Said(self.word, "", without(self.name, text), without(self.name, self.hint))


def without(name: str, text: str) -> str:
    """Return `text` without the stream's name."""
    return re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "<stream>", text) if name and name in text else text


def in_short(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    more = f" and {format_count(len(names) - NAMED)} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def tell_each(output: Output, said: Iterable[Said]) -> int:
    """Print the findings in order; return the number of lines without hints."""
    groups: dict[Said, list[Said]] = {}
    keyed = [(one, one.of_any()) for one in said]
    for one, key in keyed:
        groups.setdefault(key, []).append(one)
    names = {key: list(dict.fromkeys(one.name for one in group)) for key, group in groups.items()}
    lines = 0
    for one, key in keyed:
        if len(names[key]) <= NAMED:
            _print(output, one, one.name, _lost_text(one.lost))
        elif one is groups[key][0]:
            _print_group(output, key, groups[key], names[key])
        else:
            continue
        lines += 1
    return lines


def _print_group(output: Output, key: Said, group: Sequence[Said], names: Sequence[str]) -> None:
    lost = sum(one.lost.messages for one in group if one.lost)
    shown = group[0] if all(one.text == group[0].text for one in group) else key
    _print(
        output,
        shown,
        f"{format_count(len(names))} streams ({in_short(names)})",
        f" (lost: {format_count(lost, 'message')})" if lost else "",
    )


def _print(output: Output, said: Said, of: str, more: str) -> None:
    word = ": " if said.word.strip() else ""
    output.line(State(said.word), f"{word}{of}{': ' if of else ''}{said.text}{more}")
    if said.hint:
        output.line(f"hint: {said.hint}")


def _lost_text(problem: Problem | None) -> str:
    """Return the number of lost messages, in brackets; "" if none are."""
    if problem is None or not problem.messages:
        return ""
    return f" (lost: {format_count(problem.messages, 'message')}, sequences {problem.first_seq} to {problem.last_seq})"


def broken_json(broken: Mapping[str, JsBackupError]) -> list[JsonObject]:
    """Return the streams that a command did without, because the lists of their segments cannot be read."""
    return [{"name": name, "code": e.exit_code, "reason": e.message} for name, e in broken.items()]


def tell_broken(output: Output, broken: Mapping[str, JsBackupError]) -> None:
    tell_each(output, (Said("failed", name, error.message, error.hint or "") for name, error in broken.items()))
