"""`jsbackup repair` where more is lost than objects."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.cli.typed import Typed
from tests.harness.backups import FIRST, SECOND, make_repository, store_backup


def test_a_removed_manifest_is_named_as_lost(typed: Callable[..., Typed], tmp_path: Path) -> None:
    repo, copy = tmp_path / "repo", tmp_path / "copy"
    make_repository(LocalStore(repo))
    for backup in (FIRST, SECOND):
        store_backup(Repository.open(LocalStore(repo)), backup)
    shutil.copytree(repo, copy)
    sound = typed("repair", "--from", copy, "-r", repo)
    assert (sound.code, "nothing is known to be missing" in sound.out) == (0, True)
    (repo / "backups" / f"{SECOND}.json").unlink()
    done = typed("repair", "--from", copy, "-r", repo)
    assert done.code == 3 and SECOND in done.out
    assert typed("repair", FIRST, "--from", copy, "-r", repo).code == 0, "only that one was asked for"
