"""List some of the files in a folder that may be anything: the root of a disk, a home. Limited in entries and
levels.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from itertools import islice
from pathlib import Path

from jsbackup.stores.base import Glance, is_key

__all__ = ["glance_at"]

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
        for entry in sorted((one for one in entries if is_key(one.name)), key=lambda one: one.name):
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
