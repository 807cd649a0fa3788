"""What a command says: a document for `--json`, and the same as lines and tables of text; `Output.show` prints it.

A command returns a `Result`, or its exit code if it printed its rows as they came, such as `view`. The functions that
make results know no output: reports in, blocks out.

Findings about streams have one line each; those of many streams are one line with their number. A text often contains
the stream's name, in a subject or a command: texts are equal if they are without it. Of many texts of one kind, such as
refusals for one rule, the first is an example.

Text for terminals: a name may have any characters except blanks, dots and wildcards, so text output passes through
`printable`; JSON keeps names exact and writes such characters as escapes. Widths are columns of a terminal, where
Chinese, Japanese and Korean characters and most emoji take two and combining marks none. Words mean the same without
their colours. Nothing is coloured in a pipe or a file, if NO_COLOR is set (https://no-color.org), or if TERM is `dumb`
or not set.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

import click

from jsbackup.config import environment, format_bytes, hide_logins
from jsbackup.errors import JsBackupError
from jsbackup.model import JsonObject
from jsbackup.readable import (
    NAMED,
    alike,
    display_width,
    format_count,
    format_seconds,
    in_short,
    time_to_second,
    without_name,
)

if TYPE_CHECKING:
    from jsbackup.repository.checks.verify import Problem

__all__ = [
    "Block",
    "Column",
    "Line",
    "PlainText",
    "Result",
    "Said",
    "State",
    "TextTable",
    "bold",
    "broken_json",
    "broken_lines",
    "error_json",
    "failure_json",
    "format_bytes",
    "format_count",
    "format_seconds",
    "pad",
    "paint",
    "said_lines",
    "table",
    "time_to_second",
    "to_json",
    "wants_colour",
]


class State(str):
    """One of our words for a state, perhaps followed by a comma and more text."""

    __slots__ = ()


Line = str | tuple[str, ...]
"""A line of text, or its parts; parts that are a `State` are coloured on a terminal."""


@dataclass(frozen=True, slots=True)
class TextTable:
    """Left-aligned columns; those whose heading starts with `>` are right-aligned. Cells may be a `State`."""

    header: Sequence[str]
    rows: Iterable[Sequence[str]]


@dataclass(frozen=True, slots=True)
class PlainText:
    """Lines of our own, printed unchanged, such as a script; `paged` through a pager on a terminal."""

    text: str
    paged: bool = False


Block = Line | TextTable | PlainText


@dataclass(frozen=True, slots=True)
class Result:
    """The document that `--json` prints, the blocks that are printed otherwise, and the exit code.

    `text` may be a generator: it runs once, if it is printed, after the command has ended; what it reads must be in
    memory. With `at_once` the command goes on, and its document is one line: who reads it cannot wait for the end.
    """

    document: JsonObject
    text: Iterable[Block] = ()
    code: int = 0
    at_once: bool = False


Column = str | tuple[str, Callable[[Any], str]]
"""A key of rows, and how its values are shown."""


def table(rows: Iterable[JsonObject], columns: Mapping[str, Column]) -> TextTable:
    """Return rows of a document as a table. `columns` has the key for each heading, and how its values are shown."""
    keys = [column if isinstance(column, tuple) else (column, str) for column in columns.values()]
    return TextTable(list(columns), [[show(row[key]) for key, show in keys] for row in rows])


def error_json(error: JsBackupError) -> JsonObject:
    """Return the document printed instead of a result."""
    hint = hide_logins(error.hint) if error.hint else None
    return {"error": {"code": error.exit_code, "message": hide_logins(error.message), "hint": hint, **error.facts}}


def failure_json(name: str, error: JsBackupError, key: str = "name") -> JsonObject:
    """Return something that failed, as all documents have it; `key` says what the name is of."""
    return {key: name, "code": error.exit_code, "reason": error.message}


def broken_json(broken: Mapping[str, JsBackupError]) -> list[JsonObject]:
    """Return the streams that a command did without, because the lists of their segments cannot be read, or their
    tables not be extended.
    """
    return [failure_json(name, error) | ({"hint": error.hint} if error.hint else {}) for name, error in broken.items()]


def broken_lines(broken: Mapping[str, JsBackupError]) -> Iterator[tuple[str, ...]]:
    """Return the same as lines, see `said_lines`."""
    return said_lines(Said("failed", name, error.message, error.hint or "") for name, error in broken.items())


# --- findings ---


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


def said_lines(said: Iterable[Said]) -> Iterator[tuple[str, ...]]:
    """Return the findings in order as lines; one with a hint is followed by a line that begins with `hint: `."""
    listed = list(said)
    keys = [finding.of_any() for finding in listed]
    kinds = [(key.word, key.rule, key.hint) if key.rule else None for key in keys]
    groups = alike((at, listed[at].name, key, kinds[at]) for at, key in enumerate(keys))
    lines: list[list[int]] = []
    for group in groups:
        together = len({listed[at].name for at in group}) > NAMED or len({keys[at].text for at in group}) > 1
        lines += [group] if together else [[at] for at in group]
    for line in sorted(lines):
        yield from _lines([listed[at] for at in line])


def _lines(group: Sequence[Said]) -> Iterator[tuple[str, ...]]:
    """Return the line of a finding, or of several that are alike, and the hint."""
    first, key = group[0], group[0].of_any()
    names = list(dict.fromkeys(said.name for said in group))
    lost = [said.lost for said in group if said.lost and said.lost.messages]
    text, hint, more = first.text, first.hint, ""
    of = f"{format_count(len(names), 'stream')} ({in_short(names)})" if len(names) > 1 else first.name
    if any(said.of_any().text != key.text for said in group):
        hint = key.hint
        if len(names) > 1:
            of = f"{of}: for example {first.name}"
        else:
            more = f" (and {format_count(len(group) - 1, 'more reason')})"
    elif len(group) > 1:
        of = f"each of {of}" if len(names) > 1 else of
        if any(said.text != first.text for said in group):
            text, hint = key.text, key.hint
        more = f" (lost: {format_count(sum(problem.messages for problem in lost), 'message')})" if lost else ""
    elif lost:
        more = (
            f" (lost: {format_count(lost[0].messages, 'message')}, sequences {lost[0].first_seq} to {lost[0].last_seq})"
        )
    begin = (": " if first.word.strip() else "") + (f"{of}: " if of else "")
    yield State(first.word), f"{begin}{text}{more}"
    if hint:
        yield (f"hint: {hint}",)


# --- text for terminals ---

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
