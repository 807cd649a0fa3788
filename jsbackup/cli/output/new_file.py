"""Write a file of a command atomically, and replace an existing one only on request."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from jsbackup.errors import JsBackupError, UsageError
from jsbackup.stores import posix

__all__ = ["check_new_file", "check_no_link", "made_elsewhere", "write_new_file", "write_pieces"]

_MODE = 0o644
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_MAX_ENDING = 40  # a name of more than 255 bytes is too long for a file system; a character has up to four


def check_new_file(path: Path, *, replace: bool) -> None:
    """Raise UsageError before the work is done if `write_new_file` would refuse."""
    try:
        target = Path(os.path.realpath(path))
        if not target.parent.is_dir():
            raise UsageError(f"there is no folder {target.parent} to write {path.name} in")
        if not os.path.lexists(target):
            return
        is_file = target.is_file()
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write {path}: {_reason(error)}") from error
    if not is_file:
        raise UsageError(f"{path} is not a file", hint="Name a file that does not exist yet.")
    if not replace:
        raise _exists(path)


def write_new_file(path: Path, data: bytes, *, replace: bool, for_all: bool = False) -> None:
    """Write a file, readable for all if the umask allows it, or with `for_all` in any case. A symbolic link is
    followed.

    Raises:
        UsageError: it exists, and is not to be replaced.
        JsBackupError: it cannot be written.
    """
    write_pieces(path, [data], replace=replace, for_all=for_all)


def check_no_link(path: Path) -> None:
    """Raise UsageError if the file is a symbolic link: what it leads to was not named."""
    if os.path.islink(path):  # noqa: PTH114 - Path.is_symlink() raises for a name that is too long
        raise UsageError(f"{path} is a symbolic link", hint="Name the file itself, or another one.")


def write_pieces(path: Path, pieces: Iterable[bytes], *, replace: bool, for_all: bool = False) -> None:
    """Do the same as `write_new_file`, for content of any size. The file appears when all pieces are written; if one
    raises an error, nothing does.
    """
    with made_elsewhere(path, replace=replace) as temporary, os.fdopen(os.open(temporary, _FLAGS, _MODE), "wb") as file:
        if for_all:
            os.fchmod(file.fileno(), _MODE)
        for piece in pieces:
            file.write(piece)
        file.flush()
        posix.fsync(file.fileno())


@contextmanager
def made_elsewhere(path: Path, *, replace: bool) -> Iterator[Path]:
    """Provide a name in the same folder, with the same ending, for others to write to; the file gets its own name if
    that succeeds. Raises UsageError if it exists and is not to be replaced, JsBackupError if it cannot be written.
    """
    check_new_file(path, replace=replace)
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".jsbackup-{os.urandom(4).hex()}{target.suffix[:_MAX_ENDING]}")
    try:
        yield temporary
        if replace:
            temporary.replace(target)
        else:
            with posix.closing(os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as folder:
                if not posix.link_new(folder, temporary.name, folder, target.name):
                    raise _exists(path)
    except OSError as error:
        raise JsBackupError(f"cannot write {path}: {_reason(error)}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _exists(path: Path) -> UsageError:
    return UsageError(f"{path} exists already", hint="Name another file, or give --force to replace it.")


def _reason(error: OSError | ValueError) -> str:
    return error.strerror.lower() if isinstance(error, OSError) and error.strerror else "not a usable name"
