"""Runs by profiles: one command for several profiles, and one run of a command and profile at a time.

Several profiles run one after another, with one output and one exit code. A profile that fails, or that is invalid,
does not stop the others. The exit code is 0 if all succeeded. Damage (14) and a breach (17) found by any have
precedence. If none succeeded it is their common code, else 1; if some did it is 3, as for a backup in which some
streams failed.

A run listens on an abstract Unix socket, whose name says command, profile, file and user; a second one reports that and
ends. The system releases it when the process ends in any way, so nothing is left behind and no writable folder is
needed. On systems without such sockets runs are not limited. (Leases protect repositories against concurrent commands
in general.)
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from jsbackup.cli.output.output import Output
from jsbackup.cli.output.result import Result, error_json, format_count
from jsbackup.cli.parsing.context import CommandContext, usage_error
from jsbackup.errors import IncompleteError, Interrupted, JsBackupError, PolicyBreach, RepositoryLocked, UsageError
from jsbackup.exit_codes import DAMAGE, combined
from jsbackup.model import JsonObject

__all__ = [
    "alone",
    "run_each",
]


class _Kept(Output):
    """Keeps the document of a result instead of printing it; text is printed as usual."""

    def __init__(self, like: Output, *, as_json: bool) -> None:
        super().__init__(as_json=as_json, quiet=like.quiet, log_json=like.log_json, labels=like.labels)
        self.document: JsonObject | None = None

    def show(self, result: Result) -> int:
        if not self.as_json:
            return super().show(result)
        self.document = result.document
        return result.code


@dataclass(slots=True)
class _Outcome:
    profile: str
    code: int = 0
    document: JsonObject | None = None
    error: JsBackupError | None = None

    def json(self) -> JsonObject:
        error = error_json(self.error)["error"] if self.error else None
        return {"profile": self.profile, "code": self.code, "result": self.document, "error": error}

    def __str__(self) -> str:
        word = {0: "done", IncompleteError.exit_code: "incomplete"}.get(self.code, "failed")
        if self.code == DAMAGE and self.error is None:
            word = "found damage"
        return f"{self.profile} {word}" + (f" (exit code {self.code})" if self.code else "")


def run_each(command: click.Command, ctx: CommandContext) -> int:
    """Run the command of the context for each profile that it names; return the exit code. Interrupted ends all of
    them.
    """
    output = _output_of_all(command, ctx)
    outcomes = []
    written = dict[object, str]()
    for name in ctx.names:
        if not (output.as_json or output.quiet):
            output.line(f"profile {name}")
        outcomes.append(_run_one(command, ctx, name, output, written=written))
        if not (output.as_json or output.quiet):
            output.line()
    code = combined((each.code for each in outcomes), first=(DAMAGE, PolicyBreach.exit_code))
    line = f"{format_count(len(outcomes), 'profile')}: {', '.join(map(str, outcomes))}"
    return output.show(Result({"profiles": [each.json() for each in outcomes]}, [line], code))


def _output_of_all(command: click.Command, ctx: CommandContext) -> Output:
    """Return the output by the command line: profiles may differ."""
    typed = command.make_parser(ctx).parse_args(list(ctx.words))[0]
    for level in (ctx.parent, ctx.find_root()):
        for name in ("as_json", "quiet", "log_format"):
            if level is not None and name not in typed and level.get_parameter_source(name) is not None:
                typed[name] = level.params.get(name)
    return Output(
        as_json=bool(typed.get("as_json")),
        quiet=bool(typed.get("quiet")),
        log_json=typed.get("log_format") == "json",
    )


def _run_one(
    command: click.Command, ctx: CommandContext, name: str, output: Output, *, written: dict[object, str]
) -> _Outcome:
    """Run it for one profile. `written` are the profiles by the files that they write: another one would hide them."""
    kept: list[_Kept] = []

    def keep(like: Output) -> Output:
        kept.append(_Kept(like, as_json=output.as_json))
        return kept[-1]

    outcome = _Outcome(name)
    try:
        with command.make_context(
            ctx.info_name, list(ctx.words), parent=ctx.parent, only=name, print_to=keep
        ) as run_ctx:
            for file in filter(None, map(run_ctx.params.get, ("metrics", "html"))):
                if written.setdefault(file, name) != name:
                    what = f"{file} has what profile {written[file]} says"
                    raise UsageError(what, hint="Name a file in each profile, or run the profiles one by one.")
            outcome.code = command.invoke(run_ctx) or 0
    except Interrupted:
        raise
    except click.ClickException as wrong:
        outcome.error = usage_error(wrong)
    except JsBackupError as error:
        outcome.error = error
    if kept:
        outcome.document = kept[-1].document
    if outcome.error is not None:
        outcome.code = outcome.error.exit_code
        if not output.as_json:
            named = name in outcome.error.message
            shown = outcome.error if named else outcome.error.with_message(f"profile {name}: {outcome.error.message}")
            (kept[-1] if kept else output).error(shown)
    return outcome


_log = logging.getLogger(__name__)

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: unix(7), SO_PEERCRED


@contextmanager
def alone(config: Path, profile: str, command: str) -> Iterator[None]:
    """Hold the lock. Raises RepositoryLocked if the same command is already running."""
    key = "\0".join([str(os.getuid()), str(config.resolve()), profile, command])
    name = f"\0jsbackup-{hashlib.sha256(key.encode('utf-8', 'surrogateescape')).hexdigest()}"
    try:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except (OSError, AttributeError) as error:
        _log.info("cannot tell whether this runs already: %s", error)
        yield
        return
    with listening:
        try:
            listening.bind(name)
            listening.listen(8)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                _log.info("cannot tell whether this runs already: %s", error.strerror)
            elif (holder := _holder(name)) is not None:
                raise RepositoryLocked(
                    f"the previous {command} of profile {profile} is still running{holder}",
                    hint="This run did nothing. Run it less often, or find out why it takes so long.",
                ) from None
        yield


def _holder(name: str) -> str | None:
    """Return the listening process in words; None if it is another user's, which is ignored."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(name)
            credentials = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:
            return ""
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    if uid != os.getuid():
        _log.warning("process %d of another user claims to be this command; it is ignored", pid)
        return None
    return f" (process {pid})"
