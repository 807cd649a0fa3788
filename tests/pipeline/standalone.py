"""A real Spark cluster of the tests: a standalone master and workers, started from the pip-installed pyspark.

Rules are those of `tests/harness/servers.py`: 127.0.0.1 alone, free ports, a folder of its own, ended by pid.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from jsbackup.pipeline.session.java import find_java
from tests.harness.running import Running
from tests.harness.servers import Port, wait_until
from tests.pipeline.quick_java import quick_java

_START_SECONDS = 120


class Standalone(Running):
    """A master and two workers of one core each; `environment` is what executors find."""

    def __init__(self, environment: dict[str, str], workers: int = 2) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="spark-"))
        spec = find_spec("pyspark")
        assert spec is not None and spec.origin is not None
        self._spark = Path(spec.origin).parent
        java = find_java(os.environ)
        self._environment = {
            **os.environ,
            **environment,
            "JAVA_HOME": str(java.resolve().parent.parent),
            "SPARK_HOME": str(self._spark),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
            "SPARK_DAEMON_MEMORY": "256m",
            **quick_java(),  # also for the executors, which inherit it from their workers
        }
        self._ports = [Port() for _ in range(2 + 2 * workers)]
        self.url = f"spark://127.0.0.1:{self._ports[0].number}"
        self._count = workers
        self._started = 0
        self._processes: list[subprocess.Popen[bytes]] = []

    def _start(self, kind: str, *more: str) -> subprocess.Popen[bytes]:
        command = [str(self._spark / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *more]
        if setpriv := shutil.which("setpriv"):
            command = [setpriv, "--pdeathsig", "KILL", *command]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self._environment, cwd=self.folder
            )
        self._processes.append(process)
        return process

    def start(self) -> None:
        master, its_page = (str(port.number) for port in self._ports[:2])
        self._start("master.Master", "--host", "127.0.0.1", "--port", master, "--webui-port", its_page)
        wait_until(lambda: _answers(int(master)), "the Spark master", seconds=_START_SECONDS)
        self.workers = [self._start_worker(n) for n in range(self._count)]
        self._wait_registered()

    def _start_worker(self, n: int) -> subprocess.Popen[bytes]:
        port, page = (str(port.number) for port in self._ports[2 + 2 * n : 4 + 2 * n])
        self._started += 1
        return self._start(
            "worker.Worker",
            *("--host", "127.0.0.1", "--port", port, "--webui-port", page),
            *("--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / f"work{n}"), self.url),
        )

    def _wait_registered(self) -> None:
        registered = "Successfully registered with master"
        wait_until(lambda: self.log.count(registered) >= self._started, "the Spark workers", seconds=_START_SECONDS)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def kill(self, worker: int) -> None:
        """A machine that is gone: the worker, its executor and what that has started."""
        process = self.workers[worker]
        for pid in [process.pid, *_descendants(process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def kill_one_at_work(self, port: int) -> int:
        """Kills a worker with a task that is connected to 127.0.0.1:`port` just now → which one that was."""
        worker = self._at_work(port)
        self.kill(worker)
        return worker

    def kill_executor_at_work(self, port: int) -> None:
        """Kills an executor with such a task. Its worker stays, and starts another one."""
        for pid in _descendants(self.workers[self._at_work(port)].pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _at_work(self, port: int) -> int:
        ends = _ends_of_connections_to(port)
        for worker, process in enumerate(self.workers):
            if any(not ends.isdisjoint(_sockets(pid)) for pid in _descendants(process.pid)):
                return worker
        raise AssertionError(f"no task is connected to port {port}")

    def revive(self, worker: int) -> None:
        """Another machine in the place of one that was killed."""
        self.workers[worker] = self._start_worker(worker)
        self._wait_registered()

    def revive_all(self) -> None:
        for worker, process in enumerate(self.workers):
            if process.poll() is not None:
                self.revive(worker)

    def close(self) -> None:
        for process in self._processes:
            below = _descendants(process.pid) if process.poll() is None else []
            for pid in below:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if process.poll() is None:
                process.kill()
            process.wait()
        for port in self._ports:
            port.release()
        shutil.rmtree(self.folder, ignore_errors=True)


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _ends_of_connections_to(port: int) -> set[str]:
    """The clients' ends, as `/proc/<pid>/fd` names them."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {f"socket:[{row[9]}]" for row in rows if row[2] == f"0100007F:{port:04X}" and row[3] == "01"}


def _sockets(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.add(str(path.readlink()))
    return found


def _descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    found, todo = [], [pid]
    while todo:
        below = parents.get(todo.pop(), [])
        found += below
        todo += below
    return found
