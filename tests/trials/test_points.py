"""The table of points names tests that exist."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.trials.points import POINTS

TESTS = Path(__file__).resolve().parents[1]


def _exists(name: str) -> bool:
    file, _, function = name.partition("::")
    path = next((path for path in (Path(__file__).parent / file, TESTS / file) if path.exists()), None)
    if path is None:
        return False
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function
        for node in ast.walk(ast.parse(path.read_text()))
    )


def test_every_test_of_the_table_exists() -> None:
    names = [name for tests in POINTS.values() for name in tests]
    assert [name for name in names if not _exists(name)] == []
    assert sorted(POINTS) == list(range(1, 26)) and all(POINTS.values())
