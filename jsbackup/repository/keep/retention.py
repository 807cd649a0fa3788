"""Retention: which backups a policy keeps and which it removes, with reasons. Pure; `forget.py` deletes.

**Groups.** A policy is applied to each group of backups separately, so that a backup is only removed in favour of one
    that can replace it. A group has the backups of one source (`origin.py`) with the same selection (streams, excluded
    ones, with or without consumers). The streams that were found do not matter: they come and go. An import is grouped
    by the kind of its folder and its streams, a changed copy also by its options. The backups that
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
    were some before: the server may have lost them. In a period with a complete backup the newest
    complete one is kept. A period with only partial ones does not count among the N: its newest is kept in addition,
    for up to N such periods, if it is newer than the oldest that is counted. So partial backups do not change which
    complete ones are kept.

**Damaged backups** need an object that is known to be missing or damaged (`damage.py`). They take no other's place, not
    even that of another damaged one, which may lack something else: the rules are applied as if they did not exist. A
    damaged backup may be repaired, so it is kept as long as it would be if it were sound, and the only one that was
    damaged. Only newer sound backups push it out, and in a group without a sound one all stay.

**Whatever the policy says**, these are kept: held backups (`holds.py`), the newest complete one of each group, and the
    newest one if it is partial. Also kept, and not counted: a backup whose manifest cannot be read, and one that began
    after `now_ns` because some clock was wrong, until that time has come.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from jsbackup.errors import UsageError
from jsbackup.repository.inventory import Inventory
from jsbackup.repository.manifest import BackupResult, BackupSummary
from jsbackup.repository.origin import origin_of
from jsbackup.repository.read.sources import Grouping, can_replace, group_of, hollow_backups
from jsbackup.times import parse_time

__all__ = ["Decisions", "KeptBackup", "Policy", "RemovedBackup", "TagRule", "apply_policy"]


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
    for decision in inventory.unreadable:
        reasons = (f"cannot be read: {decision.error.message}", *_held(decision.id, held))
        kept.append(KeptBackup(decision.id, "", reasons, of_others=decision.id in others))
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
        decided = _decide_all(policy, backups, damaged)
        if grouping is not Grouping.SELECTION:
            _keep_what_no_other_has(decided, damaged)
        for backup, verdict in decided:
            reasons = (*verdict.kept, *_held(backup.id, held))
            if reasons:
                kept.append(KeptBackup(backup.id, group, reasons, verdict.displaces))
            else:
                removed.append(RemovedBackup(backup.id, group, "; ".join(verdict.missed)))
    return Decisions(
        tuple(sorted(kept, key=lambda decision: decision.backup)),
        tuple(sorted(removed, key=lambda decision: decision.backup)),
    )


def _of_others(inventory: Inventory, profile: str) -> dict[str, str]:
    """Return the backups that the policy of this profile does not apply to, each with the reason.

    Of a backup that cannot be read, the catalog may still say that.
    """
    listed = (*inventory.summaries, *(other.summary for other in inventory.unreadable if other.summary is not None))
    if not profile or not any(other.profile for other in listed):
        return {}
    sources = {origin_of(summary) for summary in inventory.summaries if summary.profile == profile}
    others = {}
    for other in listed:
        if other.profile and other.profile != profile:
            others[other.id] = f"made for profile {other.profile}"
        elif not other.profile and origin_of(other) not in sources:
            others[other.id] = f"of a source that profile {profile} does not back up"
    return others


@dataclass(frozen=True, slots=True)
class _Backup:
    """`hollow`: it has none of the streams that there were before, so it replaces no other backup."""

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
        return self.summary.result is BackupResult.COMPLETE and not self.hollow


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

    def damage(self) -> None:
        """Say that it is damaged: it takes no other's place, and is kept as long as if it were sound."""
        self.missed.insert(0, DAMAGED_REASON)
        self.kept = [f"{DAMAGED_REASON}; if it is repaired: {'; '.join(self.kept)}"] if self.kept else []
        self.displaces = False


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
    for narrow, (backup, verdict) in newest.items():
        if verdict.kept:
            continue
        for other, its in sound:
            if its.kept and other.complete and other.id > backup.id and can_replace(other.summary, backup.summary):
                its.displaces = True
                break
        else:
            verdict.keep(f"no newer backup that stays covers {', '.join(narrow)}")


