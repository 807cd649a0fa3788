"""Find out whether a nats-server uses a store folder. Linux only; elsewhere nothing is found.

A server locks nothing. It has the block open that it writes to, until nothing was written for a while; and its command
line or its configuration file names the folder. Both are looked for in all processes that this user may look at. A
server in a container sees another path, which is followed from its own root.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from jsbackup.errors import UsageError
from jsbackup.exchange.folder import printable_name

__all__ = ["find_users", "refuse_users"]

_PROCESSES = Path("/proc")
_MAX_CONFIG_BYTES = 1 << 20
_STORE_OPTION = re.compile(r"(?:-sd|--store_dir|-store_dir|--sd)(?:=(.+))?", re.ASCII)
_CONFIG_OPTION = re.compile(r"(?:-c|--config|-config|--c)(?:=(.+))?", re.ASCII)
_STORE_SETTING = re.compile(r"""\bstore_?dir["']?\s*[:=\s]\s*["']?([^"'\s;,}]+)""", re.IGNORECASE)


def refuse_users(path: Path) -> None:
    """Raise UsageError if a server uses the folder."""
    if users := find_users(path):
        raise UsageError(
            f"{printable_name(str(path))} is in use by {', '.join(users)}",
            hint="Stop the server first, or import a copy of the folder.",
        )


def find_users(path: Path) -> list[str]:
    """Return words about the processes that use the folder, such as `nats-server (pid 17)`."""
    with suppress(OSError):
        folder = path.resolve()
        own = os.getpid()
        pids = [int(entry.name) for entry in _PROCESSES.iterdir() if entry.name.isdigit()]
        return [
            f"{_name(pid)} (pid {pid})"
            for pid in sorted(pids)
            if pid != own and (_has_open(pid, folder) or _is_server_of(pid, folder))
        ]
    return []


def _mark(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _name(pid: int) -> str:
    with suppress(OSError):
        return (_PROCESSES / str(pid) / "comm").read_text(errors="replace").strip() or "a process"
    return "a process"


def _has_open(pid: int, folder: Path) -> bool:
    """Return whether the process is a server that has a file below the folder open."""
    if "nats" not in _name(pid):
        return False
    with suppress(OSError):
        for entry in (_PROCESSES / str(pid) / "fd").iterdir():
            with suppress(OSError):
                if entry.readlink().is_relative_to(folder):
                    return True
    return False


def _is_server_of(pid: int, folder: Path) -> bool:
    """Return whether the process is a server whose store has the folder, or is it."""
    place = _PROCESSES / str(pid)
    inside = {_mark(one) for one in (folder, *folder.parents)} - {None}
    with suppress(OSError, ValueError):
        words = (place / "cmdline").read_bytes().split(b"\0")
        if not words or "nats-server" not in os.fsdecode(words[0]):
            return False
        root, here = place / "root", (place / "cwd").readlink()
        for named in _stores_named([os.fsdecode(word) for word in words], root, here):
            store = _seen_from(root, here / named)
            if _mark(store / "jetstream") in inside or (_mark(folder) is not None and _mark(store) == _mark(folder)):
                return True
    return False


def _seen_from(root: Path, path: Path) -> Path:
    return root / str(path).lstrip("/")


def _stores_named(words: list[str], root: Path, here: Path) -> Iterator[str]:
    for number, word in enumerate(words):
        following = words[number + 1] if number + 1 < len(words) else ""
        if match := _STORE_OPTION.fullmatch(word):
            yield match[1] or following
        elif match := _CONFIG_OPTION.fullmatch(word):
            config = _seen_from(root, here / (match[1] or following))
            with suppress(OSError), config.open(errors="replace") as file:
                yield from _STORE_SETTING.findall(file.read(_MAX_CONFIG_BYTES))
