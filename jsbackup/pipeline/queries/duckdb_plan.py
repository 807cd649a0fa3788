"""What a query needs of stored messages, by DuckDB's plan of it: columns, and ranges of sequences and times.

DuckDB filters again, so the ranges need not be complete: a condition that is not understood here leaves all. A range is
taken only from a condition directly above a scan, whose names are those of stored columns; of a conjunction each part
counts alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from jsbackup.pipeline.messages.bounds import ALL, LEAST, MOST, Bounds

if TYPE_CHECKING:
    import duckdb

__all__ = ["Needs", "needs_of"]

_SCANS: Final = frozenset(("ARROW_SCAN", "PYTHON_ARROW_SCAN"))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_VALUE: Final = r"(?:(-?\d{1,19})|'(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?)\+00'::TIMESTAMP WITH TIME ZONE)"
_COMPARED: Final = re.compile(rf"\((sequence|timestamp_ns|time) (=|<|<=|>|>=) {_VALUE}\)")
_BETWEEN: Final = re.compile(rf"\((sequence|timestamp_ns|time) BETWEEN {_VALUE} AND {_VALUE}\)")


@dataclass(frozen=True, slots=True)
class Needs:
    """The columns of a source that are needed, all if it is None, and bounds of the messages."""

    columns: frozenset[str] | None = None
    bounds: Bounds = ALL


def needs_of(connection: duckdb.DuckDBPyConnection, sql: str) -> Needs:
    """Return what all scans of a query need together. `sql` is one SELECT; nothing is read. Raises errors of DuckDB."""
    ((_, text),) = connection.execute(f"EXPLAIN (FORMAT json) {sql}").fetchall()
    scans = [scan for root in json.loads(text) for scan in _scans(root, [])]
    if not scans or not all(columns for columns, _ in scans):
        return Needs()
    bounds = [bound for _, bound in scans]
    return Needs(
        frozenset().union(*(columns for columns, _ in scans)),
        Bounds(
            (min(bound.sequence[0] for bound in bounds), max(bound.sequence[1] for bound in bounds)),
            (min(bound.timestamp_ns[0] for bound in bounds), max(bound.timestamp_ns[1] for bound in bounds)),
        ),
    )


def _scans(node: dict[str, Any], conditions: list[str]) -> Iterator[tuple[frozenset[str], Bounds]]:
    """Yield the columns and bounds of each scan of a plan; `conditions` are those directly above."""
    name = node["name"].strip()
    if name in _SCANS:
        yield frozenset(_texts(node, "Projections")), _bounds(conditions)
        return
    above = [*conditions, *_texts(node, "Expression")] if name == "FILTER" else []
    for below in node["children"]:
        yield from _scans(below, above)


def _texts(node: dict[str, Any], name: str) -> list[str]:
    info = node["extra_info"].get(name, [])
    return [info] if isinstance(info, str) else [str(text) for text in info]


def _bounds(conditions: list[str]) -> Bounds:
    ranges = {"sequence": (LEAST, MOST), "timestamp_ns": (LEAST, MOST)}
    for term in (term for condition in conditions for term in _terms(condition)):
        if match := _COMPARED.fullmatch(term):
            column, how, low, high = match[1], match[2], *_span(match[3], match[4])
            low, high = {"=": (low, high), "<": (LEAST, low - 1), "<=": (LEAST, high), ">": (high + 1, MOST)}.get(
                how, (low, MOST)
            )
        elif match := _BETWEEN.fullmatch(term):
            column, low, high = match[1], _span(match[2], match[3])[0], _span(match[4], match[5])[1]
        else:
            continue
        column = "timestamp_ns" if column == "time" else column
        least, most = ranges[column]
        ranges[column] = (max(least, low), min(most, high))
    return Bounds(ranges["sequence"], ranges["timestamp_ns"])


def _terms(condition: str) -> list[str]:
    """Return the parts of a conjunction; the condition itself if it is none, or one that is not understood."""
    if _BETWEEN.fullmatch(condition) or not (condition.startswith("(") and condition.endswith(")")):
        return [condition]
    terms, start, depth, quote = [], 1, 0, ""
    for at, character in enumerate(condition[1:-1], start=1):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth < 0:
                return [condition]
        elif not depth and condition.startswith(" AND ", at):
            terms.append(condition[start:at])
            start = at + len(" AND ")
    return [*terms, condition[start:-1]] if terms and not depth and not quote else [condition]


def _span(number: str | None, moment: str | None) -> tuple[int, int]:
    """Return a number, or the nanoseconds within the microsecond of a moment."""
    if number is not None:
        return int(number), int(number)
    assert moment is not None, "one of them matches"
    first = (datetime.fromisoformat(moment).replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1) * 1000
    return first, first + 999
