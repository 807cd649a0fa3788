"""A new folder appears whole or not at all, wherever it is to be and whatever happens meanwhile."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jsbackup.errors import StoreError, TargetConflict, UsageError
from jsbackup.exchange.folder import NewFolder
from tests.exchange.folders import tree


def fill(new: NewFolder) -> None:
    new.write("backup.json", b"{}")
    new.folder("S")
    with new.create("S/data") as file:
        file.write(b"abc")
        file.write(b"def")


FILLED = {"S/data": b"abcdef", "backup.json": b"{}"}


@pytest.fixture(params=["absent", "empty"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "parent" / "out"
    path.parent.mkdir()
    if request.param == "empty":
        path.mkdir()
    return path


def nothing_but(path: Path) -> bool:
    """Whether the parent holds this folder or nothing, and no hidden leftovers."""
    return set(path.parent.iterdir()) <= {path}


def test_everything_appears_with_the_commit(target: Path) -> None:
    with NewFolder(target, "token", 0o700) as new:
        fill(new)
        assert not target.exists() or [p.name for p in target.iterdir()] == [".out.jsbackup-token"]
        new.commit()
    assert tree(target) == FILLED
    assert nothing_but(target)
    assert (new.files, new.bytes) == (2, 8)


def test_nothing_stays_without_a_commit(target: Path) -> None:
    existed = target.exists()
    with NewFolder(target, "token", 0o700) as new:
        fill(new)
    assert target.exists() is existed
    assert tree(target.parent) == {}
    assert nothing_but(target)


@pytest.mark.parametrize("error", [KeyboardInterrupt, StoreError("full"), ZeroDivisionError])
def test_nothing_stays_after_an_error_in_the_middle_of_a_file(target: Path, error: BaseException) -> None:
    with pytest.raises(BaseException) as caught, NewFolder(target, "token", 0o700) as new:
        fill(new)
        with new.create("other") as file:
            file.write(b"half")
            raise error
    assert caught.type is (error if isinstance(error, type) else type(error))
    assert tree(target.parent) == {}
    assert nothing_but(target)


def test_a_folder_with_anything_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".hidden").write_bytes(b"")
    with pytest.raises(UsageError, match="is not empty"):
        NewFolder(tmp_path, "token", 0o700)
    with pytest.raises(UsageError, match="is not a folder"):
        NewFolder(tmp_path / ".hidden", "token", 0o700)
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(UsageError, match="is not a folder"):
        NewFolder(tmp_path / "dangling", "token", 0o700)


def test_parents_are_not_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        NewFolder(tmp_path / "missing" / "out", "token", 0o700)
    assert list(tmp_path.iterdir()) == []


def test_a_link_to_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with NewFolder(tmp_path / "link", "token", 0o700) as new:
        fill(new)
        new.commit()
    assert tree(tmp_path / "real") == FILLED
    assert (tmp_path / "link").is_symlink()


def test_what_appears_meanwhile_is_never_replaced(target: Path) -> None:
    with pytest.raises(TargetConflict, match="meanwhile"), NewFolder(target, "token", 0o700) as new:
        fill(new)
        target.mkdir(exist_ok=True)
        # The last of ours that was made, so that others were moved before it is met.
        (target / "S").write_bytes(b"theirs")
        new.commit()
    assert tree(target) == {"S": b"theirs"}
    assert [path.name for path in target.iterdir()] == ["S"]
    assert nothing_but(target)


def test_in_a_folder_that_exists_what_was_made_last_gets_its_name_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[str] = []
    rename = Path.rename
    monkeypatch.setattr(Path, "rename", lambda self, to: moved.append(Path(to).name) or rename(self, to))
    with NewFolder(tmp_path, "token", 0o700) as new:
        (new.staging / "zzz").write_bytes(b"someone else's")
        new.write("stream.arc.s2", b"")
        new.write("backup.json", b"{}")
        new.commit()
    assert moved == ["zzz", "stream.arc.s2", "backup.json"]


def test_a_file_in_the_place_of_the_folder_is_never_replaced(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with pytest.raises(TargetConflict, match="meanwhile"), NewFolder(target, "token", 0o700) as new:
        fill(new)
        target.write_bytes(b"theirs")
        new.commit()
    assert tree(tmp_path) == {"out": b"theirs"}


def test_names_that_are_one_to_the_file_system_are_refused(target: Path) -> None:
    with NewFolder(target, "token", 0o700) as new:
        new.folder("S")
        for make in (lambda: new.folder("S"), lambda: new.write("S", b"")):
            with pytest.raises(UsageError, match="takes S for the same name"):
                make()


def test_a_failing_file_system_is_a_store_error(target: Path) -> None:
    with NewFolder(target, "token", 0o700) as new:
        with pytest.raises(StoreError, match="cannot be written: file name too long"):
            new.write("x" * 256, b"")
        with pytest.raises(StoreError, match="cannot be made: no such file"):
            new.folder("a/b")


def test_a_folder_that_cannot_be_listed_is_a_store_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def iterdir(path: Path) -> Iterator[Path]:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", iterdir)
    with pytest.raises(StoreError, match="cannot be read: permission denied"):
        NewFolder(tmp_path, "1", 0o700)


def test_modes_are_as_asked(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        for name, mode, folder, file in (("private", 0o700, 0o700, 0o600), ("shared", 0o777, 0o755, 0o644)):
            with NewFolder(tmp_path / name, "token", mode) as new:
                fill(new)
                new.commit()
            modes = [path.stat().st_mode & 0o777 for path in (tmp_path / name, tmp_path / name / "S")]
            assert modes == [folder, folder]
            assert (tmp_path / name / "S" / "data").stat().st_mode & 0o777 == file
    finally:
        os.umask(before)
