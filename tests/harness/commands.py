"""The command line as a user types it: a process of its own, its exit code, its JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# For tests that are about something else than time: more than a machine stalls for.
PATIENT = ("--timeout", "60s")

# A stray setting of the developer's shell must not reach the commands under test.
_ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("NATS_", "JSBACKUP_", "XDG_"))}


_WITH_WRONG_CLOCK = """
import sys, time
ahead, seconds, nanoseconds = int(sys.argv.pop(1)), time.time, time.time_ns
time.time, time.time_ns = lambda: seconds() + ahead, lambda: nanoseconds() + ahead * 10**9
from jsbackup.cli.main import run
sys.exit(run(sys.argv[1:]))
"""

# As `sending.py` does it for one process.
_SENDING = """
import sys
from jsbackup.engine.restore import stream_restore
from jsbackup.planning.model import RestoreOptions, SendAs
wire, window = sys.argv.pop(1), int(sys.argv.pop(1))
make = RestoreOptions.__init__
make.__defaults__ = tuple(SendAs(wire) if isinstance(one, SendAs) else one for one in make.__defaults__)
if window:
    stream_restore.LEAST_WINDOW_BYTES, stream_restore.window_for = window, lambda round_trip_seconds: window
from jsbackup.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command did. `document` is its JSON, an empty object if it printed none."""

    code: int
    document: dict[str, Any]
    out: str
    err: str

    def ok(self) -> Ran:
        """Itself, if the command succeeded."""
        assert self.code == 0, f"exit code {self.code}\n{self.out}\n{self.err}"
        return self


def command_line(
    *arguments: str | Path, cold: bool = False, ahead_seconds: int = 0, wire: str = "auto", window_bytes: int = 0
) -> list[str]:
    """With `cold`, the interpreter starts for it as it does for users (`warm.py`). `ahead_seconds` is what the clock of
    its machine is wrong by. `wire` is the archive that it sends, `window_bytes` what it may have under way.
    """
    python = [sys.executable, *(["-s"] if cold else [])]
    if ahead_seconds:
        return [*python, "-c", _WITH_WRONG_CLOCK, str(ahead_seconds), *map(str, arguments)]
    if wire != "auto" or window_bytes:
        return [*python, "-c", _SENDING, wire, str(window_bytes), *map(str, arguments)]
    return [*python, "-m", "jsbackup", *map(str, arguments)]


def environment(**extra: str) -> dict[str, str]:
    """The environment of commands under test: a home without contexts, plus `extra`."""
    return {**_ENVIRONMENT, "HOME": "/nonexistent", "JSBACKUP_TRACEBACK": "1", **extra}


def jsbackup(
    *arguments: str | Path, seconds: float = 240, ahead_seconds: int = 0, wire: str = "auto", **extra: str
) -> Ran:
    """Run `jsbackup … --json`; `extra` are environment variables, the others are those of `command_line`."""
    line = command_line(*arguments, "--json", ahead_seconds=ahead_seconds, wire=wire)
    done = subprocess.run(line, capture_output=True, text=True, timeout=seconds, env=environment(**extra))
    try:
        document = json.loads(done.stdout) if done.stdout else {}
    except ValueError:
        document = {}
    assert "Traceback" not in done.stderr, done.stderr
    return Ran(done.returncode, document, done.stdout, done.stderr)
