"""Print what `forget`, `prune` and `unlock` have removed, as JSON and as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jsbackup.cli.output.colour import State
from jsbackup.cli.output.output import Output, format_bytes, format_count, format_seconds
from jsbackup.errors import IncompleteError
from jsbackup.exit_codes import DAMAGE, damage, unreadable
from jsbackup.model import JsonObject
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.repository.keep.forget import ForgetPlan
    from jsbackup.repository.keep.prune import PruneReport
    from jsbackup.repository.keep.retention import Decisions
    from jsbackup.repository.keep.unlocking import LeaseOutcome

__all__ = ["print_prune", "prune_json", "tell_failed_forget", "tell_forget", "tell_leases"]

_MOST_NAMED = 10


# --- forget ---


def tell_forget(
    output: Output,
    plan: ForgetPlan,
    decisions: Decisions,
    report: PruneReport | None,
    *,
    dry_run: bool,
    named: bool,
) -> int:
    """Print which backups are kept, and which are removed, with the `report` of a prune; return the exit code.

    `named`: the backups were named, so their list would only repeat the command line.
    """
    from jsbackup.repository.keep.forget import LOCKED_REASON

    locked = [one.backup for one in decisions.kept if LOCKED_REASON in one.reasons]
    done = not (named and locked)
    code = (
        damage(plan.damaged) or unreadable(one.error for one in plan.unreadable) if done else IncompleteError.exit_code
    )
    document: JsonObject = {
        "dry_run": dry_run,
        "done": done,
        "kept": [{"backup": k.backup, "group": k.group, "reasons": list(k.reasons)} for k in decisions.kept],
        "removed": [{"backup": r.backup, "group": r.group, "reason": r.reason} for r in decisions.removed],
        "damaged": [*(one.error.message for one in plan.unreadable), *map(_about_damaged, plan.damaged)],
        "prune": None if report is None else {**prune_json(report), "dry_run": dry_run},
    }

    def text() -> None:
        if not named:
            _print_decisions(output, decisions, dry_run=dry_run)
        for backup in locked if named else ():
            output.line(f"backup {backup} was not removed: {LOCKED_REASON}")
        if plan.damaged:
            output.line(State("problem"), f": {_about_all_damaged(plan.damaged)}")
        gone, left = format_count(len(decisions.removed), "backup"), len(decisions.kept)
        output.line(f"would remove {gone}, and keep {left:,}" if dry_run else f"removed {gone}, kept {left:,}")
        if report is not None:
            print_prune(output, report, dry_run=dry_run)
        if code == DAMAGE:  # also what ends a command that removed nothing
            output.line(f"done; the exit code is {code} because of the damage that is named above")

    output.result(document, text)
    return code


def tell_failed_forget(output: Output, removed: int, pruned: Sequence[str] | None) -> None:
    """Print how much was `removed` before the error that is printed next. `pruned` are these backups if the prune
    failed.
    """
    gone = format_count(removed, "backup")
    if pruned is not None:
        output.note(f"removed {gone}, before the prune failed{': ' if pruned else ''}{', '.join(pruned)}")
    if not output.as_json:
        text = f"removed {gone}" if removed else "nothing was removed"
        output.result({}, lambda: output.line(text if pruned is None else f"{text}; the prune failed"))


def _about_damaged(backup: str) -> str:
    return f"backup {backup} is known to be damaged, and takes no other's place"


def _about_all_damaged(backups: Sequence[str]) -> str:
    shown = ", ".join(backups[:_MOST_NAMED]) + (", …" if len(backups) > _MOST_NAMED else "")
    said = "is known to be damaged, and takes" if len(backups) == 1 else "are known to be damaged, and take"
    return (
        f"{format_count(len(backups), 'backup')} {said} no other's place: {shown}; 'jsbackup verify' says what is "
        "lost, and 'jsbackup repair' brings it back from a copy"
    )


def _print_decisions(output: Output, decisions: Decisions, *, dry_run: bool) -> None:
    """Print one line for each backup, oldest first, in groups."""
    gone = "would remove" if dry_run else "removed"
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for kept in decisions.kept:
        groups.setdefault(kept.group, []).append((kept.backup, "keep", "; ".join(kept.reasons)))
    for removed in decisions.removed:
        groups.setdefault(removed.group, []).append((removed.backup, gone, removed.reason))
    for group, rows in sorted(groups.items()):
        output.line(group or "in no known group")
        output.table(["BACKUP", "", "WHY"], sorted(rows))
        output.line()


# --- prune ---


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
        marked, size = format_count(report.marked_objects, "more unused object"), format_bytes(report.marked_bytes)
        due = format_time(math.ceil(report.due_seconds) * 10**9)
        output.line(f"{marked} ({size}) wait for --grace; the first can be deleted after {due}")
    if report.kept_objects:
        kept, size = format_count(report.kept_objects, "more unused object"), format_bytes(report.kept_bytes)
        output.line(f"{kept} ({size}) are locked by the store")
    if report.leftovers:
        output.line(f"removed {format_count(report.leftovers, 'leftover')}, such as expired leases")


# --- unlock ---


def tell_leases(output: Output, outcomes: Sequence[LeaseOutcome], now_seconds: float) -> None:
    """Print leases, and which were removed; `now_seconds` is the store's time."""
    rows = [_lease_json(one, now_seconds) for one in outcomes]
    output.result({"leases": rows}, lambda: _print_leases(output, rows))


def _lease_json(one: LeaseOutcome, now: float) -> JsonObject:
    seen, text = one.seen, one.text
    return {
        "lease": seen.key.id,
        "mode": "exclusive" if seen.key.exclusive else "shared",
        "state": "live" if one.live else "expired",
        "renewed_seconds_ago": round(max(0.0, now - seen.modified_seconds)),
        "expires_in_seconds": round(max(0.0, seen.expires_seconds - now)),
        "purpose": text and text.purpose,
        "since": text and text.created,
        "tool": text and text.tool,
        "host": text and text.host,
        "process_gone": one.process_gone,
        "problem": one.locked or one.problem,
        "removed": one.removed,
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
        output.line(
            "note: the commands that held active leases were not stopped; backups among them will fail when they commit"
        )


def _end_text(row: JsonObject) -> str:
    end = "expired" if row["state"] == "expired" else f"in {format_seconds(row['expires_in_seconds'])}"
    gone = ", its process is gone" if row["process_gone"] and row["state"] == "live" else ""
    return f"{end}{gone}{', removed' if row['removed'] else ''}"
