"""`backup.spark(session)`: what a notebook has of a backup, as a DataFrame."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import jsbackup
from jsbackup.stores.local import LocalStore
from tests.harness.backups import FIRST, make_repository, store_backup

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_backup_is_read_with_the_session_of_a_notebook(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_backup(make_repository(LocalStore(tmp_path / "repo")), count=40)
    monkeypatch.chdir(tmp_path)
    backup = jsbackup.open("repo")[FIRST]
    frame = backup.spark(spark).messages(["orders"])
    assert sorted(row.sequence for row in frame.collect()) == sorted(
        backup["orders"].table().column("sequence").to_pylist()
    )
