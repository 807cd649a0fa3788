"""The folder of a drill: for this user only, and removed afterwards, because it contains plain messages.

A drill that is killed cannot remove its folder. A lock file is held as long as the drill runs (the kernel releases the
lock), so the next drill in the same place removes this user's unlocked folders. The lock file gets its name once it is
locked.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jsbackup.errors import UsageError

__all__ = ["drill_folder"]

_PREFIX = "jsbackup-drill-"
_LOCK = "lock"


@contextmanager
def drill_folder(work_dir: Path | None) -> Iterator[Path]:
    """Make a folder below `work_dir`, or in the system's temporary folder. Raises UsageError if that fails."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=work_dir)).absolute()
    except OSError as error:
        raise UsageError(
            f"no folder can be made for the drill: {(error.strerror or str(error)).lower()}",
            hint="Name one to make it in with --work-dir.",
        ) from error
    try:
        begun = folder / f"{_LOCK}.new"
        with begun.open("w") as lock:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                begun.rename(folder / _LOCK)
            _remove_abandoned(folder)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(own: Path) -> None:
    for folder in own.parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if folder == own or folder.lstat().st_uid != os.getuid():
                continue
            with (folder / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
