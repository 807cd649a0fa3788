"""Random expressions in SQL that DuckDB and Spark understand alike, and what they are, in plain Python.

What the engines understand differently is left out: the manual says what that is (`test_dialects.py`). Python computes
with None as SQL does with NULL.
"""

from __future__ import annotations

import operator
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

from tests.pipeline.queries.random_backups import EPOCH, HEADERS, Row

__all__ = ["SEQUENCE", "STREAM", "Term", "Terms", "Total"]

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_INT64 = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Term:
    """An expression: its text, by the prefix of columns (`a.`), and its value."""

    sql: Callable[[str], str]
    value: Callable[[Row], Any]


@dataclass(frozen=True, slots=True)
class Total:
    """An aggregate: its text, and its value of rows."""

    sql: str
    value: Callable[[Sequence[Row]], Any]


class Terms:
    """Draws expressions of messages. `some` are messages: constants are mostly theirs, so that conditions find some.
    `is_text`: the column `text` may be used.
    """

    def __init__(self, chance: random.Random, some: Sequence[Row], *, is_text: bool) -> None:
        self._chance = chance
        self._some = some
        self._is_text = is_text

    def terms(self) -> list[Term]:
        return [self.term() for _ in range(self._chance.choice([1, 2, 3]))]

    def term(self) -> Term:
        kinds = [self._number, self._number, self._string, self._string, self._moment, self._flag, self._quotient]
        return self._chance.choice([*kinds, lambda: Term(lambda a: f"{a}data", lambda row: row.data)])()

    def key(self) -> Term:
        """What rows are grouped by."""
        return self._chance.choice([self._string, self._string, self._string, self._number, self._moment, self._flag])()

    def _number(self) -> Term:
        some = self._chance.choice([2, 3, 7, 1000])
        return self._chance.choice(
            [
                SEQUENCE,
                _TIMESTAMP,
                *_SMALL,
                Term(lambda a: f"{a}timestamp_ns % {some}", lambda row: _apply(_remainder, row.timestamp_ns, some)),
                Term(lambda a: f"{a}sequence % {some}", lambda row: _apply(_remainder, row.sequence, some)),
                Term(lambda a: f"-{a}sequence", lambda row: _apply(operator.neg, row.sequence)),
                Term(lambda a: f"{a}sequence * {some} + 1", lambda row: _apply(lambda s: s * some + 1, row.sequence)),
                Term(lambda a: f"year({a}time)", lambda row: _apply(lambda t: t.year, row.time)),
                Term(lambda a: f"hour({a}time)", lambda row: _apply(lambda t: t.hour, row.time)),
            ]
        )

    def _quotient(self) -> Term:
        some = self._chance.choice([2, 7, 1000])
        return Term(lambda a: f"{a}sequence / {some}", lambda row: _apply(lambda s: float(s) / some, row.sequence))

    def _string(self) -> Term:
        name, part = self._chance.choice(HEADERS), self._chance.choice([1, 2, 3])
        header = f"headers[{_literal(name)}]"
        field = self._chance.choice(["n", "s"])
        found = [
            STREAM,
            _SUBJECT,
            Term(lambda a: f"{a}{header}", lambda row: _apply(lambda h: h.get(name), row.headers)),
            Term(
                lambda a: f"coalesce({a}{header}, {a}subject)",
                lambda row: row.subject if row.headers is None else row.headers.get(name, row.subject),
            ),
            Term(
                lambda a: f"split_part({a}subject, '.', {part})",
                lambda row: _apply(lambda s: [*s.split("."), "", ""][part - 1], row.subject),
            ),
            Term(lambda a: f"left({a}subject, {part})", lambda row: _apply(lambda s: s[:part], row.subject)),
            Term(
                lambda a: f"{a}stream || '/' || {a}{header}",
                lambda row: _apply(lambda s, h: f"{s}/{h}", row.stream, (row.headers or {}).get(name)),
            ),
            Term(lambda a: f"hex({a}data)", lambda row: _apply(lambda d: d.hex().upper(), row.data)),
        ]
        if self._is_text:
            found += [
                Term(lambda a: f"{a}text", lambda row: row.text),
                Term(lambda a: f"get_json_object({a}text, '$.{field}')", lambda row: row.json_field(field)),
            ]
        return self._chance.choice(found)

    def _moment(self) -> Term:
        unit = self._chance.choice(["hour", "day", "month"])
        return self._chance.choice(
            [
                _TIME,
                Term(lambda a: f"date_trunc('{unit}', {a}time)", lambda row: _apply(lambda t: _cut(t, unit), row.time)),
                Term(lambda a: f"CAST(CAST({a}time AS DATE) AS STRING)", lambda row: _apply(_day, row.time)),
            ]
        )

    def _flag(self) -> Term:
        return self.condition(1)

    # --- conditions ---

    def condition(self, depth: int) -> Term:
        if depth and self._chance.random() < 0.7:
            return self._combined(depth - 1)
        kinds = [self._compared, self._compared, self._within, self._timed, self._alike, self._is_null, self._one_of]
        return self._chance.choice(kinds)()

    def _combined(self, depth: int) -> Term:
        first = self.condition(depth)
        if self._chance.random() < 0.25:
            return Term(lambda a: f"NOT ({first.sql(a)})", lambda row: _apply(operator.not_, first.value(row)))
        second, word = self.condition(depth), self._chance.choice(["AND", "AND", "OR"])
        decides = word == "OR"  # a value of one side that decides alone, whatever the other is

        def value(row: Row) -> bool | None:
            both = (first.value(row), second.value(row))
            if decides in both:
                return decides
            return None if None in both else not decides

        return Term(lambda a: f"({first.sql(a)}) {word} ({second.sql(a)})", value)

    def _compared(self) -> Term:
        """An expression with one of its values, or with one beside it."""
        op = self._chance.choice(list(_COMPARE))
        kind = self._chance.choice([self._number, self._string, lambda: SEQUENCE, lambda: _SUBJECT])
        term = kind()
        constant = self._constant(term)
        return Term(
            lambda a: f"{term.sql(a)} {op} {_literal(constant)}",
            lambda row: _apply(_COMPARE[op], term.value(row), constant),
        )

    def _within(self) -> Term:
        term = self._chance.choice([SEQUENCE, _TIMESTAMP, *_SMALL])
        low, high = sorted((self._constant(term), self._constant(term)))
        return Term(
            lambda a: f"{term.sql(a)} BETWEEN {low} AND {high}",
            lambda row: _apply(lambda value: low <= value <= high, term.value(row)),
        )

    def _timed(self) -> Term:
        op, near = self._chance.choice(list(_COMPARE)), self._chance.choice([0, 0, 1, -1, 10**6])
        micros = (self._chance.choice(self._some).timestamp_ns or 0) // 1000 + near
        moment = EPOCH + timedelta(microseconds=max(min(micros, _INT64 // 1000), -_INT64 // 1000))
        text = moment.replace(tzinfo=None).isoformat(" ")
        return Term(lambda a: f"{a}time {op} TIMESTAMP '{text}'", lambda row: _apply(_COMPARE[op], row.time, moment))

    def _alike(self) -> Term:
        text = str(self._constant(_SUBJECT))
        at = self._chance.randrange(len(text) + 1)
        pattern = self._chance.choice(
            ["%", "", text, f"{text[:at]}%", f"%{text[at:]}", f"%{text[at : at + 2]}%", f"{text[:at]}_{text[at + 1 :]}"]
        )
        word = self._chance.choice(["LIKE", "LIKE", "NOT LIKE"])
        wild = {"%": ".*", "_": "."}
        form = re.compile("".join(wild.get(one, re.escape(one)) for one in pattern), re.DOTALL)
        return Term(
            lambda a: f"{a}subject {word} {_literal(pattern)}",
            lambda row: _apply(lambda s: (form.fullmatch(s) is not None) == (word == "LIKE"), row.subject),
        )

    def _is_null(self) -> Term:
        term, word = self.term(), self._chance.choice(["IS NULL", "IS NOT NULL"])
        return Term(lambda a: f"({term.sql(a)}) {word}", lambda row: (term.value(row) is None) == (word == "IS NULL"))

    def _one_of(self) -> Term:
        term = self._chance.choice([self._number, self._string, lambda: _SUBJECT, lambda: STREAM])()
        constants = [self._constant(term) for _ in range(self._chance.choice([1, 2, 4]))]
        word = self._chance.choice(["IN", "NOT IN"])
        listed = ", ".join(map(_literal, constants))
        return Term(
            lambda a: f"{term.sql(a)} {word} ({listed})",
            lambda row: _apply(lambda value: (value in constants) == (word == "IN"), term.value(row)),
        )

    def _constant(self, term: Term) -> Any:
        """A value of an expression, or one beside it, that all engines write alike: without backslashes."""
        value = term.value(self._chance.choice(self._some))
        if isinstance(value, int):
            return value + self._chance.choice([0, 0, 1, -1]) if self._chance.random() < 0.9 else 3 * _INT64
        return value if value is not None and not set("\\\0") & set(value) else "a.1"

    # --- aggregates ---

    def totals(self) -> list[Total]:
        return [self._aggregate() for _ in range(self._chance.choice([1, 2, 3]))]

    def _aggregate(self) -> Total:
        total = self._chance.choice([_ROWS, self._count, self._extreme, self._extreme, self._sum])
        found = total if isinstance(total, Total) else total()
        if self._chance.random() > 0.2:
            return found
        only = self.condition(1)
        return Total(
            f"{found.sql} FILTER (WHERE {only.sql('')})",
            lambda rows: found.value([row for row in rows if only.value(row)]),
        )

    def _count(self) -> Total:
        term, is_set = self.term(), self._chance.random() < 0.6
        counted = set if is_set else list
        return Total(
            f"count({'DISTINCT ' if is_set else ''}{term.sql('')})",
            lambda rows: len(counted(_there(term, rows))),
        )

    def _extreme(self) -> Total:
        word, choose = self._chance.choice([("min", min), ("max", max)])
        term = self._chance.choice([self._number, self._string, self._moment])()
        return Total(f"{word}({term.sql('')})", lambda rows: choose(_there(term, rows), default=None))

    def _sum(self) -> Total:
        """Sums that fit: those of `timestamp_ns` do as decimals only."""
        term = self._chance.choice([SEQUENCE, *_SMALL])
        if self._chance.random() < 0.3:
            return Total(
                "sum(CAST(timestamp_ns AS DECIMAL(38, 0)))",
                lambda rows: Decimal(sum(_there(_TIMESTAMP, rows))) if rows else None,
            )
        if term is not SEQUENCE and self._chance.random() < 0.3:
            return Total(f"avg({term.sql('')})", lambda rows: sum(_there(term, rows)) / len(rows) if rows else None)
        return Total(f"sum({term.sql('')})", lambda rows: sum(_there(term, rows)) if rows else None)


STREAM = Term(lambda a: f"{a}stream", lambda row: row.stream)
SEQUENCE = Term(lambda a: f"{a}sequence", lambda row: row.sequence)
_TIMESTAMP = Term(lambda a: f"{a}timestamp_ns", lambda row: row.timestamp_ns)
_SUBJECT = Term(lambda a: f"{a}subject", lambda row: row.subject)
_TIME = Term(lambda a: f"{a}time", lambda row: row.time)
_SMALL = (
    Term(lambda a: f"octet_length({a}data)", lambda row: _apply(len, row.data)),
    Term(lambda a: f"length({a}subject)", lambda row: _apply(len, row.subject)),
)
_ROWS = Total("count(*)", len)


def _apply(function: Callable[..., Any], *values: Any) -> Any:
    """None if a value is None."""
    return None if None in values else function(*values)


def _there(term: Term, rows: Sequence[Row]) -> list[Any]:
    return [value for row in rows if (value := term.value(row)) is not None]


def _literal(value: int | str) -> str:
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def _remainder(value: int, by: int) -> int:
    """With the sign of the value."""
    return abs(value) % by * (-1 if value < 0 else 1)


def _cut(moment: Any, unit: str) -> Any:
    start = moment.replace(minute=0, second=0, microsecond=0)
    if unit == "hour":
        return start
    return start.replace(hour=0) if unit == "day" else start.replace(hour=0, day=1)


def _day(moment: Any) -> str:
    return str(moment.date())
