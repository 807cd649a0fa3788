"""What a drill warns of before it begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from jsbackup.config import Glob
from jsbackup.engine.check.drill import DrillRun
from jsbackup.engine.check.drill_server import ServerProgram
from jsbackup.planning.model import RestoreOptions
from jsbackup.repository.manifest import BackupResult, Manifest, Source
from jsbackup.repository.repository import Repository
from jsbackup.stores.memory import MemoryStore
from tests.harness.many import some_stream

ID = "20261121T014500Z-000001"


def _warnings(backed_up: str, drilled: str, *exclude: str) -> tuple[str, ...]:
    repository = Repository.create(MemoryStore(), repository_id="ab" * 16, created="2026-11-21T01:45:00Z", tool="t")
    source = Source(server_version=backed_up)
    manifest = Manifest(ID, "2026-11-21T01:45:00Z", "t", source, BackupResult.COMPLETE, (some_stream("A", 1),))
    options = RestoreOptions(exclude=tuple(map(Glob, exclude)))
    return DrillRun(repository, manifest, options, ServerProgram(Path("nats-server"), drilled), print).warnings


@pytest.mark.parametrize(("backed_up", "drilled"), [("2.14.6", "2.15.1"), ("2.15.3", "2.15.1"), ("", "2.10.26")])
def test_a_server_that_is_not_of_an_older_release_will_do(backed_up: str, drilled: str) -> None:
    assert _warnings(backed_up, drilled) == ()


def test_an_older_release_and_a_pattern_without_streams_are_told() -> None:
    older = "the backup comes from nats-server 2.15.1, and is drilled on 2.14.6, which is older"
    assert _warnings("2.15.1", "2.14.6") == (older,)
    assert _warnings("2.15.1", "2.15.1", "A", "B*") == (f"--exclude B*: backup {ID} has no such stream",)
