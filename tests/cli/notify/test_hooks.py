"""Hooks and pings: what runs when, what it is told, and that none of it holds a command up or makes it lie."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from jsbackup.cli.notify import hooks as notify
from jsbackup.cli.notify.hooks import Hooks, run_between
from jsbackup.config import Secret
from jsbackup.errors import IncompleteError, JsBackupError, NatsError, UsageError
from tests.cli.typed import Typed
from tests.harness.commands import command_line, environment
from tests.harness.servers import Port

Type = Callable[..., Typed]

ABOUT = {"JSBACKUP_COMMAND": "backup", "JSBACKUP_PROFILE": "shop", "JSBACKUP_CONFIG": "/etc/config.toml"}
NOTES = "JSBACKUP_COMMAND JSBACKUP_PROFILE JSBACKUP_RESULT JSBACKUP_EXIT_CODE JSBACKUP_ERROR"


class Switch:
    """A server for pings: what it was asked for, and what it answers first, then 200."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: list[int] = []
        outer = self

        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                self.send_response(outer.answers.pop(0) if outer.answers else 200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Switch]:
    monkeypatch.setattr(notify, "_PAUSE_SECONDS", 0.01)
    one = Switch()
    serving = threading.Thread(target=one.server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    yield one
    one.server.shutdown()
    serving.join()
    one.server.server_close()


@pytest.fixture
def notes(tmp_path: Path) -> Callable[[], list[list[str]]]:
    """What `note NAME` of the hooks below wrote down, one list for each: its name, and the variables of NOTES."""

    def read() -> list[list[str]]:
        file = tmp_path / "notes"
        return [line.split("|") for line in file.read_text().splitlines()] if file.exists() else []

    return read


def _note(folder: Path, name: str, then: str = "") -> str:
    values = "|".join(f"${one}" for one in NOTES.split())
    return f"""sh -c 'echo "{name}|{values}" >> "{folder}/notes"; {then or ":"}'"""


def _hooks(folder: Path, **more: str) -> dict[str, str]:
    names = {"hook_before": "before", "hook_after": "after", "hook_on_failure": "on-failure"}
    return {option: _note(folder, name) for option, name in names.items()} | more


def _fail(error: BaseException) -> Callable[[], int]:
    def work() -> int:
        raise error

    return work


@pytest.mark.parametrize(
    ("work", "code", "result", "error"),
    [
        (lambda: 0, 0, "success", ""),
        (lambda: None, 0, "success", ""),
        (lambda: 3, 3, "incomplete", ""),
        (lambda: 14, 14, "failure", ""),
        (_fail(NatsError("cannot connect to nats://u:p@h")), 20, "failure", "cannot connect to nats://…@h"),
        (_fail(IncompleteError("a\x1b[2J")), 3, "incomplete", "a\\x1b[2J"),
        (_fail(click.UsageError("x")), 2, "failure", ""),
        (_fail(KeyboardInterrupt()), 130, "failure", ""),
        (_fail(ZeroDivisionError("secret")), 1, "failure", ""),
    ],
)
def test_hooks_run_in_their_order_and_are_told(
    tmp_path: Path,
    notes: Callable[[], list[list[str]]],
    switch: Switch,
    work: Callable[[], int],
    code: int,
    result: str,
    error: str,
) -> None:
    hooks = Hooks.of(_hooks(tmp_path, ping_url=f"{switch.url}/secret?rid=7"))
    try:
        assert run_between(hooks, ABOUT, work) == code
    except (JsBackupError, click.ClickException, KeyboardInterrupt, ZeroDivisionError):
        assert code
    ended = ["backup", "shop", result, str(code), error]
    wanted = [["before", "backup", "shop", "", "", ""], ["after", *ended]]
    assert notes() == [*wanted, ["on-failure", *ended]] if code else wanted
    assert switch.asked == ["/secret/start?rid=7", "/secret/fail?rid=7" if code else "/secret?rid=7"]


def test_a_before_that_fails_stops_the_run(
    tmp_path: Path, notes: Callable[[], list[list[str]]], switch: Switch, caplog: pytest.LogCaptureFixture
) -> None:
    before = _note(tmp_path, "before", "echo why; exit 7")
    hooks = Hooks.of(_hooks(tmp_path, hook_before=before, ping_url=switch.url))
    with pytest.raises(JsBackupError, match="hook-before failed with exit code 7") as failed:
        run_between(hooks, ABOUT, _fail(AssertionError("not run")))
    assert failed.value.exit_code == 1
    assert [note[0] for note in notes()] == ["before", "on-failure"]
    assert notes()[1][3:] == ["failure", "1", "hook-before failed with exit code 7"]
    assert switch.asked == ["/start", "/fail"]
    assert ("jsbackup.cli.notify.hooks", 30, "hook before: why") in caplog.record_tuples


def test_an_after_that_fails_makes_a_success_a_failure(
    tmp_path: Path, notes: Callable[[], list[list[str]]], switch: Switch
) -> None:
    given = {"hook_after": "false", "hook_on_failure": _note(tmp_path, "on-failure"), "ping_url": switch.url}
    assert run_between(Hooks.of(given), ABOUT, lambda: 0) == 1
    assert run_between(Hooks.of(given), ABOUT, lambda: 3) == 3
    assert [note[4] for note in notes()] == ["1", "3"]
    assert switch.asked == ["/start", "/fail"] * 2


def test_an_on_failure_that_fails_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert run_between(Hooks.of({"hook_on_failure": "false"}), ABOUT, lambda: 14) == 14
    assert "hook-on-failure failed with exit code 1" in caplog.messages


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("/nonexistent/program --secret", "cannot be run: no such file or directory"),
        ("'unbalanced secret", "cannot be run: it is not a command"),
        ("", None),
        ("kill -9 $$", "failed with exit code|cannot be run"),
        ("sh -c 'kill -9 $$'", "failed with exit code 137"),
    ],
)
def test_what_cannot_be_run_is_told_without_its_words(command: str, says: str | None) -> None:
    hooks = Hooks.of({"hook_before": command})
    if says is None:
        assert run_between(hooks, ABOUT, lambda: 0) == 0
        return
    with pytest.raises(JsBackupError, match=says) as failed:
        run_between(hooks, ABOUT, lambda: 0)
    assert "secret" not in failed.value.message


