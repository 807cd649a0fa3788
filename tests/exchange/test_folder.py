"""A stranger's folder is read without following, waiting for or swallowing anything that it should not hold."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from jsbackup.errors import FormatError, JsBackupError, StoreError, UsageError
from jsbackup.exchange import folder as folder_module
from jsbackup.exchange.folder import Folder, FolderEntry, printable_name


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Folder]:
    with Folder.open(tmp_path) as folder:
        yield folder


def test_files_and_folders_are_told_apart_and_sorted(tmp_path: Path, root: Folder) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "c").write_bytes(b"")
    (tmp_path / "a").symlink_to("c")
    os.mkfifo(tmp_path / "d")
    assert list(root.entries().items()) == [
        ("a", FolderEntry.LINK),
        ("b", FolderEntry.FOLDER),
        ("c", FolderEntry.FILE),
        ("d", FolderEntry.OTHER),
    ]


def test_files_are_read_whole_and_in_chunks(tmp_path: Path, root: Folder) -> None:
    content = os.urandom((1 << 20) + 7)
    (tmp_path / "file").write_bytes(content)
    assert root.read("file", len(content)) == content
    assert [len(chunk) for chunk in root.chunks("file")] == [1 << 20, 7]
    assert b"".join(root.chunks("file")) == content
    assert root.stamp("file").size == len(content)


def test_a_file_larger_than_allowed_is_refused(tmp_path: Path, root: Folder) -> None:
    (tmp_path / "file").write_bytes(bytes(11))
    with pytest.raises(FormatError, match="file has more than 10 bytes"):
        root.read("file", 10)


def test_an_endless_sparse_file_is_not_swallowed(tmp_path: Path, root: Folder) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FormatError):
        root.read("file", 1000)


@pytest.mark.parametrize("kind", ["link", "dangling", "loop", "fifo", "socket", "folder"])
def test_only_regular_files_are_opened(
    tmp_path: Path, root: Folder, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    (tmp_path / "target").write_bytes(b"secret")
    with socket.socket(socket.AF_UNIX) as server:
        if kind == "link":
            path.symlink_to(tmp_path / "target")
        elif kind == "dangling":
            path.symlink_to("nowhere")
        elif kind == "loop":
            path.symlink_to("file")
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "socket":
            monkeypatch.chdir(tmp_path)  # a socket's whole path has to be short
            server.bind("file")
        else:
            path.mkdir()
        for read in (lambda: root.read("file", 10), lambda: list(root.chunks("file")), lambda: root.stamp("file")):
            with pytest.raises(UsageError, match=r"^file is not a regular file"):
                read()


def test_a_device_is_not_read(tmp_path: Path) -> None:
    with Folder.open(Path("/dev")) as devices, pytest.raises(UsageError, match="zero is not a regular file"):
        devices.read("zero", 10)


def test_linked_folders_are_not_entered(tmp_path: Path, root: Folder) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").write_bytes(b"")
    with root.folder("real"):
        pass
    for name in ("link", "file"):
        with pytest.raises(UsageError, match=f"{name} is not a folder"):
            root.folder(name)


def test_the_root_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("real")
    with Folder.open(tmp_path / "link") as root:
        assert root.read("file", 10) == b"x"


def test_a_root_that_is_no_folder_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path, text in ((tmp_path / "file", "is not a folder"), (tmp_path / "none", "there is no folder")):
        with pytest.raises(UsageError, match=text):
            Folder.open(path)


def test_what_vanishes_is_a_store_error(tmp_path: Path, root: Folder) -> None:
    for read in (lambda: root.read("none", 10), lambda: root.folder("none"), lambda: root.stamp("none")):
        with pytest.raises(StoreError, match="none cannot be read: no such file"):
            read()


def test_errors_name_files_below_the_root_only(tmp_path: Path, root: Folder) -> None:
    (tmp_path / "a\nb").mkdir()
    with root.folder("a\nb") as inner, pytest.raises(JsBackupError) as caught:
        inner.read("none", 10)
    assert caught.value.message == "a\\x0ab/none cannot be read: no such file or directory"


def test_names_that_are_no_text_are_shown_all_the_same(tmp_path: Path, root: Folder) -> None:
    (tmp_path / os.fsdecode(b"\xff\x1b[2J")).write_bytes(b"")
    (name,) = root.entries()
    assert printable_name(name) == "\\udcff\\x1b[2J"
    printable_name(name).encode()


def test_a_folder_of_endlessly_many_entries_is_refused(
    tmp_path: Path, root: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "_MAX_ENTRIES", 3)
    for name in "abc":
        (tmp_path / name).write_bytes(b"")
    assert len(root.entries()) == 3
    (tmp_path / "d").write_bytes(b"")
    with pytest.raises(UsageError, match="more than 3 entries"):
        root.entries()


# --- damaged disks ---


class Disk:
    """A file of which some bytes cannot be read."""

    def __init__(self, content: bytes, *bad: range) -> None:
        self.content = content
        self.bad = bad
        self.reads = 0

    def read(self, at: int, count: int) -> bytes:
        self.reads += 1
        if any(at < part.stop and at + count > part.start for part in self.bad):
            raise OSError(5, "input/output error")
        return self.content[at : at + min(count, 700_000)]  # less than asked for, as a system call may


def test_what_a_disk_cannot_read_costs_its_sectors_only() -> None:
    content = os.urandom((2 << 20) + 5000)
    disk = Disk(content, range(5000, 5001), range(1 << 20, (1 << 20) + 8193), range(len(content) - 1, len(content)))
    found = folder_module._read_around(disk.read, len(content))
    last = (2 << 20) + 4096
    assert found.unread == ((4096, 8192), (1 << 20, (1 << 20) + 12288), (last, len(content)))
    expected = bytearray(content)
    for start, stop in found.unread:
        expected[start:stop] = bytes(stop - start)
    assert found.content == expected
    assert disk.reads < 800


def test_a_file_that_becomes_shorter_meanwhile_ends_there(tmp_path: Path, root: Folder) -> None:
    found = folder_module._read_around(Disk(b"12345").read, 9)
    assert found == (b"12345", ())
    (tmp_path / "file").write_bytes(b"12345")
    assert root.read_around("file", 5) == (b"12345", ())
    with pytest.raises(FormatError, match="more than 4 bytes"):
        root.read_around("file", 4)
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(UsageError):
        root.read_around("link", 5)


def test_a_stamp_changes_with_what_is_written(tmp_path: Path, root: Folder) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"1")
    before = root.stamp("file")
    assert root.stamp("file") == before
    with file.open("ab") as more:
        more.write(b"2")
    assert (longer := root.stamp("file")) != before
    os.utime(file, ns=(1, 1))
    assert root.stamp("file") != longer
    with pytest.raises(StoreError):
        root.stamp("nowhere")
