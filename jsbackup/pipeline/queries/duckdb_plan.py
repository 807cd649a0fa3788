"""What a query needs of stored messages, by DuckDB's plan of it: columns, and ranges of sequences and times.

DuckDB filters again, so the ranges need not be complete: a condition that is not understood here leaves all. A range is
taken only from a condition directly above a scan, whose names are those of stored columns, and only if all of it is
understood; of a conjunction each part counts alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from jsbackup.repository.pages.segment_list import Part
from jsbackup.repository.refs import PageRef

if TYPE_CHECKING:
    import duckdb

__all__ = ["TIME", "Needs", "needs_of"]

TIME: Final = "make_timestamptz(timestamp_ns // 1000 - (timestamp_ns % 1000 < 0)::BIGINT)"
"""The column `time`, of a stored one. `_AS_PLANNED` is how DuckDB writes it."""

_AS_PLANNED: Final = (
    "make_timestamptz(((timestamp_ns // 1000) - CAST(((timestamp_ns % 1000) < 0) AS BIGINT)))"  # DuckDB 1.4 to 2.0
)
_SCANS: Final = frozenset(("ARROW_SCAN", "PYTHON_ARROW_SCAN"))
_COLUMNS: Final = ("sequence", "timestamp_ns", "subject", "headers", "data")
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_NUMBER: Final = r"(-?\d{1,19})"
_COMPARED: Final = re.compile(rf"\((sequence|timestamp_ns) (=|<|<=|>|>=) {_NUMBER}\)")
_BETWEEN: Final = re.compile(rf"\((sequence|timestamp_ns) BETWEEN {_NUMBER} AND {_NUMBER}\)")
_ONE_OF: Final = re.compile(rf"\(\((sequence|timestamp_ns) = {_NUMBER}\)(?: OR \(\1 = {_NUMBER}\))+\)")
_MOMENT: Final = r"'(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?)\+00'::TIMESTAMP WITH TIME ZONE"
_TIMED: Final = re.compile(rf"\({re.escape(_AS_PLANNED)} (=|<|<=|>|>=) {_MOMENT}\)")
_TIME_BETWEEN: Final = re.compile(rf"\({re.escape(_AS_PLANNED)} BETWEEN {_MOMENT} AND {_MOMENT}\)")


@dataclass(frozen=True, slots=True)
class Needs:
    """Stored columns, and ranges that include both ends; outside of them are no messages that the query needs."""

    columns: frozenset[str]
    sequence: tuple[int, int] = (_LEAST, _MOST)
    timestamp_ns: tuple[int, int] = (_LEAST, _MOST)

    def wants_part(self, part: Part) -> bool | None:
        """Return what `parts_where` gets, to yield segments."""
        wanted = _meet(self.sequence, part.first_seq, part.last_seq) and _meet(
            self.timestamp_ns, part.min_ns, part.max_ns
        )
        return None if wanted and isinstance(part, PageRef) else wanted


def needs_of(connection: duckdb.DuckDBPyConnection, sql: str) -> Needs:
    """Return what all scans of a query need together. `sql` is one plain query; nothing is read.

    Raises errors of DuckDB.
    """
    ((_, text),) = connection.execute(f"EXPLAIN (FORMAT json) {sql}").fetchall()
    scans = [_of_scan(*found) for root in json.loads(text) for found in _scans(root, [])]
    if not scans:  # nothing is read; or a release of DuckDB has another name for it
        return Needs(frozenset(_COLUMNS))
    return Needs(
        frozenset().union(*(scan.columns for scan in scans)),
        _hull([scan.sequence for scan in scans]),
        _hull([scan.timestamp_ns for scan in scans]),
    )


def _scans(node: dict[str, Any], conditions: list[str]) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield the scans of a plan, each with the conditions directly above it."""
    if node["name"].strip() in _SCANS:
        yield node, conditions
        return
    above = [*conditions, *_texts(node, "Expression")] if node["name"].strip() == "FILTER" else []
    for below in node["children"]:
        yield from _scans(below, above)


def _of_scan(scan: dict[str, Any], conditions: list[str]) -> Needs:
    ranges = {"sequence": (_LEAST, _MOST), "timestamp_ns": (_LEAST, _MOST)}
    for condition in conditions:
        for term in _terms(condition):
            column, low, high = _range(term)
            if column:
                least, most = ranges[column]
                ranges[column] = (max(least, low), min(most, high))
    columns = frozenset(_texts(scan, "Projections")) or frozenset(_COLUMNS)
    return Needs(columns, ranges["sequence"], ranges["timestamp_ns"])


def _texts(node: dict[str, Any], name: str) -> list[str]:
    found = node["extra_info"].get(name, [])
    return [found] if isinstance(found, str) else [str(one) for one in found]


def _terms(condition: str) -> list[str]:
    """Return the parts of a conjunction; the condition itself if it is none, or one that is not understood."""
    if _range(condition)[0] or not (condition.startswith("(") and condition.endswith(")")):
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


def _range(term: str) -> tuple[str, int, int]:
    """Return a column and its range; "" if the condition is not understood."""
    if found := _COMPARED.fullmatch(term):
        value = int(found[3])
        return (found[1], *_compared(found[2], value, value))
    if found := _BETWEEN.fullmatch(term):
        return found[1], int(found[2]), int(found[3])
    if found := _ONE_OF.fullmatch(term):
        values = [int(text) for text in re.findall(rf"= {_NUMBER}\)", term)]
        return found[1], min(values), max(values)
    if found := _TIMED.fullmatch(term):
        first = _nanoseconds(found[2])
        return ("timestamp_ns", *_compared(found[1], first, first + 999))
    if found := _TIME_BETWEEN.fullmatch(term):
        return "timestamp_ns", _nanoseconds(found[1]), _nanoseconds(found[2]) + 999
    return "", 0, 0


def _compared(how: str, low: int, high: int) -> tuple[int, int]:
    """Return the range of what compares so with a value that is anything from `low` to `high`."""
    match how:
        case "=":
            return low, high
        case "<":
            return _LEAST, low - 1
        case "<=":
            return _LEAST, high
        case ">":
            return high + 1, _MOST
    return low, _MOST


def _nanoseconds(text: str) -> int:
    """Return a time, rounded down to microseconds as the column is, as nanoseconds."""
    return (datetime.fromisoformat(text).replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1) * 1000


def _hull(ranges: list[tuple[int, int]]) -> tuple[int, int]:
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _meet(wanted: tuple[int, int], low: int, high: int) -> bool:
    return max(wanted[0], low) <= min(wanted[1], high)
