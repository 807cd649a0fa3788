"""What a function takes beyond four parameters it takes by keyword: nobody counts to seven at a call."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent / "jsbackup"
MOST = 4

# Others decide what these take.
OTHERS = {
    "formats/_kernels_py.py: decode_records",  # as its compiled twin
    "engine/link/connection.py: _process_msg",  # of nats-py
}


def _functions(node: ast.AST, of_class: bool = False) -> Iterator[tuple[str, list[str]]]:
    """(name, parameters that may be given by position)."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            taken = [one.arg for one in (*child.args.posonlyargs, *child.args.args)]
            if of_class and taken[:1] in (["self"], ["cls"]):
                taken = taken[1:]
            yield getattr(child, "name", "lambda"), taken
        yield from _functions(child, isinstance(child, ast.ClassDef))


def test_no_function_takes_more_than_four_parameters_by_position() -> None:
    crowded = {
        f"{path.relative_to(ROOT).as_posix()}: {name}"
        for path in ROOT.rglob("*.py")
        for name, taken in _functions(ast.parse(path.read_text()))
        if len(taken) > MOST
    }
    assert crowded == OTHERS
