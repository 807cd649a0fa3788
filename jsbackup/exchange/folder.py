"""Read a folder that is not trusted.

The root was named by the user and may be a symbolic link. Below it no links are followed: each folder is opened from
its parent's descriptor, only regular files are opened, and a FIFO or a device is refused without blocking. The size of
files that are read as a whole is limited. Names in errors are relative to the root, printable and without the root's
own path, because they end up in manifests.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from jsbackup.errors import FormatError, StoreError, UsageError

__all__ = ["FileStamp", "Folder", "FolderEntry", "PartlyRead", "printable_name"]

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

# No account has as many streams; limits the memory of a listing.
_MAX_ENTRIES = 1 << 18
_CHUNK_BYTES = 1 << 20
_SECTOR_BYTES = 4096


class FolderEntry(Enum):
    FILE = "a file"
    FOLDER = "a folder"
    LINK = "a symbolic link, which is not followed"
    OTHER = "neither a file nor a folder"


class FileStamp(NamedTuple):
    """Tells a file from what it was before something was written to it."""

    inode: int
    size: int
    modified_ns: int


class PartlyRead(NamedTuple):
    """The content of a file, with zeros where it cannot be read: from each `start` to before its `stop`."""

    content: bytes
    unread: tuple[tuple[int, int], ...] = ()


class Folder:
    """An open folder. `where` is its path below the root, "" for the root itself."""

    def __init__(self, descriptor: int, where: str) -> None:
        self._descriptor = descriptor
        self.where = where

    @classmethod
    def open(cls, path: Path) -> Folder:
        """Open the root. Raises `UsageError` if it is not a folder, `StoreError` if it cannot be read."""
        shown = printable_name(str(path))
        with folder_errors(f"folder {shown} cannot be read"):
            try:
                return cls(os.open(path, _FOLDER_FLAGS), "")
            except FileNotFoundError:
                raise UsageError(f"there is no folder {shown}") from None
            except NotADirectoryError:
                raise UsageError(f"{shown} is not a folder", hint="Name the folder that it is in.") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._descriptor)

    def path_of(self, name: str) -> str:
        """Return the shown path of a name in this folder, relative to the root."""
        return f"{self.where}/{printable_name(name)}" if self.where else printable_name(name)

    def entries(self) -> dict[str, FolderEntry]:
        """Return the content of the folder, in order of names. Raises `UsageError` if there are more entries than any
        backup has.
        """
        with folder_errors(f"folder {self.where or '.'} cannot be read"), os.scandir(self._descriptor) as found:
            kinds = {entry.name: _kind(entry) for entry in islice(found, _MAX_ENTRIES + 1)}
        if len(kinds) > _MAX_ENTRIES:
            raise UsageError(f"folder {self.where or '.'} has more than {_MAX_ENTRIES} entries")
        return dict(sorted(kinds.items()))

    def folder(self, name: str) -> Folder:
        """Open a folder in this one. Raises `UsageError` if it is something else by now."""
        where = self.path_of(name)
        with folder_errors(f"folder {where} cannot be read"):
            try:
                return Folder(os.open(name, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=self._descriptor), where)
            except NotADirectoryError:
                raise UsageError(f"{where} is not a folder") from None

    def size(self, name: str) -> int:
        """Return a regular file's size. Raises `UsageError` if it is something else."""
        with self._file(name) as file:
            return os.fstat(file).st_size

    def modified_seconds(self, name: str) -> int:
        with self._file(name) as file:
            return int(os.fstat(file).st_mtime)

    def read(self, name: str, most_bytes: int) -> bytes:
        """Read a whole file. Raises `FormatError` if it has more than `most_bytes`."""
        with self._file(name) as file, folder_errors(f"{self.path_of(name)} cannot be read"):
            content = b""
            while len(content) <= most_bytes and (part := os.read(file, most_bytes + 1 - len(content))):
                content += part
        if len(content) > most_bytes:
            raise FormatError(f"{self.path_of(name)} has more than {most_bytes} bytes")
        return content

    def read_around(self, name: str, most_bytes: int) -> PartlyRead:
        """Read what can be read of a file on a damaged disk. Raises `FormatError` if it has more than `most_bytes`,
        `StoreError` if it cannot even be opened.
        """
        with self._file(name) as file:
            size = os.fstat(file).st_size
            if size > most_bytes:
                raise FormatError(f"{self.path_of(name)} has more than {most_bytes} bytes")
            return _read_around(lambda at, count: os.pread(file, count, at), size)

    def stamp(self, name: str) -> FileStamp:
        """Return what changes if a file is written to. Raises `StoreError` if that cannot be read."""
        with folder_errors(f"{self.path_of(name)} cannot be read"):
            found = os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
        return FileStamp(found.st_ino, found.st_size, found.st_mtime_ns)

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield a file's content, a mebibyte at a time."""
        with self._file(name) as file, folder_errors(f"{self.path_of(name)} cannot be read"):
            while chunk := os.read(file, _CHUNK_BYTES):
                yield chunk

    @contextmanager
    def _file(self, name: str) -> Iterator[int]:
        where = self.path_of(name)
        with folder_errors(f"{where} cannot be read"):
            kind = os.stat(name, dir_fd=self._descriptor, follow_symlinks=False).st_mode
            if not stat.S_ISREG(kind):
                raise UsageError(f"{where} is {_kind_of_mode(kind).value}")
            file = os.open(name, _FILE_FLAGS, dir_fd=self._descriptor)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):  # replaced meanwhile
                raise UsageError(f"{where} is not a file")
            yield file
        finally:
            os.close(file)


def _read_around(read: Callable[[int, int], bytes], size: int) -> PartlyRead:
    """Read a file by parts; a part that fails again by sectors, so that each costs as little as possible.

    `read` gets a position and a number of bytes.
    """
    parts: list[bytes] = []
    unread: list[tuple[int, int]] = []

    def part(start: int, stop: int, step: int) -> None:
        at = start
        while at < stop:
            count = min(step, stop - at)
            try:
                found = read(at, count)
            except OSError:
                if count > _SECTOR_BYTES:
                    part(at, at + count, _SECTOR_BYTES)
                else:
                    parts.append(bytes(count))
                    follows = unread and unread[-1][1] == at
                    unread.append((unread.pop()[0] if follows else at, at + count))
                at += count
                continue
            if not found:  # it was cut short meanwhile
                return
            parts.append(found)
            at += len(found)

    part(0, size, _CHUNK_BYTES)
    return PartlyRead(b"".join(parts), tuple(unread))


def printable_name(name: str) -> str:
    """Return a file's name for an error: no control characters, only valid Unicode."""
    text = name.encode("utf-8", "backslashreplace").decode()
    return "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)


@contextmanager
def folder_errors(what: str) -> Iterator[None]:
    """Convert an `OSError` to a `StoreError` with a sentence."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{what}: {os.strerror(error.errno or 0).lower()}") from error


def _kind(entry: os.DirEntry[str]) -> FolderEntry:
    if entry.is_symlink():
        return FolderEntry.LINK
    if entry.is_dir(follow_symlinks=False):
        return FolderEntry.FOLDER
    return FolderEntry.FILE if entry.is_file(follow_symlinks=False) else FolderEntry.OTHER


def _kind_of_mode(mode: int) -> FolderEntry:
    if stat.S_ISLNK(mode):
        return FolderEntry.LINK
    return FolderEntry.FOLDER if stat.S_ISDIR(mode) else FolderEntry.OTHER
