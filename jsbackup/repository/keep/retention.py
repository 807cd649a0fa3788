"""Retention: which backups a policy keeps and which it removes, with reasons. Pure; `forget.py` deletes.

**Groups.** A policy is applied to each group of backups separately, so that a backup is only removed in favour of one
    that can replace it. A group has the backups of one source (`origin.py`) with the same selection (streams, excluded
    ones, with or without consumers). The streams that were found do not matter: they come and go. An import is grouped
    by the kind of its folder and its streams, a transformed backup also by its transformation. The backups that
    `follow` makes every few seconds are in groups of their own, so they never replace a nightly one. A changed
    selection begins a new group; remove the rest of the old one by ids, or with a coarser `Grouping`. Backups without
    messages (`--config-only`) are never in a group with others. In a coarser group, too, the newest complete backup of
    a source and selection is kept, until one is kept that has all that this one was to have (`can_replace`).

**Profiles.** The policy of a profile that makes backups applies to these. Backups of other profiles stay, and so do
    backups without a profile of sources that it does not back up. The policy of a profile without backups applies to
    all if there are none of other profiles, and otherwise to none: it may be new, or renamed.

**Rules.** `last` N keeps the newest N. `hourly` to `yearly` N keep the newest backup of each of the N newest periods
    that have any; `within` keeps all that began within this duration before the group's newest complete backup, or
    later; a tag keeps all that have it. A backup that any rule keeps is kept. Periods are in UTC, weeks are ISO weeks
    (from Monday). Passing time removes nothing: if no new backups are made, none is removed.

**Partial backups** lack something, so they never replace a complete one; nor does a backup without any stream, if there
    were some before (`worth.py`): the server may have lost them. In a period with a complete backup the newest complete
    one is kept. A period with only partial ones does not count among the N: its newest is kept in addition, for up to N
    such periods, if it is newer than the oldest that is counted. So partial backups do not change which complete ones
    are kept.

**Damaged backups** need an object that is known to be missing or damaged (`damage.py`). They take no other's place, not
    even that of another damaged one, which may lack something else: the rules are applied as if they did not exist. A
    damaged backup may be repaired, so it is kept as long as it would be if it were sound, and the only one that was
    damaged. Only newer sound backups push it out, and in a group without a sound one all stay.

**Whatever the policy says**, these are kept: held backups (`holds.py`), the newest complete one of each group, and the
    newest one if it is partial. Also kept, and not counted: a backup whose manifest cannot be read, and one that began
    after `now_ns` because some clock was wrong, until that time has come.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from jsbackup.errors import UsageError
from jsbackup.repository.inventory import Inventory
from jsbackup.repository.keep.groups import Grouping, can_replace, group_of, hollow_backups
from jsbackup.repository.manifest import Result
from jsbackup.repository.origin import origin_of
from jsbackup.repository.summary import BackupSummary
from jsbackup.times import parse_time

__all__ = [
    "DAMAGED_REASON",
    "Decisions",
    "KeptBackup",
    "Policy",
    "RemovedBackup",
    "TagRule",
    "apply_policy",
]

DAMAGED_REASON = "damaged, takes no other's place"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class TagRule:
    """A tag with this key, and with this value unless that is None."""

    key: str
    value: str | None = None

    def matches(self, backup: BackupSummary) -> bool:
        return self.key in backup.tags and self.value in (None, backup.tags[self.key])

    def __str__(self) -> str:
        return self.key if self.value is None else f"{self.key}={self.value}"


@dataclass(frozen=True, slots=True)
class Policy:
    """How much to keep. 0 turns a rule off."""

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
        """Raise UsageError if it is empty: that would remove nearly everything, and is never intended."""
        if self.is_empty:
            raise UsageError(
                "no --keep option was given, so this would remove everything",
                hint="Give what to keep, such as --keep-daily 7, or name the backups to remove.",
            )


@dataclass(frozen=True, slots=True)
class KeptBackup:
    """`group` is empty if it is not known. `displaces`: it may be the reason why others of its group are removed.
    `of_others`: the policy does not apply to it.
    """

    backup: str
    group: str
    reasons: tuple[str, ...]
    displaces: bool = False
    of_others: bool = False


@dataclass(frozen=True, slots=True)
class RemovedBackup:
    backup: str
    group: str
    reason: str


@dataclass(frozen=True, slots=True)
class Decisions:
    """Every backup is in one of the two. Oldest first."""

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
    damaged: Collection[str] = (),
) -> Decisions:
    """Decide on all backups. `held` and `damaged` are ids, `now_ns` is Unix time, `profile` is that of the policy, or
    "".

    Raises UsageError for a policy without rules.
    """
    policy.check()
    kept: list[KeptBackup] = []
    removed: list[RemovedBackup] = []
    others = _of_others(inventory, profile)
    for one in inventory.unreadable:
        reasons = (f"cannot be read: {one.error.message}", *_held(one.id, held))
        kept.append(KeptBackup(one.id, "", reasons, of_others=one.id in others))
    groups: dict[tuple[str, ...], list[_Backup]] = {}
    hollow = hollow_backups(inventory.summaries)
    for summary in inventory.summaries:
        backup = _Backup(summary, parse_time(summary.created), summary.id in hollow)
        if backup.created_ns > now_ns:
            reason = f"its date, {summary.created}, is in the future"
            group = ", ".join(group_of(summary, grouping))
            reasons = (reason, *_held(summary.id, held))
            kept.append(KeptBackup(summary.id, group, reasons, of_others=summary.id in others))
        elif summary.id in others:
            group = ", ".join(group_of(summary, grouping))
            reasons = (others[summary.id], *_held(summary.id, held))
            kept.append(KeptBackup(summary.id, group, reasons, of_others=True))
        else:
            groups.setdefault(group_of(summary, grouping), []).append(backup)
    for words, backups in groups.items():
        group = ", ".join(words)
        decided = list(_decide_all(policy, backups, damaged))
        if grouping is not Grouping.SELECTION:
            _keep_what_no_other_has(decided, damaged)
        for backup, found in decided:
            reasons = (*found.kept, *_held(backup.id, held))
            if reasons:
                kept.append(KeptBackup(backup.id, group, reasons, found.displaces))
            else:
                removed.append(RemovedBackup(backup.id, group, "; ".join(found.missed)))
    return Decisions(
        tuple(sorted(kept, key=lambda one: one.backup)), tuple(sorted(removed, key=lambda one: one.backup))
    )


def _of_others(inventory: Inventory, profile: str) -> dict[str, str]:
    """Return the backups that the policy of this profile does not apply to, each with the reason.

    Of a backup that cannot be read, the catalog may still say that.
    """
    listed = (*inventory.summaries, *(one.summary for one in inventory.unreadable if one.summary is not None))
    if not profile or not any(one.profile for one in listed):
        return {}
    sources = {origin_of(one) for one in inventory.summaries if one.profile == profile}
    found = {}
    for one in listed:
        if one.profile and one.profile != profile:
            found[one.id] = f"made for profile {one.profile}"
        elif not one.profile and origin_of(one) not in sources:
            found[one.id] = f"of a source that profile {profile} does not back up"
    return found


@dataclass(frozen=True, slots=True)
class _Backup:
    """`hollow`: it has none of the streams that there were before (`worth.py`), so it replaces no other backup."""

    summary: BackupSummary
    created_ns: int
    hollow: bool = False

    @property
    def id(self) -> str:
        return self.summary.id

    @property
    def second(self) -> int:
        return self.created_ns // 1_000_000_000

    @property
    def complete(self) -> bool:
        return self.summary.result is Result.COMPLETE and not self.hollow


@dataclass(slots=True)
class _Found:
    """What the rules say about one backup: the reasons to keep it, and why the other rules do not.

    `displaces`: it is kept where another would be kept without it. `within` and tags keep each for itself.
    """

    kept: list[str]
    missed: list[str]
    displaces: bool = False

    def keep(self, reason: str) -> None:
        """Keep it in the place of others."""
        self.kept.append(reason)
        self.displaces = True


def _held(backup: str, held: Collection[str]) -> tuple[str, ...]:
    return ("held",) if backup in held else ()


def _keep_what_no_other_has(decided: Sequence[tuple[_Backup, _Found]], damaged: Collection[str]) -> None:
    """Keep the newest backup of each selection, a complete one if there is any, unless a newer one that is kept can
    replace it. That one then counts as displacing others.
    """
    sound = [pair for pair in decided if not pair[0].hollow and pair[0].id not in damaged]
    sound.sort(key=lambda pair: (pair[0].complete, pair[0].id), reverse=True)
    newest: dict[tuple[str, ...], tuple[_Backup, _Found]] = {}
    for pair in sound:
        newest.setdefault(group_of(pair[0].summary, Grouping.SELECTION), pair)
    for narrow, (one, found) in newest.items():
        if found.kept:
            continue
        for other, its in sound:
            if its.kept and other.complete and other.id > one.id and can_replace(other.summary, one.summary):
                its.displaces = True
                break
        else:
            found.keep(f"no newer one that is kept was to have its streams: {', '.join(narrow)}")


def _decide_all(policy: Policy, group: Sequence[_Backup], damaged: Collection[str]) -> Iterator[tuple[_Backup, _Found]]:
    """Apply the rules to the sound backups of a group, and to each damaged one as if it alone were among them."""
    sound = [backup for backup in group if backup.id not in damaged]
    yield from _decide(policy, sound)
    for backup in group:
        if backup.id in damaged:
            found = next(found for one, found in _decide(policy, [*sound, backup]) if one is backup)
            kept = [f"{DAMAGED_REASON}; if it is repaired: {'; '.join(found.kept)}"] if found.kept else []
            yield backup, _Found(kept, [DAMAGED_REASON, *found.missed])


def _decide(policy: Policy, group: Sequence[_Backup]) -> list[tuple[_Backup, _Found]]:
    """Apply the rules to each backup of a group."""
    if not group:
        return []
    newest_first = sorted(group, key=lambda backup: backup.id, reverse=True)
    complete = next((backup for backup in newest_first if backup.complete), None)
    verdicts = {backup.id: _Found([], []) for backup in newest_first}
    if complete is not None:
        verdicts[complete.id].keep("newest complete backup")
    if complete is not newest_first[0]:
        what = "which found no stream" if newest_first[0].hollow else "partial"
        verdicts[newest_first[0].id].keep(f"newest backup, {what}")
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
    """Yield the name of each counting rule, its count, and the function that names a backup's period."""
    yield "last", policy.last, lambda backup: backup.id
    yield "hourly", policy.hourly, lambda backup: _period(backup.second, "%Y-%m-%dT%H")
    yield "daily", policy.daily, lambda backup: _period(backup.second, "%Y-%m-%d")
    yield "weekly", policy.weekly, lambda backup: _period(backup.second, "%G-W%V")
    yield "monthly", policy.monthly, lambda backup: _period(backup.second, "%Y-%m")
    yield "yearly", policy.yearly, lambda backup: _period(backup.second, "%Y")


@lru_cache(maxsize=100_000)  # the rules are applied once more for each damaged backup
def _period(second: int, form: str) -> str:
    return f"{_EPOCH + timedelta(seconds=second):{form}}"


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
        verdicts[keeper.id].keep(f"{label} ({number})")
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
    """Format a duration in the largest unit that divides it."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds % length == 0:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"
