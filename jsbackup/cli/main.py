"""The entry point: find the command, run it, and convert every error to one sentence and its exit code.

Commands are imported when they are called, because `jsbackup --version` and `--help` should not import Arrow.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from io import TextIOWrapper
from itertools import pairwise, takewhile
from types import FrameType
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from jsbackup import __version__
from jsbackup.cli.loop import stop_signals
from jsbackup.cli.output.output import Output, silence
from jsbackup.cli.parsing.context import (
    COMPLETE_VARIABLE,
    GLOBAL_OPTIONS,
    HELP_ALL,
    INTERRUPTED,
    KEY_OPTIONS,
    S3_OPTIONS,
    SERVER_OPTIONS,
    HelpGroup,
    LastOutput,
    usage_error,
    wants_all,
    write_options,
    write_shared_options,
)
from jsbackup.config import environment
from jsbackup.errors import Interrupted, JsBackupError, UsageError
from jsbackup.exit_codes import EXIT_CODES
from jsbackup.memory import keep_one_heap

__all__ = ["cli", "main"]

# heading of --help -> command -> (module, text in --help)
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Most used": {
        "backup": ("jsbackup.cli.commands.backup", "Back up streams: all of the account, or those named."),
        "list": ("jsbackup.cli.commands.repo", "List the backups of a repository."),
        "show": ("jsbackup.cli.commands.repo", "Show a backup, or one stream of it: consumers, subjects."),
        "plan": ("jsbackup.cli.commands.restore", "Show what a restore would do, and what blocks it."),
        "restore": ("jsbackup.cli.commands.restore", "Restore streams and consumers into a server, and prove it."),
        "put-back": ("jsbackup.cli.commands.look.put_back", "Put messages, keys or a file back into a stream in use."),
        "clone": ("jsbackup.cli.commands.restore", "Copy streams and consumers from one server to another."),
        "view": ("jsbackup.cli.commands.look.contents", "Show messages of a stream in a backup, or one byte for byte."),
        "kv": ("jsbackup.cli.commands.look.contents", "Show keys and values of a bucket, as they were at a moment."),
        "history": (
            "jsbackup.cli.commands.look.contents",
            "Find messages, keys and files in all backups; when each changed.",
        ),
        "diff": ("jsbackup.cli.commands.check", "Compare two backups, or a backup and a server."),
        "verify": ("jsbackup.cli.commands.check", "Check stored backups: names and sizes, digests, every message."),
        "status": ("jsbackup.cli.commands.check", "Show backup health: a check for monitoring, with metrics."),
        "forget": ("jsbackup.cli.commands.keep.forget", "Remove backups that no policy keeps, or those named."),
        "schedule": ("jsbackup.cli.commands.operate.schedule", "Print files for cron, systemd or Kubernetes."),
    },
    "More": {
        "init": ("jsbackup.cli.commands.operate.keys", "Create a repository and test its store."),
        "follow": ("jsbackup.cli.commands.backup", "Keep streams backed up within seconds of what is published."),
        "object": ("jsbackup.cli.commands.look.contents", "List and get files of an object store in a backup."),
        "browse": ("jsbackup.cli.commands.look.browse", "Show backups in a browser, on this machine."),
        "drill": ("jsbackup.cli.commands.operate.readiness", "Restore a backup into a throwaway server, and prove it."),
        "doctor": (
            "jsbackup.cli.commands.operate.readiness",
            "Check what a backup or restore needs, and say what is wrong.",
        ),
        "hold": ("jsbackup.cli.commands.keep.forget", "Hold backups, so that 'forget' keeps them."),
        "prune": ("jsbackup.cli.commands.keep.forget", "Delete what no backup needs any more."),
        "copy": (
            "jsbackup.cli.commands.keep.copy",
            "Copy backups into another repository, also masked.",
        ),
        "repair": ("jsbackup.cli.commands.keep.copy", "Put back stored objects that are missing or damaged."),
        "unlock": ("jsbackup.cli.commands.keep.forget", "Show leases of running commands, and remove expired ones."),
        "key": ("jsbackup.cli.commands.operate.keys", "Manage who reads an encrypted repository, and who signs."),
        "export": (
            "jsbackup.cli.commands.exchange",
            "Export: tables, config files, for the nats CLI, NACK, Terraform.",
        ),
        "import": ("jsbackup.cli.commands.exchange", "Import what 'export' writes, and backups of the nats CLI."),
        "stats": ("jsbackup.cli.commands.query", "Count messages and bytes by stream and subject."),
        "query": ("jsbackup.cli.commands.query", "Run an SQL query over a backup."),
        "iceberg": ("jsbackup.cli.commands.exchange", "Describe backups as Iceberg tables, without a copy."),
        "help": ("jsbackup.cli.commands.help", "Show a page of the manual, or find words in it."),
    },
}
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}

# What is needed in an emergency.
_AT_ONCE = (
    "jsbackup list -r ./repo",
    "jsbackup plan latest ORDERS -s nats://127.0.0.1:4222 -r ./repo",
    "jsbackup restore latest ORDERS -s nats://127.0.0.1:4222 -r ./repo",
)
_NO_COMMAND = (
    "See 'jsbackup --help'. In an emergency: 'jsbackup list', then 'jsbackup plan latest', then 'jsbackup restore "
    "latest'."
)

_WIDTH = max(map(len, COMMANDS))  # so that all groups have the same columns

# Imports create some hundred thousand objects, none of them garbage: a collection takes 0.1 s (measured). `loop.run`
# resets it. A clean-up ends sooner, or waits for something.
_CALM_SECONDS = 1.0
_START_THRESHOLD = 100_000


class LazyGroup(HelpGroup):
    """A group that imports a command's module only when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command: click.Command = module.COMMANDS[cmd_name]
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # The help texts are in this module, so that no command is imported to complete their names.
        names = [CompletionItem(n, help=text) for n, (_, text) in COMMANDS.items() if n.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), HELP_ALL]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("In an emergency"):
            for line in _AT_ONCE:
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
        for heading, commands in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:<{_WIDTH}}", text) for name, (_, text) in commands.items()])
        shared = [*GLOBAL_OPTIONS, *S3_OPTIONS, *KEY_OPTIONS, *SERVER_OPTIONS]
        write_options(ctx, formatter, "Options", [p for p in self.get_params(ctx) if p not in shared])
        if wants_all(ctx):
            write_shared_options(ctx, formatter, "after")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_text("; ".join(f"{code} {text}" for code, text in EXIT_CODES.items()))


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        # Found without importing it: it needs Arrow, and `formats/kernels.py` uses it if it exists.
        kernel = "compiled" if find_spec("jsbackup.formats._kernels") else "python"
        click.echo(f"jsbackup {__version__} ({kernel} kernel)")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    params=[*GLOBAL_OPTIONS, *S3_OPTIONS, *KEY_OPTIONS, *SERVER_OPTIONS],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    invoke_without_command=True,
    subcommand_metavar="COMMAND [ARGS]...",
)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version.",
)
@click.pass_context
def cli(ctx: click.Context, /, **_values: Any) -> None:
    """Back up and restore NATS JetStream, of any servers from 2.10 on."""
    if ctx.invoked_subcommand is None:
        raise UsageError("no command given", hint=_NO_COMMAND)


