"""`jsbackup repair`.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from jsbackup.cli.options.latest import find_ids
from jsbackup.cli.options.leases import lock_timeout_option, writing
from jsbackup.cli.options.opening import connection_of, open_to_repair, run_async, store_at
from jsbackup.cli.options.shared import GLOBAL_OPTIONS
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.repair_report import tell_repair
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup
from jsbackup.cli.parsing.context import Shared
from jsbackup.errors import JsBackupError, RepositoryNotFound, UsageError

if TYPE_CHECKING:
    from jsbackup.repository.repository import Repository
    from jsbackup.repository.write.repair import Broken, RepairOutcome
    from jsbackup.stores.base import Store

__all__ = ["COMMANDS"]


@click.command(cls=Command, needs_server=True)
@click.argument("backups", nargs=-1, metavar="[BACKUP]...", shell_complete=complete_backup)
@click.option(
    "--from",
    "from_repo",
    metavar="LOCATION",
    type=GLOBAL_OPTIONS[0].type,
    help="A repository that has copies of these backups; its S3 settings are JSBACKUP_FROM_S3_ENDPOINT and so on.",
)
@click.option("--check", is_flag=True, help="Read all objects first, not only what verify found damaged.")
@click.option(
    "--trust-copy",
    is_flag=True,
    help="Put back manifests that nothing here proves, too, as --from has them; not in a signed repository.",
)
@click.option("--dry-run", is_flag=True, help="Show what could be repaired; change nothing.")
@lock_timeout_option
def repair(
    shared: Shared,
    backups: tuple[str, ...],
    from_repo: str | None,
    check: bool,
    *,
    trust_copy: bool,
    dry_run: bool,
    lock_timeout: str,
) -> int:
    """Restore stored objects and manifests that are missing or damaged, in all backups or in those that you name.

    Their bytes come from another repository (--from), or from the messages of a server (-s or --context). With both,
    the server is asked for what the repository lacks. Only the very same bytes are stored; SHA-256 decides. A server
    can supply only plain segments, if it still has the messages and this version of jsbackup writes them as they
    were. A manifest is put back only if the catalog, the next backup, its witness or its signature proves that it is
    the right one, or with --trust-copy; the public key of a writer (keys/writer-….json) only if the root signing key
    has signed it; a reader's key file (keys/….age) as its signed record says, or if --identity opens it.

    Without --check, damage is only known where verify has recorded it. A verify without the writer key records nothing.

    What cannot be repaired is named, and the exit code is 3. A later backup stores messages that the server still
    has.
    """
    from jsbackup.repository.write.repair_run import RepairRun

    start_log(shared)
    live = bool(shared.server.get("server") or shared.server.get("context"))
    if from_repo is None and not live:
        raise UsageError(
            "no source for the repair was given",
            hint="Name another repository with --from, or a server with -s or --context.",
        )
    if trust_copy and from_repo is None:
        raise UsageError("--trust-copy needs --from", hint="Name the copy that you trust with --from.")
    repository, keys, unopened = open_to_repair(shared)
    with (
        writing(shared, repository, "repair", lock_timeout),
        make_progress("repair", wanted=shared.progress) as progress,
    ):

        def ask(broken: Sequence[Broken]) -> Sequence[RepairOutcome | JsBackupError]:
            from jsbackup.engine.read.reread import repair_from_server

            return run_async(repair_from_server(connection_of(shared), repository, broken, progress, dry_run=dry_run))

        run = RepairRun(
            repository,
            find_ids(shared, repository, backups) or repository.backups(),
            progress,
            time.time,
            os.urandom,
            keys=keys,
            unopened=unopened,
            other=None if from_repo is None else _other(shared, repository, from_repo),
            ask_server=ask if live else None,
            whole=not backups,
            check=check,
            trust_copy=trust_copy,
            dry_run=dry_run,
        )
        report = run.carry_out()
    return tell_repair(shared.output, report)


def _other(shared: Shared, repository: Repository, location: str) -> Store:
    from jsbackup.repository.repository import Repository

    other = store_at(location, replace(shared, s3={}, variables="JSBACKUP_FROM_"))
    if other.location == repository.store.location:
        raise UsageError(f"{other.location} cannot be repaired from itself", hint="Name another one with --from.")
    try:
        Repository.open(other)  # checks that it is a repository; objects are copied without a key
    except RepositoryNotFound as error:
        near = error.hint or ""
        hint = near if near.startswith("Did you mean") else "Name a repository that has copies of these backups."
        raise error.with_message(f"--from: {error.message}").with_hint(hint) from None
    return other


COMMANDS = {"repair": repair}
