"""What the manual says about DuckDB and Spark: its expressions differ so, and those of its last column do not."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jsbackup.cli.commands.spark.query import _json_value, _shown
from jsbackup.errors import JsBackupError
from jsbackup.pipeline.jobs.query import run_query
from jsbackup.pipeline.messages.backup_frames import open_backup
from jsbackup.pipeline.messages.chosen import ChosenBackup
from jsbackup.pipeline.queries.duckdb_query import run_duckdb_query
from tests.harness.batches import Message
from tests.pipeline.places import Kept, keep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MANUAL = Path(__file__).parents[3] / "jsbackup" / "manual" / "spark.md"
_TITLE = "### What DuckDB and Spark understand differently\n"
_CODE = re.compile(r"`([^`]+)`")
_TOTAL = re.compile(r"\b(?:max|sum|percentile_disc)\(")
_WORDS = {"null": "-", "empty": "", "error": "error"}

_MESSAGE = Message(1, 1_795_254_169_123_456_789, "orders.eu", b"NATS/1.0\r\nX: 1\r\n\r\n", b'{"a": 1, "l": [1, 2]}')

Ask = Callable[[str], Any]


def _rows() -> list[list[str]]:
    """The cells of the manual's table."""
    section = _MANUAL.read_text().partition(_TITLE)[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (`.*) \|$", section, re.MULTILINE)
    return [[cell.strip() for cell in row.split(" | ")] + [""] * (3 - row.count(" | ")) for row in rows]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    messages = [_MESSAGE._replace(sequence=sequence) for sequence in range(1, 9)]
    return keep(tmp_path_factory.mktemp("dialects"), {"ORDERS": messages})


def _asks(kept: Kept, spark: SparkSession) -> list[Ask]:
    """DuckDB and Spark."""
    here, frames = ChosenBackup(kept.place, kept.manifest), open_backup(spark, kept.place, kept.manifest.id)
    return [
        lambda sql: run_duckdb_query(here, sql, most_rows=1).rows[0],
        lambda sql: run_query(frames, sql, most_rows=1).rows[0],
    ]


def _answers(ask: Ask, expressions: list[str], failing: Collection[str] = ()) -> dict[str, str]:
    """The value of each, as `query` prints it; those that probably fail are asked for alone."""
    found: dict[str, str] = {}
    for one in failing:
        found |= _asked(ask, [one])
    for is_total in (False, True):  # all messages are equal but for their sequences
        others = [one for one in expressions if one not in failing]
        found |= _asked(ask, [one for one in others if bool(_TOTAL.search(one)) == is_total])
    return found


def _asked(ask: Ask, expressions: list[str]) -> dict[str, str]:
    """The values of expressions: with one query, if none is an error."""
    if not expressions:
        return {}
    named = [f"{expression} AS x{number}" for number, expression in enumerate(expressions)]
    try:
        row = ask(f"SELECT {', '.join(named)} FROM orders")
    except JsBackupError:
        if len(expressions) == 1:
            return {expressions[0]: "error"}
        middle = len(expressions) // 2
        return _asked(ask, expressions[:middle]) | _asked(ask, expressions[middle:])
    return {one: _shown(_json_value(value)) for one, value in zip(expressions, row, strict=True)}


def _told(cell: str) -> str:
    """What a cell says that is printed."""
    code = _CODE.match(cell)
    return code[1] if code else _WORDS[cell.split()[0].rstrip(",")]


@pytest.mark.by_turns
def test_expressions_of_the_manual_differ_as_it_says_and_have_a_form_that_does_not(
    kept: Kept, spark: SparkSession
) -> None:
    rows = _rows()
    assert len(rows) > 30
    first = [_CODE.findall(row[0])[0] for row in rows]
    portable = [expression for row in rows for expression in _CODE.findall(row[3])]
    here, there = (
        _answers(ask, first + portable, [one for one, row in zip(first, rows, strict=True) if _told(row[n]) == "error"])
        for n, ask in enumerate(_asks(kept, spark), start=1)
    )
    for row, expression in zip(rows, first, strict=True):
        told = (_told(row[1]), _told(row[2]))
        assert (expression, here[expression], there[expression]) == (expression, *told)
        assert told[0] != told[1]
    assert {one: here[one] for one in portable} == {one: there[one] for one in portable}
    assert "error" not in {here[one] for one in portable}


@pytest.mark.by_turns
def test_what_the_manual_says_of_both_engines(kept: Kept, spark: SparkSession) -> None:
    zero = ["1 / 0", "sequence / (sequence - sequence)", "1e0 / 0", "sequence % 0"]
    null = ["sequence / nullif(sequence - sequence, 0)", "'a' || NULL", "NULL || subject"]
    for ask in _asks(kept, spark):
        assert set(_answers(ask, zero, zero).values()) == {"error"}
        assert set(_answers(ask, null).values()) == {"-"}
