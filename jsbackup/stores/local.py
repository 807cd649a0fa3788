"""A folder as a store: one file per object, with the key as its path.

A file appears whole or not at all: it is written under a temporary name in the hidden folder `.incoming` beside the
objects, flushed to the disk (fsync), linked to its final name, and the folder is flushed. A hard link never replaces an
existing name, so the put is create-only and atomic also between hosts on NFS; on file systems without hard links (FAT,
some network shares) `renameat2(RENAME_NOREPLACE)` is used instead, and if that is missing too the put fails. Folders
are created with mode 0700, files with 0600.

Below the root, symbolic links are not followed, for reading, writing or listing: each folder of a path is
opened from its parent's descriptor. (The root itself may be one: the user chose it.)

A root that was there is not made again. Another folder in its place, such as that below the mount point of a disk, is
neither read nor changed, unless it has the first object beside the folders that was read or put: then it is the same
one, mounted again. What is in a root that is gone is never reported as absent.

Leftovers of killed processes are removed at the first put: a temporary file that is older than an hour and on which no
process holds a lock. Its writer holds an flock on it, which the kernel releases with the process; by age alone a
sleeping writer's file would be removed, and by the lock alone one that is not locked yet. If in doubt it stays.

The names in a folder, sorted, in little memory: a folder of a large stream may have a million.

Up to some ten thousand names are a list. More are sorted in runs, which are kept compressed and merged while they are
read. Measured, a million names of segments: 55 MiB instead of 182, and 4.3 s of processor instead of 2.5.

List some of the files in a folder that may be anything: the root of a disk, a home. Limited in entries and
levels.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import os
import re
import stat
import threading
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from jsbackup.errors import NoFolder, ObjectExists, ObjectNotFound, StoreError
from jsbackup.stores import posix
from jsbackup.stores.base import (
    MAX_KEY_BYTES,
    Data,
    Glance,
    ObjectInfo,
    Store,
    check_key,
    check_prefix,
    check_range,
    is_key,
)

__all__ = ["LocalStore", "remove_incoming", "sorted_names"]

_MAX_ENTRIES = 4000
_MAX_OF_A_FOLDER = 400
_LEVELS = 3


def glance_at(root: Path, prefix: str) -> Glance:
    """Return files below the folder `prefix` of `root` ("" for all), nearest first, without hidden ones; links are
    files.

    Raises OSError if the first folder exists and cannot be read.
    """
    keys: list[str] = []
    complete = True
    left = _MAX_ENTRIES
    todo = deque([prefix])
    while todo:
        base = todo.popleft()
        try:
            with os.scandir(root / base) as scan:
                entries = list(islice(scan, min(left, _MAX_OF_A_FOLDER) + 1))
        except OSError as error:
            if base == prefix and not isinstance(error, FileNotFoundError | NotADirectoryError):
                raise
            complete = complete and base == prefix
            continue
        if len(entries) > min(left, _MAX_OF_A_FOLDER):
            complete = False
            entries.pop()
        left -= len(entries)
        for entry in sorted((entry for entry in entries if is_key(entry.name)), key=lambda entry: entry.name):
            if not _is_folder(entry):
                keys.append(base + entry.name)
            elif base.count("/") < _LEVELS:
                todo.append(f"{base}{entry.name}/")
            else:
                complete = False
    return Glance(tuple(keys), complete)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return stat.S_ISDIR(entry.stat(follow_symlinks=False).st_mode)
    except OSError:
        return False


_RUN_NAMES = 1 << 16
_BLOCK_NAMES = 512  # decompressed at once, of each run
_LEVEL = 1


def sorted_names(names: Iterable[str]) -> Iterable[str]:
    """Return the names, which have no NUL, in their order. May be iterated once."""
    names = iter(names)
    first = sorted(islice(names, _RUN_NAMES))
    if len(first) < _RUN_NAMES:
        return first
    runs = [_compressed(first)]
    del first
    while run := sorted(islice(names, _RUN_NAMES)):
        runs.append(_compressed(run))
    return heapq.merge(*map(_decompressed, runs))


def _compressed(names: list[str]) -> list[bytes]:
    blocks = (names[start : start + _BLOCK_NAMES] for start in range(0, len(names), _BLOCK_NAMES))
    return [zlib.compress(os.fsencode("\0".join(block)), _LEVEL) for block in blocks]


def _decompressed(blocks: list[bytes]) -> Iterator[str]:
    for at, block in enumerate(blocks):
        blocks[at] = b""
        yield from os.fsdecode(zlib.decompress(block)).split("\0")


_INCOMING = ".incoming"
_TEMPORARY = re.compile(r"\d+-\d+")  # names in it that are ours; a folder of tables may have other writers
_LEFTOVER_SECONDS = 3600
_TRIES = 10  # to write a file into the folder of temporary ones
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO instead of an object must not block.
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class LocalStore(Store):
    """Objects as files below `root`, which the first put creates (but not its parents: they may be a missing mount)."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._counter = itertools.count()
        self._swept = False
        self._settled: set[tuple[str, ...]] = set()
        self._lock = threading.Lock()
        self._identity: tuple[int, int] | None = None  # device and inode of the root
        self._witness = ""  # an object in the root itself

    @property
    def location(self) -> str:
        return _shown(self._root)

    def put(self, key: str, data: Data) -> None:
        *folders, name = check_key(key).split("/")
        view = memoryview(data).cast("B")
        with (
            posix.posix_errors(f"cannot store {key} in {self.location}"),
            posix.closing(self._make_root()) as root,
            posix.closing(self._make_folders(root, folders)) as folder,
        ):
            # Checked first to avoid a useless write; the link decides.
            created = not posix.exists(folder, name) and self._create_in(root, folder, name, view)
            # Also if it exists: its writer may have been killed between link and flush, and the caller relies on it.
            posix.fsync(folder)
            if not folders:
                self._know(root, name)
        if not created:
            raise ObjectExists(key)

    def get(self, key: str) -> bytes:
        with self._open(key) as (file, info):
            return posix.read_at(file, 0, info.st_size)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        check_range(key, offset, length)
        with self._open(key) as (file, info):
            return posix.read_at(file, offset, min(length, max(0, info.st_size - offset)))

    def head(self, key: str) -> ObjectInfo:
        with self._open(key) as (_, info):
            return ObjectInfo(key, info.st_size, info.st_mtime)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        folders = prefix.split("/")[:-1]
        return self._walk(folders, prefix)

    def delete(self, key: str) -> None:
        *folders, name = check_key(key).split("/")
        with (
            posix.posix_errors(f"cannot delete {key} in {self.location}"),
            suppress(FileNotFoundError),
            posix.closing(self._open_folder(folders)) as folder,
        ):
            os.unlink(name, dir_fd=folder)
            posix.fsync(folder)

    def is_temporary(self, error: StoreError) -> bool:
        return posix.is_temporary(error)

    def late_seconds(self) -> float:
        return 0.0

    def room(self) -> tuple[int, int]:
        """Return free and total bytes of the root's file system for this user (of its parent's if it does not
        exist).
        """
        with posix.posix_errors(f"cannot look at {self.location}"):
            try:
                status = os.statvfs(self._root)
            except FileNotFoundError:
                status = os.statvfs(self._root.parent)
        return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize

    def glance(self, prefix: str = "") -> Glance:
        with posix.posix_errors(f"cannot list {self.location}/{prefix}"):
            with suppress(FileNotFoundError), posix.closing(self._open_known()):
                pass
            return glance_at(self._root, prefix)

    def enclosing(self, key: str) -> str | None:
        above = Path(os.path.realpath(self._root)).parents
        return next((_shown(folder) for folder in above if os.access(folder / key, os.F_OK)), None)

    # --- folders ---

    def _open_root(self) -> int:
        try:
            return os.open(self._root, _FOLDER_FLAGS)
        except (FileNotFoundError, NotADirectoryError):
            if reason := self._in_the_way():
                raise NoFolder(self.location, reason) from None
            raise

    def _in_the_way(self) -> str:
        """Return in words what is in the place of the root or of a folder above it; "" if nothing is."""
        if self._root.is_symlink() and not self._root.exists():
            return "it is a link to something that is not there"
        nearest = next(path for path in (self._root, *self._root.parents) if path.exists())
        if nearest.is_dir():
            return ""
        return f"{'it' if nearest == self._root else _shown(nearest)} is not a folder"

    def _open_folder(self, folders: Sequence[str]) -> int:
        folder = self._open_known()
        for part in folders:
            with posix.closing(folder):
                folder = os.open(part, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=folder)
        return folder

    def _know(self, root: int, name: str) -> None:
        """Remember the open root by an object in it."""
        if not self._witness:
            self._identity, self._witness = _identity_of(root), name

    def _open_known(self) -> int:
        """Open the root. Raises FileNotFoundError if it was never there, and NoFolder if it is not any more, or is
        another one.
        """
        try:
            root = self._open_root()
        except FileNotFoundError:
            if self._witness:
                raise NoFolder(self.location, "it is not there any more") from None
            raise
        if self._witness and (identity := _identity_of(root)) != self._identity:
            try:
                same = posix.exists(root, self._witness)
            except OSError:
                os.close(root)
                raise
            if not same:
                os.close(root)
                raise NoFolder(self.location, f"another folder is there now, without {self._witness}")
            self._identity = identity
        return root

    def _make_root(self) -> int:
        try:
            return self._open_known()
        except FileNotFoundError:
            return self._make_new_root()

    def _make_new_root(self) -> int:
        above = _shown(self._root.parent)
        with (
            posix.posix_errors(f"cannot make {_shown(Path(self._root.name))} in {above}"),
            suppress(FileExistsError),
        ):
            self._root.mkdir(mode=0o700)
        with posix.closing(os.open(self._root.parent, _FOLDER_FLAGS)) as parent:
            posix.fsync(parent)
        return self._open_root()

    def _make_folders(self, root: int, folders: Sequence[str]) -> int:
        """Open the folder below `root`, creating missing ones. Each name on the path is flushed to the disk."""
        folder = os.dup(root)
        for depth, part in enumerate(folders, 1):
            path = tuple(folders[:depth])
            with posix.closing(folder):
                missing = not posix.exists(folder, part)
                if missing:
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=folder)
                if missing or path not in self._settled:
                    # Also if it exists: its creator may have been killed before the flush.
                    posix.fsync(folder)
                    self._settled.add(path)
                folder = os.open(part, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=folder)
        return folder

    # --- writing ---

    def _incoming(self, root: int) -> int:
        with suppress(FileExistsError):
            os.mkdir(_INCOMING, 0o700, dir_fd=root)
        incoming = os.open(_INCOMING, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=root)
        with self._lock:
            sweep, self._swept = not self._swept, True
        if sweep:
            self._sweep(incoming)
        return incoming

    def _create_in(self, root: int, folder: int, name: str, view: memoryview) -> bool:
        """Create an object unless there is one. Other processes may remove the folder of temporary files meanwhile,
        while it is empty (`remove_incoming`).
        """
        for _ in range(_TRIES - 1):
            with suppress(FileNotFoundError), posix.closing(self._incoming(root)) as incoming:
                return self._create_object(incoming, folder, name, view)
        with posix.closing(self._incoming(root)) as incoming:
            return self._create_object(incoming, folder, name, view)

    def _create_object(self, incoming: int, folder: int, name: str, view: memoryview) -> bool:
        temporary = self._write(incoming, view)
        try:
            return posix.link_new(incoming, temporary, folder, name)
        finally:
            # Does not exist after a rename. If it cannot be removed now, it is a leftover later.
            with suppress(OSError):
                os.unlink(temporary, dir_fd=incoming)

    def _create(self, incoming: int) -> tuple[str, int]:
        while True:
            # Another host on a shared file system may have our process id: then the next number is tried.
            name = f"{os.getpid()}-{next(self._counter)}"
            with suppress(FileExistsError):
                return name, os.open(name, _CREATE_FLAGS, 0o600, dir_fd=incoming)

    def _write(self, incoming: int, view: memoryview) -> str:
        name, file = self._create(incoming)
        with posix.closing(file):
            try:
                with suppress(OSError):  # a file system without locks: nothing is swept there either
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                written = 0
                while written < len(view):
                    written += os.write(file, view[written:])
                posix.fsync(file)
            except BaseException:
                with suppress(OSError):
                    os.unlink(name, dir_fd=incoming)
                raise
        return name

    def _sweep(self, incoming: int) -> None:
        """Remove leftovers. "Now" is the time of a new file: the file system's clock, not this host's."""
        with suppress(OSError):
            name, file = self._create(incoming)
            with posix.closing(file):
                now = os.fstat(file).st_mtime
                os.unlink(name, dir_fd=incoming)
            with os.scandir(incoming) as entries:
                names = [entry.name for entry in entries]
            for name in filter(_TEMPORARY.fullmatch, names):
                with suppress(OSError):
                    self._sweep_one(incoming, name, now)

    @staticmethod
    def _sweep_one(incoming: int, name: str, now: float) -> None:
        # For writing, because NFS requires that for an exclusive lock.
        with posix.closing(os.open(name, _READ_FLAGS | os.O_RDWR, dir_fd=incoming)) as file:
            info = os.fstat(file)
            if stat.S_ISREG(info.st_mode) and now - info.st_mtime > _LEFTOVER_SECONDS:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(name, dir_fd=incoming)

    # --- reading ---

    @contextmanager
    def _open(self, key: str) -> Iterator[tuple[int, os.stat_result]]:
        *folders, name = check_key(key).split("/")
        with posix.posix_errors(f"cannot read {key} in {self.location}"):
            try:
                with posix.closing(self._open_folder(folders)) as folder:
                    file = os.open(name, _READ_FLAGS, dir_fd=folder)
                    if not folders:
                        self._know(folder, name)
            except FileNotFoundError:
                raise ObjectNotFound(key) from None
            with posix.closing(file):
                info = os.fstat(file)
                if stat.S_ISDIR(info.st_mode):
                    raise ObjectNotFound(key)
                if not stat.S_ISREG(info.st_mode):
                    raise StoreError(f"cannot read {key}: not a regular file")
                yield file, info

    def _walk(self, folders: Sequence[str], prefix: str) -> Iterator[ObjectInfo]:
        base = "".join(f"{part}/" for part in folders)
        if len(base) > MAX_KEY_BYTES:
            return
        with (
            posix.posix_errors(f"cannot list {self.location}/{base}"),
            suppress(FileNotFoundError),
            posix.closing(self._open_folder(folders)) as folder,
        ):
            for name in _names_in(folder):
                key = base + name
                if name.endswith("/"):
                    if key.startswith(prefix) or prefix.startswith(key):
                        yield from self._walk([*folders, name[:-1]], prefix)
                elif key.startswith(prefix) and (info := _looked_at(folder, name)) is not None:
                    if not stat.S_ISREG(info.st_mode):
                        # Skipping it would make objects that were moved elsewhere look absent.
                        raise StoreError(
                            f"cannot list {key}: a symbolic link or another special file, which is not followed"
                        )
                    if is_key(key):
                        yield ObjectInfo(key, info.st_size, info.st_mtime)


def remove_incoming(root: Path) -> None:
    """Remove the folder of temporary files below `root` if it is empty, so that nothing but objects stays."""
    with suppress(OSError):
        (root / _INCOMING).rmdir()


def _identity_of(folder: int) -> tuple[int, int]:
    info = os.fstat(folder)
    return info.st_dev, info.st_ino


def _names_in(folder: int) -> Iterable[str]:
    """Return the names in an open folder, sorted as the keys of objects are; those of folders end in a slash."""
    with os.scandir(folder) as scan:
        # With its slash a folder sorts as its keys do: `a-b` before `a/c`.
        return sorted_names(
            entry.name + "/" * entry.is_dir(follow_symlinks=False) for entry in scan if is_key(entry.name)
        )


def _looked_at(folder: int, name: str) -> os.stat_result | None:
    with suppress(FileNotFoundError):  # deleted meanwhile
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    return None


def _shown(path: Path) -> str:
    return str(path).encode("utf-8", "backslashreplace").decode()
