"""What is visible is what is meant to be: every module's `__all__` is sorted, complete and importable."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import jsbackup

MODULES = sorted(
    name
    for _, name, _ in pkgutil.walk_packages(jsbackup.__path__, "jsbackup.")
    if not name.endswith(("__main__", "_kernels"))
)


def test_all_names_what_exists_in_order() -> None:
    wrong = []
    for name in MODULES:
        module = importlib.import_module(name)
        exported = getattr(module, "__all__", [])
        in_order = sorted(exported, key=lambda item: (not item.isupper(), not item[0].isupper(), item))  # as ruff has
        if list(exported) != in_order:
            wrong.append(f"{name}.__all__ is not sorted")
        wrong += [f"{name} has no {item}" for item in exported if not hasattr(module, item)]
    assert len(MODULES) > 300 and wrong == []


PUBLIC = {
    "Backup",
    "BackupRepository",
    "Connection",
    "Consumer",
    "ExportOutcome",
    "ExportedTable",
    "Finding",
    "PlannedRestore",
    "PlannedTarget",
    "PutBackMessage",
    "PutBackOutcome",
    "RestoreOutcome",
    "Revision",
    "StoredFile",
    "Stream",
    "StreamMessage",
    "StreamOutcome",
    "StreamProgress",
    "__version__",
    "backup",
    "backup_async",
    "connection",
    "errors",
    "export",
    "open",
    "plan",
    "plan_async",
    "put_back",
    "put_back_async",
    "restore",
    "restore_async",
}


def test_what_programs_can_rely_on_is_all_there_and_nothing_else() -> None:
    assert jsbackup.__all__ == sorted(PUBLIC, key=lambda name: (not name[0].isupper(), name))
    assert dir(jsbackup) == sorted(PUBLIC)
    for name in PUBLIC:
        assert getattr(jsbackup, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'latest'"):
        jsbackup.latest  # type: ignore[attr-defined]  # noqa: B018


def test_the_package_is_typed() -> None:
    from importlib.resources import files

    assert files("jsbackup").joinpath("py.typed").is_file()


def test_the_version_is_the_projects() -> None:
    from importlib.metadata import version

    assert version("jsbackup") == jsbackup.__version__