def _decide_all(policy: Policy, group: Sequence[_Backup], damaged: Collection[str]) -> list[tuple[_Backup, _Found]]:
    """Apply the rules to the sound backups of a group, and to each damaged one as if it alone were among them."""
    newest_first = sorted(group, key=lambda backup: backup.id, reverse=True)
    sound = [backup for backup in newest_first if backup.id not in damaged]
    newest_sound = next(iter(sound), None)
    newest_complete = next((backup for backup in sound if backup.complete), None)
    decided = [(backup, _Found([], [])) for backup in newest_first]
    for backup, verdict in decided:
        if backup.complete and _newer(newest_complete, backup) is backup:
            verdict.keep("newest complete backup")
        elif _newer(newest_sound, backup) is backup:
            verdict.keep(f"newest backup, {'which found no stream' if backup.hollow else 'partial'}")
    for name, count, period_of in _rules(policy):
        if count:
            _apply_count(name, count, period_of, decided, damaged=damaged)
    for backup, verdict in decided:
        if policy.within_seconds:
            complete = _newer(newest_complete, backup) if backup.complete else newest_complete
            _apply_within(policy.within_seconds, complete or _newer(newest_sound, backup), backup, verdict)
        for tag in policy.tags:
            if tag.matches(backup.summary):
                verdict.kept.append(f"tag {tag}")
            else:
                verdict.missed.append(f"no tag {tag}")
        if backup.id in damaged:
            verdict.damage()
    return decided


def _newer(backup: _Backup | None, other: _Backup) -> _Backup:
    return other if backup is None or backup.id < other.id else backup


_PeriodOf = Callable[[_Backup], str]


def _rules(policy: Policy) -> Iterable[tuple[str, int, _PeriodOf]]:
    """Yield the name of each counting rule, its count, and the function that names a backup's period."""
    yield "last", policy.last, lambda backup: backup.id
    yield "hourly", policy.hourly, lambda backup: _period(backup.second, "%Y-%m-%dT%H")
    yield "daily", policy.daily, lambda backup: _period(backup.second, "%Y-%m-%d")
    yield "weekly", policy.weekly, lambda backup: _period(backup.second, "%G-W%V")
    yield "monthly", policy.monthly, lambda backup: _period(backup.second, "%Y-%m")
    yield "yearly", policy.yearly, lambda backup: _period(backup.second, "%Y")


def _period(second: int, form: str) -> str:
    return f"{_EPOCH + timedelta(seconds=second):{form}}"


def _apply_count(
    name: str, count: int, period_of: _PeriodOf, decided: Sequence[tuple[_Backup, _Found]], *, damaged: Collection[str]
) -> None:
    """Apply a rule that keeps one backup of each of `count` periods to backups, newest first."""
    periods: dict[str, list[tuple[_Backup, _Found]]] = {}
    for pair in decided:
        periods.setdefault(period_of(pair[0]), []).append(pair)
    complete = partial = 0  # how many complete and partial ones count that are newer than a period
    for period, members in periods.items():
        keeper: _Backup | None = None
        for backup, _ in members:
            keeper = keeper if backup.id in damaged else _keeper(keeper, backup)
        label = name if name == "last" else f"{name} {period}"
        for backup, verdict in members:
            kept = _keeper(keeper, backup)
            if complete == count or (partial == count and not kept.complete):
                verdict.missed.append(f"{name}: {count} newer kept")
            elif kept is not backup:
                verdict.missed.append(f"{label}: {kept.id} kept")
            else:
                verdict.keep(f"{label} ({f'{complete + 1} of {count}' if kept.complete else 'partial, not counted'})")
        if keeper is not None and complete < count:
            complete += keeper.complete
            partial += not keeper.complete and partial < count


def _keeper(backup: _Backup | None, other: _Backup) -> _Backup:
    """Return which of two backups of a period is kept."""
    if backup is None or backup.complete == other.complete:
        return _newer(backup, other)
    return backup if backup.complete else other


def _apply_within(seconds: float, newest: _Backup, backup: _Backup, verdict: _Found) -> None:
    oldest_ns = newest.created_ns - round(seconds * 1_000_000_000)
    span = f"{_span(seconds)} before {newest.id}"
    if backup.created_ns >= oldest_ns:
        verdict.kept.append(f"within {span}")
    else:
        verdict.missed.append(f"within: older than {span}")


def _span(seconds: float) -> str:
    """Format a duration in the largest unit that divides it."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds % length == 0:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"
