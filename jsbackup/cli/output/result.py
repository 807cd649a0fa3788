"""What a command says: a document for `--json`, and the same as lines and tables of text; `Output.show` prints it.

A command returns a `Result`, or its exit code if it printed its rows as they came (`printing.py`). The functions that
make results know no output: reports in, blocks out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jsbackup.model import JsonObject

__all__ = ["Block", "Line", "Result", "Table", "Verbatim", "table"]


Line = str | tuple[str, ...]
"""A line of text, or its parts; parts that are a `State` are coloured on a terminal."""


@dataclass(frozen=True, slots=True)
class Table:
    """Left-aligned columns; those whose heading starts with `>` are right-aligned. Cells may be a `State`."""

    header: Sequence[str]
    rows: Iterable[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Lines of our own, printed unchanged, such as a script; `paged` through a pager on a terminal."""

    text: str
    paged: bool = False


Block = Line | Table | Verbatim


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


def table(rows: Iterable[JsonObject], columns: Mapping[str, str | tuple[str, Callable[[Any], str]]]) -> Table:
    """Return rows of a document as a table. `columns` has the key for each heading, and how its values are shown."""
    keys = [column if isinstance(column, tuple) else (column, str) for column in columns.values()]
    return Table(list(columns), [[show(row[key]) for key, show in keys] for row in rows])
