"""Create a folder atomically.

Files are written into a hidden folder first, each flushed to the disk. `commit` gives it its name: a folder that does
not exist yet is created by one rename. If the folder exists (empty; perhaps a mount point, or in a place where nothing
else may be created), the hidden folder is within it, and its entries are moved up one by one in the order of their
creation, and moved back if one of them fails. Leaving without `commit` removes everything; what a killed process leaves
is removed by the next export to the same place (`clear_leftovers`).

The hidden folder is called `.NAME.jsbackup-TOKEN`. A file in it says which process does so, as in a lease
(`holder_process.py`). Only a folder whose process is certainly gone is removed. Without that file, of another machine
or from before a restart of this one, it stays, and the user is told.

What knows processes is imported where it is used: `--help` loads this module and does not wait.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self

from jsbackup.errors import FormatError, TargetConflict, UsageError
from jsbackup.exchange.folder import folder_errors, printable_name
from jsbackup.stores import posix
from jsbackup.strict_json import read_object, write_json

if TYPE_CHECKING:
    from jsbackup.repository.keep.holder_process import HolderProcess

__all__ = ["NewFolder", "check_output", "clear_leftovers", "hidden_name", "hold", "release"]

# A name of 255 bytes with our additions would be too long for a file system; a character has up to four bytes.
_MAX_SHOWN = 40

_HOLDER = ".holder.json"
_MAX_BYTES = 4096


def hidden_name(name: str, token: str) -> str:
    """Return the name of the folder in which the content of a folder called `name` is written; `token` is random."""
    return f".{name[:_MAX_SHOWN]}.jsbackup-{token}"


def hold(folder: Path) -> None:
    """Say that this process writes the folder, if the operating system tells enough of it. Raises OSError."""
    from jsbackup.repository.keep.holder_process import this_process

    own = this_process()
    if own is not None:
        # Nobody is named by half of it.
        (folder / _HOLDER).write_bytes(write_json({"holder": own.to_json()}, "the holder of a folder"))


def release(folder: Path) -> None:
    """Remove what `hold` has written. Raises OSError."""
    (folder / _HOLDER).unlink(missing_ok=True)


def clear_leftovers(target: Path) -> list[str]:
    """Remove what killed exports to `target`, a folder that may not exist, have left beside it and within it.

    Returns sentences about the hidden folders that stay although it is not known that their exports still run.
    """
    from jsbackup.repository.keep.holder_process import is_gone, this_process

    unclear, own = [], this_process()
    for folder in _hidden(target.absolute()):
        holder = _holder(folder)
        gone = holder is not None and is_gone(holder)
        if gone:
            shutil.rmtree(folder, ignore_errors=True)
        runs = not gone and holder is not None and own is not None and own.place == holder.place
        if not runs and os.path.lexists(folder):
            unclear.append(f"{folder} is of an export that still runs, or was killed: remove it if none does")
    return unclear


def _hidden(target: Path) -> Iterator[Path]:
    pattern = re.compile(re.escape(hidden_name(target.name, "")) + "[0-9a-f]{8}")
    for place in (target.parent, target):
        with suppress(OSError), os.scandir(place) as entries:
            yield from [place / one.name for one in entries if pattern.fullmatch(one.name) and _is_folder(one)]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


def _holder(folder: Path) -> HolderProcess | None:
    """Return the process that writes a folder; None if that is not known."""
    from jsbackup.repository.keep.holder_process import holder_of

    try:
        descriptor = os.open(folder / _HOLDER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            return holder_of(read_object(file.read(_MAX_BYTES), "the holder of a folder").get("holder"))
    except (OSError, FormatError):
        return None


class NewFolder:
    """A context manager. Paths are relative, parts joined by `/`; `files` and `bytes` count what was written.

    `token` makes the hidden name unique, `mode` is that of folders (files get it without the right to execute). All
    methods raise `StoreError` if the file system fails.
    """

    def __init__(self, path: Path, token: str, mode: int) -> None:
        self._target = path.absolute()
        self._mode = mode
        self._exists = self._check()
        parent = self._target if self._exists else self._target.parent
        self._staging = parent / hidden_name(self._target.name, token)
        self._committed = False
        self._order: dict[str, int] = {}  # of entries in the folder itself
        self.files = 0
        self.bytes = 0

    def _check(self) -> bool:
        """Return whether the folder exists. Raises `UsageError` if it cannot be used."""
        shown = printable_name(str(self._target))
        with folder_errors(f"{shown} cannot be read"):
            if self._target.is_dir():
                if any(self._target.iterdir()):
                    raise UsageError(f"{shown} is not empty", hint="Name a folder that is empty or does not exist yet.")
                return True
        check_output(self._target, hint="Name a folder that is empty or does not exist yet.")
        return False

    @property
    def staging(self) -> Path:
        """The hidden folder, for writers outside of this class. They flush what they write, and it is not
        counted here.
        """
        return self._staging

    def __enter__(self) -> Self:
        with folder_errors("the output folder cannot be made"):
            self._staging.mkdir(mode=self._mode)
            try:
                hold(self._staging)
            except BaseException:
                shutil.rmtree(self._staging, ignore_errors=True)
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._committed:
            shutil.rmtree(self._staging, ignore_errors=True)

    def folder(self, path: str) -> None:
        """Create a folder. Raises `UsageError` if there is one whose name is the same for this file system."""
        with folder_errors(f"folder {printable_name(path)} cannot be made"):
            self._order.setdefault(path.partition("/")[0], len(self._order))
            try:
                (self._staging / path).mkdir(mode=self._mode)
            except FileExistsError:
                raise _same_name(path) from None

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """Create a file; it is flushed to the disk at the end."""
        with folder_errors(f"{printable_name(path)} cannot be written"):
            self._order.setdefault(path.partition("/")[0], len(self._order))
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                descriptor = os.open(self._staging / path, flags, self._mode & 0o666)
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
            for folder, _, _ in os.walk(self._staging):
                _fsync_folder(Path(folder))
            release(self._staging)
            _fsync_folder(self._staging)
            try:
                if self._exists:
                    self._move_up()
                else:
                    # Only replaces an empty folder.
                    self._staging.rename(self._target)
            except (FileExistsError, NotADirectoryError) as error:
                raise _in_the_way(self._target) from error
            except OSError as error:
                if self._exists or not self._target.is_dir():
                    raise
                raise _in_the_way(self._target) from error
            self._committed = True
            _fsync_folder(self._target if self._exists else self._target.parent)

    def _move_up(self) -> None:
        moved: list[str] = []
        try:
            names = sorted(path.name for path in self._staging.iterdir())
            # Entries of other writers come first: their order is not known.
            for name in sorted(names, key=lambda name: self._order.get(name, -1)):
                if os.path.lexists(self._target / name):
                    raise FileExistsError(name)
                (self._staging / name).rename(self._target / name)
                moved.append(name)
            self._staging.rmdir()
        except BaseException:
            with suppress(OSError):
                for name in moved:
                    (self._target / name).rename(self._staging / name)
            raise


def check_output(path: Path, *, hint: str) -> None:
    """Raise UsageError, with this hint for something else in its place, unless `path` is a folder or can become one.

    Raises StoreError if that cannot be seen.
    """
    path = path.absolute()
    shown = printable_name(str(path))
    with folder_errors(f"{shown} cannot be read"):
        if path.is_dir():
            return
        if os.path.lexists(path):
            raise UsageError(f"{shown} is not a folder", hint=hint)
        if not path.parent.is_dir():
            above = printable_name(str(path.parent))
            if os.path.lexists(path.parent):
                raise UsageError(f"{above} is not a folder", hint=hint)
            raise UsageError(f"there is no folder {above} to make it in", hint="Make that first.")


def _fsync_folder(path: Path) -> None:
    with posix.closing(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        posix.fsync(descriptor)


def _same_name(path: str) -> UsageError:
    return UsageError(
        f"this file system takes {printable_name(path)} for the same name as another one's",
        hint="It ignores case or the composition of letters; write to another file system.",
    )


def _in_the_way(path: Path) -> TargetConflict:
    return TargetConflict(
        f"something was put into {printable_name(str(path))} meanwhile, so nothing was written there",
        hint="Run it again if another export has made it; else name another folder.",
    )
