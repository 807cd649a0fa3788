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
    wanted = sorted(backup["orders"].table().column("sequence").to_pylist())
    for frame in (
        backup.spark(spark),
        backup.spark(spark, "ord*"),
        backup["orders"].spark(spark, columns=["sequence"]),
    ):
        assert sorted(row.sequence for row in frame.collect()) == wanted
    assert backup["orders"].spark(spark, columns=["sequence"]).columns == ["sequence"]
    with pytest.raises(jsbackup.errors.UsageError, match=r"has no stream order\. Did you mean orders"):
        backup.spark(spark, "order")
    with pytest.raises(jsbackup.errors.UnsupportedError, match="verbatim is of an archive format"):
        backup["verbatim"].spark(spark)
