"""What commands with a throwaway server share: options, and the wait for Ctrl-C.

The engine is imported when it is called: `--help` and completion load this module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jsbackup.cli.options.latest import LATEST, Choosing, WantedBackup
from jsbackup.cli.options.opening import open_repository
from jsbackup.cli.output.colour import State
from jsbackup.cli.output.output import Output
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.parsing.context import Shared
from jsbackup.config import environment
from jsbackup.errors import UsageError

if TYPE_CHECKING:
    from jsbackup.engine.check.kept_server import KeptServer
    from jsbackup.engine.check.server_program import ServerProgram
    from jsbackup.planning.model import RestoreOptions
    from jsbackup.progress import Progress
    from jsbackup.repository.repository import Repository

__all__ = [
    "nats_server_option",
    "open_to_decrypt",
    "program_to_start",
    "refuse_silence",
    "wait_for_end",
    "wanted_for_server",
    "warned_progress",
    "work_dir_option",
]

nats_server_option = click.option(
    "--nats-server",
    "program",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The server to start (default: nats-server on the PATH, else that of jsbackup[drill]).",
)
work_dir_option = click.option(
    "--work-dir",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="FOLDER",
    help="Where the servers store their data, in a folder that is removed afterwards (default: the temporary folder).",
)


def refuse_silence(output: Output) -> None:
    """Raise UsageError if --quiet would hide where the server is."""
    if output.quiet and not output.as_json:
        raise UsageError("--quiet would hide where the server is", hint="Leave it out, or add --json.")


def program_to_start(given: Path | None) -> ServerProgram:
    """Return the server: the given one, that of the PATH, or that of `jsbackup[drill]`. Raises UsageError."""
    from jsbackup.engine.check.server_program import find_program

    return find_program(given, environment().get("PATH"), Path(sys.executable).parent / "nats-server")


def open_to_decrypt(shared: Shared) -> Repository:
    """Open the repository. Raises KeyUnavailable if its messages are encrypted and no key opens them."""
    from jsbackup.repository.crypto.keys import needed

    repository = open_repository(shared)
    if repository.descriptor.recipient is not None:
        needed(repository.secret)
    return repository


def wanted_for_server(shared: Shared, backup: str | None, choosing: Choosing, options: RestoreOptions) -> WantedBackup:
    """Return the backup to fill the server from: `latest` unless another one is named."""
    return WantedBackup(backup or LATEST, choosing, options.streams, options.exclude, silent=shared.output.as_json)


@contextmanager
def warned_progress(shared: Shared, label: str, warnings: Sequence[str]) -> Iterator[Progress]:
    """Print the warnings about what will be restored, then provide the progress of that."""
    for warning in warnings:
        shared.output.note(State("warning"), f": {warning}")
    with make_progress(label, wanted=shared.progress) as progress:
        yield progress


def wait_for_end(kept: KeptServer, seconds: float | None, tell: Callable[[], object]) -> None:
    """Wait for Ctrl-C, SIGTERM, or so many seconds. Raises JsBackupError if the server ends before.

    `tell` says that it is ready. Anyone who reads that may end the command at once.
    """
    import asyncio

    from jsbackup.cli.loop import run_loop
    from jsbackup.engine.check.kept_server import stay

    stopping = asyncio.Event()

    async def work() -> None:
        tell()
        await stay(kept, stopping, seconds)

    run_loop(work(), stopping.set)
