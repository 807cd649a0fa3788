"""What people use today: the `nats` command line tool, and jsm.go, the library that does its backups and restores.

The tool is the one that scripts/natscli builds into .cache/natscli, of the version that `natscli_tool/go.mod` pins. The
library is pinned in `natscli_jsm/go.mod`, to the version that the tool has, and driven by the small program beside it,
built once with Go into .cache. It does what takes the tool a process for each stream.

A stream's folder has `backup.json`, written last, and the archive: `stream.arc.s2` of servers from 2.15 on, else
`stream.tar.s2`. `nats backup account` makes one such folder below another for each stream.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.harness.servers import REPOSITORY, NatsServer, missing, version_tuple, wait_until

CACHE = REPOSITORY / ".cache" / "natscli"
TOOL = Path(__file__).parent / "natscli_tool" / "go.mod"
SOURCES = Path(__file__).parent / "natscli_jsm"
META_FILE = "backup.json"

_RUN_SECONDS = 120
_BUILD_SECONDS = 600


class ToolFailed(Exception):
    """The tool ended with an error; the message is what it said."""


def data_file(version: str) -> str:
    """The name of an archive that comes from a server of this version."""
    return "stream.arc.s2" if version_tuple(version) >= (2, 15) else "stream.tar.s2"


def run_nats(*args: str | Path, url: str = "nats://127.0.0.1:1") -> str:
    """Runs the real `nats` against a server (some commands need none) and returns what it printed on stdout. Raises
    ToolFailed."""
    return _run([_nats(), "--server", url, *map(str, args)], _alone())


@contextmanager
def recording(server: NatsServer, subject: str, directory: Path, count: int) -> Iterator[None]:
    """The `count` messages published meanwhile are recorded into `directory` by `nats sub --backup`."""

    def subscribed() -> bool:
        found = server.monitor("/subsz?subs=1").get("subscriptions_list", [])
        return any(one["subject"] == subject for one in found)

    command = [
        _nats(),
        "--server",
        server.url,
        "sub",
        subject,
        "--quiet",
        "--backup",
        str(directory),
        "--count",
        str(count),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=_alone()) as process:
        try:
            wait_until(subscribed, f"a subscription to {subject}", server)
            yield
            process.wait(60)
        finally:
            process.kill()


def _alone() -> dict[str, str]:
    """An environment without a context or a URL of the person who runs the tests."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("NATS_")}
    return {**environment, "XDG_CONFIG_HOME": str(CACHE / "no-config")}


@cache
def _nats() -> str:
    pinned = re.search(r"^require github.com/nats-io/natscli v(\S+)$", TOOL.read_text(), re.MULTILINE)
    assert pinned is not None
    program = CACHE / "nats"
    found = _run([str(program), "--version"]).strip() if program.exists() else "none"
    if found != f"v{pinned[1]}":
        missing(f"the `nats` command line tool {pinned[1]} is not in .cache/natscli ({found}): run scripts/natscli")
    return str(program)


def nats_backup_account(url: str, directory: Path) -> None:
    run_nats("backup", "account", directory, "--force", "--critical-warnings", url=url)


def nats_restore_account(url: str, directory: Path) -> None:
    run_nats("backup", "restore", "account", directory, url=url)


def nats_backup_stream(url: str, stream: str, directory: Path) -> None:
    run_nats("backup", "stream", stream, directory, "--no-progress", url=url)


def nats_restore_stream(url: str, directory: Path) -> None:
    run_nats("backup", "restore", "stream", directory, "--no-progress", url=url)


def jsm_backup(url: str, stream: str, directory: Path, *, check: bool = False) -> dict[str, Any]:
    """`nats backup stream` by jsm.go, consumers included; returns the stream's state. Raises ToolFailed."""
    state: dict[str, Any] = json.loads(
        _run([str(_jsm()), "backup", url, stream, str(directory), *(["check"] if check else [])])
    )
    return state


def jsm_restore(url: str, stream: str, directory: Path) -> dict[str, Any]:
    """`nats backup restore stream` by jsm.go; returns the restored stream's state. Raises ToolFailed."""
    state: dict[str, Any] = json.loads(_run([str(_jsm()), "restore", url, stream, str(directory)]))
    return state


def jsm_account_backup(url: str, streams: Iterable[str], directory: Path) -> None:
    """The layout of `nats backup account`: a directory per stream."""
    for stream in streams:
        jsm_backup(url, stream, directory / stream)


def jsm_validate(directories: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """`nats backup validate` by jsm.go, by the names of the directories: `error` is empty where it is content, and
    `messages`, `subjects`, `consumers`, `first_seq`, `last_seq` say what it counted."""
    lines = _run([str(_jsm()), "validate", *map(str, directories)]).splitlines()
    return {Path(found["directory"]).name: found for found in map(json.loads, lines)}


def jsm_logins(contexts: Iterable[Path], environment: Mapping[str, str]) -> list[dict[str, str]]:
    """What a client with each of these contexts would send, by natscontext; `error` is empty where it can be found
    out. Only the PATH and so on of `environment` count, none of the tests' own."""
    command = [str(_jsm()), "contexts", *map(str, contexts)]
    return [json.loads(line) for line in _run(command, dict(environment)).split("\n") if line]


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
            # As scripts/natscli builds: then Go has compiled all but the program before.
            # A test may have another home, where Go would keep what it compiles.
            settings = {**os.environ, "CGO_ENABLED": "0", "HOME": pwd.getpwuid(os.getuid()).pw_dir}
            built = subprocess.run(
                command, cwd=SOURCES, capture_output=True, text=True, timeout=_BUILD_SECONDS, env=settings
            )
            if built.returncode != 0:
                missing(f"the jsm.go driver cannot be built: {built.stderr[-500:]}")
            fresh.rename(program)
    return program


def _run(command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_SECONDS, env=environment)
    if done.returncode != 0:
        raise ToolFailed(done.stderr.strip() or done.stdout.strip())
    return done.stdout
