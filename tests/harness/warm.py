"""Commands that start in a hundredth of a second: forked from a process that has imported all of jsbackup already.

The tests run some thousands of commands, and most of a short one is imports. Measured: 0.35 s of the 0.40 s of CPU that
a backup of one message takes. `install` makes `subprocess.Popen` start `python -m jsbackup …` that way: each is a
process of its own, with its own arguments, environment, folder, streams and session, and a child of the test process as
ever. The interpreter starts as usual for any other command line, where something is to run before `exec`, and where the
environment differs in what the interpreter itself reads at its start; `command_line(…, cold=True)` asks for that.

    test process → preloaded process (`main` below) → short-lived process → command

The one in between ends at once, so that the command becomes a child of the test process, which declares itself the
reaper of orphans for that moment (`prctl(2)`, PR_SET_CHILD_SUBREAPER).
"""

from __future__ import annotations

import array
import ctypes
import importlib
import inspect
import json
import os
import pkgutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.harness import s3_models

__all__ = ["install"]

_PR_SET_CHILD_SUBREAPER = 36
_MOST_REQUEST_BYTES = 1 << 20
# What the interpreter, the C library and Arrow read when they start.
_READ_AT_START = ("PYTHON", "LANG", "LC_", "LD_", "MALLOC", "ARROW", "GLIBC")
_NEVER_NEEDED = ("jsbackup.pipeline", "jsbackup.__main__", "jsbackup.formats._kernels_py")
_LIBRARIES = ("boto3", "nats", "pyarrow.parquet", "tqdm")

_signature = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]


def install() -> None:
    """From now on; once in a process. Does nothing where the system has no such thing."""
    if not sys.platform.startswith("linux") or "JSBACKUP_COLD_TESTS" in os.environ:
        return
    subprocess.Popen = _Popen  # type: ignore[misc]


_ColdPopen = subprocess.Popen


class _Popen(_ColdPopen):  # type: ignore[type-arg]
    def _execute_child(self, *args: Any, **options: Any) -> None:
        asked = _signature.bind(self, *args, **options).arguments
        if not _can_be_warm(asked):
            super()._execute_child(*args, **options)  # type: ignore[misc]
            return
        ends = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        request = {
            "arguments": [os.fsdecode(one) for one in asked["args"][3:]],
            "environment": {os.fsdecode(name): os.fsdecode(text) for name, text in _environment(asked).items()},
            "folder": os.fsdecode(asked["cwd"] or Path.cwd()),
            "session": asked["start_new_session"],
        }
        try:
            self.pid = _preloaded().start(request, [end if end != -1 else number for number, end in enumerate(ends)])
        finally:
            names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*(asked[name] for name in names))  # type: ignore[attr-defined]
        self._child_created = True


def _can_be_warm(asked: dict[str, Any]) -> bool:
    args = asked["args"]
    if not isinstance(args, list) or args[:3] != [sys.executable, "-m", "jsbackup"]:
        return False
    if asked["preexec_fn"] is not None or asked["pass_fds"] or asked["shell"] or asked["umask"] != -1:
        return False
    return _at_start(_environment(asked)) == _at_start(os.environ)


def _environment(asked: dict[str, Any]) -> Mapping[Any, Any]:
    return os.environ if asked["env"] is None else asked["env"]


def _at_start(environment: Mapping[Any, Any]) -> dict[str, str]:
    # A test of another thread may end meanwhile: pytest then takes its name out of the environment.
    texts = {os.fsdecode(name): os.fsdecode(environment.get(name, "")) for name in list(environment)}
    ours = {name: text for name, text in texts.items() if name.startswith(_READ_AT_START)}
    ours.pop("PYTHONPATH", None)  # where both find the same jsbackup
    return ours


class _Preloaded:
    """The process that commands are forked from. It ends with this one."""

    def __init__(self) -> None:
        _reap_orphans(True)  # before there are descendants
        self._lock = threading.Lock()
        self.owner = os.getpid()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._socket, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_REQUEST_BYTES)
        line = [sys.executable, "-c", f"from tests.harness.warm import main; main({theirs.fileno()})"]
        self._process = _ColdPopen(line, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()

    def start(self, request: dict[str, Any], ends: list[int]) -> int:
        """The id of the process."""
        with self._lock:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", ends))]
            _reap_orphans(True)
            try:
                self._socket.sendmsg([json.dumps(request).encode()], ancillary)
                answer = self._socket.recv(64)
            finally:
                _reap_orphans(False)
        if not answer:
            raise RuntimeError("the process that commands are forked from has ended")
        return int(answer)


def _reap_orphans(yes: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


_found: _Preloaded | None = None
_finding = threading.Lock()


def _preloaded() -> _Preloaded:
    global _found
    with _finding:
        if _found is None or _found.owner != os.getpid():
            _found = _Preloaded()
        return _found


# --- in the preloaded process ---


def main(number: int) -> None:
    """Fork commands until the test process has gone."""
    from jsbackup.memory import keep_one_heap

    keep_one_heap()
    _import_all()
    calls = socket.socket(fileno=number)
    while True:
        data, ends, _, _ = socket.recv_fds(calls, _MOST_REQUEST_BYTES, 3)
        if not data:
            return
        pid = _fork_orphan(calls)
        if pid == 0:
            calls.close()
            _run(json.loads(data), ends)
            return
        for end in ends:
            os.close(end)
        calls.send(b"%d" % pid)


def _import_all() -> None:
    import jsbackup

    for found in pkgutil.walk_packages(jsbackup.__path__, "jsbackup."):
        if not found.name.startswith(_NEVER_NEEDED):
            importlib.import_module(found.name)
    for name in _LIBRARIES:
        importlib.import_module(name)
    s3_models.keep_models()
    s3_models.read_models()


def _fork_orphan(calls: socket.socket) -> int:
    """0 in the new process. In this one its id, when the process between them is gone and has left it to the reaper."""
    here, there = os.pipe()
    between = os.fork()
    if between == 0:
        child = os.fork()
        if child == 0:
            os.close(here)
            os.close(there)
            return 0
        os.write(there, b"%d" % child)
        os._exit(0)
    os.close(there)
    os.waitpid(between, 0)
    pid = int(os.read(here, 64))
    os.close(here)
    return pid


def _run(request: dict[str, Any], ends: list[int]) -> None:
    """Become the command, and end with it."""
    if request["session"]:
        os.setsid()
    for number, end in enumerate(ends):
        os.dup2(end, number)
    for end in ends:
        os.close(end)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    sys.argv = ["jsbackup", *request["arguments"]]
    sys.stdin = open(0, encoding=sys.stdin.encoding, errors=sys.stdin.errors)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding=sys.stderr.encoding, errors="backslashreplace")  # noqa: SIM115

    from jsbackup.cli.main import main as command

    command()
