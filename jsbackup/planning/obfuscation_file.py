"""The key file of `--obfuscate`: read to obfuscate as before, made before anything is copied, and complete afterwards.

It has mode 0600, and appears with its secret before anything is written anywhere: a copy without its key would be lost
for whoever wants to ask about it. After that it gets all names that were met, even if the copy has failed. An existing
key file keeps its secret and its names and only gets more. Any other existing file is refused, and so is a place in a
repository.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import BinaryIO

from jsbackup.config.secrets import shown
from jsbackup.errors import FormatError, JsBackupError, PlanRefused, TargetConflict, UsageError
from jsbackup.repository.layout import DESCRIPTOR
from jsbackup.transforms.obfuscate.names import (
    MAX_KEY_FILE_BYTES,
    SECRET_BYTES,
    ObfuscatedNames,
    decode_keys,
    encode_keys,
)

__all__ = ["keeping_names", "names_of_file", "read_key_file"]

_log = logging.getLogger(__name__)

# What tells a file from one that was made or changed later: device, inode, time of the last change.
_Mark = tuple[int, int, int]


def read_key_file(path: Path) -> ObfuscatedNames:
    """Read a key file, ours or one of the nats CLI.

    Raises:
        UsageError: it cannot be read.
        FormatError: it is damaged, or not such a file.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_KEY_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the key file {shown(str(path))}: {_reason(error)}") from None
    return decode_keys(data, f"key file {shown(str(path))}")


def names_of_file(path: Path) -> ObfuscatedNames:
    """Return the names of a key file, or of a new secret if there is no such file. Raises UsageError, FormatError."""
    if path.name == "-":
        raise UsageError("the key file - is not the name of a file", hint="It is read and written: name a file.")
    if os.path.lexists(path):
        _refuse_irregular(path)
        return read_key_file(path)
    return ObfuscatedNames(os.urandom(SECRET_BYTES))


@contextmanager
def keeping_names(path: Path, names: ObfuscatedNames, *, whole: Path | None = None) -> Iterator[None]:
    """Make the key file, unless it exists, and run the body, which may use its secret. Then add all names to the file.

    Several commands may do so with one file at the same time. An interrupt while names are added does not stop that;
    a second one does.

    A new file is removed again if the body is refused before it has changed anything, or if it fails and nothing is at
    `whole`, where the copy appears completely or not at all.

    Raises:
        UsageError: the file is another one by now, or cannot be made, or would be in a repository.
        JsBackupError: the names could not be added.
    """
    _refuse_in_repository(path)
    made = None
    if os.path.lexists(path):
        _claim(path, names)
    else:
        made = _make(path, names)
    try:
        yield
    except BaseException as error:
        refused = isinstance(error, UsageError | PlanRefused | TargetConflict)
        if made is not None and (refused or (whole is not None and _is_absent(whole))):
            _remove(path, made)
        elif not refused:
            try:
                _add_in_any_case(path, names)
            except JsBackupError as other:
                _log.warning("%s", other.message)
        raise
    try:
        _add_in_any_case(path, names)
    except JsBackupError as error:
        raise error.with_message(f"the copy is made, but {error.message}") from error.__cause__


