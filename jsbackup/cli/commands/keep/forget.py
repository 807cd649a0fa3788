"""`jsbackup forget` and `jsbackup hold`: which backups are removed, which are kept, and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from jsbackup.cli.commands.keep.prune import grace_option, prune_json, prune_text, run_prune
from jsbackup.cli.options.latest import find_ids
from jsbackup.cli.options.leases import holder
from jsbackup.cli.options.opening import open_repository
from jsbackup.cli.options.tagging import parse_tag_rule
from jsbackup.cli.output.colour import State
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.output import format_count
from jsbackup.cli.output.result import Block, Result, Table
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup, complete_tag
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.parsing.typed_amounts import WholeNumber
from jsbackup.config import parse_duration
from jsbackup.errors import IncompleteError, JsBackupError, UsageError
from jsbackup.exit_codes import DAMAGE, damage, unreadable
from jsbackup.model import JsonObject
from jsbackup.readable import in_short
from jsbackup.repository.keep.forget import LOCKED_REASON, ForgetPlan, plan_by_ids, plan_by_policy, remove_decided
from jsbackup.repository.keep.groups import Grouping
from jsbackup.repository.keep.holds import Hold, find_hold, put_hold, release_hold
from jsbackup.repository.keep.retention import Policy
from jsbackup.repository.repository import Repository
from jsbackup.times import format_time
from jsbackup.tool import TOOL

__all__ = ["COMMANDS", "GROUPINGS"]

GROUPINGS = ("selection", "source", "none")  # as `repository/keep/retention.py` has them


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
    type=click.Choice(GROUPINGS),
    default="selection",
    show_default=True,
    help="Apply the policy separately to the backups of each cluster, account and selection of streams; of "
    "each cluster and account; or to all together. The newest backup of a selection stays until one that "
    "covers its streams and is newer is kept.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed and why; change nothing.")
@click.option("--prune", is_flag=True, help="Run 'jsbackup prune' afterwards.")
@grace_option
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
    start_log(shared)
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
    if backups and not _typed_to_keep(click.get_current_context()):
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
            done = run_prune(repository, take, grace_seconds, dry_run=dry_run, without=frozenset(removed))
            report = prune_json(done, dry_run=dry_run)
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
    locked = [each.backup for each in decisions.kept if LOCKED_REASON in each.reasons] if named else []
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
    # Those that were named would only repeat the command line.
    blocks = [] if named else _decisions_text(document)
    return Result(document, [*blocks, *_forget_text(document, locked, plan.damaged, code)], code)


def _decisions_text(document: JsonObject) -> Iterator[Block]:
    """Yield a table for each group, oldest backups first."""
    removed = "would remove" if document["dry_run"] else "removed"
    rows = [(row["group"], row["backup"], "keep", "; ".join(row["reasons"])) for row in document["kept"]]
    rows += [(row["group"], row["backup"], removed, row["reason"]) for row in document["removed"]]
    for group, members in groupby(sorted(rows), key=itemgetter(0)):
        yield group or "in no known group"
        yield Table(["BACKUP", "", "WHY"], [row[1:] for row in members])
        yield ""


def _forget_text(document: JsonObject, locked: Sequence[str], damaged: Sequence[str], code: int) -> Iterator[Block]:
    yield from (f"backup {backup} was not removed: {LOCKED_REASON}" for backup in locked)
    if damaged:
        are = "is known to be damaged, and takes" if len(damaged) == 1 else "are known to be damaged, and take"
        which = f"{format_count(len(damaged), 'backup')} {are} no other's place: {in_short(damaged, most=10)}"
        how = "'jsbackup verify' says what is lost, and 'jsbackup repair' brings it back from a copy"
        yield State("problem"), f": {which}; {how}"
    removed, kept = format_count(len(document["removed"]), "backup"), f"{len(document['kept']):,}"
    yield f"would remove {removed}, and keep {kept}" if document["dry_run"] else f"removed {removed}, kept {kept}"
    if document["prune"] is not None:
        yield from prune_text(document["prune"])
    if code == DAMAGE:  # also what ends a command that removed nothing
        yield f"done; the exit code is {code} because of the damage that is named above"


def _typed_to_keep(ctx: click.Context) -> bool:
    names = [name for name in ctx.params if name.startswith("keep_") or name == "tags"]
    return any(ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in names)


@click.command(cls=Command)
@click.argument("backups", nargs=-1, required=True, metavar="BACKUP...", shell_complete=complete_backup)
@click.option("--reason", metavar="TEXT", help="Why they are held.")
@click.option("--release", is_flag=True, help="Release them, so that 'forget' may remove them again.")
def hold(shared: Shared, backups: tuple[str, ...], reason: str | None, release: bool) -> Result:
    """Hold backups, so that no 'forget' removes them until they are released.

    A backup that is held already stays held as it is: another --reason changes nothing, and the output says so. A hold
    belongs to one repository: 'copy' brings none, and names what is held here and not there.
    """
    start_log(shared)
    if release and reason is not None:
        raise UsageError("--reason makes no sense with --release", hint="Leave it out.")
    repository = open_repository(shared)
    chosen = list(dict.fromkeys(find_ids(shared, repository, backups)))
    rows = [_hold(repository, backup, None if release else reason or "") for backup in chosen]
    return Result({"backups": rows}, _hold_text(rows, reason))


def _hold(repository: Repository, backup: str, reason: str | None) -> JsonObject:
    """Hold a backup, or release it without a reason."""
    if reason is None:
        changed = release_hold(repository, backup)
        return {"backup": backup, "held": False, "changed": changed, "since": None, "reason": ""}
    wanted = Hold(backup, format_time(time.time_ns()), TOOL, reason)
    changed = put_hold(repository, wanted)
    held = (wanted if changed else find_hold(repository, backup)) or wanted
    return {"backup": backup, "held": True, "changed": changed, "since": held.created, "reason": held.reason}


def _hold_text(rows: Sequence[JsonObject], asked: str | None) -> Iterator[Block]:
    for row in rows:
        backup, changed = row["backup"], row["changed"]
        if not row["held"]:
            yield f"{backup} is released" if changed else f"{backup} was not held"
            continue
        since = f" since {row['since']}" if row["since"] else ""
        reason = f": {row['reason']}" if row["reason"] else ""
        yield f"{backup} is held{'' if changed else f' already{since}'}{reason}"
    stays = [str(row["backup"]) for row in rows if asked and not row["changed"] and row["reason"] != asked]
    if stays:
        how = "release what is held, and hold it again to change it"
        yield State("note"), f": the reason of {in_short(stays)} stays as it is: {how}"


COMMANDS = {"forget": forget, "hold": hold}
