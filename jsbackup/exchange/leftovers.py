"""Hidden folders of exports that were killed, and how the next export to the same place removes them.

An export writes to `.NAME.jsbackup-TOKEN` first (`NewFolder`). A file in it says which process does so, as in a lease
(`holder_process.py`). Only a folder whose process is certainly gone is removed. Without that file, of another machine
or from before a restart of this one, it stays, and the user is told.

What knows processes is imported where it is used: `--help` loads this module and does not wait.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from jsbackup.errors import FormatError
from jsbackup.strict_json import read_object, write_json

if TYPE_CHECKING:
    from jsbackup.repository.keep.holder_process import HolderProcess

__all__ = ["clear_leftovers", "hidden_name", "hold", "release"]

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


def clear_leftovers(target: Path) -> list[Path]:
    """Remove what killed exports to `target`, a folder that may not exist, have left beside it and within it.

    Returns the hidden folders that stay although it is not known that their exports still run.
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
            unclear.append(folder)
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
