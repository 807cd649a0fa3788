"""Retention: which backups a policy keeps and which it removes, each with its reason. Pure; `forget.py` carries it out.

**Groups.** A policy is applied to each group of backups by itself, so that none pushes another one out that it cannot
replace. Of one group are backups of the same source (`origin.py`) that were asked for in the same words (streams,
excluded ones, with consumers or without). What streams were found is of no account: they come and go. An import is
grouped by the kind of its folder and the streams in it, a transformed backup by how it was transformed too. The backups
that `follow` makes, one every few seconds, are in groups of their own, and push no nightly one out. Whoever changes the
words begins a new group, and the old one grows no more: what is left of it is removed by its ids, or with a coarser
`Grouping`. Backups without messages (`--config-only`) are never in a group with others.

**Profiles.** The policy of a profile that makes backups is for these: what other profiles made stays, and so does what
nobody's profile made of sources that it does not back up. One that makes none is for all.

**Rules.** `last` N keeps the newest N. `hourly` to `yearly` N keep the newest backup of each of the N newest periods in
which there are any; `within` keeps all that began so long before the group's newest complete backup, or later; a tag
keeps all that have it. What one rule keeps is kept. Periods are those of UTC, weeks are ISO weeks (from Monday on).
Time that passes removes nothing: where no backups are made any more, none disappears either.

**Partial backups** lack something, so they never stand in for a complete one; nor does one without any stream, if there
were some before (`worth.py`): the server may have lost them. Of a period that has a complete backup the newest complete
one is kept. One that has only partial ones does not count among the N: its newest is kept besides, up to N such
periods, as long as it is newer than the oldest that is counted. So the complete backups that are kept are the same
whether there are partial ones or not.

**Whatever the policy says**, these are kept: a held backup (`holds.py`); the newest complete one of its group, and the
newest one if that is partial. Kept and not counted, because it is not known what they are: one whose manifest cannot be
read, and one that began later than `now_ns`, because some clock was wrong. It waits until its time has come.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from jsbackup.errors import UsageError
from jsbackup.repository.inventory import Inventory
from jsbackup.repository.keep.groups import Grouping, group_of, hollow_backups
from jsbackup.repository.manifest import Result
from jsbackup.repository.origin import origin_of
from jsbackup.repository.summary import BackupSummary
from jsbackup.times import parse_time

__all__ = [
    "Decisions",
    "KeptBackup",
    "Policy",
    "RemovedBackup",
    "TagRule",
    "apply_policy",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class TagRule:
    """A tag of this key, and of this value unless that is None."""

    key: str
    value: str | None = None

    def matches(self, backup: BackupSummary) -> bool:
        return self.key in backup.tags and self.value in (None, backup.tags[self.key])

    def __str__(self) -> str:
        return self.key if self.value is None else f"{self.key}={self.value}"


@dataclass(frozen=True, slots=True)
class Policy:
    """How much to keep. 0 keeps nothing by that rule."""

    last: int = 0
    hourly: int = 0
    daily: int = 0
    weekly: int = 0
    monthly: int = 0
    yearly: int = 0
    within_seconds: float = 0
    tags: tuple[TagRule, ...] = ()

    @property
    def is_empty(self) -> bool:
        return self == Policy()

    def check(self) -> None:
        """Raises UsageError if it is empty: that means to remove nearly everything, and is never meant."""
        if self.is_empty:
            raise UsageError(
                "no --keep option was given, so this would remove everything",
                hint="Give what to keep, such as --keep-daily 7, or name the backups to remove.",
            )


@dataclass(frozen=True, slots=True)
class KeptBackup:
    """`group` is empty where that is not known."""

    backup: str
    group: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RemovedBackup:
    backup: str
    group: str
    reason: str


@dataclass(frozen=True, slots=True)
class Decisions:
    """Every backup is in one of both. Oldest first."""

    kept: tuple[KeptBackup, ...] = ()
    removed: tuple[RemovedBackup, ...] = ()


def apply_policy(
    policy: Policy,
    inventory: Inventory,
    held: Collection[str],
    *,
    now_ns: int,
    grouping: Grouping = Grouping.SELECTION,
    profile: str = "",
) -> Decisions:
    """Decide on all backups. `held` are ids, `now_ns` is Unix time, `profile` is the one whose policy it is, or "".

    Raises UsageError for a policy without rules.
    """
    policy.check()
    kept: list[KeptBackup] = []
    removed: list[RemovedBackup] = []
    for one in inventory.unreadable:
        kept.append(KeptBackup(one.id, "", (f"cannot be read: {one.error.message}", *_held(one.id, held))))
    groups: dict[tuple[str, ...], list[_Backup]] = {}
    hollow = hollow_backups(inventory.summaries)
    others = _of_others(inventory.summaries, profile)
    for summary in inventory.summaries:
        backup = _Backup(summary, parse_time(summary.created), summary.id in hollow)
        if backup.created_ns > now_ns:
            reason = f"its date, {summary.created}, is in the future"
            group = ", ".join(group_of(summary, grouping))
            kept.append(KeptBackup(summary.id, group, (reason, *_held(summary.id, held))))
        elif summary.id in others:
            group = ", ".join(group_of(summary, grouping))
            kept.append(KeptBackup(summary.id, group, (others[summary.id], *_held(summary.id, held))))
        else:
            groups.setdefault(group_of(summary, grouping), []).append(backup)
    for words, backups in groups.items():
        group = ", ".join(words)
        for backup, found in _decide(policy, backups):
            reasons = (*found.kept, *_held(backup.id, held))
            if reasons:
                kept.append(KeptBackup(backup.id, group, reasons))
            else:
                removed.append(RemovedBackup(backup.id, group, "; ".join(found.missed)))
    return Decisions(
        tuple(sorted(kept, key=lambda one: one.backup)), tuple(sorted(removed, key=lambda one: one.backup))
    )


def _of_others(backups: Sequence[BackupSummary], profile: str) -> dict[str, str]:
    """The backups that the policy of this profile is not for, and why."""
    own = [one for one in backups if profile and one.profile == profile]
    if not own:
        return {}
    sources = {origin_of(one) for one in own}
    found = {}
    for one in backups:
        if one.profile and one.profile != profile:
            found[one.id] = f"made for profile {one.profile}"
        elif not one.profile and origin_of(one) not in sources:
            found[one.id] = f"of a source that profile {profile} does not back up"
    return found


@dataclass(frozen=True, slots=True)
class _Backup:
    """`hollow`: it finds nothing of what there was before (`worth.py`), and stands in for none of these."""

    summary: BackupSummary
    created_ns: int
    hollow: bool = False

    @property
    def id(self) -> str:
        return self.summary.id

    @property
    def complete(self) -> bool:
        return self.summary.result is Result.COMPLETE and not self.hollow


@dataclass(frozen=True, slots=True)
class _Found:
    """What the rules say of one backup: for it, and why the others do not."""

    kept: list[str]
    missed: list[str]


def _held(backup: str, held: Collection[str]) -> tuple[str, ...]:
    return ("held",) if backup in held else ()


def _decide(policy: Policy, group: Sequence[_Backup]) -> list[tuple[_Backup, _Found]]:
    """What the rules say of each backup of a group."""
    newest_first = sorted(group, key=lambda backup: backup.id, reverse=True)
    complete = next((backup for backup in newest_first if backup.complete), None)
    verdicts = {backup.id: _Found([], []) for backup in newest_first}
    if complete is not None:
        verdicts[complete.id].kept.append("newest complete backup")
    if complete is not newest_first[0]:
        what = "which found no stream" if newest_first[0].hollow else "partial"
        verdicts[newest_first[0].id].kept.append(f"newest backup, {what}")
    for name, count, period_of in _rules(policy):
        if count:
            _apply_count(name, count, period_of, newest_first, verdicts=verdicts)
    if policy.within_seconds:
        _apply_within(policy.within_seconds, complete or newest_first[0], newest_first, verdicts)
    for tag in policy.tags:
        for backup in newest_first:
            if tag.matches(backup.summary):
                verdicts[backup.id].kept.append(f"tag {tag}")
            else:
                verdicts[backup.id].missed.append(f"no tag {tag}")
    return [(backup, verdicts[backup.id]) for backup in newest_first]


_PeriodOf = Callable[[_Backup], str]


def _rules(policy: Policy) -> Iterable[tuple[str, int, _PeriodOf]]:
    """The name of each counting rule, its count, and what tells one period from another."""
    yield "last", policy.last, lambda backup: backup.id
    yield "hourly", policy.hourly, lambda backup: f"{_moment(backup):%Y-%m-%dT%H}"
    yield "daily", policy.daily, lambda backup: f"{_moment(backup):%Y-%m-%d}"
    yield "weekly", policy.weekly, lambda backup: f"{_moment(backup):%G-W%V}"
    yield "monthly", policy.monthly, lambda backup: f"{_moment(backup):%Y-%m}"
    yield "yearly", policy.yearly, lambda backup: f"{_moment(backup):%Y}"


def _moment(backup: _Backup) -> datetime:
    return _EPOCH + timedelta(seconds=backup.created_ns // 1_000_000_000)


def _apply_count(
    name: str, count: int, period_of: _PeriodOf, newest_first: Sequence[_Backup], *, verdicts: dict[str, _Found]
) -> None:
    periods: dict[str, list[_Backup]] = {}
    for backup in newest_first:
        periods.setdefault(period_of(backup), []).append(backup)
    complete = partial = 0
    for period, backups in periods.items():
        keeper = next((backup for backup in backups if backup.complete), backups[0])
        label = name if name == "last" else f"{name} {period}"
        if complete == count or (not keeper.complete and partial == count):
            for backup in backups:
                verdicts[backup.id].missed.append(f"{name}: {count} newer kept")
            continue
        complete, partial = complete + keeper.complete, partial + (not keeper.complete)
        number = f"{complete} of {count}" if keeper.complete else "partial, not counted"
        verdicts[keeper.id].kept.append(f"{label} ({number})")
        for backup in backups:
            if backup is not keeper:
                verdicts[backup.id].missed.append(f"{label}: {keeper.id} kept")


def _apply_within(
    seconds: float, newest: _Backup, newest_first: Sequence[_Backup], verdicts: dict[str, _Found]
) -> None:
    oldest_ns = newest.created_ns - round(seconds * 1_000_000_000)
    span = f"{_span(seconds)} before {newest.id}"
    for backup in newest_first:
        if backup.created_ns >= oldest_ns:
            verdicts[backup.id].kept.append(f"within {span}")
        else:
            verdicts[backup.id].missed.append(f"within: older than {span}")


def _span(seconds: float) -> str:
    """A duration in the largest unit that goes into it."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds % length == 0:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"
