"""A disk that is full where objects are put and deleted: one sentence, exit code 21, nothing half-made, and once there
is room again a rerun succeeds. (For backups see `test_faults.py`.)
"""

from __future__ import annotations

import resource
import subprocess
from pathlib import Path

import pytest

from jsbackup.repository import layout
from jsbackup.repository.checks.verify import Level, verify_backup
from jsbackup.repository.manifest import objects_named
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.harness.backups import FIRST, SECOND, make_repository, store_backup
from tests.harness.commands import Ran, command_line, environment, jsbackup
from tests.harness.disks import small_disk

FULL = "no space left on the file system"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two backups: of 20 and some 50 objects more, each of which fills a page of 4 KiB."""
    made = make_repository(LocalStore(tmp_path / "repo"))
    store_backup(made, FIRST, count=500)
    store_backup(made, SECOND, count=1000)
    return tmp_path / "repo"


def assert_sound(folder: Path) -> list[str]:
    """Every backup is whole, and nothing is left of what did not fit."""
    repository = Repository.open(LocalStore(folder))
    for backup in repository.backups():
        assert list(verify_backup(repository.objects, repository.manifest(backup), Level.DATA)) == []
    assert list((folder / ".incoming").iterdir()) == []
    assert list(repository.store.list(layout.LOCKS)) == []
    return repository.backups()


def assert_one_sentence(ran: Ran) -> None:
    assert ran.code == 21 and FULL in ran.document["error"]["message"]
    assert "\n" not in ran.document["error"]["message"]


def test_a_copy_into_a_disk_without_room_keeps_whole_backups_only(repository: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        target = disk / "copy"
        (filler := disk / "filler").write_bytes(bytes(700 << 10))
        line: list[str | Path] = ["copy", "-r", repository, "--to-repo", target]
        assert_one_sentence(jsbackup(*line))
        there = assert_sound(target)
        assert SECOND not in there and list(LocalStore(target).list(layout.SEGMENTS))
        filler.unlink()
        subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
        assert jsbackup(*line).ok().document["failed"] == []
        assert assert_sound(target) == [FIRST, SECOND] == assert_sound(repository)


def test_a_copy_of_a_file_that_may_not_grow_so_large(tmp_path: Path) -> None:
    repository = tmp_path / "repo"
    made = make_repository(LocalStore(repository))
    store_backup(made, FIRST, count=20)
    store_backup(made, SECOND, count=1000)
    largest, key = max((info.size, info.key) for info in LocalStore(repository).list())
    assert key != layout.manifest_key(FIRST) and key not in set(objects_named(made.manifest(FIRST)))
    done = subprocess.run(
        command_line("copy", "-r", repository, "--to-repo", tmp_path / "copy"),
        capture_output=True,
        text=True,
        env=environment(),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (largest - 1, largest - 1)),
    )
    assert done.returncode == 21 and "Traceback" not in done.stderr
    assert "the file system does not take files of this size" in done.stderr
    assert SECOND not in assert_sound(tmp_path / "copy")
    jsbackup("copy", "-r", repository, "--to-repo", tmp_path / "copy").ok()
    assert assert_sound(tmp_path / "copy") == [FIRST, SECOND]


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--prune", "--grace", "0")])
def test_a_forget_on_a_full_disk_removes_all_or_nothing(
    repository: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    with small_disk(tmp_path / "disk", 4) as disk:
        subprocess.run(["cp", "-a", str(repository), str(disk / "repo")], check=True)
        repo = disk / "repo"
        with (disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError):
            while filler.write(bytes(4096)):
                pass
        line: list[str | Path] = ["forget", FIRST, "-r", repo, *options]
        assert_one_sentence(jsbackup(*line))
        assert assert_sound(repo) == [FIRST, SECOND]
        assert_one_sentence(jsbackup("prune", "-r", repo, "--grace", "0"))
        assert assert_sound(repo) == [FIRST, SECOND]
        (disk / "filler").unlink()
        jsbackup(*line).ok()
        assert assert_sound(repo) == [SECOND]
        jsbackup("prune", "-r", repo, "--grace", "0").ok()
        needed = set(objects_named(Repository.open(LocalStore(repo)).manifest(SECOND)))
        assert {info.key for info in LocalStore(repo).list(layout.SEGMENTS)} == needed
