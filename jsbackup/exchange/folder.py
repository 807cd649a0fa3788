"""Folders that are read without trust, and folders that are made whole or not at all.

The root was named by the user and may be a symbolic link. Below it no links are followed: each folder is opened from
its parent's descriptor, only regular files are opened, and a FIFO or a device is refused without blocking. The size of
files that are read as a whole is limited. Names in errors are relative to the root, printable and without the root's
own path, because they end up in manifests.

Files of a new folder are written into a hidden folder first, each flushed to the disk. `commit` gives it its name: a
folder that does not exist yet is created by one rename. If the folder exists (empty; perhaps a mount point, or in a
place where nothing else may be created), the hidden folder is within it, and its entries are moved up one by one in the
order of their creation, and moved back if one of them fails. Leaving without `commit` removes everything; what a killed
process leaves is removed by the next export to the same place (`clear_leftovers`).

The hidden folder is called `.NAME.jsbackup-TOKEN`. Its process has it locked, and the system unlocks it when that ends.
Where a file system locks no folders, a hidden one stays, and the user is told.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple, Self

from jsbackup.errors import FormatError, StoreError, TargetConflict, UsageError
from jsbackup.stores import posix

__all__ = [
    "FileStamp",
    "Folder",
    "FolderEntry",
    "NewFolder",
    "PartlyRead",
    "check_output",
    "clear_leftovers",
    "folder_errors",
    "printable_name",
]

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

# No account has as many streams; limits the memory of a listing.
_MAX_ENTRIES = 1 << 18
_CHUNK_BYTES = 1 << 20
_SECTOR_BYTES = 4096

# A name of 255 bytes with our additions would be too long for a file system; a character has up to four bytes.
_MAX_SHOWN = 40


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
        os.close(self._descriptor)

    def path_of(self, name: str) -> str:
        """Return the shown path of a name in this folder, relative to the root."""
        return f"{self.where}/{printable_name(name)}" if self.where else printable_name(name)

    def entries(self) -> dict[str, FolderEntry]:
        """Return the content of the folder, in order of names. Raises `UsageError` if there are more entries than any
        backup has.
        """
        with folder_errors(f"folder {self.where or '.'} cannot be read"), os.scandir(self._descriptor) as scanned:
            kinds = {entry.name: _kind(entry) for entry in islice(scanned, _MAX_ENTRIES + 1)}
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

    def stamp(self, name: str) -> FileStamp:
        """Return what changes if a regular file is written to. Raises `UsageError` if it is something else."""
        with folder_errors(f"{self.path_of(name)} cannot be read"):
            status = os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{self.path_of(name)} is not a regular file; links are not followed")
        return FileStamp(status.st_ino, status.st_size, status.st_mtime_ns)

    def read(self, name: str, most_bytes: int) -> bytes:
        """Read a whole file. Raises `FormatError` if it has more than `most_bytes`."""
        content, unread = self.read_around(name, most_bytes)
        if unread:
            raise StoreError(f"{self.path_of(name)} cannot be read: input/output error")
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

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield a file's content, a mebibyte at a time."""
        with self._file(name) as file, folder_errors(f"{self.path_of(name)} cannot be read"):
            while chunk := os.read(file, _CHUNK_BYTES):
                yield chunk

    @contextmanager
    def _file(self, name: str) -> Iterator[int]:
        self.stamp(name)
        with folder_errors(f"{self.path_of(name)} cannot be read"):
            file = os.open(name, _FILE_FLAGS, dir_fd=self._descriptor)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):  # replaced meanwhile
                raise UsageError(f"{self.path_of(name)} is not a file")
            yield file
        finally:
            os.close(file)


def _read_around(read: Callable[[int, int], bytes], size: int) -> PartlyRead:
    """Read a file by parts; a part that fails again by sectors, so that each costs as little as possible.

    `read` gets a position and a number of bytes.
    """
    parts: list[bytes] = []
    unread: list[tuple[int, int]] = []
    at = sectors_to = 0  # up to there by sectors
    while at < size:
        try:
            part = read(at, min(_SECTOR_BYTES if at < sectors_to else _CHUNK_BYTES, size - at))
        except OSError:
            if at >= sectors_to:
                sectors_to = at + _CHUNK_BYTES
                continue
            part = bytes(min(_SECTOR_BYTES, size - at))
            start = unread.pop()[0] if unread and unread[-1][1] == at else at
            unread.append((start, at + len(part)))
        if not part:  # it was cut short meanwhile
            break
        parts.append(part)
        at += len(part)
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


def clear_leftovers(target: Path) -> list[str]:
    """Remove what killed exports to `target`, a folder that may not exist, have left beside it and within it.

    Returns sentences about the hidden folders that stay although it is not known that their exports still run.
    """
    unclear, target = [], target.absolute()
    pattern = re.compile(re.escape(_hidden_name(target.name, "")) + "[0-9a-f]{8}")
    for place in (target.parent, target):
        with suppress(OSError), os.scandir(place) as entries:
            for folder in list(entries):
                if not pattern.fullmatch(folder.name) or not folder.is_dir(follow_symlinks=False):
                    continue
                try:
                    with posix.closing(_lock(folder.path)):
                        shutil.rmtree(folder.path, ignore_errors=True)
                except BlockingIOError:  # its export still runs
                    continue
                except OSError:
                    pass
                if os.path.lexists(folder.path):
                    unclear.append(
                        f"{folder.path} is of an export that still runs, or was killed: remove it if none does"
                    )
    return unclear


