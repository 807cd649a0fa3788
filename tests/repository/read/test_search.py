"""A backup is found for the source that is connected, and looked up once if it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from jsbackup.errors import UsageError
from jsbackup.repository.manifest import BackupResult, Manifest, Selection, Source
from jsbackup.repository.read.latest import BackupSearch, Choice
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.harness.many import some_stream

CREATED = "2026-11-21T01:45:00Z"
SHOP, PAY = Source("2.15.1", "C1", "SHOP"), Source("2.15.1", "C1", "PAY")


def _manifest(number: int, source: Source) -> Manifest:
    backup, streams = f"20261121T01450{number}Z-00000{number}", (some_stream("A", 1),)
    return Manifest(backup, CREATED, "tests", source, BackupResult.COMPLETE, streams, selection=Selection())


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """With a backup of SHOP, and a newer one of PAY."""
    made = Repository.create(LocalStore(tmp_path), repository_id="ab" * 16, created=CREATED, tool="tests")
    for number, source in enumerate((SHOP, PAY), start=1):
        made.commit(_manifest(number, source))
    return made


def test_latest_depends_on_the_source(repository: Repository) -> None:
    search = BackupSearch(repository, "latest")
    assert search(SHOP).source == SHOP and search.choice.manifest.source == SHOP
    assert search(PAY).source == PAY
    with pytest.raises(UsageError, match="'latest' is ambiguous"):
        search()


def test_a_named_backup_is_looked_up_once_and_its_source_is_compared(repository: Repository) -> None:
    search = BackupSearch(repository, _manifest(1, SHOP).id)
    found = search()
    assert found.source == SHOP and search.choice.notes == ()
    assert search(PAY) is found
    [note] = search.choice.notes
    assert note.startswith(f"backup {found.id} comes from cluster C1, account SHOP; the connected server is")
    assert search(SHOP) is found and search.choice.notes == ()


def test_a_known_backup_need_not_be_in_the_repository(repository: Repository) -> None:
    known = _manifest(3, SHOP)
    assert BackupSearch(repository, known.id, known=Choice(known))(SHOP) is known
