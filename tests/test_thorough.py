"""What waits for a thorough run is there, and leaves something of each test in the usual one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.harness.thorough import APART, SAMPLED, waiting

_ROOT = Path(__file__).parent.parent
_MANY = "tests/repository/test_crash.py::test_stopped_at_any_operation_it_harms_nothing_and_a_rerun_succeeds"


@pytest.mark.parametrize("name", sorted({*APART, *SAMPLED}))
def test_a_test_that_waits_is_there(name: str) -> None:
    path, _, function = name.partition("::")
    defined = [node for node in ast.walk(ast.parse((_ROOT / path).read_text())) if isinstance(node, ast.FunctionDef)]
    assert function in {node.name for node in defined}


def test_the_oldest_and_the_newest_server_are_in_every_run() -> None:
    ids = [f"tests/integration/test_a.py::test_b[{version}-x]" for version in ("2.10.26", "2.12.8", "2.15.2")]
    assert waiting(ids) == {ids[1]}


def test_a_test_that_knows_neither_runs_once() -> None:
    ids = [f"tests/integration/test_a.py::test_b[{pair}]@group" for pair in ("2.11.11-2.12.8", "2.15.1-2.14.6")]
    assert waiting(ids) == {ids[0]}
    assert waiting(ids[:1]) == set()


def test_what_else_differs_is_kept_apart() -> None:
    assert waiting(["tests/fuzz/test_a.py::test_b[2.12.8-x]", "tests/fuzz/test_a.py::test_b[2.12.8-y]"]) == set()


def test_where_versions_are_the_subject_all_are_tested() -> None:
    ids = [f"{path}::test_b[2.12.8]" for path in ("tests/protocol/test_a.py", "tests/integration/test_plan.py")]
    assert waiting([*ids, *(one.replace("2.12.8", "2.10.26") for one in ids)]) == set()


def test_one_in_so_many_moments_is_in_every_run() -> None:
    ids = [f"{_MANY}[{number}]" for number in range(7)]
    assert set(ids) - waiting(ids) == {ids[0], ids[3], ids[6]}