def _hidden_name(name: str, token: str) -> str:
    return f".{name[:_MAX_SHOWN]}.jsbackup-{token}"


def _lock(folder: str | Path) -> int:
    """Return the descriptor that holds a lock of the folder. Raises BlockingIOError if another one does, and
    OSError.
    """
    descriptor = os.open(folder, _FOLDER_FLAGS | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class NewFolder:
    """A context manager. Paths are relative, parts joined by `/`; `files` and `bytes` count what was written.

    `token` makes the hidden name unique, `mode` is that of folders (files get it without the right to execute). All
    methods raise `StoreError` if the file system fails. `staging` is the hidden folder, for writers outside of this
    class: they flush what they write, and it is not counted here.
    """

    def __init__(self, path: Path, token: str, mode: int) -> None:
        self._target = path.absolute()
        self._mode = mode
        hint = "Name a folder that is empty or does not exist yet."
        self._exists = check_output(self._target, hint=hint)
        shown = printable_name(str(self._target))
        with folder_errors(f"{shown} cannot be read"):
            if self._exists and any(self._target.iterdir()):
                raise UsageError(f"{shown} is not empty", hint=hint)
        parent = self._target if self._exists else self._target.parent
        self.staging = parent / _hidden_name(self._target.name, token)
        self._lock: int | None = None
        self._committed = False
        self._order: dict[str, int] = {}  # of entries in the folder itself
        self.files = 0
        self.bytes = 0

    def __enter__(self) -> Self:
        with folder_errors("the output folder cannot be made"):
            self.staging.mkdir(mode=self._mode)
            try:
                self._lock = _lock(self.staging)
            except (BlockingIOError, FileNotFoundError):  # another export takes it for a leftover
                raise
            except OSError:  # some file systems of networks lock no folders
                pass
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._committed:
            shutil.rmtree(self.staging, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)

    def folder(self, path: str) -> None:
        """Create a folder. Raises `UsageError` if there is one whose name is the same for this file system."""
        with folder_errors(f"folder {printable_name(path)} cannot be made"):
            self._order.setdefault(path.partition("/")[0], len(self._order))
            try:
                (self.staging / path).mkdir(mode=self._mode)
            except FileExistsError:
                raise _same_name(path) from None

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """Create a file; it is flushed to the disk at the end."""
        with folder_errors(f"{printable_name(path)} cannot be written"):
            self._order.setdefault(path.partition("/")[0], len(self._order))
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                descriptor = os.open(self.staging / path, flags, self._mode & 0o666)
            except FileExistsError:
                raise _same_name(path) from None
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                posix.fsync(file.fileno())
                self.bytes += file.tell()
        self.files += 1

    def write(self, path: str, content: bytes) -> None:
        """Create a file with this content."""
        with self.create(path) as file:
            file.write(content)

    def commit(self) -> None:
        """Give everything its final name. Raises TargetConflict if something is there by now."""
        with folder_errors("the output folder cannot get its name"):
            for folder, _, _ in os.walk(self.staging):
                _fsync_folder(Path(folder))
            try:
                if self._exists:
                    self._move_up()
                else:
                    # Only replaces an empty folder.
                    self.staging.rename(self._target)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTDIR, errno.ENOTEMPTY):
                    raise
                raise TargetConflict(
                    f"something was put into {printable_name(str(self._target))} meanwhile, so nothing was written "
                    "there",
                    hint="Run it again if another export has made it; else name another folder.",
                ) from error
            self._committed = True
            _fsync_folder(self._target if self._exists else self._target.parent)

    def _move_up(self) -> None:
        moved: list[str] = []
        try:
            names = sorted(path.name for path in self.staging.iterdir())
            # Entries of other writers come first: their order is not known.
            for name in sorted(names, key=lambda name: self._order.get(name, -1)):
                if os.path.lexists(self._target / name):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
                (self.staging / name).rename(self._target / name)
                moved.append(name)
            self.staging.rmdir()
        except BaseException:
            with suppress(OSError):
                for name in moved:
                    (self._target / name).rename(self.staging / name)
            raise


def check_output(path: Path, *, hint: str) -> bool:
    """Return whether `path` is a folder already. Raises UsageError unless it can become one, with this hint if there is
    something else, and StoreError if that cannot be seen.
    """
    path = path.absolute()
    shown = printable_name(str(path))
    with folder_errors(f"{shown} cannot be read"):
        if path.is_dir():
            return True
        if os.path.lexists(path):
            raise UsageError(f"{shown} is not a folder", hint=hint)
        if not path.parent.is_dir():
            above = printable_name(str(path.parent))
            if os.path.lexists(path.parent):
                raise UsageError(f"{above} is not a folder", hint=hint)
            raise UsageError(f"there is no folder {above} to make it in", hint="Make that first.")
    return False


def _fsync_folder(path: Path) -> None:
    with posix.closing(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        posix.fsync(descriptor)


def _same_name(path: str) -> UsageError:
    return UsageError(
        f"this file system takes {printable_name(path)} for the same name as another one's",
        hint="It ignores case or the composition of letters; write to another file system.",
    )
