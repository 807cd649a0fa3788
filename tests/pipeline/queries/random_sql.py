"""Random queries in SQL that DuckDB and Spark understand alike, and what they find, in plain Python."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.pipeline.queries.random_backups import NO_ROW, Row
from tests.pipeline.queries.random_terms import SEQUENCE, STREAM, Term, Terms, Total

__all__ = ["Queries", "Query"]


@dataclass(frozen=True, slots=True)
class Query:
    """`sql` takes the quotes of names of an engine. Rows are in order if `is_ordered`."""

    sql: Callable[[str], str]
    rows: list[tuple[Any, ...]]
    is_ordered: bool = False


class Queries:
    """Draws queries of views, whose rows are given. `is_text`: the column `text` may be used."""

    def __init__(self, chance: random.Random, views: Mapping[str, Sequence[Row]], *, is_text: bool) -> None:
        self._chance = chance
        self._views = views
        self._draw = Terms(chance, [row for rows in views.values() for row in rows], is_text=is_text)

    def query(self) -> Query:
        kinds = [self._plain, self._plain, self._plain, self._total, self._grouped, self._grouped, self._distinct]
        kinds += [self._joined, self._numbered, self._counted, self._united]
        return self._chance.choice(kinds)()

    def _plain(self) -> Query:
        """Rows, perhaps in order, and only some of them."""
        source, rows, where = self._source()
        terms = self._draw.terms() + self._chance.choice([[], [], [], [_MAP], [_BLOCK]])
        head = f"SELECT {_listed(terms)} FROM "
        if self._chance.random() < 0.4:
            return Query(lambda q: head + source(q) + where(q), [_values(terms, row) for row in rows])
        orders, rows = [], list(rows)
        keys = [self._draw.term() for _ in range(self._chance.randrange(2))] + [STREAM, SEQUENCE]
        for key in reversed(keys):
            falls = self._chance.random() < 0.4
            rows.sort(key=lambda row, key=key: _sortable(key.value(row)), reverse=falls)  # type: ignore[misc]
            orders.insert(0, key.sql("") + (" DESC" if falls else self._chance.choice(["", " ASC"])))
        tail, skip, most = f" ORDER BY {', '.join(orders)}", 0, len(rows)
        if self._chance.random() < 0.7:
            most = self._chance.choice([0, 1, 5, 20])
            tail += f" LIMIT {most}"
            if self._chance.random() < 0.3:
                skip = self._chance.choice([0, 1, 7])
                tail += f" OFFSET {skip}"
        found = [_values(terms, row) for row in rows[skip : skip + most]]
        return Query(lambda q: head + source(q) + where(q) + tail, found, True)

    def _total(self) -> Query:
        source, rows, where = self._source()
        totals = self._draw.totals()
        head = f"SELECT {_listed_totals(totals)} FROM "
        return Query(lambda q: head + source(q) + where(q), [tuple(one.value(rows) for one in totals)])

    def _grouped(self) -> Query:
        source, rows, where = self._source()
        keys = [self._draw.key() for _ in range(self._chance.choice([1, 1, 2]))]
        totals, groups = self._draw.totals(), _groups(keys, rows)
        numbers = ", ".join(str(number + 1) for number in range(len(keys)))
        head = f"SELECT {_listed(keys)}, {_listed_totals(totals)} FROM "
        tail, least = f" GROUP BY {numbers}", 0
        if self._chance.random() < 0.3:
            least = self._chance.choice([1, 2, 5])
            tail += f" HAVING count(*) > {least}"
        found = [(*key, *(one.value(group) for one in totals)) for key, group in groups.items() if len(group) > least]
        is_ordered = self._chance.random() < 0.5
        if is_ordered:
            found.sort(key=lambda row: [_sortable(value) for value in row[: len(keys)]])
            tail += f" ORDER BY {numbers}"
            if self._chance.random() < 0.5:
                tail, found = f"{tail} LIMIT 3", found[:3]
        return Query(lambda q: head + source(q) + where(q) + tail, found, is_ordered)

    def _distinct(self) -> Query:
        source, rows, where = self._source()
        terms = [self._draw.key() for _ in range(self._chance.choice([1, 2]))]
        head = f"SELECT DISTINCT {_listed(terms)} FROM "
        return Query(lambda q: head + source(q) + where(q), list(_groups(terms, rows)))

    def _joined(self) -> Query:
        """Two views by subject; of an outer join the rows that have found none, too."""
        (left, these), (right, those) = self._view(), self._view()
        on, of, other = self._draw.condition(1), self._draw.terms(), self._draw.terms()
        how = self._chance.choice(["JOIN", "LEFT JOIN"])
        pairs = []
        for row in these:
            matches = [one for one in those if one.subject == row.subject and on.value(one)]
            pairs += [(row, one) for one in matches or ([NO_ROW] if how == "LEFT JOIN" else [])]
        columns = [*(one.sql("a.") for one in of), *(one.sql("b.") for one in other)]
        named = ", ".join(f"{column} AS c{number}" for number, column in enumerate(columns))
        found = [_values(of, a) + _values(other, b) for a, b in pairs]

        def sql(quote: str) -> str:
            tables = f"{left(quote)} AS a {how} {right(quote)} AS b"
            return f"SELECT {named} FROM {tables} ON a.subject = b.subject AND ({on.sql('b.')})"

        return Query(sql, found)

    def _numbered(self) -> Query:
        """A window over the rows of each group."""
        source, rows, where = self._source()
        key = self._draw.key()
        head = f"SELECT stream, sequence, row_number() OVER (PARTITION BY {key.sql('')} ORDER BY stream, sequence) AS n"
        found = [
            (row.stream, row.sequence, number)
            for group in _groups([key], rows).values()
            for number, row in enumerate(sorted(group, key=lambda row: (row.stream, row.sequence)), start=1)
        ]
        return Query(lambda q: f"{head} FROM {source(q)}{where(q)}", found)

    def _counted(self) -> Query:
        inner = self._chance.choice([self._plain, self._distinct, self._grouped])()
        return Query(lambda q: f"SELECT count(*) AS n FROM ({inner.sql(q)}) AS t", [(len(inner.rows),)])

    def _united(self) -> Query:
        terms = self._draw.terms()
        parts = [self._source() for _ in range(2)]
        found = [_values(terms, row) for _, rows, _ in parts for row in rows]
        is_set = self._chance.random() < 0.3
        found = list(dict.fromkeys(found)) if is_set else found

        def sql(quote: str) -> str:
            queries = [f"SELECT {_listed(terms)} FROM {source(quote)}{where(quote)}" for source, _, where in parts]
            return (" UNION " if is_set else " UNION ALL ").join(queries)

        return Query(sql, found)

    def _view(self) -> tuple[Callable[[str], str], Sequence[Row]]:
        name = self._chance.choice(list(self._views))
        if name in ("ORDERS", "EMPTY", "messages") and self._chance.random() < 0.7:
            written = self._chance.choice([name, name.lower(), name.title()])
            return lambda _quote: written, self._views[name]
        return lambda quote: quote + name.replace(quote, quote * 2) + quote, self._views[name]

    def _source(self) -> tuple[Callable[[str], str], list[Row], Callable[[str], str]]:
        """A view, the rows of it that a condition leaves, and that condition."""
        view, rows = self._view()
        if self._chance.random() < 0.15:
            return view, list(rows), lambda _quote: ""
        condition = self._draw.condition(self._chance.choice([0, 1, 1, 2, 3]))
        found = [row for row in rows if condition.value(row)]
        if self._chance.random() > 0.15:
            return view, found, lambda _quote: f" WHERE {condition.sql('')}"
        other, those = self._view()
        inner, word = self._draw.condition(1), self._chance.choice(["IN", "NOT IN"])
        subjects = {row.subject for row in those if inner.value(row)}
        found = [row for row in found if (row.subject in subjects) == (word == "IN")]

        def where(quote: str) -> str:
            asked = f"SELECT subject FROM {other(quote)} WHERE {inner.sql('')}"
            return f" WHERE ({condition.sql('')}) AND subject {word} ({asked})"

        return view, found, where


# Maps cannot be compared, as other columns can.
_MAP = Term(lambda a: f"{a}headers", lambda row: row.headers)
_BLOCK = Term(lambda a: f"{a}header_block", lambda row: row.header_block)


def _values(terms: Sequence[Term], row: Row) -> tuple[Any, ...]:
    return tuple(term.value(row) for term in terms)


def _groups(keys: Sequence[Term], rows: Sequence[Row]) -> dict[tuple[Any, ...], list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(_values(keys, row), []).append(row)
    return found


def _listed(terms: Sequence[Term]) -> str:
    return ", ".join(f"{term.sql('')} AS c{number}" for number, term in enumerate(terms))


def _listed_totals(totals: Sequence[Total]) -> str:
    return ", ".join(f"{total.sql} AS t{number}" for number, total in enumerate(totals))


def _sortable(value: Any) -> tuple[bool, Any]:
    """NULL comes first, and last in falling order."""
    return value is not None, 0 if value is None else value
