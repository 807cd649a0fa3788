"""Which processes are certainly gone, and which leases are removed for it; nothing that lives ever counts as gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.repository.keep import leases
from jsbackup.repository.keep.leases import HolderProcess, holder_of, is_gone, this_process
from tests.harness.servers import wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells what is needed")

_SLEEP = [sys.executable, "-c", "import sys; print(); sys.stdout.flush(); sys.stdin.read()"]


def _own() -> HolderProcess:
    own = this_process()
    assert own is not None
    return own


def _process(pid: int) -> HolderProcess:
    return replace(_own(), pid=pid, started=leases._stat_of(pid).started)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(_SLEEP, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
        child.kill()


def test_a_living_process_is_not_gone_and_a_killed_one_is(child: subprocess.Popen[bytes]) -> None:
    assert not is_gone(_own()) and not is_gone(_process(os.getppid()))
    process = _process(child.pid)
    assert not is_gone(process)
    child.send_signal(signal.SIGSTOP)
    assert not is_gone(process)
    child.kill()
    wait_until(lambda: is_gone(process), 60)  # nobody has asked for its exit code: it is still listed
    assert Path(f"/proc/{child.pid}").exists()
    child.wait()
    assert is_gone(process)


def test_another_process_under_the_same_number_is_another_one(child: subprocess.Popen[bytes]) -> None:
    process = _process(child.pid)
    assert is_gone(replace(process, started=process.started - 1))


@pytest.mark.parametrize(
    "elsewhere", [{"machine": "a" * 32}, {"boot": "b"}, {"pid_namespace": 1}, {"time_namespace": 1}]
)
def test_nothing_is_decided_about_a_process_elsewhere(
    child: subprocess.Popen[bytes], elsewhere: dict[str, Any]
) -> None:
    process = _process(child.pid)
    child.kill()
    child.wait()
    assert is_gone(process) and not is_gone(replace(process, **elsewhere))


def test_a_process_that_proc_hides_is_not_gone(child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    process, stat_of = _process(child.pid), leases._stat_of

    def hide(pid: int) -> Any:
        if pid != os.getpid():
            raise FileNotFoundError
        return stat_of(pid)

    monkeypatch.setattr(leases, "_stat_of", hide)
    assert not is_gone(process)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make pid namespaces")
def test_processes_of_containers_do_not_judge_each_other(child: subprocess.Popen[bytes]) -> None:
    """In a pid namespace of its own, with the `/proc` of another one and with its own."""
    code = "from jsbackup.repository.keep.leases import *; print(this_process(), is_gone(holder_of(%r)))"
    process = _process(child.pid)
    child.kill()
    child.wait()
    line = [sys.executable, "-c", code % process.to_json()]
    said = {}
    for option in ("--fork", "--mount-proc"):
        done = subprocess.run(["unshare", "--pid", "--fork", option, *line], capture_output=True, text=True)
        if "unshare failed" in done.stderr:
            pytest.skip(done.stderr)
        said[option] = done.stdout
    assert is_gone(process)
    assert said["--fork"] == "None False\n"
    assert said["--mount-proc"].startswith("HolderProcess(") and said["--mount-proc"].endswith(" False\n")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda values: st.lists(values), max_leaves=3
)
_FIELDS = ["machine", "boot", "pid_namespace", "time_namespace", "pid", "started"]


@given(st.dictionaries(st.sampled_from(_FIELDS), _JSON), st.sampled_from(_FIELDS))
def test_whatever_a_lease_says_no_process_is_gone_for_it(fields: dict[str, Any], missing: str) -> None:
    own = _own().to_json()
    for document in (fields, {**own, **fields}, {name: own[name] for name in own if name != missing}, [own], 1, None):
        process = holder_of(document)
        assert process is None or process == _own() or process.place != _own().place or 0 < process.pid <= 1 << 22
        if process is not None:
            is_gone(process)
    assert holder_of({**own, "pid": 0}) is None and holder_of({**own, "pid": -1}) is None
