"""Hooks of unattended commands: programs run before and after, and URLs to ping.

    ping start · before · the command · after · on-failure, if it did not end with 0 · ping success or failure

`after` runs whenever `before` succeeded, so that it can undo what `before` did. If `before` fails, the command is not
run; if `after` fails, a success becomes a failure. A failing `on-failure` and an unanswered ping are only logged.
Programs are split as by a shell and run without one, must end within `--hook-timeout`, and have in their environment:
`JSBACKUP_COMMAND`, `JSBACKUP_PROFILE` and `JSBACKUP_CONFIG` if they exist, and afterwards `JSBACKUP_RESULT` (`success`,
`incomplete`, `failure`), `JSBACKUP_EXIT_CODE` and `JSBACKUP_ERROR`. Their output goes to the log: stdout is only for
the command.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import click

from jsbackup.cli.stop_signals import stop_signals
from jsbackup.config import Secret, environment, parse_duration, resolve_secret
from jsbackup.errors import IncompleteError, Interrupted, JsBackupError, UsageError

__all__ = ["HOOK_OPTIONS", "HOOK_PREFIX", "Hooks", "Occasion", "run_between"]

_log = logging.getLogger(__name__)

HOOK_PREFIX: Final = "hook-"  # omitted from keys in the table of hooks

HOOK_OPTIONS: list[click.Option] = [
    click.Option(["--hook-before"], metavar="COMMAND", help="Run this first; if it fails, nothing else is done."),
    click.Option(["--hook-after"], metavar="COMMAND", help="Run this afterwards, whatever the result."),
    click.Option(["--hook-on-failure"], metavar="COMMAND", help="Run this if it did not end with 0."),
    click.Option(["--hook-timeout"], metavar="DURATION", help="How long each of them may take (10m)."),
    click.Option(
        ["--ping-url"],
        metavar="URL",
        help="Request this URL after a success, with /start appended at the start, with /fail after a failure.",
    ),
    click.Option(["--ping-start"], metavar="URL", help="Another URL for the start."),
    click.Option(["--ping-success"], metavar="URL", help="Another URL for a success."),
    click.Option(["--ping-failure"], metavar="URL", help="Another URL for a failure."),
]

_DEFAULT_TIMEOUT: Final = "10m"
_MOST_OUTPUT_BYTES: Final = 64 << 10
_MOST_LINES: Final = 200
_AFTER_THE_END_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Hooks:
    """The programs to run and the URLs to ping. `str` and `repr` do not show URLs."""

    before: str | None = None
    after: str | None = None
    on_failure: str | None = None
    timeout_seconds: float = 600.0
    ping_start: Secret | None = None
    ping_success: Secret | None = None
    ping_failure: Secret | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Hooks:
        """Make it from the options of `HOOK_OPTIONS` by parameter name. Raises UsageError."""
        environ = environment()
        names = ("ping_url", "ping_start", "ping_success", "ping_failure")
        urls = {name: resolve_secret(given[name], "ping URL", environ) for name in names if given.get(name)}
        if urls:
            from jsbackup.cli.notify.pings import below, check_url

            for url in urls.values():
                check_url(url)
            if base := urls.pop("ping_url", None):
                urls = {
                    "ping_start": below(base, "start"),
                    "ping_success": base,
                    "ping_failure": below(base, "fail"),
                } | urls
        return cls(
            before=given.get("hook_before"),
            after=given.get("hook_after"),
            on_failure=given.get("hook_on_failure"),
            timeout_seconds=parse_duration(given.get("hook_timeout") or _DEFAULT_TIMEOUT),
            **urls,
        )


@dataclass(frozen=True, slots=True)
class Occasion:
    """Information for hooks. `profile` and `config` are "" if there is none."""

    command: str
    profile: str = ""
    config: str = ""

    def variables(self) -> dict[str, str]:
        found = {
            "JSBACKUP_COMMAND": self.command,
            "JSBACKUP_PROFILE": self.profile,
            "JSBACKUP_CONFIG": self.config,
        }
        return {name: value for name, value in found.items() if value}


def run_between(hooks: Hooks, occasion: Occasion, work: Callable[[], Any]) -> int:
    """Run the work with its hooks; return the exit code. Raises the errors of the work and of `before`."""
    if hooks == Hooks():
        return _code_of(work())
    begun = False
    _ping(hooks.ping_start, "start")
    try:
        if hooks.before:
            _run("before", hooks.before, hooks, occasion.variables())
        begun = True
        code = _code_of(work())
    except BaseException as error:
        _finish(hooks, occasion, _code_of_error(error), _message_of(error), begun=begun)
        raise
    return _finish(hooks, occasion, code, "", begun=begun)


def _code_of(returned: Any) -> int:
    return returned if isinstance(returned, int) else 0


def _code_of_error(error: BaseException) -> int:
    match error:
        case JsBackupError():
            return error.exit_code
        case click.ClickException():
            return UsageError.exit_code
        case KeyboardInterrupt() | click.Abort():
            return Interrupted.exit_code
        case _:
            return JsBackupError.exit_code


def _message_of(error: BaseException) -> str:
    from jsbackup.cli.output.terminal import printable
    from jsbackup.config import hide_logins

    return printable(hide_logins(error.message)) if isinstance(error, JsBackupError) else ""


def _finish(hooks: Hooks, occasion: Occasion, code: int, message: str, *, begun: bool) -> int:
    """Run the hooks after the command; return the exit code."""
    if hooks.after and begun:
        try:
            _run("after", hooks.after, hooks, occasion.variables() | _outcome(code, message))
        except JsBackupError as error:
            _log.error("%s", error.message)
            code, message = code or JsBackupError.exit_code, message or error.message
    if hooks.on_failure and code:
        try:
            _run("on-failure", hooks.on_failure, hooks, occasion.variables() | _outcome(code, message))
        except JsBackupError as error:
            _log.warning("%s", error.message)
    _ping(hooks.ping_failure if code else hooks.ping_success, "failure" if code else "success")
    return code


def _outcome(code: int, message: str) -> dict[str, str]:
    result = {0: "success", IncompleteError.exit_code: "incomplete"}.get(code, "failure")
    return {
        "JSBACKUP_RESULT": result,
        "JSBACKUP_EXIT_CODE": str(code),
        "JSBACKUP_ERROR": message.replace("\0", ""),
    }


def _ping(url: Secret | None, what: str) -> None:
    if url is not None:
        from jsbackup.cli.notify.pings import ping

        ping(url, what)


def _run(name: str, command: str, hooks: Hooks, variables: Mapping[str, str]) -> None:
    """Run a program. Raises JsBackupError, without its command, if it cannot be run, fails, or takes too long."""
    process: subprocess.Popen[bytes] | None = None
    reading, writing = os.pipe()
    printed = _Tail(reading)
    try:
        try:
            with _signals_later():
                process = subprocess.Popen(
                    shlex.split(command),
                    stdin=subprocess.DEVNULL,
                    stdout=writing,
                    stderr=subprocess.STDOUT,
                    env={**environment(), **variables},
                    start_new_session=True,  # so that all its children can be ended too
                )
        except (OSError, ValueError, IndexError) as error:  # not chained: it contains the command
            reason = (error.strerror or "").lower() if isinstance(error, OSError) else "it is not a command"
            raise JsBackupError(f"hook-{name} cannot be run: {reason}") from None
        finally:
            os.close(writing)
            printed.start()
        code = _code_in_time(process, hooks.timeout_seconds)
    except BaseException:
        if process is not None:
            _end(process)
        raise
    for line in printed.lines():
        _log.log(logging.INFO if code == 0 else logging.WARNING, "hook %s: %s", name, line)
    if code is None:
        raise JsBackupError(
            f"hook-{name} was still running after {hooks.timeout_seconds:g} s, and was ended",
            hint="Give it longer with --hook-timeout.",
        )
    if code:
        raise JsBackupError(
            f"hook-{name} failed with exit code {code}" if code > 0 else f"hook-{name} died of signal {-code}"
        )


@contextmanager
def _signals_later() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM to the end: a process that is being started could not be ended."""
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda came_now, _frame: came.append(came_now)) for number in stop_signals()
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


def _code_in_time(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Return the exit code; None if it took too long, and was ended."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        _end(process)
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class _Tail(threading.Thread):
    """Reads a pipe to its end, closes it, and keeps the last part."""

    def __init__(self, pipe: int) -> None:
        super().__init__(name="output of a hook", daemon=True)
        self._pipe = pipe
        self._kept = b""

    def run(self) -> None:
        with suppress(OSError):
            while data := os.read(self._pipe, _MOST_OUTPUT_BYTES):
                self._kept = (self._kept + data)[-_MOST_OUTPUT_BYTES:]
        os.close(self._pipe)

    def lines(self) -> list[str]:
        # A background process of the program may keep the pipe open indefinitely.
        self.join(_AFTER_THE_END_SECONDS)
        return self._kept.decode("utf-8", "replace").splitlines()[-_MOST_LINES:]
