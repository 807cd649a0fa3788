"""`jsbackup forget`, `hold`, `prune` and `unlock`: which backups are removed and why, and what nothing needs then."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from jsbackup.cli.options.backup_choice import find_ids
from jsbackup.cli.options.opening import holder, open_repository
from jsbackup.cli.output.result import Block, Result, State, TextTable, format_bytes, format_count, format_seconds
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup, complete_tag
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.parsing.typed_values import WholeNumber, parse_tag_rule
from jsbackup.config import parse_duration
from jsbackup.errors import IncompleteError, JsBackupError, UsageError
from jsbackup.exit_codes import DAMAGE, damage, unreadable
from jsbackup.model import JsonObject
from jsbackup.readable import in_short
from jsbackup.repository.keep.forget import LOCKED_REASON, ForgetPlan, plan_by_ids, plan_by_policy, remove_decided
from jsbackup.repository.keep.holds import Hold, find_hold, put_hold, release_hold
from jsbackup.repository.keep.leases import Lease, LeaseOutcome, Mode, store_now, unlock_leases
from jsbackup.repository.keep.prune import preview_prune, prune
from jsbackup.repository.keep.retention import Policy
from jsbackup.repository.read.sources import Grouping
from jsbackup.repository.repository import Repository
from jsbackup.times import format_time
from jsbackup.tool import TOOL

__all__ = ["COMMANDS"]

_grace_option = click.option(
    "--grace",
    metavar="DURATION",
    default="24h",
    show_default=True,
    help="Delete only objects that have been marked as unused for this long.",
)


F = TypeVar("F", bound=Callable[..., Any])


def _keep(rule: str, text: str) -> Callable[[F], F]:
    return click.option(f"--keep-{rule}", type=WholeNumber(0), default=0, metavar="N", help=text)


@click.command(cls=Command, unattended=True)
@click.argument("backups", nargs=-1, metavar="[BACKUP]...", shell_complete=complete_backup)
@_keep("last", "Keep the newest N backups.")
@_keep("hourly", "Keep the newest backup of each of the last N hours that have any.")
@_keep("daily", "The same for days (of UTC).")
@_keep("weekly", "The same for ISO weeks.")
@_keep("monthly", "The same for months.")
@_keep("yearly", "The same for years.")
@click.option(
    "--keep-within",
    metavar="DURATION",
    help="Keep backups that are at most this much older than the newest complete one.",
)
@click.option(
    "--keep-tag",
    "tags",
    multiple=True,
    metavar="K[=V]",
    shell_complete=complete_tag,
    help="Keep backups with this tag.",
)
@click.option(
    "--group-by",
    type=click.Choice([each.value for each in Grouping]),
    default="selection",
    show_default=True,
    help="Apply the policy separately to the backups of each cluster, account and selection of streams; of "
    "each cluster and account; or to all together. The newest backup of a selection stays until one that "
    "covers its streams and is newer is kept.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed and why; change nothing.")
@click.option("--prune", is_flag=True, help="Run 'jsbackup prune' afterwards.")
@_grace_option
def forget(
    shared: Shared,
    backups: tuple[str, ...],
    keep_last: int,
    keep_hourly: int,
    *,
    keep_daily: int,
    keep_weekly: int,
    keep_monthly: int,
    keep_yearly: int,
    keep_within: str | None,
    tags: tuple[str, ...],
    group_by: str,
    dry_run: bool,
    prune: bool,
    grace: str,
) -> Result:
    """Remove backups: all that no --keep option keeps, or those that you name.

    A backup is kept if one of the options keeps it. A partial backup never takes the place of a complete one, and one
    that is known to be damaged, or lacks an object, takes no other's place. The newest complete backup, held ones, and
    those that cannot be read are always kept. With --profile, the policy applies to the backups of that profile, and to
    those of its cluster and account that were made without a profile; those of other profiles stay, also if that
    profile has none yet. Where no backup has a profile, it applies to all. Objects that only removed backups need stay
    stored until 'jsbackup prune'.
    """
    policy = Policy(
        last=keep_last,
        hourly=keep_hourly,
        daily=keep_daily,
        weekly=keep_weekly,
        monthly=keep_monthly,
        yearly=keep_yearly,
        within_seconds=parse_duration(keep_within) if keep_within is not None else 0,
        tags=tuple(map(parse_tag_rule, tags)),
    )
    ctx = click.get_current_context()
    keeping = [name for name in ctx.params if name.startswith("keep_") or name == "tags"]
    if backups and all(ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE for name in keeping):
        policy = Policy()  # the policy of a profile is only for runs without named backups
    if backups and not policy.is_empty:
        raise UsageError(
            "backups are named, and there is a policy too",
            hint="Name the backups to remove, or say with --keep options which to keep.",
        )
    if not backups:
        policy.check()
    grace_seconds = parse_duration(grace)
    repository = open_repository(shared)
    take = holder(shared, repository, "prune")
    report: JsonObject | None = None
    pruned: list[str] | None = None
    try:
        if backups:
            plan = plan_by_ids(repository, find_ids(shared, repository, backups, newest=True))
        else:
            now_ns = time.time_ns()
            plan = plan_by_policy(repository, policy, Grouping(group_by), now_ns=now_ns, profile=shared.profile)
        for warning in plan.warnings:
            shared.output.note(warning)
        if not dry_run:
            plan = replace(plan, decisions=remove_decided(repository, plan.decisions))
        if prune:
            removed = sorted(each.backup for each in plan.decisions.removed)
            pruned = None if dry_run else removed
            report = _run_prune(repository, take, grace_seconds, dry_run=dry_run, without=frozenset(removed))
    except JsBackupError as error:
        count = error.facts.get("removed", len(pruned or ()))
        backups_removed = f"removed {format_count(count, 'backup')}"
        if pruned is not None:
            names = f": {', '.join(pruned)}" if pruned else ""
            shared.output.note(f"{backups_removed}, before the prune failed{names}")
        if not shared.output.as_json:
            text = backups_removed if count else "nothing was removed"
            shared.output.show(Result({}, [text if pruned is None else f"{text}; the prune failed"]))
        raise error.with_facts(removed=count) from error.__cause__
    return _forget_result(plan, report, dry_run=dry_run, named=bool(backups))


def _forget_result(plan: ForgetPlan, pruned: JsonObject | None, *, dry_run: bool, named: bool) -> Result:
    decisions = plan.decisions
    locked = [
        f"backup {each.backup} was not removed: {LOCKED_REASON}"
        for each in (decisions.kept if named else ())
        if LOCKED_REASON in each.reasons
    ]
    code = damage(plan.damaged) or unreadable(each.error for each in plan.unreadable)
    code = IncompleteError.exit_code if locked else code
    document: JsonObject = {
        "dry_run": dry_run,
        "done": not locked,
        "kept": [{"backup": k.backup, "group": k.group, "reasons": list(k.reasons)} for k in decisions.kept],
        "removed": [{"backup": r.backup, "group": r.group, "reason": r.reason} for r in decisions.removed],
        "damaged": [
            *(each.error.message for each in plan.unreadable),
            *(f"backup {backup} is known to be damaged, and takes no other's place" for backup in plan.damaged),
        ],
        "prune": pruned,
    }
    blocks = _decisions_text(document)
    if named:  # what was removed would only repeat the command line
        blocks = (f"would remove backup {each.backup}" for each in decisions.removed if dry_run)
    return Result(document, [*blocks, *locked, *_forget_text(document, plan.damaged, code)], code)


def _decisions_text(document: JsonObject) -> Iterator[Block]:
    """Yield a table for each group, oldest backups first."""
    removed = "would remove" if document["dry_run"] else "removed"
    rows = [(row["group"], row["backup"], "keep", "; ".join(row["reasons"])) for row in document["kept"]]
    rows += [(row["group"], row["backup"], removed, row["reason"]) for row in document["removed"]]
    for group, members in groupby(sorted(rows), key=itemgetter(0)):
        yield group or "in no known group"
        yield TextTable(["BACKUP", "", "WHY"], [row[1:] for row in members])
        yield ""


def _forget_text(document: JsonObject, damaged: Sequence[str], code: int) -> Iterator[Block]:
    if damaged:
        are = "is known to be damaged, and takes" if len(damaged) == 1 else "are known to be damaged, and take"
        which = f"{format_count(len(damaged), 'backup')} {are} no other's place: {in_short(damaged, most=10)}"
        how = "'jsbackup verify' says what is lost, and 'jsbackup repair' brings it back from a copy"
        yield State("problem"), f": {which}; {how}"
    removed, kept = format_count(len(document["removed"]), "backup"), f"{len(document['kept']):,}"
    yield f"would remove {removed}, and keep {kept}" if document["dry_run"] else f"removed {removed}, kept {kept}"
    if document["prune"] is not None:
        yield from _prune_text(document["prune"])
    if code == DAMAGE:  # also what ends a command that removed nothing
        yield f"done; the exit code is {code} because of the damage that is named above"


@click.command(cls=Command)
@click.argument("backups", nargs=-1, required=True, metavar="BACKUP...", shell_complete=complete_backup)
@click.option("--reason", metavar="TEXT", help="Why they are held.")
@click.option("--release", is_flag=True, help="Release them, so that 'forget' may remove them again.")
def hold(shared: Shared, backups: tuple[str, ...], reason: str | None, release: bool) -> Result:
    """Hold backups, so that no 'forget' removes them until they are released.

    A backup that is held already stays held as it is: another --reason changes nothing. A hold belongs to one
    repository: 'copy' brings none, and names what is held here and not there.
    """
    if release and reason is not None:
        raise UsageError("--reason makes no sense with --release", hint="Leave it out.")
    repository = open_repository(shared)
    chosen = list(dict.fromkeys(find_ids(shared, repository, backups)))
    rows = [_hold(repository, backup, None if release else reason or "") for backup in chosen]
    return Result({"backups": rows}, _hold_text(rows))


def _hold(repository: Repository, backup: str, reason: str | None) -> JsonObject:
    """Hold a backup, or release it without a reason."""
    if reason is None:
        changed = release_hold(repository, backup)
        return {"backup": backup, "held": False, "changed": changed, "since": None, "reason": ""}
    wanted = Hold(backup, format_time(time.time_ns()), TOOL, reason)
    changed = put_hold(repository, wanted)
    held = (wanted if changed else find_hold(repository, backup)) or wanted
    return {"backup": backup, "held": True, "changed": changed, "since": held.created, "reason": held.reason}


def _hold_text(rows: Sequence[JsonObject]) -> Iterator[Block]:
    for row in rows:
        backup, changed = row["backup"], row["changed"]
        if not row["held"]:
            yield f"{backup} is released" if changed else f"{backup} was not held"
            continue
        since = f" since {row['since']}" if row["since"] else ""
        reason = f": {row['reason']}" if row["reason"] else ""
        yield f"{backup} is held{'' if changed else f' already{since}'}{reason}"


@click.command("prune", cls=Command, unattended=True)
@_grace_option
@click.option("--dry-run", is_flag=True, help="Show what would be deleted; delete nothing.")
def prune_objects(shared: Shared, grace: str, dry_run: bool) -> Result:
    """Delete objects that no backup needs: those left by 'forget', and by interrupted backups.

    Unused objects are marked first, and deleted by a later prune when the grace period is over. Deleting waits for
    running backups and restores, and they wait for it.
    """
    grace_seconds = parse_duration(grace)
    repository = open_repository(shared)
    document = _run_prune(repository, holder(shared, repository, "prune"), grace_seconds, dry_run=dry_run)
    return Result(document, _prune_text(document))


def _run_prune(
    repository: Repository,
    take: Callable[[Mode], AbstractContextManager[Lease]],
    grace_seconds: float,
    *,
    dry_run: bool,
    without: frozenset[str] = frozenset(),
) -> JsonObject:
    """Prune, or report what it would do if the backups `without` were forgotten. Return the document of `prune --json`,
    which is also `prune` in `forget --prune --json`. Raises the errors of `repository.prune.prune`.
    """
    report = (
        preview_prune(repository, take, grace_seconds=grace_seconds, without=without)
        if dry_run
        else prune(repository, take, grace_seconds=grace_seconds, tool=TOOL, random=os.urandom)
    )
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


def _prune_text(document: JsonObject) -> Iterator[Block]:
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
    store = open_repository(shared).store
    now = store_now(store, os.urandom)
    outcomes = unlock_leases(store, leases, now, force=force)
    rows = [_lease_json(outcome, now) for outcome in outcomes]
    return Result({"leases": rows}, _lease_text(rows), damage(any(outcome.damaged for outcome in outcomes)))


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
    yield TextTable(header, [[*known, *_times_text(row)] for known, row in zip(cells, rows, strict=True)])
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


COMMANDS = {"forget": forget, "hold": hold, "prune": prune_objects, "unlock": unlock}
