"""Real nats-servers for tests: single ones, and a hub with a leaf node behind a JetStream domain.

Rules of this module:
- Servers listen on 127.0.0.1 only, keep their store in a directory of their own, and are ended by pid: by the context
  manager, at interpreter exit, and (Linux) by the kernel when the thread that started them is gone, so that a test run
  which is killed leaves nothing behind. Start servers from a thread that outlives them.
- "Ready" means that the client port accepts and the monitoring port says healthy: that needs no credentials, so it
  holds for servers with accounts, TLS or tiny permissions, and JetStream has recovered its streams by then.
- Nothing here imports jsbackup: the harness is the independent witness.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import http.client
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import pytest

from tests.harness.running import Running

_log = logging.getLogger(__name__)

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = REPOSITORY / ".cache" / "nats-server"

VERSIONS = ("2.10.26", "2.11.11", "2.12.8", "2.14.6", "2.15.1", "2.15.3")
BUNDLED = "2.15.1"  # what the extra `drill` installs: the newest that pip has


def _newest() -> str:
    """The newest release. Where it is not installed, for want of Go, the newest of pip stands in: most tests run on
    this one and would be skipped. Never in CI."""
    installed = os.access(CACHE / VERSIONS[-1] / "bin" / "nats-server", os.X_OK)
    return VERSIONS[-1] if installed or os.environ.get("CI") == "true" else BUNDLED


# Tests that name 2.15.1 by hand stay with it: then both of 2.15 are used by many tests. Server source: of snapshots,
# archives and restores two things changed: 2.15.2 checks the counts in `index.db`, and 2.15.3 rebuilds what it knows of
# message ids from an archive v2. So what takes long is tried on the newest of each minor version.
NEWEST = _newest()
MINORS = (*VERSIONS[:-2], NEWEST)
ENDS = (VERSIONS[0], NEWEST)  # archive v1 and v2; with the fewest features and with all

# From which version to which: each from and to the oldest and the newest. `./scripts/test explore` takes all pairs.
EXPLORE = os.environ.get("JSBACKUP_TEST_PROFILE") == "explore"
PAIRS = tuple(
    (source, target) for source in VERSIONS for target in VERSIONS if EXPLORE or not {source, target}.isdisjoint(ENDS)
)

# Below Linux's ephemeral range (32768-60999): no outgoing connection can take a claimed port between stop and restart.
_PORTS = range(14000, 32000)
_PORT_LOCKS = Path(tempfile.gettempdir()) / f"jsbackup-test-ports-{os.getuid()}"
START_SECONDS = 90.0
_POLL_SECONDS = 0.01


def version_tuple(version: str) -> tuple[int, int]:
    """`"2.12.8"` → `(2, 12)`: features come with minor versions."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def missing(what: str) -> None:
    """Skips the running test, or fails it under CI (`CI=true`), where everything has to be there."""
    if os.environ.get("CI") == "true":
        pytest.fail(what, pytrace=False)
    pytest.skip(what)


def binary(version: str) -> Path:
    """The path of that nats-server; where it is not installed the test is skipped (failed under CI)."""
    path = CACHE / version / "bin" / "nats-server"
    if not os.access(path, os.X_OK):
        missing(f"nats-server {version} is not installed: run scripts/servers")
    return path


