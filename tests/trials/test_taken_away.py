"""What was taken away from a repository is noticed before anything is deleted (point 16)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.servers import NEWEST, NatsServer
from tests.trials.accounts import Type, Typed, backup_of, fill, typing

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

STREAMS = ("A", "B", "C", "D")


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    return typing(capsys, monkeypatch)


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer(NEWEST) as started:
        for number, stream in enumerate(STREAMS):
            fill(started.url, stream, 3 + number)
        yield started


class Kept:
    """A repository with a backup of each stream, in a folder that someone else may write to, too."""

    def __init__(self, typed: Type, server: NatsServer, folder: Path, kind: str) -> None:
        self.typed = typed
        self.repo = folder / "repo"
        self.keys: list[str | Path] = []
        if kind == "signed":
            key = folder / "writer.key"
            assert typed("init", "--sign", "--writer-key", key, "-r", self.repo).code == 0
            self.keys = ["--writer-key", key]
        made = [self.run("backup", stream, "-s", server.url, "--json") for stream in STREAMS]
        self.ids = [backup_of(one) for one in made]

    def run(self, *arguments: str | Path) -> Typed:
        return self.typed(*arguments, "-r", self.repo, *self.keys)

    def segments(self) -> int:
        return len(list(self.repo.rglob("*.parquet")))

    def manifest(self, number: int) -> Path:
        return self.repo / "backups" / f"{self.ids[number]}.json"


@pytest.mark.parametrize("number", [2, 3], ids=["one before the newest", "the newest"])
def test_status_is_not_content_while_a_backup_is_missing(
    server: NatsServer, typed: Type, tmp_path: Path, number: int
) -> None:
    kept = Kept(typed, server, tmp_path, "plain")
    assert kept.run("status").code == 0
    away = kept.manifest(number).rename(tmp_path / "away.json")
    missing = ("unreadable-backup", kept.ids[number])
    for verified in (False, True):
        status = kept.run("status", "--json")
        assert status.code == 17
        assert [(one["rule"], one["about"]) for one in status.document["breaches"]] == [missing]
        assert verified or kept.run("verify").code == 14
    away.rename(kept.manifest(number))
    assert kept.run("verify").code == 0 and kept.run("status").code == 0


@pytest.mark.parametrize("number", [2, 3], ids=["one before the newest", "the newest"])
@pytest.mark.parametrize("kind", ["plain", "signed"])
def test_forget_covers_nothing_up(server: NatsServer, typed: Type, tmp_path: Path, kind: str, number: int) -> None:
    kept = Kept(typed, server, tmp_path, kind)
    lost = kept.ids[number]
    away = kept.manifest(number).rename(tmp_path / "away.json")
    for line in (
        ("prune", "--grace", "0s"),
        ("prune", "--grace", "0s", "--dry-run"),
        ("forget", "--keep-last", "1", "--prune", "--grace", "0s"),
        ("forget", kept.ids[5 - number]),
        ("forget", kept.ids[0], "--prune", "--grace", "0s"),
    ):
        done = kept.run(*line)
        assert done.code == 14, (line, done)
        assert f"backup {lost}: it was removed, but not by jsbackup" in done.err
        assert f"'jsbackup forget {lost}'" in done.err
        assert (kept.segments(), len(kept.run("list", "--json").document["backups"])) == (4, 3)
    assert kept.run("verify").code == 14
    # Brought back, all is well.
    away.rename(kept.manifest(number))
    assert kept.run("verify").code == 0
    assert kept.run("prune", "--grace", "0s").code == 0 and kept.segments() == 4
    # Or it is given up.
    kept.manifest(number).unlink()
    assert kept.run("forget", lost).code == 0
    assert kept.run("verify").code == 0
    assert kept.run("prune", "--grace", "0s").code == 0 and kept.segments() == 3
    # Each has another stream.
    left = [one for one in kept.ids if one != lost]
    assert kept.run("forget", "--keep-last", "1", "--group-by", "none", "--prune", "--grace", "0s").code == 0
    assert kept.segments() == 3
    assert kept.run("forget", *left[:-1], "--prune", "--grace", "0s").code == 0
    assert kept.segments() == 1


def test_latest_is_not_an_older_backup_where_a_newer_one_is_missing(
    server: NatsServer, typed: Type, tmp_path: Path
) -> None:
    kept = Kept(typed, server, tmp_path, "plain")
    everything = [backup_of(kept.run("backup", "-s", server.url, "--json")) for _ in range(2)]
    line = ("plan", "latest", "-s", server.url, "--if-exists", "skip")
    assert "is newer" not in kept.run(*line).err
    (kept.repo / "backups" / f"{everything[1]}.json").unlink()
    done = kept.run(*line)
    assert done.code == 14 and f"the manifest of backup {everything[1]}, which is newer, is missing" in done.err, done
    assert kept.run("plan", everything[0], *line[2:]).code == 0
    listed = kept.run("list")
    assert listed.code == 14 and f"cannot be read: manifest backups/{everything[1]}.json: it was removed" in listed.out
    copied = kept.run("copy", "--to-repo", tmp_path / "second")
    assert copied.code == 3 and f"not copied: {everything[1]}: it was removed" in copied.out, copied
    (kept.repo / "backups" / f"{everything[0]}.json").unlink()
    done = kept.run(*line)
    assert done.code == 14 and f"the manifest of backup {everything[1]}, which is newer, is missing" in done.err, done


@pytest.mark.parametrize("kind", ["plain", "signed"])
def test_where_no_manifest_is_left_nothing_is_deleted(
    server: NatsServer, typed: Type, tmp_path: Path, kind: str
) -> None:
    kept = Kept(typed, server, tmp_path, kind)
    away = shutil.move(kept.repo / "backups", tmp_path / "away")
    for line in (("prune", "--grace", "0s"), ("prune", "--grace", "0s", "--dry-run")):
        done = kept.run(*line)
        assert (
            (done.code, kept.segments()) == (14, 4)
            and "no manifest" in done.err
            and "restore their manifests" in done.err.lower()
        )
    shutil.move(away, kept.repo / "backups")
    # All may be forgotten, as long as somebody says so.
    assert kept.run("forget", *kept.ids, "--prune", "--grace", "0s").code == 0 and kept.segments() == 0
    again = backup_of(kept.run("backup", "A", "-s", server.url, "--json"))
    (kept.repo / "backups" / f"{again}.json").unlink()
    assert kept.run("prune", "--grace", "0s").code == 14 and kept.segments() == 1


def test_a_copy_of_some_backups_is_whole(server: NatsServer, typed: Type, tmp_path: Path) -> None:
    kept, second = Kept(typed, server, tmp_path, "plain"), tmp_path / "second"
    assert kept.run("copy", kept.ids[1], kept.ids[3], "--to-repo", second).code == 0
    assert typed("verify", "-r", second).code == 0
    assert typed("prune", "--grace", "0s", "-r", second).code == 0
    assert typed("forget", kept.ids[1], "--prune", "--grace", "0s", "-r", second).code == 0
    assert len(list(second.rglob("*.parquet"))) == 1
