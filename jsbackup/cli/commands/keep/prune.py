"""`jsbackup prune` and `jsbackup unlock`: remove unneeded objects and stale locks.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import click

from jsbackup.cli.options.leases import holder
from jsbackup.cli.options.opening import open_repository
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.retention_report import print_prune, prune_json, tell_leases
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.context import Shared
from jsbackup.config import parse_duration
from jsbackup.exit_codes import damage
from jsbackup.tool import TOOL

if TYPE_CHECKING:
    from jsbackup.repository.keep.leases import Lease, Mode
    from jsbackup.repository.keep.prune import PruneReport
    from jsbackup.repository.repository import Repository

__all__ = ["COMMANDS", "grace_option", "run_prune"]

grace_option = click.option(
    "--grace",
    metavar="DURATION",
    default="24h",
    show_default=True,
    help="Delete only objects that have been marked as unused for this long.",
)


@click.command(cls=Command, unattended=True)
@grace_option
@click.option("--dry-run", is_flag=True, help="Show what would be deleted; delete nothing.")
def prune(shared: Shared, grace: str, dry_run: bool) -> None:
    """Delete objects that no backup needs: those left by 'forget', and by interrupted backups.

    Unused objects are marked first, and deleted by a later prune when the grace period is over. Deleting waits for
    running backups and restores, and they wait for it.
    """
    start_log(shared)
    grace_seconds = parse_duration(grace)
    repository = open_repository(shared)
    take = holder(shared, repository, "prune")
    report = run_prune(repository, take, grace_seconds, dry_run=dry_run)
    document = {**prune_json(report), "dry_run": dry_run}
    shared.output.result(document, lambda: print_prune(shared.output, report, dry_run=dry_run))


def run_prune(
    repository: Repository,
    take: Callable[[Mode], AbstractContextManager[Lease]],
    grace_seconds: float,
    *,
    dry_run: bool,
    without: frozenset[str] = frozenset(),
) -> PruneReport:
    """Prune, or report what it would do if the backups `without` were forgotten. Raises the errors of
    `repository.prune.prune`.
    """
    from jsbackup.repository.keep import prune

    if dry_run:
        return prune.preview_prune(repository, take, grace_seconds=grace_seconds, without=without)
    return prune.prune(repository, take, grace_seconds=grace_seconds, tool=TOOL, random=os.urandom)


@click.command(cls=Command)
@click.argument("leases", nargs=-1, metavar="[LEASE]...")
@click.option(
    "--force",
    is_flag=True,
    help="Remove active leases too. Their commands are not stopped: a prune may then delete objects that a "
    "backup or a restore still needs.",
)
def unlock(shared: Shared, leases: tuple[str, ...], force: bool) -> int:
    """Show the leases of running commands, and remove those that have expired; all, or those that you name.

    An active lease belongs to a command that runs, or that was killed a few minutes ago. If that command ran on this
    machine, its lease is removed too. Otherwise wait until it expires.
    """
    from jsbackup.repository.keep.seen_leases import store_now
    from jsbackup.repository.keep.unlocking import unlock_leases

    start_log(shared)
    store = open_repository(shared).store
    now = store_now(store, os.urandom)
    outcomes = unlock_leases(store, leases, now, force=force)
    tell_leases(shared.output, outcomes, now)
    return damage(any(one.damaged for one in outcomes))


COMMANDS = {"prune": prune, "unlock": unlock}
