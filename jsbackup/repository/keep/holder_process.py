"""The process that holds a lease, and whether it is gone: then no one has to wait until its lease expires.

Only a process that could see the holder may decide that it is gone. So a lease says where its process runs: on which
machine, since which boot, in which namespaces. Another machine, another container, an operating system that does not
tell all of this (only Linux does): nothing is decided, and the lease expires as ever.

- The boot id is random and drawn at each boot. Copies of a running virtual machine share it, so the name and id of the
  machine are compared too.
- Containers share the boot id. The number of a living pid namespace is unique on a machine: if it is ours, the holder
  ran in our namespace, or in one that is gone with all its processes.
- A process id is used again by others, so the start time is compared too. It is counted from boot, and shifted by the
  reader's time namespace.
- `/proc` may show another namespace than ours, or hide processes of other users. So a process is gone only if the
  kernel says so (`kill` with signal 0), or if `/proc` shows another start time, or that it has ended and no one has
  asked for its exit code yet.
"""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jsbackup.model import JsonObject

__all__ = ["HolderProcess", "holder_of", "is_gone", "this_process"]

_PROC = Path("/proc")
_MACHINE_ID = Path("/etc/machine-id")
_MOST_PID = 1 << 22  # of Linux
_MOST_NUMBER = 1 << 63
_LONGEST_TEXT = 64


@dataclass(frozen=True, slots=True)
class HolderProcess:
    """A process of one machine. `machine` is a digest of its name and id, `started` is in clock ticks since boot, the
    namespaces are inode numbers (0 for a time namespace that the kernel does not have).
    """

    machine: str
    boot: str
    pid_namespace: int
    time_namespace: int
    pid: int
    started: int

    @property
    def place(self) -> tuple[str, str, int, int]:
        """Where its process id and its start time mean something."""
        return self.machine, self.boot, self.pid_namespace, self.time_namespace

    def to_json(self) -> JsonObject:
        return asdict(self)


def holder_of(value: Any) -> HolderProcess | None:
    """Return the process that a lease names; None if it names none, or not as this version does."""
    if not isinstance(value, dict):
        return None
    machine, boot = (value.get(name) for name in ("machine", "boot"))
    if not (isinstance(machine, str) and isinstance(boot, str) and 0 < len(machine) <= _LONGEST_TEXT >= len(boot) > 0):
        return None
    numbers = [value.get(name) for name in ("pid_namespace", "time_namespace", "pid", "started")]
    whole = [number for number in numbers if type(number) is int and 0 <= number < _MOST_NUMBER]
    if len(whole) < len(numbers) or not 0 < whole[2] <= _MOST_PID:
        return None
    return HolderProcess(machine, boot, *whole)


def this_process() -> HolderProcess | None:
    """Return this process; None if the operating system does not tell all that is needed."""
    try:
        if not _shows_our_namespace():
            return None
        return HolderProcess(
            machine=_machine(),
            boot=(_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()[:_LONGEST_TEXT],
            pid_namespace=(_PROC / "self/ns/pid").stat().st_ino,
            time_namespace=_time_namespace(),
            pid=os.getpid(),
            started=_stat_of(os.getpid()).started,
        )
    except (OSError, ValueError):
        return None


def is_gone(process: HolderProcess) -> bool:
    """Return whether it is certain that the process has ended. False if this process cannot know."""
    own = this_process()
    if own is None or own.place != process.place:
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it belongs to someone else
        pass
    try:
        stat = _stat_of(process.pid)
    except (OSError, ValueError):  # hidden from us, or it ends at this moment
        return False
    return stat.started != process.started or stat.ended


@dataclass(frozen=True, slots=True)
class _Stat:
    ended: bool
    started: int


def _stat_of(pid: int) -> _Stat:
    """Raises OSError, and ValueError if it is not what Linux writes."""
    # The name of the program, in parentheses, may contain anything; state is the third field, of 52.
    fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    if len(fields) < 20:
        raise ValueError(f"/proc/{pid}/stat has {len(fields)} fields")
    # The first thread of a process may have ended before the others.
    return _Stat(ended=fields[0] in (b"Z", b"X", b"x") and int(fields[17]) <= 1, started=int(fields[19]))


def _shows_our_namespace() -> bool:
    """Return whether `/proc` is of our own pid namespace: then it lists one process id for this process."""
    lines = (_PROC / "self/status").read_bytes().splitlines()
    ids = next((line.split()[1:] for line in lines if line.startswith(b"NSpid:")), [])
    return ids == [str(os.getpid()).encode()]


def _time_namespace() -> int:
    try:
        return (_PROC / "self/ns/time").stat().st_ino
    except FileNotFoundError:  # Linux before 5.6
        return 0


def _machine() -> str:
    # The id itself is not for others to know (machine-id(5)).
    try:
        identity = _MACHINE_ID.read_bytes().strip()[:_LONGEST_TEXT]
    except OSError:
        identity = b""
    return hashlib.sha256(b"jsbackup lease\0" + identity + b"\0" + platform.node().encode()).hexdigest()[:32]