class Port:
    """A TCP port of 127.0.0.1 that no other test process takes, until `release`.

    The claim is a file lock, so xdist workers and parallel test runs of one user agree, and a killed process lets go.
    """

    def __init__(self) -> None:
        _PORT_LOCKS.mkdir(mode=0o700, exist_ok=True)
        start = os.getpid() * 37 % len(_PORTS)
        for offset in range(len(_PORTS)):
            number = _PORTS[(start + offset) % len(_PORTS)]
            lock = (_PORT_LOCKS / str(number)).open("w")
            if _locked(lock) and _bindable(number):
                self.number = number
                self._lock: IO[str] = lock
                return
            lock.close()
        raise RuntimeError("no free port on 127.0.0.1")

    def release(self) -> None:
        self._lock.close()


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _bindable(number: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", number))
        except OSError:
            return False
    return True


class NatsServer(Running):
    """One nats-server process; use it as a context manager.

    `config` is appended to the configuration file (accounts, leaf nodes, TLS, …). `key` turns on encryption at rest.
    `directory` keeps the store beyond this object; without it store and log are removed at the end.
    """

    def __init__(
        self,
        version: str = NEWEST,
        *,
        config: str = "",
        name: str = "single",
        jetstream: bool = True,
        domain: str | None = None,
        key: str | None = None,
        cipher: str = "chacha",
        max_payload_bytes: int | None = None,
        max_memory_bytes: int | None = None,
        max_file_bytes: int | None = None,
        directory: Path | None = None,
    ) -> None:
        self.version = version
        self.name = name
        self.domain = domain
        self._binary = binary(version)
        self._keep = directory is not None
        self.directory = directory or Path(tempfile.mkdtemp(prefix=f"nats-{version}-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        self._port, self._monitor = Port(), Port()
        self.port, self.monitor_port = self._port.number, self._monitor.number
        self._process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0  # of the monotonic clock
        lines = [
            f'host: 127.0.0.1\nport: {self.port}\nhttp: "127.0.0.1:{self.monitor_port}"',
            f"server_name: {name}" if name else "",
            f"pid_file: {json.dumps(str(self.directory / 'pid'))}",
        ]
        if max_payload_bytes is not None:
            lines.append(f"max_payload: {max_payload_bytes}")
        if jetstream:
            lines.append(f"jetstream {{\n  store_dir: {json.dumps(str(self.store_directory))}")
            lines += [f"  domain: {domain}"] if domain else []
            lines += [f"  key: {json.dumps(key)}\n  cipher: {cipher}"] if key else []
            lines += [f"  max_mem: {max_memory_bytes}"] if max_memory_bytes is not None else []
            lines += [f"  max_file: {max_file_bytes}"] if max_file_bytes is not None else []
            lines.append("}")
        self._config = "\n".join([*lines, config, ""])

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def store_directory(self) -> Path:
        return self.directory / "store"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"nats-server {self.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """All that the server has written, restarts included."""
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, *, wait: bool = True) -> None:
        """Starts the process; with `wait`, returns when it is ready. RuntimeError with the log's end if it ends,
        TimeoutError if it does not get ready."""
        path = self.directory / "server.conf"
        path.write_text(self._config)
        command = [str(self._binary), "-c", str(path)]
        if setpriv := shutil.which("setpriv"):
            command = [setpriv, "--pdeathsig", "KILL", *command]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.started_at = time.monotonic()
        atexit.register(self.kill)
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        wait_until(self._ready, f"nats-server {self.name} {self.version} to be ready", self)

    def _ready(self) -> bool:
        if not self.running:
            raise RuntimeError(f"nats-server {self.name} {self.version} ended:\n{self.log[-3000:]}")
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2):
                pass
            return self._get("/healthz")[0] == 200
        except OSError:
            return False

    def monitor(self, path: str) -> dict[str, Any]:
        """A monitoring endpoint's JSON, such as `/jsz?streams=1` or `/varz`."""
        status, body = self._get(path)
        if status != 200:
            raise RuntimeError(f"{path} of {self.name} answered {status}: {body[:200]!r}")
        answer: dict[str, Any] = json.loads(body)
        return answer

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.monitor_port, timeout=5)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        except http.client.HTTPException as error:
            raise ConnectionError(str(error)) from error
        finally:
            connection.close()

    def kill(self) -> None:
        """SIGKILL: as a power cut, short of the disk's own cache."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """An orderly end (SIGTERM); killed after ten seconds."""
        self._end(signal.SIGTERM)

    def _end(self, with_signal: signal.Signals) -> None:
        atexit.unregister(self.kill)
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(with_signal)
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
        else:
            _log.warning("%s %s had ended (%s):\n%s", self.name, self.version, process.returncode, self._last_words())
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _last_words(self) -> str:
        """The end of the log, from what a Go program says when it breaks off."""
        log = self.log
        at = [at for at in (log.find("panic:"), log.find("fatal error:")) if at >= 0]
        return log[max(0, min(at, default=len(log)) - 1000) :][:6000]

    def restart(self) -> None:
        """Stops it if it runs, and starts it on the same ports and store."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing answers, until `thaw`."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        if self._keep:
            self.stop()
        else:
            # Nobody reads this store again.
            self.kill()
        self._port.release()
        self._monitor.release()
        if not self._keep:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Not for a skipped test.
        if isinstance(error, Exception):
            error.add_note(f"log of nats-server {self.name} {self.version}:\n{self.log[-2000:]}")
        self.close()


def wait_until(condition: Callable[[], bool], what: str, *servers: NatsServer, seconds: float = START_SECONDS) -> None:
    """Polls; TimeoutError with the ends of the servers' logs when `seconds` are over."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            logs = "\n".join(f"--- {server.name}\n{server.log[-2000:]}" for server in servers)
            raise TimeoutError(f"waited {seconds:g} s in vain for {what}\n{logs}")
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def hub_and_leaf(version: str = NEWEST, *, leaf_version: str | None = None) -> Iterator[tuple[NatsServer, NatsServer]]:
    """A hub (JetStream domain `hub`) and a leaf node (domain `leaf`) joined by a leaf connection.

    From the hub's URL the leaf's JetStream answers below `$JS.leaf.API`, and the other way round.
    """
    port = Port()
    try:
        hub_config = f"leafnodes {{ listen: 127.0.0.1:{port.number} }}"
        leaf_config = f'leafnodes {{ remotes: [ {{ url: "nats-leaf://127.0.0.1:{port.number}" }} ] }}'
        with (
            NatsServer(version, name="hub", domain="hub", config=hub_config) as hub,
            NatsServer(leaf_version or version, name="leaf", domain="leaf", config=leaf_config) as leaf,
        ):
            wait_until(lambda: hub.monitor("/leafz")["leafnodes"] == 1, "the leaf connection", hub, leaf)
            yield hub, leaf
    finally:
        port.release()