def run(arguments: Sequence[str], *, stopped: Callable[[], bool] = lambda: False) -> int:
    """Run a command line; return the exit code and print errors. Only raises for bugs. `stopped` says whether a signal
    has stopped it.
    """
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
        return _fail(last.output, Interrupted(INTERRUPTED))
    except BrokenPipeError:
        # The reader of a help text has closed the pipe (`| head`): not an error.
        silence(sys.stdout)
        return 0
    except SystemExit:
        raise
    except BaseException as error:  # the last resort: a bug becomes one sentence, not a traceback
        # Ctrl-C while an extension in Rust calls Python, as when `pyrage` is imported, makes it panic: it raises this
        # instead of KeyboardInterrupt, and without it as the context.
        if _interrupted(error) or (type(error).__name__ == "PanicException" and stopped()):
            return _fail(last.output, Interrupted(INTERRUPTED))
        if "JSBACKUP_TRACEBACK" in environment():
            raise
        hint = "This is a bug in jsbackup; run again with JSBACKUP_TRACEBACK=1 and report it."
        return _fail(last.output, JsBackupError(f"internal error: {_bug(error)}", hint=hint))


def _interrupted(error: BaseException | None) -> bool:
    """Return whether the error came up while KeyboardInterrupt was handled.

    If Ctrl-C comes while a thread waits for a condition of `threading`, leaving its block fails: it holds no lock.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _bug(error: BaseException) -> str:
    """Return what is known about an error without its text, which may contain secrets."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f" in {place.tb_frame.f_globals.get('__name__')}, line {place.tb_lineno}" if place else ""
    reason = f" ({error.strerror.lower()})" if isinstance(error, OSError) and error.strerror else ""
    return f"{type(error).__name__}{reason}{where}"


def _run(arguments: Sequence[str], last: LastOutput) -> int:
    if instruction := environment().get(COMPLETE_VARIABLE):
        from jsbackup.cli.parsing.completion import answer_shell

        return answer_shell(cli, instruction)
    # Not `cli.main`, which handles Ctrl-C and broken pipes differently.
    try:
        with cli.make_context("jsbackup", list(arguments), obj=last) as ctx:
            code = cli.invoke(ctx)
    except click.exceptions.Exit as stop:  # of --help and --version
        return stop.exit_code
    return code if isinstance(code, int) else 0


def _output_for_errors(arguments: Sequence[str]) -> Output:
    """Return the output for parsing errors, which occur before the options are known: find the relevant ones by
    hand.
    """
    options = list(takewhile(lambda argument: argument != "--", arguments))
    log_json = "--log-format=json" in options or ("--log-format", "json") in pairwise(options)
    return Output(as_json="--json" in options, log_json=log_json)


def _fail(output: Output, error: JsBackupError) -> int:
    with suppress(JsBackupError):  # it cannot be printed
        output.error(error)
    return error.exit_code


def _prepare_streams() -> None:
    """Escape characters that the terminal or pipe cannot show, instead of raising an error."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class _Stop:
    """The handler of Ctrl-C and SIGTERM: raises KeyboardInterrupt, but not during the clean-up after a previous one.

    A second signal is handled again after a while: the clean-up may wait for a store, and Python drops exceptions that
    are raised while it destroys an object.
    """

    def __init__(self) -> None:
        self._calm_until = 0.0
        self.stopped = False

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if now >= self._calm_until:
            self._calm_until = now + _CALM_SECONDS
            self.stopped = True
            raise KeyboardInterrupt


def main() -> None:
    """The console script."""
    _prepare_streams()
    gc.set_threshold(_START_THRESHOLD)
    keep_one_heap()
    stop = _Stop()
    for number in stop_signals():
        signal.signal(number, stop)
    code = 1
    # Registered before all others, so run after them. Destroying modules and objects would take a tenth of a second.
    atexit.register(lambda: _leave(code))
    try:
        code = run(sys.argv[1:], stopped=lambda: stop.stopped)
    except KeyboardInterrupt:  # again, during the message
        code = Interrupted.exit_code
    if code == Interrupted.exit_code or COMPLETE_VARIABLE in environment():
        # Python would wait for threads that wait for a store. Their results are not needed any more.
        _leave(code)
    sys.exit(code)


def _leave(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
