"""Findings about streams, one line each; those of many streams as one line with their number.

A text often contains the stream's name, in a subject or a command: texts are equal if they are without it. Of many
texts of one kind, such as refusals for one rule, the first is an example.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jsbackup.cli.output.colour import State
from jsbackup.cli.output.output import Output, failure_json, format_count
from jsbackup.errors import JsBackupError
from jsbackup.model import JsonObject
from jsbackup.readable import NAMED, alike, in_short, without_name

if TYPE_CHECKING:
    from jsbackup.repository.checks.verify import Problem

__all__ = ["Said", "broken_json", "said_lines", "tell_broken", "tell_each"]


@dataclass(frozen=True, slots=True)
class Said:
    """`word: name: text`, with a hint below it; the messages lost because of it; the rule of a refusal."""

    word: str
    name: str
    text: str
    hint: str = ""
    lost: Problem | None = None
    rule: str = ""

    def of_any(self) -> Said:
        """Return it without what is specific to this stream."""
        text = re.sub(r"\d+", "…", self.text.replace(self.lost.key, "…")) if self.lost and self.lost.key else self.text
        return Said(self.word, "", without_name(self.name, text), without_name(self.name, self.hint), rule=self.rule)


def tell_each(output: Output, said: Iterable[Said]) -> int:
    """Print the findings in order; return the number of lines without hints."""
    lines = list(said_lines(said))
    for line in lines:
        output.line(*line)
    return sum(not line[0].startswith("hint: ") for line in lines)


def said_lines(said: Iterable[Said]) -> Iterator[tuple[str, ...]]:
    """Return the findings in order as lines; one with a hint is followed by a line that begins with `hint: `."""
    listed = list(said)
    keys = [one.of_any() for one in listed]
    kinds = [(key.word, key.rule, key.hint) if key.rule else None for key in keys]
    groups = alike((at, listed[at].name, key, kinds[at]) for at, key in enumerate(keys))
    lines: list[list[int]] = []
    for group in groups:
        one_line = len({listed[at].name for at in group}) > NAMED or len({keys[at].text for at in group}) > 1
        lines += [group] if one_line else [[at] for at in group]
    for line in sorted(lines):
        first, *others = [listed[at] for at in line]
        yield from _group([first, *others]) if others else _lines(first, first.name, _lost_text(first.lost))


def _group(group: Sequence[Said]) -> Iterator[tuple[str, ...]]:
    names = list(dict.fromkeys(one.name for one in group))
    of = f"{format_count(len(names), 'stream')} ({in_short(names)})"
    first, key = group[0], group[0].of_any()
    if any(one.of_any().text != key.text for one in group):
        of = f"{of}: for example {first.name}" if len(names) > 1 else first.name
        more = f" (and {format_count(len(group) - 1, 'more reason')})" if len(names) == 1 else ""
        return _lines(Said(key.word, "", first.text, key.hint), of, more)
    lost = sum(one.lost.messages for one in group if one.lost)
    shown = first if all(one.text == first.text for one in group) else key
    of = f"each of {of}" if len(names) > 1 else of
    return _lines(shown, of, f" (lost: {format_count(lost, 'message')})" if lost else "")


def _lines(said: Said, of: str, more: str) -> Iterator[tuple[str, ...]]:
    word = ": " if said.word.strip() else ""
    yield State(said.word), f"{word}{of}{': ' if of else ''}{said.text}{more}"
    if said.hint:
        yield (f"hint: {said.hint}",)


def _lost_text(problem: Problem | None) -> str:
    """Return the number of lost messages, in brackets; "" if none are."""
    if problem is None or not problem.messages:
        return ""
    return f" (lost: {format_count(problem.messages, 'message')}, sequences {problem.first_seq} to {problem.last_seq})"


def broken_json(broken: Mapping[str, JsBackupError]) -> list[JsonObject]:
    """Return the streams that a command did without, because the lists of their segments cannot be read, or their
    tables not be extended.
    """
    return [failure_json(name, error) | ({"hint": error.hint} if error.hint else {}) for name, error in broken.items()]


def tell_broken(output: Output, broken: Mapping[str, JsBackupError]) -> None:
    tell_each(output, (Said("failed", name, error.message, error.hint or "") for name, error in broken.items()))
