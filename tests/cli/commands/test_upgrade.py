"""`jsbackup upgrade` on a repository of the first format."""

from __future__ import annotations

import tarfile
from pathlib import Path

from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.cli.typed import Typed
from tests.harness.backups import store_backup

OLD = Path(__file__).parents[2] / "data" / "format1-plain.tar.gz"


def test_upgrade_says_what_it_did_and_can_be_repeated(typed: Typed, tmp_path: Path) -> None:
    with tarfile.open(OLD) as tar:
        # Python 3.11.3 and older have no filters.
        tar.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    before = typed("list", "-r", str(tmp_path)).out
    assert f"upgraded repository {tmp_path}" in typed("upgrade", "-r", str(tmp_path)).out
    assert "is up to date" in typed("upgrade", "-r", str(tmp_path)).out
    assert typed("list", "-r", str(tmp_path)).out == before
    store_backup(Repository.open(LocalStore(tmp_path)), "20261121T015000Z-0000aa", count=1200)
    assert list(tmp_path.glob("segments/*/page-*.json"))
    assert typed("verify", "--level", "data", "-r", str(tmp_path)).code == 0


def test_upgrade_of_nothing_is_an_error(typed: Typed, tmp_path: Path) -> None:
    assert typed("upgrade", "-r", str(tmp_path / "none")).code == 10
    assert not (tmp_path / "none").exists()
