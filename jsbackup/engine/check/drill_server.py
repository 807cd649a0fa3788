"""Temporary nats-servers for a drill.

They listen on 127.0.0.1 only, require a random password from a file that only this user can read, and keep everything
below one folder. The servers choose their client ports and write them into that folder, so we connect to our own
servers only. Route ports must be known before; if another program takes one first, the server
ends, and all are started again with other ports. They have no route to any other server: no gateway, no leaf node.

They run in their own session, so Ctrl-C reaches only jsbackup, which then stops them; with `setpriv` (util-linux) the
kernel ends them if jsbackup is killed.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from jsbackup.config import Connection, Secret, Server, UserPassword
from jsbackup.engine.check.server_program import ServerProgram, failure_of
from jsbackup.errors import FormatError, JsBackupError
from jsbackup.strict_json import read_object

__all__ = ["DrillServers"]

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
    escaped = _ESCAPED.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
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