def test_a_hook_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # The grandchild holds the other side of the pipe open until it is ended.
    hooks = Hooks.of({"hook_before": f"""sh -c 'sleep 600 > "{fifo}" & wait'""", "hook_timeout": "300ms"})
    reading = threading.Thread(target=fifo.read_bytes)
    reading.start()
    with pytest.raises(JsBackupError, match=r"was ended after 0\.3 s \(--hook-timeout\)"):
        run_between(hooks, ABOUT, lambda: 0)
    reading.join(10)
    assert not reading.is_alive()


def test_of_much_that_is_printed_the_end_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks.of({"hook_on_failure": "sh -c 'seq 1 100000; printf \"\\\\377\"; exit 1'"})
    assert run_between(hooks, ABOUT, lambda: 3) == 3
    assert len(caplog.messages) == 201
    assert caplog.messages[198:] == [
        "hook on-failure: 100000",
        "hook on-failure: \ufffd",
        "hook-on-failure failed with exit code 1",
    ]


def test_of_one_long_line_the_end_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks.of({"hook_on_failure": "sh -c 'head -c 1000000 /dev/zero | tr \"\\\\0\" x; exit 1'"})
    assert run_between(hooks, ABOUT, lambda: 3) == 3
    assert caplog.messages[0] == f"hook on-failure: {'x' * (64 << 10)}"


def test_a_server_that_never_ends_its_answer_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "_PING_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        notify._ping(Secret(f"http://127.0.0.1:{listening.getsockname()[1]}/secret"), "start")


def test_what_a_hook_leaves_running_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    hook = f"""sh -c 'while [ -e "{tmp_path}/gate" ]; do sleep 0.1; done &'"""
    assert run_between(Hooks.of({"hook_after": hook}), ABOUT, lambda: 0) == 0
    (tmp_path / "gate").unlink()


