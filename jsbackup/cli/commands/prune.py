"""`jsbackup prune` and `jsbackup unlock`: remove unneeded objects and stale locks.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import click

from jsbackup.cli.options.command import Command
from jsbackup.cli.options.context import Shared
from jsbackup.cli.options.leases import holder, lock_timeout_option
from jsbackup.cli.options.opening import open_repository
from jsbackup.cli.output.colour import State
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.output import Output, format_bytes, format_count, format_seconds
from jsbackup.config import parse_duration
from jsbackup.errors import IntegrityError, JsBackupError, ObjectLocked, ObjectNotFound, UsageError
from jsbackup.model import JsonObject
from jsbackup.times import format_time
from jsbackup.tool import TOOL

if TYPE_CHECKING:
    from jsbackup.repository.keep.leases import Lease, Mode
    from jsbackup.repository.keep.prune import PruneReport
    from jsbackup.repository.keep.seen_leases import SeenLease
    from jsbackup.repository.repository import Repository

__all__ = ["COMMANDS", "grace_option", "print_prune", "prune_json", "run_prune"]

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
@lock_timeout_option
def prune(shared: Shared, grace: str, dry_run: bool, lock_timeout: str) -> None:
    """Delete objects that no backup needs: those left by 'forget', and by interrupted backups.

    Unused objects are marked first, and deleted by a later prune when the grace period is over. Deleting waits for
    running backups and restores, and they wait for it.
    """
    start_log(shared)
    grace_seconds = parse_duration(grace)
    repository = open_repository(shared)
    take = holder(shared, repository, "prune", lock_timeout)
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


def prune_json(report: PruneReport) -> JsonObject:
    """Return the document of `prune --json`, which is also `prune` in `forget --prune --json`."""
    return {
        "deleted_objects": report.deleted_objects,
        "freed_bytes": report.freed_bytes,
        "marked_objects": report.marked_objects,
        "marked_bytes": report.marked_bytes,
        "due": None if report.due_seconds is None else format_time(math.ceil(report.due_seconds) * 10**9),
        "kept_objects": report.kept_objects,
        "kept_bytes": report.kept_bytes,
        "leftovers": report.leftovers,
    }


def print_prune(output: Output, report: PruneReport, *, dry_run: bool) -> None:
    """Print the same as text."""
    deleted, freed = format_count(report.deleted_objects, "object"), format_bytes(report.freed_bytes)
    if not report.deleted_objects:
        output.line("nothing to delete")
    else:
        output.line(f"would delete {deleted}, {freed}" if dry_run else f"deleted {deleted}, {freed} freed")
    if report.due_seconds is not None:
        marked, size = format_count(report.marked_objects, "object"), format_bytes(report.marked_bytes)
        due = format_time(math.ceil(report.due_seconds) * 10**9)
        output.line(f"{marked}, {size}, unused too, wait for --grace: the first until {due}")
    if report.kept_objects:
        kept, size = format_count(report.kept_objects, "object"), format_bytes(report.kept_bytes)
        output.line(f"{kept}, {size}, unused too, kept by the store's object lock")
    if report.leftovers:
        output.line(f"removed {format_count(report.leftovers, 'leftover')}: expired leases and the like")


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
    from jsbackup.repository.keep.seen_leases import list_leases, remove_lease, store_now
    from jsbackup.stores.base import late_seconds_of

    start_log(shared)
    repository = open_repository(shared)
    store = repository.store
    now = store_now(store, os.urandom)
    found = list_leases(store)
    unknown = sorted(set(leases) - {seen.key.id for seen in found})
    if unknown:
        raise UsageError(f"no lease {unknown[0]}", hint="See 'jsbackup unlock' for those there are.")
    rows = []
    damaged = False
    for seen in found:
        row = _lease_json(repository, seen, now)
        is_over = row["state"] == "expired" or (row["process_gone"] and late_seconds_of(store) == 0)
        row["removed"] = (not leases or seen.key.id in leases) and (force or is_over)
        damaged |= row["problem"] is not None and not row["removed"]
        if row["removed"]:
            try:
                remove_lease(store, seen)
            except ObjectLocked as error:
                row.update(removed=False, problem=error.message)
        rows.append(row)
    shared.output.result({"leases": rows}, lambda: _print_leases(shared.output, rows))
    return IntegrityError.exit_code if damaged else 0


def _lease_json(repository: Repository, seen: SeenLease, now: float) -> JsonObject:
    from jsbackup.repository.keep.holder_process import is_gone
    from jsbackup.repository.keep.seen_leases import read_lease

    text, problem = None, None
    try:
        text = read_lease(repository.store, seen)
    except ObjectNotFound:  # renewed or released at this moment
        pass
    except JsBackupError as error:
        problem = error.message
    return {
        "lease": seen.key.id,
        "mode": "exclusive" if seen.key.exclusive else "shared",
        "state": "live" if seen.is_live(now) else "expired",
        "renewed_seconds_ago": round(max(0.0, now - seen.modified_seconds)),
        "expires_in_seconds": round(max(0.0, seen.expires_seconds - now)),
        "purpose": text and text.purpose,
        "since": text and text.created,
        "tool": text and text.tool,
        "host": text and text.host,
        "process_gone": text is not None and text.process is not None and is_gone(text.process),
        "problem": problem,
    }


def _print_leases(output: Output, rows: list[JsonObject]) -> None:
    if not rows:
        output.line("there are no leases")
        return
    output.table(
        ["LEASE", "PURPOSE", "MODE", "SINCE", "HOST", "TOOL", ">RENEWED", "EXPIRES"],
        [
            (
                row["lease"],
                row["purpose"] or "?",
                row["mode"],
                row["since"] or "?",
                row["host"] or "?",
                row["tool"] or "?",
                f"{format_seconds(row['renewed_seconds_ago'])} ago",
                _end_text(row),
            )
            for row in rows
        ],
    )
    for row in rows:
        if row["problem"]:
            output.line(State("problem"), f": {row['problem']}")
    if any(row["removed"] and row["state"] == "live" and not row["process_gone"] for row in rows):
        output.line("note: the commands that held active leases were not stopped; backups among them fail at their end")


def _end_text(row: JsonObject) -> str:
    end = "expired" if row["state"] == "expired" else f"in {format_seconds(row['expires_in_seconds'])}"
    gone = ", its process is gone" if row["process_gone"] and row["state"] == "live" else ""
    return f"{end}{gone}{', removed' if row['removed'] else ''}"


COMMANDS = {"prune": prune, "unlock": unlock}
