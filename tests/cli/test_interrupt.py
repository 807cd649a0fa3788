"""Ctrl-C and SIGTERM: exit code 130, one sentence, no traceback, and everything stays valid."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

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
    assert (done.code, done.out) == (130, "")
    assert f"error: {SENTENCE}\r\n" in done.err and "Traceback" not in done.err
    assert in_shell("verify", "-r", shop.repo).code == 0


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
