"""`forget` and `hold` as they are typed, on repositories in folders; and what `list` and `show` say of it."""

from __future__ import annotations

from collections.abc import Callable
from os import truncate
from pathlib import Path
from typing import Any

import pytest

from jsbackup.repository import layout
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.cli.test_json import check
from tests.cli.typed import Typed
from tests.harness.backups import make_repository, store_backup
from tests.harness.many import nth_id, nth_manifest, put_manifests, segments_of

Type = Callable[..., Typed]

IDS = [nth_id(number) for number in range(12)]  # from midnight on, one every ten minutes


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    store = LocalStore(tmp_path / "repo")
    make_repository(store)
    put_manifests(store, len(IDS))
    for ref in segments_of(nth_manifest(0)):  # of all of them
        path = tmp_path / "repo" / ref.key
        path.parent.mkdir(parents=True)
        path.touch()
        truncate(path, ref.size)  # takes no space
    return tmp_path / "repo"


def backups(repo: Path) -> list[str]:
    return Repository.open(LocalStore(repo)).backups()


def kept(document: dict[str, Any]) -> list[str]:
    return [one["backup"] for one in document["kept"]]


def removed(document: dict[str, Any]) -> list[str]:
    return [one["backup"] for one in document["removed"]]


# --- by a policy ---


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ("--keep-hourly 1 --keep-last 2", IDS[10:]),
        ("--keep-daily 7 --keep-weekly 7 --keep-monthly 7 --keep-yearly 7", [IDS[11]]),
        ("--keep-within 1h30m", IDS[2:]),
        ("--keep-tag number=3 --keep-tag number=5", [IDS[3], IDS[5], IDS[11]]),
        ("--keep-last 1 --group-by none", [IDS[11]]),
    ],
)
def test_each_option_keeps_what_it_says(typed: Type, repo: Path, options: str, left: list[str]) -> None:
    planned = check("forget", typed("forget", "-r", repo, "--json", "--dry-run", *options.split()))
    assert planned["dry_run"] is True and kept(planned) == left and backups(repo) == IDS
    done = check("forget", typed("forget", "-r", repo, "--json", *options.split()))
    assert done == planned | {"dry_run": False} and backups(repo) == left
    assert sorted(kept(done) + removed(done)) == IDS


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("forget", "no --keep option was given"),
        ("forget --keep-last 0 --keep-within 0", "no --keep option was given"),
        ("forget latest --keep-last 1", "backups are named, and there is a policy too"),
        ("forget --keep-within 3", "--keep-within: not a duration: '3'"),
        ("forget --keep-tag =v", "not a tag: '=v'"),
        ("forget 20200101T000000Z-000000", "no backup 20200101T000000Z-000000"),
        ("hold 20200101T000000Z-000000", "no backup 20200101T000000Z-000000"),
        ("hold latest --release --reason x", "--reason makes no sense with --release"),
    ],
)
def test_what_makes_no_sense_is_refused_and_removes_nothing(typed: Type, repo: Path, line: str, message: str) -> None:
    error = check("error", typed(*line.split(), "-r", repo, "--json"))["error"]
    assert error["code"] == 2 and message in error["message"]
    assert backups(repo) == IDS


def test_a_damaged_backup_is_kept_and_told_of(typed: Type, repo: Path) -> None:
    (repo / layout.manifest_key(IDS[0])).write_bytes(b"{}")
    done = typed("forget", "-r", repo, "--keep-last", "1", "--json")
    document = check("forget", done)
    assert done.code == 14 and kept(document) == [IDS[0], IDS[11]] and IDS[0] in document["damaged"][0]
    assert document["kept"][0]["reasons"][0].startswith("cannot be read: ")
    told = typed("forget", "-r", repo, "--keep-last", "1")
    assert told.code == 14 and "in no known group" in told.out and "cannot be read: " in told.out
    gone = typed("forget", IDS[0], "-r", repo)
    assert (gone.code, gone.out) == (0, "removed 1 backup, kept 1\n") and backups(repo) == [IDS[11]]


def test_a_backup_with_damaged_data_takes_no_ones_place_and_is_told_of(typed: Type, tmp_path: Path) -> None:
    folder = tmp_path / "repo"
    repository = make_repository(LocalStore(folder))
    store_backup(repository, IDS[0], count=40)
    newest = store_backup(repository, IDS[1], count=60)
    lost = folder / [*newest.streams[0].segments][-1].key
    data = lost.read_bytes()
    lost.unlink()
    line = ["forget", "-r", folder, "--keep-last", "1", "--prune", "--grace", "0s"]
    for more in (["--dry-run"], []):
        done = typed(*line, *more, "--json")
        document = check("forget", done)
        assert done.code == 14 and kept(document) == IDS[:2] == backups(folder)
        assert document["damaged"] == [f"backup {IDS[1]} is known to be damaged, and takes no other's place"]
        assert document["kept"][1]["reasons"][0].startswith("damaged, takes no other's place")
    assert typed("verify", IDS[0], "-r", folder).code == 0
    lost.write_bytes(data)
    assert typed(*line).code == 0 and backups(folder) == [IDS[1]] and typed("verify", "-r", folder).code == 0


