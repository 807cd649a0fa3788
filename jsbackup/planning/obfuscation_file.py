"""The key file of `--obfuscate`: read to obfuscate as before, made before anything is copied, and complete afterwards.

It has mode 0600, and appears with its secret before anything is written anywhere: a copy without its key would be lost
for whoever wants to ask about it. After that it gets all names that were met, even if the copy has failed. An existing
key file keeps its secret and its names and only gets more. Any other existing file is refused, and so is a place in a
repository.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jsbackup.config.secrets import shown
from jsbackup.errors import FormatError, JsBackupError, PlanRefused, TargetConflict, UsageError
from jsbackup.repository.layout import DESCRIPTOR, UPGRADED
from jsbackup.transforms.obfuscate.key_codec import MAX_KEY_FILE_BYTES, decode_keys, encode_keys
from jsbackup.transforms.obfuscate.names import SECRET_BYTES, ObfuscatedNames

__all__ = ["keeping_names", "names_of_file", "read_key_file"]


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
    """Return the names of a key file, or of a new secret if there is no such file. Raises as `read_key_file`."""
    if os.path.lexists(path):
        return read_key_file(path)
    return ObfuscatedNames(os.urandom(SECRET_BYTES))


@contextmanager
def keeping_names(path: Path, names: ObfuscatedNames) -> Iterator[None]:
    """Make the key file, unless it exists, and run the body, which may use its secret. Then add all names to the file.

    If the body is refused before it has changed anything, a new file is removed again.

    Raises:
        UsageError: the file is another one by now, or cannot be made, or would be in a repository.
        JsBackupError: the names could not be added.
    """
    _refuse_in_repository(path)
    if os.path.lexists(path):
        if path.is_symlink():
            raise UsageError(f"the key file {path} is a symbolic link", hint="Name the file itself.")
        if read_key_file(path).secret != names.secret:
            raise UsageError(f"the key file {path} was made by another command meanwhile", hint="Run it again.")
        made = False
    else:
        _make(path, names)
        made = True
    try:
        yield
    except (UsageError, PlanRefused, TargetConflict):
        if made:
            with suppress(OSError):
                path.unlink()
        raise
    except BaseException:
        with suppress(JsBackupError):
            _add(path, names)
        raise
    _add(path, names)


def _make(path: Path, names: ObfuscatedNames) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(encode_keys(ObfuscatedNames(names.secret)))
            file.flush()
            os.fsync(file.fileno())
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot make the key file {shown(str(path))}: {_reason(error)}") from None


def _add(path: Path, names: ObfuscatedNames) -> None:
    """Replace the file by one that has its names and these."""
    temporary: str | None = None
    try:
        if os.path.lexists(path):  # another command may have added some
            there = read_key_file(path)
            if there.secret != names.secret:
                raise JsBackupError(
                    f"the copy is made, but the key file {path} has been replaced by another one meanwhile",
                    hint="Make the copy again: nothing leads back from its names.",
                )
            names.learn(there.tokens)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)  # of mode 0600
        with os.fdopen(handle, "wb") as file:
            file.write(encode_keys(names))
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except (OSError, ValueError) as error:
        if temporary is not None:
            with suppress(OSError):
                Path(temporary).unlink()
        raise JsBackupError(
            f"the copy is made, but its names could not be added to the key file {path}: {_reason(error)}",
            hint="Make room, and run the same command again with this file: it has the secret.",
        ) from error


def _refuse_in_repository(path: Path) -> None:
    try:
        folder = Path(os.path.realpath(path)).parent
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot make the key file {shown(str(path))}: {_reason(error)}") from None
    for one in (folder, *folder.parents):
        if any(os.path.lexists(one / name) for name in (DESCRIPTOR, UPGRADED)):
            raise UsageError(
                f"the key file would be in the repository {one}", hint="Name a file that is kept apart from the copy."
            )


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, FormatError):
        return error.message
    return error.strerror.lower() if isinstance(error, OSError) and error.strerror else "not a usable name"
