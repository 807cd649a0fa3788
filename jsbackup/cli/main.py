"""The entry point: finds the command, runs it, and turns every error into one sentence and its exit code.

Commands are loaded when they are called, because `jsbackup --version` and `--help` should not pay for Arrow.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from io import TextIOWrapper
from itertools import pairwise, takewhile
from types import FrameType
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem, shell_complete

from jsbackup import __version__
from jsbackup.cli.command import (
    GLOBAL_OPTIONS,
    INTERRUPTED,
    KEY_OPTIONS,
    S3_OPTIONS,
    SERVER_OPTIONS,
    LastOutput,
    write_options,
)
from jsbackup.cli.manual import EXIT_CODES
from jsbackup.cli.output import Output, silence
from jsbackup.cli.usage import no_such_command, usage_error
from jsbackup.errors import Interrupted, JsBackupError, UsageError
from jsbackup.heap import keep_one_heap

__all__ = ["COMPLETE_VARIABLE", "EXIT_CODES", "cli", "main"]

# command -> (module, what --help says of it)
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("jsbackup.cli.repo", "Make a repository and probe its store."),
    "backup": ("jsbackup.cli.backup", "Back streams up: all of the account, or those named."),
    "follow": ("jsbackup.cli.follow", "Keep streams backed up within seconds of what is published."),
    "list": ("jsbackup.cli.repo", "List the backups of a repository."),
    "show": ("jsbackup.cli.repo", "Show one backup: streams, consumers, segments, warnings."),
    "diff": ("jsbackup.cli.diff", "Compare two backups, or a backup and a server."),
    "verify": ("jsbackup.cli.verify", "Check stored backups: names and sizes, digests, every message."),
    "repair": ("jsbackup.cli.repair", "Put back stored objects that are missing or damaged."),
    "drill": ("jsbackup.cli.drill", "Restore a backup into a throwaway server of its own, and prove it."),
    "status": ("jsbackup.cli.status", "Say how backups stand: a gate for monitoring, with metrics and a page."),
    "forget": ("jsbackup.cli.forget", "Remove backups that no policy keeps, or those named."),
    "hold": ("jsbackup.cli.forget", "Hold backups, so that none of them is forgotten."),
    "prune": ("jsbackup.cli.prune", "Delete what no backup needs any more."),
    "unlock": ("jsbackup.cli.prune", "Show who is at work in a repository, and remove expired leases."),
    "copy": ("jsbackup.cli.copy", "Copy backups into another repository."),
    "plan": ("jsbackup.cli.plan", "Say what a restore would do, and what stands against it."),
    "restore": ("jsbackup.cli.restore", "Restore streams and consumers into a server, and prove it."),
    "clone": ("jsbackup.cli.clone", "Bring streams and consumers from one server to another."),
    "import": ("jsbackup.cli.exchange", "Take in directories of the nats CLI, config files, or tables."),
    "export": ("jsbackup.cli.exchange", "Write a backup out: for the nats CLI, as config files, as tables."),
    "stats": ("jsbackup.cli.stats", "Say what is in a backup, by stream and subject (on Spark)."),
    "query": ("jsbackup.cli.stats", "Run an SQL query over a backup (on Spark)."),
    "transform": ("jsbackup.cli.transform", "Make a new backup of another one: renamed, cut, masked (on Spark)."),
    "compact": ("jsbackup.cli.transform", "Make a backup anew in fewer segments (on Spark)."),
    "key": ("jsbackup.cli.keys", "Say who can read an encrypted repository, and who signs in it."),
    "schedule": ("jsbackup.cli.schedule", "Print files that run a profile by cron, systemd or Kubernetes."),
    "doctor": ("jsbackup.cli.doctor", "Say what stands against a backup or a restore, and how to mend it."),
    "config": ("jsbackup.cli.config_check", "Say what profiles set, and what is wrong with them."),
    "completion": ("jsbackup.cli.completion", "Print the completion script of a shell."),
}

COMPLETE_VARIABLE = "_JSBACKUP_COMPLETE"

# Imports make some hundred thousand objects, none of them garbage: to look for it takes 0.1 s (M).
# `loop.run` takes it back.
_START_THRESHOLD = 100_000


class LazyGroup(click.Group):
    """A group that imports a command's module only when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command: click.Command = module.COMMANDS[cmd_name]
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not ctx.resilient_parsing:
            raise no_such_command(args[0], COMMANDS)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # The help texts stand in this module: no command needs to be imported to offer their names.
        names = [CompletionItem(n, help=text) for n, (_, text) in COMMANDS.items() if n.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands ('jsbackup COMMAND --help' says more)"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])
        shared = [*GLOBAL_OPTIONS, *S3_OPTIONS, *KEY_OPTIONS, *SERVER_OPTIONS]
        write_options(ctx, formatter, "Options", [p for p in self.get_params(ctx) if p not in shared])
        write_options(ctx, formatter, "Global options (also after the command)", GLOBAL_OPTIONS)
        write_options(ctx, formatter, "Server options (also after the command)", SERVER_OPTIONS)
        write_options(ctx, formatter, "S3 options, for s3://bucket/prefix (also after the command)", S3_OPTIONS)
        write_options(
            ctx, formatter, "Keys, for encrypted or signed repositories (also after the command)", KEY_OPTIONS
        )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in EXIT_CODES.items()])


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        # Found, not imported: it needs Arrow, and `formats/kernels.py` takes it where it is there.
        kernel = "compiled" if find_spec("jsbackup.formats._kernels") else "python"
        click.echo(f"jsbackup {__version__} ({kernel} kernel)")
        ctx.exit()


