"""Errors do not change: who knows more makes another one, of which nothing else is different."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path

import pytest

from jsbackup.errors import ApiError, IntegrityError, JsBackupError, ObjectNotFound, StoreError, TransferError

ROOT = Path(__file__).parent.parent / "jsbackup"
OF_ERRORS = {"hint", "message", "exit_code", "__traceback__", "__cause__", "__context__"}
CAUSE = OSError("disk")
ERRORS = [
    StoreError("cannot write", hint="Look.", temporary=True, retry_after_seconds=3.0),
    ApiError("not found", code=404, err_code=10059),
    TransferError("broke", retry=False),
    ObjectNotFound("a/b"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_another_error_has_the_kind_the_fields_and_the_cause_of_the_first(error: JsBackupError) -> None:
    before = error.caused_by(CAUSE)
    assert error.__cause__ is None
    another = before.with_hint("Do this.").with_message("stream A: it failed")
    assert type(another) is type(error) and another.__cause__ is CAUSE
    assert str(another) == another.message == "stream A: it failed" and another.hint == "Do this."
    assert vars(another) == vars(error) | {"message": another.message, "hint": another.hint}
    assert vars(before) == vars(error) and str(before) == error.message
    assert vars(pickle.loads(pickle.dumps(another))) == vars(another)


def test_a_sentence_comes_behind_the_hint() -> None:
    assert JsBackupError("a").with_more_hint("Then this.").hint == "Then this."
    assert JsBackupError("a", hint="This.").with_more_hint("Then this.").hint == "This. Then this."


@pytest.mark.parametrize("name", ["message", "hint", "args", "exit_code", "temporary"])
def test_an_error_does_not_change(name: str) -> None:
    error = StoreError("cannot write")
    before = getattr(error, name)
    with pytest.raises(AttributeError, match=f"{name} of an error does not change"):
        setattr(error, name, "other")
    assert getattr(error, name) == before


def _assigned(path: Path) -> set[str]:
    """`name.attribute`, as it is assigned, of names that an `except` clause has bound, and of what only errors have."""
    tree = ast.parse(path.read_text())
    caught = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            of_errors = node.attr in OF_ERRORS
            if of_errors or (isinstance(node.value, ast.Name) and node.value.id in caught):
                found.add(ast.unparse(node))
        elif isinstance(node, ast.Attribute) and node.attr == "add_note":
            found.add(ast.unparse(node))
    return found


def test_no_module_assigns_an_attribute_of_an_error() -> None:
    found = {path.relative_to(ROOT).as_posix(): names for path in ROOT.rglob("*.py") if (names := _assigned(path))}
    assert found == {
        "errors.py": {"self.message", "self.hint", "another.__cause__"},  # where they are made
        "cli/parsing/command.py": {"wrong.ctx"},  # of click, which sets it too
    }


def test_a_message_names_its_subject_once() -> None:
    assert IntegrityError("object a/b is damaged").naming("a/b") == "object a/b is damaged"
    assert IntegrityError("it is damaged").naming("a/b") == "a/b: it is damaged"
