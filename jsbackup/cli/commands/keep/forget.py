"""`jsbackup forget` and `jsbackup hold`: which backups are removed, which are kept, and why.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from jsbackup.cli.commands.keep.prune import grace_option, run_prune
from jsbackup.cli.options.latest import find_ids
from jsbackup.cli.options.leases import holder
from jsbackup.cli.options.opening import open_repository
from jsbackup.cli.options.tagging import parse_tag_rule
from jsbackup.cli.output.colour import State
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.retention_report import tell_failed_forget, tell_forget
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup, complete_tag
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.parsing.typed_amounts import WholeNumber
from jsbackup.config import parse_duration
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.model import JsonObject
from jsbackup.readable import in_short
from jsbackup.times import format_time
from jsbackup.tool import TOOL

if TYPE_CHECKING:
    from jsbackup.repository.repository import Repository

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
) -> int:
    """Remove backups: all that no --keep option keeps, or those that you name.

    A backup is kept if one of the options keeps it. A partial backup never takes the place of a complete one, and one
    that is known to be damaged, or lacks an object, takes no other's place. The newest complete backup, held ones, and
    those that cannot be read are always kept. With --profile, the policy applies to the backups of that profile, and to
    those of its cluster and account that were made without a profile; those of other profiles stay, also if that
    profile has none yet. Where no backup has a profile, it applies to all. Objects that only removed backups need stay
    stored until 'jsbackup prune'.
    """
    from jsbackup.repository.keep.forget import plan_by_ids, plan_by_policy, remove_decided
    from jsbackup.repository.keep.groups import Grouping
    from jsbackup.repository.keep.retention import Policy

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
    report, removed = None, 0
    pruned: list[str] | None = None
    try:
        if backups:
            plan = plan_by_ids(repository, find_ids(shared, repository, backups, newest=True))
        else:
            now_ns = time.time_ns()
            plan = plan_by_policy(repository, policy, Grouping(group_by), now_ns=now_ns, profile=shared.profile)
        for warning in plan.warnings:
            shared.output.note(warning)
        decisions = plan.decisions if dry_run else remove_decided(repository, plan.decisions)
        if prune:
            gone = frozenset(one.backup for one in decisions.removed)
            if not dry_run:
                removed, pruned = len(gone), sorted(gone)
            report = run_prune(repository, take, grace_seconds, dry_run=dry_run, without=gone)
    except JsBackupError as error:
        removed = error.facts.get("removed", removed)
        tell_failed_forget(shared.output, removed, pruned)
        raise error.with_facts(removed=removed) from error.__cause__
    return tell_forget(shared.output, plan, decisions, report, dry_run=dry_run, named=bool(backups))


def _typed_to_keep(ctx: click.Context) -> bool:
    names = [name for name in ctx.params if name.startswith("keep_") or name == "tags"]
    return any(ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in names)


@click.command(cls=Command)
@click.argument("backups", nargs=-1, required=True, metavar="BACKUP...", shell_complete=complete_backup)
@click.option("--reason", metavar="TEXT", help="Why they are held.")
@click.option("--release", is_flag=True, help="Release them, so that 'forget' may remove them again.")
def hold(shared: Shared, backups: tuple[str, ...], reason: str | None, release: bool) -> None:
    """Hold backups, so that no 'forget' removes them until they are released.

    A backup that is held already stays held as it is: another --reason changes nothing, and the output says so. A hold
    belongs to one repository: 'copy' brings none, and names what is held here and not there.
    """
    start_log(shared)
    if release and reason is not None:
        raise UsageError("--reason makes no sense with --release", hint="Leave it out.")
    repository = open_repository(shared)
    chosen = list(dict.fromkeys(find_ids(shared, repository, backups)))
    rows = [_release(repository, one) if release else _hold(repository, one, reason or "") for one in chosen]
    output = shared.output

    def text() -> None:
        for row in rows:
            output.line(_hold_text(row))
        stays = [str(row["backup"]) for row in rows if reason and not row["changed"] and row["reason"] != reason]
        if stays:
            output.line(
                State("note"),
                f": the reason of {in_short(stays)} stays as it is: release what is held, and hold it again to change "
                "it",
            )

    output.result({"backups": rows}, text)


def _hold(repository: Repository, backup: str, reason: str) -> JsonObject:
    from jsbackup.repository.keep.holds import Hold, find_hold, put_hold

    wanted = Hold(backup, format_time(time.time_ns()), TOOL, reason)
    changed = put_hold(repository, wanted)
    found = (wanted if changed else find_hold(repository, backup)) or wanted
    return {"backup": backup, "held": True, "changed": changed, "since": found.created, "reason": found.reason}


def _release(repository: Repository, backup: str) -> JsonObject:
    from jsbackup.repository.keep.holds import release_hold

    changed = release_hold(repository, backup)
    return {"backup": backup, "held": False, "changed": changed, "since": None, "reason": ""}


def _hold_text(row: JsonObject) -> str:
    if not row["held"]:
        return f"{row['backup']} is released" if row["changed"] else f"{row['backup']} was not held"
    since = f" since {row['since']}" if row["since"] else ""
    reason = f": {row['reason']}" if row["reason"] else ""
    return f"{row['backup']} is held{'' if row['changed'] else f' already{since}'}{reason}"


COMMANDS = {"forget": forget, "hold": hold}
