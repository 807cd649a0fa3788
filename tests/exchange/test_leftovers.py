"""What killed exports left is removed by the next one to the same place, and nothing that may belong to someone."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jsbackup.errors import StoreError
from jsbackup.exchange.folder import NewFolder, clear_leftovers
from tests.cli.typed import in_shell
from tests.harness.batches import some_messages
from tests.harness.commands import command_line, environment
from tests.harness.servers import wait_until
from tests.pipeline.places import Kept, keep

_WRITES = """
import sys, pathlib
from jsbackup.exchange.folder import NewFolder
with NewFolder(pathlib.Path(sys.argv[1]), sys.argv[2], 0o700) as new:
    new.write("file", b"content")
    print(flush=True)
    sys.stdin.read()
"""


def _writer(target: Path, token: str = "0000aaaa") -> subprocess.Popen[bytes]:
    """A process in the middle of writing a folder."""
    words = [sys.executable, "-c", _WRITES, str(target), token]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("exists", [False, True])
def test_only_what_belongs_to_no_living_process_is_removed(tmp_path: Path, exists: bool) -> None:
    target = tmp_path / "out"
    if exists:
        target.mkdir()
    place = target if exists else tmp_path
    killed = _writer(target)
    _kill(killed)
    assert ".out.jsbackup-0000aaaa" in _names(place)
    if exists:
        (place / ".out.jsbackup-0000aaaa").rename(tmp_path / "aside")
    alive = _writer(target, "0000bbbb")
    if exists:
        (tmp_path / "aside").rename(place / ".out.jsbackup-0000aaaa")
    try:
        assert clear_leftovers(target) == []
        assert _names(place) - {"out"} == {".out.jsbackup-0000bbbb"}
        assert _names(place / ".out.jsbackup-0000bbbb") == {"file"}
    finally:
        _kill(alive)
    assert clear_leftovers(target) == [] and _names(place) <= {"out"}


def test_one_of_this_process_stays(tmp_path: Path) -> None:
    with NewFolder(tmp_path / "out", "0000aaaa", 0o700) as new:
        new.write("file", b"")
        assert clear_leftovers(tmp_path / "out") == []
        new.commit()
    assert _names(tmp_path / "out") == {"file"}


def test_only_folders_of_that_name_are_removed(tmp_path: Path) -> None:
    leftover = tmp_path / ".out.jsbackup-00000006"
    leftover.mkdir()
    (leftover / "file").write_text("content")
    # Not ours: another name, another form, a link, a file.
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("content")
    (tmp_path / ".out.jsbackup-00000007").symlink_to(outside)
    (tmp_path / ".out.jsbackup-00000008").write_text("")
    for name in (".out.jsbackup-xyz", ".other.jsbackup-00000009", "out.jsbackup-0000000a", ".out.jsbackup-0000000b2"):
        shutil.copytree(outside, tmp_path / name)
    before = _names(tmp_path)
    assert clear_leftovers(tmp_path / "out") == []
    assert before - _names(tmp_path) == {leftover.name} and _names(outside) == {"file"}
    assert clear_leftovers(tmp_path / "no" / "such") == []


def _no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(_descriptor: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", flock)


def test_where_no_folder_can_be_locked_it_stays_and_is_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ".out.jsbackup-0000aaaa"
    folder.mkdir()
    _no_locks(monkeypatch)
    (unclear,) = clear_leftovers(tmp_path / "out")
    assert unclear.startswith(f"{folder} is of an export that still runs, or was killed: remove it") and folder.is_dir()
    with NewFolder(tmp_path / "other", "0000bbbb", 0o700) as new:
        new.write("file", b"")
        new.commit()
    assert _names(tmp_path / "other") == {"file"}


def test_one_that_another_export_removes_before_it_is_locked_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else files would vanish while they are written, and what is left get the final name."""

    def flock(_descriptor: int, _how: int) -> None:
        raise BlockingIOError(errno.EWOULDBLOCK, "locked")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(StoreError), NewFolder(tmp_path / "out", "0000aaaa", 0o700):
        pytest.fail("it was entered")


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return keep(tmp_path / "r", {"ORDERS": some_messages(100, 60), "STILL": some_messages(10, 60)})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "delta", "jsonl", "nats-cli", "config"])
@pytest.mark.parametrize("exists", [False, True])
def test_the_next_export_clears_up(tmp_path: Path, kept: Kept, kind: str, exists: bool) -> None:
    """Also where the leftover is in the folder itself, which is not empty because of it."""
    out = tmp_path / "out"
    if exists:
        out.mkdir()
    _kill(_writer(out))
    line = ["export", "latest", *kept.line, "--format", kind, "--output", out]
    done = in_shell(*line)
    assert done.code == 0 and "was killed" not in done.err, done
    assert not list(tmp_path.rglob(".out.jsbackup-*")) and not list(out.rglob(".out.*"))


@pytest.mark.slow
def test_old_temporary_files_of_a_store_are_removed(tmp_path: Path, kept: Kept) -> None:
    incoming = tmp_path / "again" / ".incoming"
    incoming.mkdir(parents=True)
    for name, age in (("1-1", 7200), ("2-2", 0)):
        (incoming / name).write_text("")
        os.utime(incoming / name, (time.time() - age,) * 2)
    done = in_shell("export", "latest", *kept.line, "--format", "parquet", "--append", "--output", tmp_path / "again")
    assert done.code == 0, done
    assert _names(incoming) == {"2-2"}


@pytest.mark.by_turns
@pytest.mark.slow
def test_an_export_that_is_killed_at_any_time_leaves_nothing_for_long(tmp_path: Path) -> None:
    kept = keep(tmp_path / "r", {"ORDERS": some_messages(1000, 5000)})
    line = ["export", "latest", *kept.line, "--format", "jsonl", "--quiet", "--output"]
    seen = 0
    for number in range(5):
        out = tmp_path / f"out{number}"
        words = command_line(*map(str, [*line, out]))
        process = subprocess.Popen(words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        holder = f".out{number}.jsbackup-*"
        wait_until(lambda process=process, holder=holder: any(tmp_path.glob(holder)) or process.poll() is not None, 60)
        time.sleep(number * 0.03)
        process.send_signal(signal.SIGKILL)
        process.wait()
        seen += any(tmp_path.glob(f".out{number}.jsbackup-*"))
        if not out.exists():
            done = in_shell(*line, out)
            assert done.code == 0, done
            assert not list(tmp_path.glob(f".out{number}.jsbackup-*"))
        assert [path.name for path in out.iterdir() if not path.name.startswith(".")] == ["ORDERS"]
    assert seen