def test_pings_are_tried_again_and_never_fail_the_run(switch: Switch, caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks.of({"ping_url": f"{switch.url}/secret"})
    switch.answers = [200, 500, 503]
    assert run_between(hooks, ABOUT, lambda: 0) == 0
    assert switch.asked == ["/secret/start", *["/secret"] * 3] and caplog.messages == []
    switch.answers = [200, *[404] * 3]
    assert run_between(hooks, ABOUT, lambda: 0) == 0
    switch.answers = [200, *[500] * 3]
    assert run_between(hooks, ABOUT, lambda: 0) == 0
    nobody = Port()
    gone = Hooks.of({"ping_url": f"http://127.0.0.1:{nobody.number}/secret"})
    nobody.release()
    assert run_between(gone, ABOUT, lambda: 0) == 0
    said = [message.removeprefix("the ping for success at 127.0.0.1 failed: ") for message in caplog.messages]
    assert said[:2] == ["answered with 404", "answered with 500"] and said[3] == "connection refused"


def test_a_server_that_speaks_something_else_is_no_harm(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "_PAUSE_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            for _ in range(3):
                peer, _address = listening.accept()
                with peer:
                    peer.recv(1000)
                    peer.sendall(b"\x00nothing of HTTP\r\n\r\n")

        talking = threading.Thread(target=answer)
        talking.start()
        notify._ping(Secret(f"http://127.0.0.1:{listening.getsockname()[1]}/secret"), "start")
        talking.join()
    assert caplog.messages == ["the ping for start at 127.0.0.1 failed: badstatusline"]


def test_the_url_to_ping_may_be_a_reference_and_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PING", "https://h/env/")
    hooks = Hooks.of({"ping_url": "env://PING"})
    assert hooks.ping_url is not None and hooks.ping_url.reveal() == "https://h/env/"
    assert Hooks.of({}) == Hooks() and "https" not in repr(hooks)


@pytest.mark.parametrize(
    "url", ["", "secret", "ftp://h/secret", "http://", "http://u:secret@h/", "http://h:port/secret", "http://h/se cret"]
)
def test_what_is_no_url_to_ping_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(UsageError, match="a ping URL") as wrong:
        Hooks.of({"ping_url": url})
    assert "secret" not in wrong.value.message


# --- as commands ---


@pytest.fixture
def profile(tmp_path: Path, switch: Switch, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    before, after, failed = (json.dumps(_note(tmp_path, name)) for name in ("before", "after", "on-failure"))
    path.write_text(
        f"""
        [profiles.shop]
        repo = "{tmp_path / "repo"}"
        [profiles.shop.hooks]
        before = {before}
        after = {after}
        on-failure = {failed}
        ping-url = "{switch.url}/shop"
        [profiles.shop.prune]
        ping-url = "{switch.url}/prune"
        """
    )
    path.chmod(0o600)
    monkeypatch.setenv("JSBACKUP_CONFIG", str(path))
    return path


def test_a_profile_has_hooks_for_commands_that_run_unattended(
    profile: Path, typed: Type, notes: Callable[[], list[list[str]]], switch: Switch, tmp_path: Path
) -> None:
    assert typed("verify", "--profile", "shop").code == 10
    assert [note[:3] + note[4:5] for note in notes()] == [
        ["before", "verify", "shop", ""],
        ["after", "verify", "shop", "10"],
        ["on-failure", "verify", "shop", "10"],
    ]
    assert switch.asked == ["/shop/start", "/shop/fail"]
    assert typed("init", "-r", tmp_path / "repo").code == 0
    assert typed("list", "--profile", "shop").code == 0
    assert len(notes()) == 3  # these two have none
    done = typed("prune", "--profile", "shop", "--hook-after", "echo of the hook", "-v", "--json")
    assert done.document["deleted_objects"] == 0
    assert "info: hook after: of the hook" in done.err.splitlines()
    assert switch.asked[2:] == ["/prune/start", "/prune"] and len(notes()) == 4


def test_a_run_that_overlaps_the_one_before_leaves_without_a_word_to_anybody(
    profile: Path, typed: Type, notes: Callable[[], list[list[str]]], switch: Switch, tmp_path: Path
) -> None:
    assert typed("init", "-r", tmp_path / "repo").code == 0
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    hold = f"""sh -c 'echo ready > "{gate}"; read line < "{gate}"'"""
    line = command_line("prune", "--profile", "shop", "--hook-before", hold, "--ping-url", f"{switch.url}/first")
    with subprocess.Popen(line, env=environment(JSBACKUP_CONFIG=str(profile)), stdout=subprocess.DEVNULL) as first:
        try:
            assert gate.read_text() == "ready\n"
            second = typed("prune", "--profile", "shop", "--json")
            assert (second.code, second.document["error"]["code"]) == (11, 11)
            assert second.document["error"]["message"] == (
                f"the previous prune of profile shop is still running (process {first.pid})"
            )
            assert notes() == [] and switch.asked == ["/first/start"]
            assert typed("forget", "--keep-last", "1", "--profile", "shop").code == 0  # another command
            assert typed("prune", "-r", tmp_path / "repo").code == 0  # nobody's profile
            gate.write_text("go on\n")
            assert first.wait(20) == 0
        finally:
            if first.poll() is None:
                first.send_signal(signal.SIGKILL)
    assert typed("prune", "--profile", "shop").code == 0


def test_a_command_that_is_interrupted_ends_its_hook_and_tells_of_it(
    profile: Path, notes: Callable[[], list[list[str]]], switch: Switch, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    hold = f"""sh -c 'echo $$ > "{gate}"; read line < "{gate}"'"""
    line = command_line("prune", "--profile", "shop", "--hook-before", hold)
    with subprocess.Popen(
        line, env=environment(JSBACKUP_CONFIG=str(profile)), stderr=subprocess.PIPE, text=True
    ) as running:
        hook = int(gate.read_text())
        running.send_signal(signal.SIGTERM)
        assert running.stderr is not None
        assert "interrupted" in running.stderr.read()
        assert running.wait(20) == 130
    with pytest.raises(ProcessLookupError):
        os.kill(hook, 0)
    assert [note[0] for note in notes()] == ["on-failure"]
    assert switch.asked == ["/prune/start", "/prune/fail"]
