"""What `drill` says of the place where its servers store, and which backup it takes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from jsbackup.repository.checks.ledger import DrillOutcome, read_runs
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.cli.typed import Shop, Typed

Type = Callable[..., Typed]

EMBEDDED = Path(sys.executable).parent / "nats-server"

pytestmark = pytest.mark.nats


def test_without_room_nothing_is_started_and_that_is_recorded(
    shop: Shop, typed: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo, work = tmp_path / "repo", tmp_path / "work"
    work.mkdir()
    assert typed("backup", "-s", shop.url, "-r", repo).code == 0
    monkeypatch.setattr(
        "jsbackup.engine.check.drill.shutil.disk_usage", lambda _folder: SimpleNamespace(free=256 << 20)
    )
    done = typed("drill", "-r", repo, "--nats-server", EMBEDDED, "--work-dir", work)
    assert done.code == 15 and f"{work} has 256 MiB free; this may need " in done.err and "--work-dir" in done.err
    assert list(work.iterdir()) == []
    [outcome] = read_runs(DrillOutcome, Repository.open(LocalStore(repo)).documents, 9)
    assert (outcome.ok, outcome.code) == (False, 15)


def test_it_takes_the_newest_complete_backup_of_a_server_with_messages(shop: Shop, typed: Type, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    assert typed("backup", "ORDERS", "-s", shop.url, "-r", repo).code == 0
    wanted = typed("list", "-r", repo, "--json").document["backups"][0]["backup"]
    assert typed("backup", "--config-only", "-s", shop.url, "-r", repo).code == 0
    done = typed("drill", "-r", repo, "--nats-server", EMBEDDED)
    assert done.code == 0 and f"drilled backup {wanted}" in done.out
    asked = typed("drill", "latest", "-r", repo, "--nats-server", EMBEDDED, "--json")
    assert asked.code == 0 and asked.document["backup"] == wanted and asked.document["everything"]
    config = typed("list", "-r", repo, "--json").document["backups"][1]["backup"]
    asked = typed("drill", config, "-r", repo, "--nats-server", EMBEDDED, "--json")
    assert asked.code == 0 and not asked.document["everything"]
    assert asked.document["uncounted"] == f"backup {config} has configurations only"