def _complete(ctx: click.Context, _param: click.Parameter, instruction: str | None) -> None:
    """Answer a shell; the scripts of `jsbackup completion` ask by a variable of the environment."""
    if instruction and not ctx.resilient_parsing:
        ctx.exit(shell_complete(cli, {}, "jsbackup", COMPLETE_VARIABLE, instruction))


@click.group(
    cls=LazyGroup,
    params=[*GLOBAL_OPTIONS, *S3_OPTIONS, *KEY_OPTIONS, *SERVER_OPTIONS],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    invoke_without_command=True,
    subcommand_metavar="COMMAND [ARGS]...",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
@click.option(
    "--answer-shell",
    envvar=COMPLETE_VARIABLE,
    hidden=True,
    is_eager=True,
    expose_value=False,
    callback=_complete,
)
@click.pass_context
def cli(ctx: click.Context, /, **_values: Any) -> None:
    """Verified backup and restore of NATS JetStream streams, between any servers from 2.10 on."""
    if ctx.invoked_subcommand is None:
        raise UsageError("no command given", hint=f"Commands are {', '.join(COMMANDS)}; see 'jsbackup --help'.")


def run(arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit code and prints errors. Never raises but for bugs."""
    before = signal.getsignal(signal.SIGINT)
    try:
        return _run_to_the_end(arguments)
    finally:
        if signal.getsignal(signal.SIGINT) is not before:  # whoever calls this goes on
            signal.signal(signal.SIGINT, before)


def _run_to_the_end(arguments: Sequence[str]) -> int:
    last = LastOutput(_output_for_errors(arguments))
    try:
        code = _run(arguments, last)
        sys.stdout.flush()
        return code
    except click.ClickException as wrong:
        return _fail(last.output, usage_error(wrong))
    except JsBackupError as error:
        return _fail(last.output, error)
    except (KeyboardInterrupt, click.Abort):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the end is near, and a second one would tear it
        return _fail(last.output, Interrupted(INTERRUPTED))
    except BrokenPipeError:
        # The reader of a help text has gone (`| head`): nothing more can be said, and nothing is wrong.
        silence(sys.stdout)
        return 0
    except Exception as error:  # the last door: a bug becomes one sentence, not a traceback
        from jsbackup.config import environment

        if "JSBACKUP_TRACEBACK" in environment():
            raise
        hint = "This is a bug in jsbackup; run again with JSBACKUP_TRACEBACK=1 and report it."
        return _fail(last.output, JsBackupError(f"internal error: {_bug(error)}", hint=hint))


def _bug(error: Exception) -> str:
    """What is known of it but for its text, which may quote anything, secrets too."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f" in {place.tb_frame.f_globals.get('__name__')}, line {place.tb_lineno}" if place else ""
    reason = f" ({error.strerror.lower()})" if isinstance(error, OSError) and error.strerror else ""
    return f"{type(error).__name__}{reason}{where}"


def _run(arguments: Sequence[str], last: LastOutput) -> int:
    # Not `cli.main`, which has its own way with Ctrl-C and broken pipes.
    try:
        with cli.make_context("jsbackup", list(arguments), obj=last) as ctx:
            code = cli.invoke(ctx)
    except click.exceptions.Exit as stop:  # of --help and --version
        return stop.exit_code
    return code if isinstance(code, int) else 0


def _output_for_errors(arguments: Sequence[str]) -> Output:
    """Errors of parsing come before the options are known, so those that say how to print are looked for by hand."""
    options = list(takewhile(lambda argument: argument != "--", arguments))
    log_json = "--log-format=json" in options or ("--log-format", "json") in pairwise(options)
    return Output(as_json="--json" in options, log_json=log_json)


def _fail(output: Output, error: JsBackupError) -> int:
    try:
        output.error(error)
    except JsBackupError:  # there is no place to print it
        return error.exit_code
    return error.exit_code


def _prepare_streams() -> None:
    """Names are Unicode, terminals and pipes may be not: what they cannot show is escaped, and never an error."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def main() -> None:
    """The console script."""
    _prepare_streams()
    gc.set_threshold(_START_THRESHOLD)
    keep_one_heap()
    signal.signal(signal.SIGTERM, _stop)  # ends a command as cleanly as Ctrl-C does
    code = 1
    # Registered before all others, so run after them. Python would take modules and objects apart: a tenth of a second.
    atexit.register(lambda: _leave(code))
    code = _run_to_the_end(sys.argv[1:])
    if code == Interrupted.exit_code:
        # Python would wait for threads that wait for a store. Nothing they do is needed any more.
        _leave(code)
    sys.exit(code)


def _leave(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
