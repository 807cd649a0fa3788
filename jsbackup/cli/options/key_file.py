"""The file of a new writer key: only readable by the user, never overwrites one, removed if the key is not used."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jsbackup.config.secrets import shown
from jsbackup.errors import IntegrityError, KeyUnavailable, StoreError, UnsupportedError, UsageError

__all__ = ["new_key_file"]


@contextmanager
def new_key_file(path: Path, text: str) -> Iterator[Callable[[], None]]:
    """Write the key file, then run the body. It has to call what is yielded before the request that starts the use of
    the key.

    It is written first, because a repository without its key would be useless. If nothing was made, the file is
    removed; if the store failed at that request, that is unknown, and it stays. Raises UsageError if it cannot be
    written.
    """
    used = False

    def use() -> None:
        nonlocal used
        used = True

    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise UsageError(
            f"the file {path} exists already, and may hold the key of another repository", hint="Choose another name."
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a usable name"
        raise UsageError(f"cannot write the writer key to {shown(str(path))}: {reason}") from None
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        yield use
    except StoreError:
        if not used:
            path.unlink()
        raise
    except OSError as error:
        with suppress(OSError):
            path.unlink()
        raise UsageError(f"cannot write the writer key to {path}: {error.strerror}") from None
    except (UsageError, UnsupportedError, IntegrityError, KeyUnavailable):
        path.unlink()
        raise
