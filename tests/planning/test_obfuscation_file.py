"""The key file: private, made once, never overwritten, complete afterwards."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from jsbackup.errors import FormatError, JsBackupError, NatsError, PlanRefused, UsageError
from jsbackup.planning.obfuscation_file import keeping_names, names_of_file, read_key_file
from jsbackup.transforms.obfuscate.names import ObfuscatedNames


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "k.keys.json"


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_is_there_before_the_copy_and_complete_after_it(path: Path) -> None:
    names = names_of_file(path)
    assert not path.exists()
    with keeping_names(path, names):
        assert read_key_file(path).secret == names.secret and _mode(path) == 0o600
        names.token("ORDERS")
    assert read_key_file(path).hashes.keys() == {"ORDERS"} and _mode(path) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_names_of_another_command_stay(path: Path) -> None:
    with keeping_names(path, one := names_of_file(path)):
        other = read_key_file(path)
        with keeping_names(path, other):
            other.token("theirs")
        one.token("ours")
    assert read_key_file(path).hashes.keys() == {"theirs", "ours"}


@pytest.mark.parametrize("refused", [UsageError("no"), PlanRefused("no")])
def test_what_is_refused_leaves_no_new_file_and_an_old_one_as_it_is(path: Path, refused: JsBackupError) -> None:
    with pytest.raises(type(refused)), keeping_names(path, names_of_file(path)):
        raise refused
    assert not path.exists()
    with keeping_names(path, names_of_file(path)):
        pass
    before = path.read_bytes()
    with pytest.raises(type(refused)), keeping_names(path, names_of_file(path)):
        raise refused
    assert path.read_bytes() == before


def test_what_fails_midway_leaves_the_names(path: Path) -> None:
    for error in (NatsError("gone"), KeyboardInterrupt()):
        with pytest.raises(type(error)), keeping_names(path, names := names_of_file(path)):
            names.token(repr(error))
            raise error
        assert repr(error) in read_key_file(path).hashes


def test_other_files_are_not_touched(path: Path) -> None:
    path.write_text("notes")
    with pytest.raises(FormatError, match=r"k\.keys\.json"):
        names_of_file(path)
    with pytest.raises(FormatError), keeping_names(path, ObfuscatedNames(bytes(32))):
        pytest.fail("not reached")
    assert path.read_text() == "notes"
    path.unlink()
    with keeping_names(path, names_of_file(path)):
        pass
    with pytest.raises(UsageError, match="by another command"), keeping_names(path, ObfuscatedNames(bytes(32))):
        pytest.fail("not reached")
    link = path.parent / "link"
    link.symlink_to(path)
    with pytest.raises(UsageError, match="symbolic link"), keeping_names(link, names_of_file(link)):
        pytest.fail("not reached")


def test_a_file_that_was_replaced_meanwhile_is_not_overwritten(path: Path) -> None:
    other = ObfuscatedNames(bytes(32))
    with pytest.raises(JsBackupError, match="replaced by another one"), keeping_names(path, names_of_file(path)):
        path.unlink()
        with keeping_names(path, other):
            pass
    assert read_key_file(path).secret == other.secret


def test_commands_that_finish_at_the_same_moment_lose_no_names(path: Path) -> None:
    with keeping_names(path, names_of_file(path)):
        pass
    barrier = Barrier(3)

    def command(number: int) -> None:
        with keeping_names(path, names := names_of_file(path)):
            names.learn(f"{number}-{one}" for one in range(300))
            barrier.wait(60)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(command, range(3)))
    assert read_key_file(path).hashes.keys() == {f"{number}-{one}" for number in range(3) for one in range(300)}
    assert list(path.parent.iterdir()) == [path] and _mode(path) == 0o600


def test_an_interrupt_does_not_stop_the_file_from_being_completed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with keeping_names(path, names_of_file(path)):
        pass
    calls: list[int] = []

    def interrupted(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), keeping_names(path, names := names_of_file(path)):
        monkeypatch.setattr(os, "fsync", interrupted)
        names.token("ORDERS")
    assert read_key_file(path).hashes.keys() == {"ORDERS"} and list(path.parent.iterdir()) == [path]


_KILLED = """
import os, signal, sys
from pathlib import Path
from jsbackup.planning.obfuscation_file import keeping_names, names_of_file
with keeping_names(Path(sys.argv[1]), names := names_of_file(Path(sys.argv[1]))):
    names.token("ORDERS")
    os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_command_leaves_is_removed_by_the_next(path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", _KILLED, str(path)], timeout=60, check=False).returncode == -9
    other = path.parent / f".{path.name}.backup.new"
    other.touch()
    assert len(list(path.parent.iterdir())) == 3
    with keeping_names(path, names := names_of_file(path)):
        names.token("ORDERS")
    assert read_key_file(path).hashes.keys() == {"ORDERS"} and set(path.parent.iterdir()) == {path, other}


def test_a_copy_that_appears_whole_leaves_no_key_file_if_it_fails(path: Path) -> None:
    copy = path.parent / "copy"
    with pytest.raises(NatsError), keeping_names(path, names_of_file(path), whole=copy):
        raise NatsError("gone")
    assert not path.exists()
    with pytest.raises(KeyboardInterrupt), keeping_names(path, names := names_of_file(path), whole=copy):
        copy.mkdir()
        (copy / "stream").touch()
        names.token("ORDERS")
        raise KeyboardInterrupt
    assert read_key_file(path).hashes.keys() == {"ORDERS"}
    with pytest.raises(NatsError), keeping_names(path, names_of_file(path), whole=path.parent / "none"):
        raise NatsError("gone")
    assert read_key_file(path).hashes.keys() == {"ORDERS"}
