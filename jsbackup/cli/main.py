"""The entry point: finds the command, runs it, and turns every error into one sentence and its exit code.

Commands are loaded when they are called, because `jsbackup --version` and `--help` should not pay for Arrow.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from jsbackup import __version__
from jsbackup.cli.command import GLOBAL_OPTIONS, SERVER_OPTIONS
from jsbackup.cli.output import Output
from jsbackup.errors import Interrupted, JsBackupError, UsageError

__all__ = ["EXIT_CODES", "cli", "main"]

# command -> (module, what --help says of it)
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("jsbackup.cli.repo", "Make a repository and probe its store."),
    "backup": ("jsbackup.cli.backup", "Back streams up: all of the account, or those named."),
    "list": ("jsbackup.cli.repo", "List the backups of a repository."),
    "show": ("jsbackup.cli.repo", "Show one backup: streams, consumers, segments, warnings."),
    "verify": ("jsbackup.cli.repo", "Check stored backups: names and sizes, digests, every message."),
    "restore": ("jsbackup.cli.restore", "Restore streams and consumers into a server, and prove it."),
    "import": ("jsbackup.cli.exchange", "Take in directories of the nats CLI, or config files."),
    "export": ("jsbackup.cli.exchange", "Write a backup out for the nats CLI, or its configs as files."),
    "completion": ("jsbackup.cli.completion", "Print the completion script of a shell."),
}

EXIT_CODES: dict[int, str] = {
    0: "done and proved",
    1: "failed",
    2: "usage or configuration",
    3: "finished but incomplete (the output says what is missing)",
    10: "no repository there",
    11: "locked",
    12: "wrong or missing key",
    13: "format or feature not supported",
    14: "integrity failure found",
    15: "plan refused, or target cannot be met",
    16: "conflict at the target (exists, limits, subject overlap)",
    17: "policy breach",
    20: "NATS unreachable or not allowed",
    21: "storage unreachable or not allowed",
    130: "interrupted, state safe",
}


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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in EXIT_CODES.items()])


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from jsbackup.formats import kernels

        click.echo(f"jsbackup {__version__} ({kernels.active()} kernel)")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    params=[*GLOBAL_OPTIONS, *SERVER_OPTIONS],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    invoke_without_command=False,
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def cli(**_values: Any) -> None:
    """Verified backup and restore of NATS JetStream streams, between any servers from 2.10 on."""


def run(arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit code and prints errors. Never raises but for bugs."""
    # Errors of parsing come before the options are known, so --json is looked for by hand.
    output = Output(as_json="--json" in arguments)
    try:
        code = cli.main(args=list(arguments), prog_name="jsbackup", standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.Abort:
        output.error(Interrupted("interrupted"))
        return Interrupted.exit_code
    except click.ClickException as wrong:
        context = getattr(wrong, "ctx", None)
        hint = f"See '{context.command_path} --help'." if context is not None else "See 'jsbackup --help'."
        output.error(UsageError(wrong.format_message().rstrip("."), hint=hint))
        return UsageError.exit_code
    except JsBackupError as error:
        output.error(error)
        return error.exit_code
    except KeyboardInterrupt:
        output.error(Interrupted("interrupted"))
        return Interrupted.exit_code
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): nothing more can be said, and nothing is wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # the last door: a bug becomes one sentence, not a traceback
        if "JSBACKUP_TRACEBACK" in _environment():
            raise
        output.error(
            JsBackupError(
                f"internal error: {type(error).__name__}: {error}",
                hint="This is a bug in jsbackup; run again with JSBACKUP_TRACEBACK=1 and report it.",
            )
        )
        return JsBackupError.exit_code
    return code if isinstance(code, int) else 0


def _environment() -> dict[str, str]:
    from jsbackup.config import environment

    return dict(environment())


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))
