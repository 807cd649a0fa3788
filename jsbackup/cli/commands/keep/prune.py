"""`jsbackup prune` and `jsbackup unlock`: remove unneeded objects and stale locks."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import click

from jsbackup.cli.options.leases import holder
from jsbackup.cli.options.opening import open_repository
from jsbackup.cli.output.colour import State
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.output import format_bytes, format_count, format_seconds
from jsbackup.cli.output.result import Block, Result, Table
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.context import Shared
from jsbackup.config import parse_duration
from jsbackup.exit_codes import damage
from jsbackup.model import JsonObject
from jsbackup.repository.keep import prune as pruning
from jsbackup.repository.keep.leases import Lease, Mode
from jsbackup.repository.keep.seen_leases import store_now
from jsbackup.repository.keep.unlocking import LeaseOutcome, unlock_leases
from jsbackup.repository.repository import Repository
from jsbackup.times import format_time
from jsbackup.tool import TOOL

__all__ = ["COMMANDS", "grace_option", "prune_json", "prune_text", "run_prune"]

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
def prune(shared: Shared, grace: str, dry_run: bool) -> Result:
    """Delete objects that no backup needs: those left by 'forget', and by interrupted backups.

    Unused objects are marked first, and deleted by a later prune when the grace period is over. Deleting waits for
    running backups and restores, and they wait for it.
    """
    start_log(shared)
    grace_seconds = parse_duration(grace)
    repository = open_repository(shared)
    report = run_prune(repository, holder(shared, repository, "prune"), grace_seconds, dry_run=dry_run)
    document = prune_json(report, dry_run=dry_run)
    return Result(document, prune_text(document))


def run_prune(
    repository: Repository,
    take: Callable[[Mode], AbstractContextManager[Lease]],
    grace_seconds: float,
    *,
    dry_run: bool,
    without: frozenset[str] = frozenset(),
) -> pruning.PruneReport:
    """Prune, or report what it would do if the backups `without` were forgotten. Raises the errors of
    `repository.prune.prune`.
    """
    if dry_run:
        return pruning.preview_prune(repository, take, grace_seconds=grace_seconds, without=without)
    return pruning.prune(repository, take, grace_seconds=grace_seconds, tool=TOOL, random=os.urandom)


def prune_json(report: pruning.PruneReport, *, dry_run: bool) -> JsonObject:
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
        "dry_run": dry_run,
    }


def prune_text(document: JsonObject) -> Iterator[Block]:
    """Yield the same as text."""
    deleted = f"{format_count(document['deleted_objects'], 'object')}, {format_bytes(document['freed_bytes'])}"
    if not document["deleted_objects"]:
        yield "nothing to delete"
    else:
        yield f"would delete {deleted}" if document["dry_run"] else f"deleted {deleted} freed"
    for name, ending in (
        ("marked", f"wait for --grace; the first can be deleted after {document['due']}"),
        ("kept", "are locked by the store"),
    ):
        if count := document[f"{name}_objects"]:
            size = format_bytes(document[f"{name}_bytes"])
            yield f"{format_count(count, 'more unused object')} ({size}) {ending}"
    if document["leftovers"]:
        yield f"removed {format_count(document['leftovers'], 'leftover')}, such as expired leases"


@click.command(cls=Command)
@click.argument("leases", nargs=-1, metavar="[LEASE]...")
@click.option(
    "--force",
    is_flag=True,
    help="Remove active leases too. Their commands are not stopped: a prune may then delete objects that a "
    "backup or a restore still needs.",
)
def unlock(shared: Shared, leases: tuple[str, ...], force: bool) -> Result:
    """Show the leases of running commands, and remove those that have expired; all, or those that you name.

    An active lease belongs to a command that runs, or that was killed a few minutes ago. If that command ran on this
    machine, its lease is removed too. Otherwise wait until it expires.
    """
    start_log(shared)
    store = open_repository(shared).store
    now = store_now(store, os.urandom)
    outcomes = unlock_leases(store, leases, now, force=force)
    rows = [_lease_json(one, now) for one in outcomes]
    return Result({"leases": rows}, _lease_text(rows), damage(any(one.damaged for one in outcomes)))


def _lease_json(outcome: LeaseOutcome, now: float) -> JsonObject:
    seen, text = outcome.seen, outcome.text
    return {
        "lease": seen.key.id,
        "mode": "exclusive" if seen.key.exclusive else "shared",
        "state": "live" if outcome.live else "expired",
        "renewed_seconds_ago": round(max(0.0, now - seen.modified_seconds)),
        "expires_in_seconds": round(max(0.0, seen.expires_seconds - now)),
        "purpose": text and text.purpose,
        "since": text and text.created,
        "tool": text and text.tool,
        "host": text and text.host,
        "process_gone": outcome.process_gone,
        "problem": outcome.locked or outcome.problem,
        "removed": outcome.removed,
    }


def _lease_text(rows: Sequence[JsonObject]) -> Iterator[Block]:
    if not rows:
        yield "there are no leases"
        return
    header = ["LEASE", "PURPOSE", "MODE", "SINCE", "HOST", "TOOL", ">RENEWED", "EXPIRES"]
    cells = [[row[name] or "?" for name in ("lease", "purpose", "mode", "since", "host", "tool")] for row in rows]
    yield Table(header, [[*known, *_times_text(row)] for known, row in zip(cells, rows, strict=True)])
    for row in rows:
        if row["problem"]:
            yield State("problem"), f": {row['problem']}"
    if any(row["removed"] and row["state"] == "live" and not row["process_gone"] for row in rows):
        yield (
            "note: the commands that held active leases were not stopped; backups among them will fail when they commit"
        )


def _times_text(row: JsonObject) -> tuple[str, str]:
    """Return when a lease was renewed, and when it ends."""
    live = row["state"] == "live"
    end = f"in {format_seconds(row['expires_in_seconds'])}" if live else "expired"
    ended = ", its process is gone" if row["process_gone"] and live else ""
    return f"{format_seconds(row['renewed_seconds_ago'])} ago", f"{end}{ended}{', removed' if row['removed'] else ''}"


COMMANDS = {"prune": prune, "unlock": unlock}