# --- and what only they needed ---


def test_a_prune_can_follow(typed: Type, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    repository = make_repository(LocalStore(repo))
    store_backup(repository, IDS[0], count=100)
    store_backup(repository, IDS[1], count=3)

    def segments() -> set[Path]:
        return set(repo.glob("segments/*/*"))

    before = segments()
    line = ["forget", "-r", repo, "--keep-last", "1", "--prune", "--json"]
    planned = check("forget", typed(*line, "--grace", "0", "--dry-run"))["prune"]
    assert planned["deleted_objects"] > 0 and segments() == before and backups(repo) == IDS[:2]
    marked = check("forget", typed(*line))["prune"]
    assert marked["deleted_objects"] == 0 and marked["marked_objects"] > 0
    assert segments() == before and backups(repo) == IDS[1:2]
    pruned = check("forget", typed(*line, "--grace", "0"))
    assert pruned["removed"] == [] and pruned["prune"]["freed_bytes"] == planned["freed_bytes"]
    assert len(segments()) == len(before) - planned["deleted_objects"]
    assert typed("verify", "--level", "data", "-r", repo).code == 0


def test_a_prune_that_fails_leaves_no_doubt_about_what_was_removed(typed: Type, repo: Path) -> None:
    (repo / layout.manifest_key(IDS[0])).write_bytes(b"{}")
    done = typed("forget", "-r", repo, "--keep-last", "1", "--prune")
    gone = ", ".join(IDS[1:11])
    assert done.code == 14
    assert done.err.startswith(f"removed 10 backups, before the prune failed: {gone}\nerror: manifest ")
    assert done.out == "removed 10 backups; the prune failed\n" and backups(repo) == [IDS[0], IDS[11]]
    again = typed("forget", "-r", repo, "--keep-last", "1", "--prune", "--json")
    assert check("error", again)["error"]["removed"] == 0


# --- by ids ---


def test_backups_that_are_named_are_removed(typed: Type, repo: Path) -> None:
    line = ["forget", "latest", IDS[2], nth_id(3)[:-3], IDS[2], "-r", repo]
    planned = check("forget", typed(*line, "--dry-run", "--json"))
    assert removed(planned) == [IDS[2], IDS[3], IDS[11]] and backups(repo) == IDS
    assert typed(*line).out == "removed 3 backups, kept 9\n"
    assert backups(repo) == [*IDS[:2], *IDS[4:11]]


# --- holds ---


def test_a_held_backup_is_shown_and_kept_until_it_is_released(typed: Type, repo: Path) -> None:
    (row,) = check("hold", typed("hold", IDS[0], "-r", repo, "--reason", "audit \x1b[31m", "--json"))["backups"]
    assert (row["held"], row["changed"], row["reason"]) == (True, True, "audit \x1b[31m")
    listed = typed("list", "-r", repo, "--json").document["backups"]
    assert [one["backup"] for one in listed if one["held"]] == [IDS[0]]
    assert f"held      since {row['since']}: audit" in typed("show", IDS[0], "-r", repo).out
    assert "is held already since" in typed("hold", IDS[0], "-r", repo).out

    assert kept(typed("forget", "-r", repo, "--keep-last", "1", "--json").document) == [IDS[0], IDS[11]]
    refused = typed("forget", IDS[11], IDS[0], "-r", repo)
    assert refused.code == 1 and "is held since" in refused.err and "jsbackup hold --release" in refused.err
    assert backups(repo) == [IDS[0], IDS[11]]
    (row,) = check("hold", typed("hold", IDS[0], "--release", "-r", repo, "--json"))["backups"]
    assert (row["held"], row["changed"]) == (False, True)
    assert typed("forget", IDS[0], "-r", repo).code == 0 and backups(repo) == [IDS[11]]


def test_the_policy_of_a_profile_is_for_runs_that_name_nothing(typed: Type, repo: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f"[profiles.p]\nrepo = '{repo}'\n[profiles.p.forget]\nkeep-last = 10\nkeep-tag = ['number=0']\n")
    line = ["forget", "--config", config, "--profile", "p"]
    assert typed(*line, IDS[5]).code == 0 and backups(repo) == IDS[:5] + IDS[6:]
    assert typed(*line).code == 0 and IDS[0] in backups(repo) and len(backups(repo)) == 11
    assert typed(*line, "--keep-last", "1").code == 0 and backups(repo) == [IDS[0], IDS[11]]
