"""What is said of streams, a line for each; where the same is said of many, one line that says of how many.

What is said often names the stream itself, in a subject or a command: it is the same if it is so without that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jsbackup.cli.output.colour import State
from jsbackup.cli.output.output import Output, format_count

if TYPE_CHECKING:
    from jsbackup.repository.checks.verify import Problem

__all__ = ["NAMED", "Said", "in_short", "tell_each", "without"]

NAMED = 4  # streams of those of which the same is said


@dataclass(frozen=True, slots=True)
class Said:
    """`word: name: text`, with a hint below it; and what is lost with it."""

    word: str
    name: str
    text: str
    hint: str = ""
    lost: Problem | None = None

    def of_any(self) -> Said:
        """The same without what only this stream has."""
        text = re.sub(r"\d+", "…", self.text.replace(self.lost.key, "…")) if self.lost and self.lost.key else self.text
        return Said(self.word, "", without(self.name, text), without(self.name, self.hint))


def without(name: str, text: str) -> str:
    """`text` as it is for any stream."""
    return re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "<stream>", text) if name and name in text else text


def in_short(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {format_count(len(names) - NAMED)} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def tell_each(output: Output, said: Iterable[Said]) -> int:
    """Print it in its order; how many lines that is, without the hints."""
    groups: dict[Said, list[Said]] = {}
    keyed = [(one, one.of_any()) for one in said]
    for one, key in keyed:
        groups.setdefault(key, []).append(one)
    names = {key: list(dict.fromkeys(one.name for one in group)) for key, group in groups.items()}
    lines = 0
    for one, key in keyed:
        if len(names[key]) <= NAMED:
            _tell(output, one, one.name, _lost_text(one.lost))
        elif one is groups[key][0]:
            _tell_group(output, key, groups[key], names[key])
        else:
            continue
        lines += 1
    return lines


def _tell_group(output: Output, key: Said, group: Sequence[Said], names: Sequence[str]) -> None:
    lost = sum(one.lost.messages for one in group if one.lost)
    told = group[0] if all(one.text == group[0].text for one in group) else key
    _tell(
        output,
        told,
        f"{format_count(len(names))} streams ({in_short(names)})",
        f" (lost: {format_count(lost, 'message')})" if lost else "",
    )


def _tell(output: Output, said: Said, of: str, more: str) -> None:
    word = ": " if said.word.strip() else ""
    output.line(State(said.word), f"{word}{of}{': ' if of else ''}{said.text}{more}")
    if said.hint:
        output.line(f"hint: {said.hint}")


def _lost_text(problem: Problem | None) -> str:
    """The messages that are lost, in brackets; nothing if none are."""
    if problem is None or not problem.messages:
        return ""
    return f" (lost: {format_count(problem.messages, 'message')}, sequences {problem.first_seq} to {problem.last_seq})"
