"""`prune`, `unlock` and `--lock-timeout` as typed: what they do to a repository, and what they say of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from jsbackup.errors import RepositoryLocked
from jsbackup.repository import layout
from jsbackup.repository.keep.leases import DURATION_SECONDS, Lease, Mode, Terms, acquire
from jsbackup.repository.manifest import objects_named
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.cli.test_json import check
from tests.cli.typed import Typed
from tests.harness.backups import CREATED, FIRST, SECOND, make_repository, store_backup

Type = Callable[..., Typed]


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """Two backups, of which the second was forgotten."""
    store = LocalStore(tmp_path / "repo")
    repository = make_repository(store)
    store_backup(repository, FIRST)
    store_backup(repository, SECOND, count=60)
    for key in (layout.manifest_key(SECOND), layout.witness_key(SECOND)):
        store.delete(key)
    return tmp_path / "repo"


def needed(repo: Path) -> set[str]:
    return set(objects_named(Repository.open(LocalStore(repo)).manifest(FIRST)))


def content(repo: Path) -> set[str]:
    return {info.key for info in LocalStore(repo).list(layout.SEGMENTS)}


def hold(repo: Path, mode: Mode, purpose: str = "backup") -> Lease:
    terms = Terms(mode, purpose, "jsbackup 9.9", "far-away", CREATED)
    return acquire(LocalStore(repo), terms, wait_seconds=0, clock=time.monotonic, sleep=time.sleep, random=os.urandom)


def grow_old(repo: Path, place: str, seconds: float) -> None:
    for path in (repo / place).iterdir():
        then = path.stat().st_mtime - seconds
        os.utime(path, (then, then))


def test_prune_marks_first_and_deletes_when_the_grace_is_over(typed: Type, repo: Path) -> None:
    before = content(repo)
    orphans = before - needed(repo)
    planned = check("prune", typed("prune", "-r", repo, "--dry-run", "--grace", "0", "--json"))
    assert planned["dry_run"] and planned["deleted_objects"] == len(orphans) and content(repo) == before
    marked = check("prune", typed("prune", "-r", repo, "--json"))
    assert (marked["deleted_objects"], marked["marked_objects"]) == (0, len(orphans)) and marked["due"] is not None
    assert check("prune", typed("prune", "-r", repo, "--grace", "0", "--json")) == {**planned, "dry_run": False}
    assert content(repo) == needed(repo) and typed("verify", "-r", repo, "--level", "data").code == 0


def test_prune_waits_for_whoever_is_at_work_and_says_for_whom(typed: Type, repo: Path) -> None:
    before = content(repo)
    lease = hold(repo, Mode.SHARED)
    done = typed("prune", "-r", repo, "--grace", "0", "--lock-timeout", "0")
    assert done.code == 11 and content(repo) == before
    assert f"in use by backup (since {CREATED}, jsbackup 9.9 on far-away), shared lease {lease.id}" in done.err
    assert "--lock-timeout" in done.err and "jsbackup unlock" in done.err
    lease.release()
    assert typed("prune", "-r", repo, "--grace", "0").code == 0
    assert content(repo) == needed(repo)


def test_everybody_waits_for_a_prune(typed: Type, repo: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert typed("export", FIRST, "orders", "-r", repo, "--format", "config", "--output", out).code == 0
    lease = hold(repo, Mode.EXCLUSIVE, "prune")
    lines: list[list[str | Path]] = [
        ["verify"],
        ["import", out],
        ["export", "latest", "--format", "config", "--output", tmp_path / "more"],
        ["restore", "latest", "-s", "nats://127.0.0.1:1"],
        ["copy", "--to-repo", tmp_path / "copy"],
        ["backup", "-s", "nats://127.0.0.1:1"],
        ["prune", "--grace", "0"],
    ]
    for line in lines:
        done = typed(*line, "-r", repo, "--lock-timeout", "0", "--json")
        assert done.code == 11, (line, done)
        assert lease.id in done.document["error"]["message"]
    for line in (["list"], ["show", "latest"], ["unlock"]):
        assert typed(*line, "-r", repo).code == 0
    lease.release()
    assert typed("verify", "-r", repo, "--lock-timeout", "0").code == 0
    assert list((repo / "locks").iterdir()) == []


def test_what_only_reads_goes_on_without_a_lease_where_nothing_can_be_put(typed: Type, repo: Path) -> None:
    if os.geteuid() == 0:
        (repo / "locks").rmdir() if (repo / "locks").exists() else None
        (repo / "locks").write_text("a file where the folder should be")
    else:
        repo.chmod(0o500)
    done = typed("verify", "-r", repo)
    repo.chmod(0o700)
    assert done.code == 0 and FIRST in done.out
    assert "no lease can be stored" in done.err


def leases(typed: Type, repo: Path, *arguments: str) -> dict[str, dict[str, Any]]:
    return {row["lease"]: row for row in check("unlock", typed("unlock", "-r", repo, *arguments, "--json"))["leases"]}


def test_unlock_explains_leases_and_removes_those_that_have_ended(typed: Type, repo: Path) -> None:
    assert "there are no leases" in typed("unlock", "-r", repo).out
    dead = hold(repo, Mode.SHARED)
    grow_old(repo, "locks", DURATION_SECONDS + 5)
    alive = hold(repo, Mode.EXCLUSIVE, "prune")
    text = typed("unlock", "-r", repo).out
    assert dead.id in text and "expired, removed" in text and alive.id in text and "far-away" in text
    found = leases(typed, repo)
    assert set(found) == {alive.id}
    row = found[alive.id]
    assert (row["state"], row["mode"], row["purpose"], row["removed"]) == ("live", "exclusive", "prune", False)
    assert (row["tool"], row["host"], row["since"]) == ("jsbackup 9.9", "far-away", CREATED)
    assert DURATION_SECONDS - 60 < row["expires_in_seconds"] <= DURATION_SECONDS
    alive.renew()


def test_unlock_removes_living_leases_only_by_force_and_their_holder_stops(typed: Type, repo: Path) -> None:
    first, second = hold(repo, Mode.SHARED), hold(repo, Mode.SHARED, "restore")
    assert not any(row["removed"] for row in leases(typed, repo, first.id).values())
    found = leases(typed, repo, "--force", first.id)
    assert {lease: row["removed"] for lease, row in found.items()} == {first.id: True, second.id: False}
    with pytest.raises(RepositoryLocked):
        first.renew()
    second.renew()
    assert typed("unlock", "-r", repo, "0123").code == 2


def test_a_damaged_lease_is_told_and_can_be_removed(typed: Type, repo: Path) -> None:
    lease = hold(repo, Mode.SHARED)
    (path,) = (repo / "locks").iterdir()
    path.write_bytes(path.read_bytes().replace(b"far-away", b"far-off!"))
    done = typed("unlock", "-r", repo, "--json")
    (row,) = check("unlock", done)["leases"]
    assert done.code == 14 and path.name in row["problem"] and row["purpose"] is None
    assert f"problem: lease locks/{path.name}" in typed("unlock", "-r", repo).out
    assert typed("unlock", "-r", repo, "--force", lease.id).code == 0
    with suppress(FileNotFoundError):
        assert list((repo / "locks").iterdir()) == []