def _make(path: Path, names: ObfuscatedNames) -> _Mark:
    """Make the file with its secret."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(encode_keys(ObfuscatedNames(names.secret)))
            file.flush()
            os.fsync(file.fileno())
            return _mark(os.fstat(file.fileno()))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot make the key file {shown(str(path))}: {_reason(error)}") from None


def _claim(path: Path, names: ObfuscatedNames) -> None:
    """Check that an existing file is the one with these names, and keep the command that made it from removing it."""
    if path.is_symlink():
        raise UsageError(f"the key file {path} is a symbolic link", hint="Name the file itself.")
    if read_key_file(path).secret != names.secret:
        raise UsageError(f"the key file {path} was made by another command meanwhile", hint="Run it again.")
    with suppress(OSError):  # the file of another user, say
        then = path.stat()
        os.utime(path, ns=(then.st_atime_ns, then.st_mtime_ns + 1))


def _remove(path: Path, made: _Mark) -> None:
    """Remove a file that was made, unless another command uses it by now."""
    with suppress(OSError), _locked(path):
        if _mark(path.lstat()) == made:
            path.unlink()


def _add_in_any_case(path: Path, names: ObfuscatedNames) -> None:
    """Add the names; once more if that is interrupted."""
    try:
        _add(path, names)
    except JsBackupError:
        raise
    except BaseException:
        _add(path, names)
        raise


def _add(path: Path, names: ObfuscatedNames) -> None:
    """Replace the file by one that has its names and these, while no other command does."""
    temporary: str | None = None
    try:
        if not os.path.lexists(path):
            with suppress(UsageError):  # it exists by now
                _make(path, names)
        with _locked(path) as alone:
            on_disk = _read_again(path)  # another command may have added some
            if on_disk.secret != names.secret:
                raise JsBackupError(
                    f"the key file {path} has been replaced by another one meanwhile",
                    hint="Make the copy again: nothing leads back from its names.",
                )
            names.learn(on_disk.hashes)
            prefix = f".{path.name[:40]}.{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:8]}."
            if alone:
                _remove_left(path.parent, prefix)
            try:
                handle, temporary = tempfile.mkstemp(prefix=prefix, suffix=".new", dir=path.parent)  # of mode 0600
                with os.fdopen(handle, "wb") as file:
                    file.write(encode_keys(names))
                    file.flush()
                    os.fsync(file.fileno())
                Path(temporary).replace(path)
            except BaseException:
                if temporary is not None:
                    with suppress(OSError):
                        Path(temporary).unlink()
                raise
    except (OSError, ValueError) as error:
        raise JsBackupError(
            f"the names of the copy could not be added to the key file {path}: {_reason(error)}",
            hint="Make room, and run the same command again with this file: it has the secret.",
        ) from error


def _read_again(path: Path) -> ObfuscatedNames:
    try:
        return read_key_file(path)
    except JsBackupError as error:
        message = f"the names of the copy could not be added to the key file: {error.message}"
        raise error.with_message(message).with_hint("Make the copy again: nothing leads back from its names.") from None


def _remove_left(folder: Path, prefix: str) -> None:
    """Remove what killed commands have left beside the file."""
    for left in folder.glob(f"{escape(prefix)}*.new"):
        with suppress(OSError):
            left.unlink()


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Run the body while no other command has the file locked; yield False where files cannot be locked.

    The lock is on the file itself, which every command replaces: so it is taken again on the new one.
    """
    while True:
        try:
            file: BinaryIO = path.open("rb+")  # NFS locks what is open for writing
        except PermissionError:
            file = path.open("rb")
        with file:
            alone = True
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:
                alone = False
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                yield alone
                return


def _mark(status: os.stat_result) -> _Mark:
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _is_absent(path: Path) -> bool:
    """Return whether nothing is there, or an empty folder."""
    return not os.path.lexists(path) or (path.is_dir() and not any(path.iterdir()))


def _refuse_irregular(path: Path) -> None:
    """Raise UsageError for a pipe or a device, which cannot be replaced and may never end."""
    with suppress(OSError):  # reading says why
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise UsageError(f"the key file {shown(str(path))} is not a regular file", hint="Name another one.")


def _refuse_in_repository(path: Path) -> None:
    try:
        folder = Path(os.path.realpath(path)).parent
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot make the key file {shown(str(path))}: {_reason(error)}") from None
    for parent in (folder, *folder.parents):
        if os.path.lexists(parent / DESCRIPTOR):
            raise UsageError(
                f"the key file would be in the repository {parent}",
                hint="Name a file that is kept apart from the copy.",
            )


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, FormatError):
        return error.message
    return error.strerror.lower() if isinstance(error, OSError) and error.strerror else "not a usable name"
