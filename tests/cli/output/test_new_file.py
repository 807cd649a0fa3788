"""Files that commands write: whole, for all to read as the umask has it, and never over another one unasked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jsbackup.cli.output.new_file import check_new_file, check_no_link, write_new_file
from jsbackup.errors import JsBackupError, UsageError


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0, 0o644)])
def test_a_new_file_is_whole_and_readable(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_new_file(tmp_path / "page.html", b"one", replace=False)
    finally:
        os.umask(before)
    (path,) = tmp_path.iterdir()
    assert path.read_bytes() == b"one" and path.stat().st_mode & 0o7777 == mode


def test_an_existing_file_is_replaced_only_if_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_bytes(b"theirs")
    with pytest.raises(UsageError, match="exists already"):
        check_new_file(path, replace=False)
    with pytest.raises(UsageError, match="exists already"):
        write_new_file(path, b"ours", replace=False)
    assert path.read_bytes() == b"theirs"
    check_new_file(path, replace=True)
    write_new_file(path, b"ours", replace=True)
    assert path.read_bytes() == b"ours" and list(tmp_path.iterdir()) == [path]


def test_a_link_is_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target.html", tmp_path / "link.html"
    link.symlink_to(target)
    write_new_file(link, b"one", replace=False)
    write_new_file(link, b"two", replace=True)
    assert link.is_symlink() and target.read_bytes() == b"two"


def test_what_is_no_file_is_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder", "."):
        with pytest.raises(UsageError, match="is not a file"):
            check_new_file(tmp_path / name, replace=True)
    with pytest.raises(UsageError, match="is not a file"):
        write_new_file(Path("/dev/null"), b"", replace=True)
    for path in (tmp_path / "none" / "page.html", tmp_path / "pipe" / "page.html"):
        with pytest.raises(UsageError, match="there is no folder"):
            check_new_file(path, replace=False)
    with pytest.raises(UsageError, match="not a usable name"):
        check_new_file(tmp_path / "a\0b", replace=False)


def test_a_name_that_the_file_system_refuses_leaves_nothing(tmp_path: Path) -> None:
    for name in ("x" * 300, "é" * 200):
        check_no_link(tmp_path / name)
        with pytest.raises(JsBackupError, match="cannot write"):
            write_new_file(tmp_path / name, b"one", replace=False)
    write_new_file(tmp_path / ("é" * 127), b"one", replace=False)
    assert len(list(tmp_path.iterdir())) == 1
