"""Ctrl-C and SIGTERM: exit code 130, one sentence, no traceback, and everything stays valid."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jsbackup.cli.commands import backup
from jsbackup.cli.main import run
from tests.cli.typed import Shop, in_shell, in_terminal
from tests.harness.commands import command_line, environment
from tests.harness.servers import NEWEST, NatsServer, wait_until

pytestmark = pytest.mark.nats

SENTENCE = "interrupted; what was committed before is untouched"


def _interrupt(pid: int) -> None:
    os.kill(pid, signal.SIGINT)


def _twice(pid: int) -> None:
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGINT)


def _impatiently(pid: int) -> None:
    for _ in range(200):
        os.kill(pid, signal.SIGINT)
        time.sleep(0.001)


def _terminate(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)


@pytest.mark.parametrize("stop", [_interrupt, _twice, _impatiently, _terminate])
def test_a_long_verify_is_stopped(shop: Shop, stop: object) -> None:
    # The same backup so often that nobody waits for the end.
    line = ["verify", "-r", shop.repo, "--level", "data", *["latest"] * 5000]
    done = in_terminal(*line, when_drawn=("ORDERS", stop))  # type: ignore[arg-type]
    assert (done.code, done.out) == (130, ""), done.err
    assert f"error: {SENTENCE}\r\n" in done.err and "Traceback" not in done.err
    assert in_shell("verify", "-r", shop.repo).code == 0


def test_what_an_interrupt_breaks_is_no_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def waiting(**_: object) -> int:
        # What `Condition.wait` does if Ctrl-C comes while it takes its lock again.
        condition = threading.Condition()
        with condition:
            condition.release()
            raise KeyboardInterrupt

    monkeypatch.setattr(backup.COMMANDS["backup"], "callback", waiting)
    assert run(["backup", "-r", str(tmp_path)]) == 130
    assert capsys.readouterr().err == f"error: {SENTENCE}\n"


@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM])
def test_what_an_extension_in_rust_makes_of_an_interrupt(number: signal.Signals | None, tmp_path: Path) -> None:
    """It raises a BaseException of its own, without a context; without a signal that is a bug like others."""
    sent = "" if number is None else f"os.kill(os.getpid(), {int(number)})"
    program = f"""
import os, sys
from jsbackup.cli.commands import backup
from jsbackup.cli.main import main

PanicException = type("PanicException", (BaseException,), {{}})

def panicking(**_):
    try:
        {sent or "pass"}
    except KeyboardInterrupt:
        pass
    raise PanicException("import sys; sys.modules['pyrage.x25519'] = x25519")

backup.COMMANDS["backup"].callback = panicking
sys.argv = ["jsbackup", "backup", "-r", {str(tmp_path)!r}]
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    if number is None:
        assert done.returncode == 1 and done.stderr.startswith("error: internal error: PanicException in ")
    else:
        assert (done.returncode, done.stderr) == (130, f"error: {SENTENCE}\n")
    assert "Traceback" not in done.stderr


def test_with_json_it_is_an_error_like_others(shop: Shop) -> None:
    line = ["verify", "-r", shop.repo, "--level", "data", *["latest"] * 5000, "--json"]
    done = in_terminal(*line, when_drawn=("ORDERS", _interrupt))
    assert done.code == 130
    assert done.document == {"error": {"code": 130, "message": SENTENCE, "hint": None}}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_waits_for_a_server_is_stopped(shop: Shop, tmp_path: Path, number: signal.Signals) -> None:
    repo = tmp_path / "repo"
    assert in_shell("init", "-r", repo).code == 0
    with NatsServer(NEWEST) as server:
        server.freeze()
        line = command_line("backup", "-s", server.url, "-r", repo, "--timeout", "60s")
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
        # It holds a lease before the server is asked: from then on it waits.
        wait_until(lambda: any((repo / "locks").glob("*")), "the lease")
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        server.thaw()
    assert (process.returncode, out, err) == (130, "", f"error: {SENTENCE}\n")
    assert json.loads(in_shell("list", "-r", repo, "--json").out) == {"backups": [], "damaged": []}
    assert in_shell("backup", "-s", shop.url, "-r", repo).code == 0


@pytest.mark.by_turns
@pytest.mark.parametrize("ignored", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", ["follow", "backup", "verify"])
def test_a_signal_that_it_was_started_to_ignore_does_not_stop_it(
    shop: Shop, tmp_path: Path, ignored: signal.Signals, command: str
) -> None:
    """As `command &` in a script is."""
    (other,) = {signal.SIGINT, signal.SIGTERM} - {ignored}
    repo = tmp_path / "repo"
    with NatsServer(NEWEST) as server:
        if command == "verify":
            line = command_line("verify", "-r", shop.repo, "--level", "data", *["latest"] * 5000)
        else:
            assert in_shell("init", "-r", repo).code == 0
            if command == "backup":  # the other runs until it is stopped
                server.freeze()
            line = command_line(command, "-s", server.url, "-r", repo, "--timeout", "60s")
        started = repo if command != "verify" else shop.repo
        process = subprocess.Popen(
            line,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            preexec_fn=lambda: signal.signal(ignored, signal.SIG_IGN),
        )
        # `follow` has a lease for a moment, while it makes a backup.
        begun = started / ("backups" if command == "follow" else "locks")
        wait_until(lambda: any(begun.glob("*")), "what it begins with")
        process.send_signal(ignored)
        with pytest.raises(subprocess.TimeoutExpired):
            process.communicate(timeout=1)
        process.send_signal(other)
        _, err = process.communicate(timeout=60)
        server.thaw()
    assert process.returncode == 0 if command == "follow" else (process.returncode == 130 and SENTENCE in err)


@pytest.mark.parametrize("ignored", [True, False])
def test_a_hook_runs_on_where_ctrl_c_is_ignored(shop: Shop, tmp_path: Path, ignored: bool) -> None:
    mark = tmp_path / "mark"
    hook = f"sh -c 'touch {mark}; sleep 1.5; touch {mark}.end'"
    process = subprocess.Popen(
        command_line("backup", "-s", shop.url, "-r", tmp_path / "repo", "--hook-before", hook),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(),
        preexec_fn=(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if ignored else None,
    )
    wait_until(mark.exists, "the hook")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == (0 if ignored else 130)
    assert Path(f"{mark}.end").exists() is ignored
