"""What people use today: the `nats` command line tool, and jsm.go, the library that does its backups and restores.

The tool itself is used where there is one (`nats` on PATH, or .cache/natscli/nats, which scripts/natscli builds).
The library is pinned in `natscli_jsm/go.mod` and driven by the small program beside it, built once with Go into .cache:
it writes and takes the same directories as `nats stream backup` and `nats stream restore`, a directory per stream with
`backup.json` and `stream.tar.s2`; `nats account backup` makes one such directory below another for each stream.

jsm.go up to 0.4.1 names the data `stream.tar.s2` whatever is inside, an archive v1 or v2.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.harness.servers import REPOSITORY, missing

CACHE = REPOSITORY / ".cache" / "natscli"
SOURCES = Path(__file__).parent / "natscli_jsm"
DATA_FILE = "stream.tar.s2"
META_FILE = "backup.json"

_RUN_SECONDS = 60
_BUILD_SECONDS = 600


class ToolFailed(Exception):
    """The tool ended with an error; the message is what it said."""


def run_nats(*args: str, url: str) -> str:
    """Runs the real `nats` against a server and returns what it printed."""
    found = shutil.which("nats", path=str(CACHE)) or shutil.which("nats")
    if found is None:
        missing("no `nats` command line tool on PATH or in .cache/natscli: run scripts/natscli")
    # A context or a URL of the person who runs the tests must not leak in.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("NATS_")}
    environment["XDG_CONFIG_HOME"] = str(CACHE / "no-config")
    return _run([found, "--server", url, *args], environment)


def jsm_backup(url: str, stream: str, directory: Path, *, check: bool = False) -> dict[str, Any]:
    """`nats stream backup` by jsm.go, consumers included; returns the stream's state. Raises ToolFailed."""
    state: dict[str, Any] = json.loads(
        _run([str(_jsm()), "backup", url, stream, str(directory), *(["check"] if check else [])])
    )
    return state


def jsm_restore(url: str, stream: str, directory: Path) -> dict[str, Any]:
    """`nats stream restore` by jsm.go; returns the restored stream's state. Raises ToolFailed."""
    state: dict[str, Any] = json.loads(_run([str(_jsm()), "restore", url, stream, str(directory)]))
    return state


def jsm_account_backup(url: str, streams: Iterable[str], directory: Path) -> None:
    """The layout of `nats account backup`: a directory per stream."""
    for stream in streams:
        jsm_backup(url, stream, directory / stream)


def _jsm() -> Path:
    go = shutil.which("go")
    if go is None:
        missing("no Go toolchain to build the jsm.go driver with")
    sources = sorted(SOURCES.glob("*"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    program = CACHE / f"jsm-{digest}"
    CACHE.mkdir(parents=True, exist_ok=True)
    # One of several test processes builds, the others wait.
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            fresh = program.with_suffix(".new")
            command = [str(go), "build", "-trimpath", "-o", str(fresh), "."]
            built = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, timeout=_BUILD_SECONDS)
            if built.returncode != 0:
                missing(f"the jsm.go driver cannot be built: {built.stderr[-500:]}")
            fresh.rename(program)
    return program


def _run(command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_SECONDS, env=environment)
    if done.returncode != 0:
        raise ToolFailed(done.stderr.strip() or done.stdout.strip())
    return done.stdout
