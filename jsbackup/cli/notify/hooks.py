"""Hooks of unattended commands: programs run before and after, and a URL to ping.

    ping start · before · the command · after · on-failure, if it did not end with 0 · ping success or failure

`after` runs whenever `before` succeeded, so that it can undo what `before` did. If `before` fails, the command is not
run; if `after` fails, a success becomes a failure. A failing `on-failure` and an unanswered ping are only logged.
Programs are split as by a shell and run without one, must end within `--hook-timeout`, and have in their environment:
`JSBACKUP_COMMAND`, `JSBACKUP_PROFILE` and `JSBACKUP_CONFIG` if they exist, and afterwards `JSBACKUP_RESULT` (`success`,
`incomplete`, `failure`), `JSBACKUP_EXIT_CODE` and `JSBACKUP_ERROR`. Their output goes to the log: stdout is only for
the command.

Pings are for a dead man's switch, with `/start` and `/fail` appended as in https://healthchecks.io/docs/http_api/.
Anybody with the URL can keep the switch from firing, so it is a secret: messages only contain the host.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import click

from jsbackup import __version__
from jsbackup.cli.loop import stop_signals
from jsbackup.config import Secret, environment, hide_logins, parse_duration, resolve_secret
from jsbackup.errors import IncompleteError, Interrupted, JsBackupError, UsageError
from jsbackup.readable import printable

__all__ = ["HOOK_OPTIONS", "HOOK_PREFIX", "Hooks", "check_url", "run_between"]

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
]

_MOST_OUTPUT_BYTES: Final = 64 << 10
_MOST_LINES: Final = 200
_AFTER_THE_END_SECONDS: Final = 0.5
_TRIES: Final = 3
_PAUSE_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 10.0
_PING_SECONDS: Final = 40.0  # looking up names and reading headers have no limit of their own


@dataclass(frozen=True, slots=True)
class Hooks:
    """The programs to run and the URL to ping. `str` and `repr` do not show the URL."""

    before: str | None = None
    after: str | None = None
    on_failure: str | None = None
    timeout_seconds: float = 600.0
    ping_url: Secret | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Hooks:
        """Make it from the options of `HOOK_OPTIONS` by parameter name. Raises UsageError."""
        url = given.get("ping_url")
        secret = None if url is None else resolve_secret(url, "ping URL", environment())
        if secret is not None:
            check_url(secret)
        return cls(
            before=given.get("hook_before"),
            after=given.get("hook_after"),
            on_failure=given.get("hook_on_failure"),
            timeout_seconds=parse_duration(given.get("hook_timeout") or "10m"),
            ping_url=secret,
        )


def run_between(hooks: Hooks, about: Mapping[str, str], work: Callable[[], Any]) -> int:
    """Run the work with its hooks; return the exit code. `about` are variables that say which command it is.

    Raises the errors of the work and of `before`.
    """
    begun = False
    _ping(hooks.ping_url, "start")
    try:
        if hooks.before:
            _run("before", hooks.before, hooks, about)
        begun = True
        returned = work()
    except BaseException as error:
        known = _known(error)
        _finish(hooks, about, known.exit_code, printable(hide_logins(known.message)), begun=begun)
        raise
    return _finish(hooks, about, returned if isinstance(returned, int) else 0, "", begun=begun)


def _known(error: BaseException) -> JsBackupError:
    """Return the error, or one with the same exit code and without a text, which may hold a secret."""
    if isinstance(error, JsBackupError):
        return error
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return Interrupted("")
    return UsageError("") if isinstance(error, click.ClickException) else JsBackupError("")


def _finish(hooks: Hooks, about: Mapping[str, str], code: int, message: str, *, begun: bool) -> int:
    """Run the hooks after the command; return the exit code."""
    for name, command in (("after", hooks.after if begun else None), ("on-failure", hooks.on_failure)):
        if not command or (name == "on-failure" and not code):
            continue
        outcome = {
            "JSBACKUP_RESULT": {0: "success", IncompleteError.exit_code: "incomplete"}.get(code, "failure"),
            "JSBACKUP_EXIT_CODE": str(code),
            "JSBACKUP_ERROR": message.replace("\0", ""),
        }
        try:
            _run(name, command, hooks, {**about, **outcome})
        except JsBackupError as error:
            _log.error("%s", error.message)
            code, message = code or JsBackupError.exit_code, message or error.message
    _ping(hooks.ping_url, "fail" if code else "")
    return code


def _run(name: str, command: str, hooks: Hooks, variables: Mapping[str, str]) -> None:
    """Run a program. Raises JsBackupError, without its command, if it cannot be run, fails, or takes too long."""
    process: subprocess.Popen[bytes] | None = None
    tail = bytearray()

    def keep() -> None:
        assert process is not None and process.stdout is not None
        with process.stdout as output:
            while data := os.read(output.fileno(), _MOST_OUTPUT_BYTES):
                tail.extend(data)
                del tail[:-_MOST_OUTPUT_BYTES]

    reader = threading.Thread(target=keep, name="output of a hook", daemon=True)
    try:
        with _signals_later():
            process = subprocess.Popen(
                shlex.split(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**environment(), **variables},
                start_new_session=True,  # so that all its children can be ended too
            )
        reader.start()
        code = process.wait(hooks.timeout_seconds)
        problem = f"failed with exit code {code if code > 0 else 128 - code}" if code else ""
    except subprocess.TimeoutExpired:
        problem = f"was ended after {hooks.timeout_seconds:g} s (--hook-timeout)"
    except (OSError, ValueError, IndexError) as error:
        problem = f"cannot be run: {(getattr(error, 'strerror', None) or 'it is not a command').lower()}"
    finally:
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process is not None:
        reader.join(_AFTER_THE_END_SECONDS)  # a program that it leaves running keeps the pipe open
    for line in bytes(tail).decode("utf-8", "replace").splitlines()[-_MOST_LINES:]:
        _log.log(logging.WARNING if problem else logging.INFO, "hook %s: %s", name, line)
    if problem:
        raise JsBackupError(f"hook-{name} {problem}")


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


def check_url(url: Secret) -> None:
    """Raise UsageError, without the URL, if it is not one to ping."""
    text = url.reveal()
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and "@" not in parts.netloc
    except ValueError:
        usable = False
    if not usable or not text.isascii() or not text.isprintable() or " " in text:
        raise UsageError("a ping URL is not an http or https URL, or holds a login", hint="Write https://host/path.")


def _ping(url: Secret | None, word: str) -> None:
    """Request a URL, if there is one, with `start` or `fail` at the end of its path, or as it is. The result is only
    logged.
    """
    if url is not None:
        asking = threading.Thread(target=_request, args=(url, word), name="ping", daemon=True)
        asking.start()
        asking.join(_PING_SECONDS)


def _request(url: Secret, word: str) -> None:
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    parts = urlsplit(url.reveal())
    path = f"{parts.path.rstrip('/')}/{word}" if word else parts.path
    asked = urlunsplit(parts._replace(path=path, fragment=""))
    request = Request(asked, headers={"User-Agent": f"jsbackup/{__version__}"})
    problem = ""
    for attempt in range(_TRIES):
        time.sleep(_PAUSE_SECONDS * attempt)
        try:
            with urlopen(request, timeout=_ANSWER_SECONDS):
                _log.info("pinged %s for %s", parts.hostname, word or "success")
                return
        except HTTPError as error:
            error.close()
            problem = f"answered with {error.code}"
        except (OSError, HTTPException, ValueError) as error:  # its text may contain the URL
            reason = getattr(error, "reason", error)
            problem = getattr(reason, "strerror", None) or type(reason).__name__
    _log.warning("the ping for %s at %s failed: %s", word or "success", parts.hostname, problem.lower())
