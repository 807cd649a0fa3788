"""Random queries of random backups, asked of DuckDB by files and by our reader, and of plain Python.

A failure says the query, and the numbers that repeat it alone. `JSBACKUP_TEST_FUZZ_ROUNDS=50` asks that many backups
forty queries each; `JSBACKUP_TEST_SEED` draws others.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from jsbackup.pipeline.queries import query as query_module
from jsbackup.pipeline.queries.query import backup_streams, run_query
from tests.pipeline.places import Kept
from tests.pipeline.queries.random_backups import random_streams
from tests.pipeline.queries.random_sql import Queries, Query

ROUNDS = int(os.environ.get("JSBACKUP_TEST_FUZZ_ROUNDS", "0"))
SEED = os.environ.get("JSBACKUP_TEST_SEED", "1")

_DAILY_ROUNDS, _DAILY_QUERIES, _QUERIES = 4, 8, 40
_MOST_MESSAGES, _MOST_ROWS = 45, 100_000


def _canonical(value: Any) -> Any:
    """A value that is equal to others of its type only; numbers without a point are equal whatever their size is."""
    if isinstance(value, Decimal) and value == value.to_integral_value():
        return int, int(value)
    if isinstance(value, dict):
        return dict, frozenset(value.items())
    return type(value), value


def _differences(query: Query, found: list[tuple[Any, ...]]) -> list[str]:
    rows, wanted = ([tuple(map(_canonical, row)) for row in some] for some in (found, query.rows))
    if query.is_ordered:
        wrong = [f"row {n}: {a} is to be {b}" for n, (a, b) in enumerate(zip(rows, wanted, strict=False)) if a != b]
        return wrong[:5] + ([f"{len(rows)} rows, not {len(wanted)}"] if len(rows) != len(wanted) else [])
    more, less = Counter(rows) - Counter(wanted), Counter(wanted) - Counter(rows)
    return [f"too many: {one}" for one in list(more)[:3]] + [f"missing: {one}" for one in list(less)[:3]]


# As the generated queries take it.
_SETTINGS = """
SET default_null_order = 'NULLS_FIRST_ON_ASC_LAST_ON_DESC';
SET ieee_floating_point_ops = false;
CREATE MACRO get_json_object(t, p) AS CASE WHEN json_valid(t) THEN json_extract_string(t, p) END;
"""


def run(kept: Kept, sql: str, *, files: bool = True) -> list[tuple[Any, ...]]:
    """Rows, by DuckDB's reader of files or by ours."""
    repository = kept.place.open()
    streams = backup_streams(repository.manifest(kept.manifest.id).streams, kept.manifest.id)
    return run_query(repository.objects, streams, sql, folder=kept.place.folder if files else None).rows


@pytest.mark.explore
@pytest.mark.timeout(300 + 60 * ROUNDS)
@pytest.mark.parametrize("number", range(ROUNDS or _DAILY_ROUNDS))
def test_duckdb_finds_what_python_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(query_module, "_SHORT_BYTES", 0)
    chance = random.Random(f"{SEED} {number}")
    backup = random_streams(chance, _MOST_MESSAGES)
    kept = backup.keep(tmp_path / "plain", chance.choice([600, 3000, 100_000]))
    sealed = backup.keep(tmp_path / "sealed", 3000, encrypted=True)
    queries = Queries(chance, backup.views(kept), is_text=backup.is_text)
    for count in range(_QUERIES if ROUNDS else _DAILY_QUERIES):
        query = queries.query()
        sql = _SETTINGS + query.sql('"')
        found = {
            "files": _asked(lambda: run(kept, sql)),  # noqa: B023
            "reader": _asked(lambda: run(sealed, sql, files=False)),  # noqa: B023
        }
        wrong = {name: [rows] if isinstance(rows, str) else _differences(query, rows) for name, rows in found.items()}
        if any(wrong.values()):
            shown = "\n".join(f"{name}: {line}" for name, lines in wrong.items() for line in lines or ["right"])
            raise AssertionError(f"JSBACKUP_TEST_SEED={SEED}, backup {number}, query {count}\n{sql}\n{shown}")


def _asked(ask: Callable[[], list[tuple[Any, ...]]]) -> list[tuple[Any, ...]] | str:
    try:
        return ask()
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
