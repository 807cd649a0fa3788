"""The state of backups at a glance, for `browse` and for the page of `status`: figures, and what is removed next.

Their parts that show it are in `templates/overview.html`. It needs no package that is not always installed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment

from jsbackup.config import format_bytes
from jsbackup.engine.check.health_rules import Breach, last_good_drill
from jsbackup.engine.check.status import RepositoryStatus
from jsbackup.html.page import environment
from jsbackup.readable import format_count, format_seconds, in_short, span
from jsbackup.repository.inventory import Inventory
from jsbackup.repository.keep.retention import Policy, apply_policy
from jsbackup.repository.manifest import BackupSummary
from jsbackup.repository.origin import origin_of
from jsbackup.times import format_time, parse_time

__all__ = ["NO_POLICY", "Tile", "key_figures", "next_removal", "overview_environment"]

_GAPS = 20


class Tile(NamedTuple):
    """A figure. `state` is `good`, `bad`, `warn`, or "" for none."""

    name: str
    value: str
    note: str = ""
    state: str = ""


NO_POLICY = Tile("Next expiry", "not known", "Start with --profile to see it: its table for 'forget' decides.")
"""What is removed next, without a policy."""


def overview_environment(*folders: Path, **shared: object) -> Environment:
    """Return what renders templates that use those of this package."""
    made = environment(*folders, Path(__file__).with_name("templates"), **shared)
    made.filters |= {"age": _age, "source": _source}
    return made


def _age(moment: str, now: int | str) -> str:
    """Return how long before `now`, in nanoseconds or RFC 3339, a moment in RFC 3339 was."""
    seconds = ((parse_time(now) if isinstance(now, str) else now) - parse_time(moment)) / 1e9
    return span(seconds) if seconds >= 0 else "in the future"


def _source(summary: BackupSummary) -> str:
    if summary.imported is not None:
        return "import"
    return origin_of(summary).short if summary.transformed is None else "changed copy"


def key_figures(status: RepositoryStatus, breaches: Sequence[Breach], expiry: Tile) -> list[Tile]:
    """Return age, recovery point, recovery time, size, and `expiry`, the tile of what is removed next."""
    rules = {breach.rule for breach in breaches}
    return [*_age_and_point(status, rules), _recovery_time(status, rules), _size(status), expiry]


def _age_and_point(status: RepositoryStatus, rules: Collection[str]) -> list[Tile]:
    """The point is the longest time without a complete backup lately: what could have been lost."""
    age, point = "Newest complete backup", "Recovery point (RPO)"
    newest = status.newest_complete
    if newest is None:
        none = Tile(age, "none", "Make one with 'jsbackup backup'.", "bad")
        return [none, Tile(point, "unknown", "There is no complete backup.", "bad")]
    bad = {"no-backup", "backup-age", "incomplete-backup", "empty-backup"} & set(rules)
    complete = next(line.complete for line in status.lines if newest in line.complete)
    moments = [*(parse_time(summary.created) for summary in complete[-_GAPS:]), status.now_ns]
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    note = f"longest gap of the last {len(gaps)}" if len(gaps) > 1 else "since the only backup"
    return [
        Tile(age, f"{_age(newest.created, status.now_ns)} old", newest.id, "warn" if bad else "good"),
        Tile(point, span(max(gaps) / 1e9), note),
    ]


def _recovery_time(status: RepositoryStatus, rules: Collection[str]) -> Tile:
    name, drill = "Recovery time (RTO)", last_good_drill(status)
    if drill is None:
        return Tile(name, "unknown", "No drill has succeeded: run 'jsbackup drill'.", "warn")
    note = f"as a drill took {_age(drill.ended, status.now_ns)} ago"
    return Tile(
        name, format_seconds(drill.seconds), note, "bad" if {"drill-age", "drill-failed"} & set(rules) else "good"
    )


def _size(status: RepositoryStatus) -> Tile:
    stored = status.stored.bytes
    raw = sum(backup.bytes for backup in status.backups)
    note = format_count(len(status.existing), "backup")
    if stored is None:
        return Tile("Stored", "not counted", f"{note}, in too many objects to list them")
    if 0 < stored < raw:
        note += f", {raw / stored:,.1f} times as much uncompressed"
    return Tile("Stored", format_bytes(stored), note)


def next_removal(
    inventory: Inventory,
    held: Collection[str],
    policy: Policy | None,
    *,
    now_ns: int,
    profile: str = "",
    damaged: Collection[str] = (),
) -> Tile:
    """Return the tile of what `forget` removes next by the policy, now or at the next backup."""
    name = NO_POLICY.name
    if policy is None or policy.is_empty:
        return NO_POLICY
    decide = partial(apply_policy, policy, held=held, profile=profile, damaged=damaged)
    due = decide(inventory, now_ns=now_ns).removed
    if due:
        said = f"'forget' would remove {format_count(len(due), 'backup')}, {due[0].backup} first"
        return Tile(name, "now", said, "warn")
    # An entry like the newest one, made now.
    following = [
        replace(entry, summary=replace(entry.summary, id="next", created=format_time(now_ns)))
        for entry in inventory.entries[-1:]
    ]
    later = decide(replace(inventory, entries=(*inventory.entries, *following)), now_ns=now_ns + 2).removed
    names = [removal.backup for removal in later if removal.backup != "next"]
    if names:
        return Tile(name, "at the next backup", in_short(names, most=1))
    return Tile(name, "not soon", "The next backup replaces none.")
