"""The library leaves the process as it is: only the command line sets signals, logs, memory and the like."""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.api import call, connected
from tests.harness.commands import environment
from tests.harness.servers import NEWEST, NatsServer

ROOT = Path(__file__).parent.parent / "jsbackup"

# What changes the process, or the log of others -> the only files that do it.
EFFECTS: dict[str, set[str]] = {
    # The latter for the log of its own web server.
    "addHandler addFilter setLevel handlers propagate basicConfig": {"cli/output/progress.py", "browse/app.py"},
    "signal set_wakeup_fd": {"cli/main.py", "cli/loop.py", "cli/notify/hooks.py"},
    "add_signal_handler set_default_executor": {"cli/loop.py"},
    "set_threshold": {"cli/main.py", "cli/loop.py"},
    "freeze": {"cli/loop.py", "pipeline/tasks/task_source.py"},  # the latter in processes that Spark has started
    "putenv mallopt": {"memory.py"},
    "keep_one_heap": {"cli/main.py"},
    "environ": {"config/__init__.py"},  # which sets what Spark reads while it is started, and takes it back
    "set_memory_pool jemalloc_set_decay_ms set_cpu_count set_io_thread_count umask chdir setrlimit nice": set(),
    "setlocale setdefaulttimeout setrecursionlimit setswitchinterval excepthook filterwarnings simplefilter": set(),
    "set_event_loop_policy set_event_loop": set(),
}


@pytest.mark.slow
def test_effects_are_where_they_belong() -> None:
    found: dict[str, set[str]] = {names: set() for names in EFFECTS}
    for path in ROOT.rglob("*.py"):
        named: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                named.add(node.attr)
            elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
                named.update(alias.name for alias in node.names)
        for names, files in found.items():
            if named & set(names.split()):
                files.add(path.relative_to(ROOT).as_posix())
    assert found == EFFECTS


PROGRAM = """
import asyncio, gc, importlib, locale, logging, os, pkgutil, resource, signal, socket, sys, threading, time, warnings
from concurrent.futures import ThreadPoolExecutor
import boto3, nats, pyarrow, urllib3  # which may do what they like
import jsbackup


def log(name):
    one = logging.getLogger(name)
    return one.level, one.handlers[:], one.filters[:], one.propagate, one.disabled


def state():
    umask = os.umask(0)
    os.umask(umask)
    return {
        "loggers": {name: log(name) for name in ("", "asyncio", "nats", "nats.aio.client", "jsbackup", "pyarrow")},
        "pool": (pyarrow.default_memory_pool().backend_name, pyarrow.cpu_count(), pyarrow.io_thread_count()),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "environment": dict(os.environ),
        "umask": umask,
        "gc": (gc.get_threshold(), gc.get_freeze_count(), gc.isenabled()),
        "limits": [resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")],
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook, sys.stdout, sys.stderr),
        "others": (os.getcwd(), socket.getdefaulttimeout(), locale.setlocale(locale.LC_ALL), sys.getswitchinterval()),
        "warnings": warnings.filters[:],
    }


def check(before):
    after = state()
    assert after == before, {name: (before[name], now) for name, now in after.items() if before[name] != now}


class Unused(ThreadPoolExecutor):
    def submit(self, work, *args, **kwargs):
        raise AssertionError(f"{work} was given to the executor of the loop")


async def work(url, jobs=3):
    asyncio.get_running_loop().set_default_executor(Unused(1))
    connection, repository, progress = connection_to(url), make_repository(MemoryStore(time.time)), NullProgress()
    lease = held(repository.store)
    options = BackupOptions(jobs=jobs)
    done = await run_backup(BackupRun(connection, repository, options, progress), lease)
    assert done.manifest and not done.failures and len(done.streams) == jobs
    options, settings = RestoreOptions(if_exists=IfExists.REPLACE), RestoreSettings(jobs=jobs)
    restored = await run_restore(RestoreRun(connection, options, settings, progress), repository, done.manifest)
    assert not restored.failures and len(restored.streams) == jobs


before = state()
for _, name, _ in pkgutil.walk_packages(jsbackup.__path__, "jsbackup."):
    if not name.startswith(("jsbackup.cli", "jsbackup.pipeline", "jsbackup.__main__")):
        importlib.import_module(name)
check(before)

from jsbackup.engine.backup.backup import run_backup
from jsbackup.engine.backup.run import BackupOptions
from jsbackup.engine.backup.run import BackupRun
from jsbackup.engine.restore.restore import run_restore
from jsbackup.engine.restore.run import RestoreRun, RestoreSettings
from jsbackup.planning.model import IfExists, RestoreOptions
from jsbackup.progress import NullProgress
from jsbackup.stores.memory import MemoryStore
from tests.engine.restores import connection_to
from tests.harness.backups import make_repository
from tests.harness.held import held

asyncio.run(work(sys.argv[1]))
check(before)
"""


@pytest.mark.nats
def test_a_backup_and_a_restore_leave_the_process_as_it_was() -> None:
    async def fill(url: str) -> None:
        async with connected(url) as nc:
            for name in ("A", "B", "C"):
                await call(nc, f"STREAM.CREATE.{name}", {"name": name, "subjects": [name], "storage": "file"})
                for number in range(50):
                    await nc.request(name, b"%d" % number)

    with NatsServer(NEWEST) as server:
        asyncio.run(fill(server.url))
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, server.url],
            capture_output=True,
            text=True,
            timeout=120,
            env=environment(),
            cwd=ROOT.parent,
        )
    assert not done.returncode and not done.stderr, done.stderr
