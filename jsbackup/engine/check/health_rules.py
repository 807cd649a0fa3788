"""Rules for the health of backups: each breach has its rule, the reason and what to do. Pure.

Some rules always apply (there is a complete backup, the last verify and the last drill succeeded, ...), others only if
a limit is given. Monitoring relies on the names of rules: their meaning never changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from jsbackup.config import Glob
from jsbackup.engine.check.status import BackupSeries, RepositoryStatus
from jsbackup.readable import format_count, in_short, span
from jsbackup.repository.checks.ledger import DrillOutcome, VerifyOutcome
from jsbackup.repository.checks.manifest_chain import how_to_repair
from jsbackup.repository.checks.verify import Level
from jsbackup.repository.manifest import BackupResult, BackupSummary
from jsbackup.repository.origin import Origin
from jsbackup.times import parse_time

__all__ = [
    "Breach",
    "BreachRule",
    "Limits",
    "LiveStreams",
    "breach_of_streams",
    "find_breaches",
    "last_good_drill",
    "last_good_verify",
    "not_backed_up",
]

_LEVELS = (Level.MANIFEST, Level.OBJECTS, Level.DATA)
_MOST_NAMED = 10
_LEAST_FREE_BYTES = 128 << 20  # as in `doctor`


class BreachRule(StrEnum):
    NO_BACKUP = "no-backup"
    BACKUP_AGE = "backup-age"
    INCOMPLETE = "incomplete-backup"
    EMPTY = "empty-backup"
    UNREADABLE = "unreadable-backup"
    DAMAGED = "damaged-objects"
    KEYS = "keys"
    CLOCK = "clock"
    SPACE = "little-space"
    VERIFY_AGE = "verify-age"
    VERIFY_FAILED = "verify-failed"
    DRILL_AGE = "drill-age"
    DRILL_FAILED = "drill-failed"
    FEW_BACKUPS = "few-backups"
    SHORT_HISTORY = "short-history"
    NOT_BACKED_UP = "streams-not-backed-up"
    ACCOUNT_NOT_BACKED_UP = "account-not-backed-up"
    SERVERS = "servers-not-answering"
    UNUSED = "unused-objects"


@dataclass(frozen=True, slots=True)
class Breach:
    """`about` is the series of backups, the backup, a key file, or "" for everything; `hint` is a full sentence."""

    rule: BreachRule
    about: str
    reason: str
    hint: str


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits to check; None: no limit. Verifies count from `verify_level` on."""

    max_age_seconds: float | None = None
    max_verify_age_seconds: float | None = None
    verify_level: Level = Level.MANIFEST
    max_drill_age_seconds: float | None = None
    min_backups: int | None = None
    min_history_seconds: float | None = None
    max_unused_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class LiveStreams:
    """The streams of a server. `exclude` need not be backed up."""

    origin: Origin
    names: tuple[str, ...]
    exclude: tuple[Glob, ...] = ()


def find_breaches(status: RepositoryStatus, limits: Limits, live: LiveStreams | None = None) -> list[Breach]:
    """Return all breaches, the gravest rules first."""
    return [
        *_of_backups(status, limits),
        *([] if live is None else breach_of_streams(status, live)),
        *_of_verifies(status, limits),
        *_of_drills(status, limits),
        *_of_retention(status, limits),
    ]


# --- backups ---


def _of_backups(status: RepositoryStatus, limits: Limits) -> Iterator[Breach]:
    for unreadable in status.unreadable:
        yield Breach(
            BreachRule.UNREADABLE,
            unreadable.id,
            f"backup {unreadable.id} cannot be read: {unreadable.error.message}",
            f"Run 'jsbackup verify'. {how_to_repair(unreadable.id)}",
        )
    for gap in status.removed:
        yield Breach(
            BreachRule.UNREADABLE,
            gap.backup,
            f"backup {gap.backup}: {gap.problem}",
            how_to_repair(gap.backup),
        )
    for lossy, count in sorted(status.lost.items()):
        yield Breach(
            BreachRule.DAMAGED,
            lossy,
            f"backup {lossy}: {_objects(count)} missing, or not of the size that was stored",
            "Run 'jsbackup verify', and 'jsbackup repair'.",
        )
    if damaged := sorted(status.damaged - status.lost.keys()):
        known = "is known to be damaged" if len(damaged) == 1 else "are known to be damaged"
        yield Breach(
            BreachRule.DAMAGED,
            "",
            f"{format_count(len(damaged), 'backup')} {known}: {_some(damaged)}",
            "Run 'jsbackup repair'. If you have put them right otherwise, the next 'jsbackup verify' records it; with "
            "--sample, too.",
        )
    for broken in status.keys:
        yield Breach(
            BreachRule.KEYS,
            broken.key,
            broken.problem,
            "'jsbackup repair --from COPY' brings back what is missing or damaged, as does a copy of the folder keys/.",
        )
    for backup in status.ahead:
        yield Breach(
            BreachRule.CLOCK,
            backup.id,
            f"backup {backup.id} was made at {backup.created[:19]}Z, which is in the future",
            "Set the clock of this host, or of the one that makes backups.",
        )
    if not status.lines:
        problem = "there is no backup"
        if status.others:
            problem = (
                f"no backup counts here; {status.others} {'other does' if status.others == 1 else 'others do'} not"
            )
        yield Breach(
            BreachRule.NO_BACKUP,
            "",
            problem,
            "Run 'jsbackup backup', and check the job that should have run it.",
        )
    for line in status.lines:
        if line.covered:
            continue
        yield from _of_line(line, status, limits)


def _of_line(line: BackupSeries, status: RepositoryStatus, limits: Limits) -> Iterator[Breach]:
    newest = line.newest_complete
    if newest is None:
        yield Breach(
            BreachRule.NO_BACKUP,
            line.words,
            f"there is no complete backup ({line.title})",
            f"See 'jsbackup show {line.newest.id}' for what is missing in the newest one.",
        )
    elif limits.max_age_seconds is not None and (age := _age(newest.created, status)) > limits.max_age_seconds:
        yield Breach(
            BreachRule.BACKUP_AGE,
            line.words,
            f"the newest complete backup is {span(age)} old; at most {span(limits.max_age_seconds)} is allowed "
            f"({line.title})",
            "See why backups are not made or not complete. If their server is gone for good, leave them out with "
            "--origin or --tag.",
        )
    if newest is not None and newest.messages and _has_nothing(line):
        yield Breach(
            BreachRule.EMPTY,
            line.words,
            f"the newest backup, {line.newest.id}, has nothing of what {newest.id} has ({line.title})",
            "Check whether the server has lost its streams or is a different one. If that is meant, run "
            "'jsbackup backup --allow-nothing' once: 'latest' means that backup then.",
        )
    lacking = [*(skip.name for skip in line.skipped), *line.warned]
    if lacking:
        reasons = {skip.name: skip.reason for skip in line.skipped}
        first = next((f": {name}: {reasons[name]}" for name in lacking if name in reasons), "")
        yield Breach(
            BreachRule.INCOMPLETE,
            line.words,
            f"the newest backup, {line.newest.id}, is partial: it lacks {_some(lacking)} or a part of them{first}",
            f"Mend what 'jsbackup show {line.newest.id}' names, and run the backup again. Keep the earlier backups.",
        )


def _has_nothing(line: BackupSeries) -> bool:
    """Whether the newest backup found no message and does not count as complete."""
    newest = line.newest
    return not newest.messages and (newest.id in line.hollow or newest.result is not BackupResult.COMPLETE)


def breach_of_streams(status: RepositoryStatus, live: LiveStreams) -> Iterator[Breach]:
    """Yield a breach if streams of the server are not backed up."""
    if missing := not_backed_up(status, live):
        of_it = f" ({live.origin.words})" if live.origin.account_name else ""
        yield Breach(
            BreachRule.NOT_BACKED_UP,
            str(live.origin),
            f"the newest backups lack {len(missing):,} of {format_count(len(live.names), 'stream')} on the "
            f"server{of_it}: "
            f"{_some(missing)}",
            "Back them up, or leave them out with 'backup --exclude', or with --exclude here.",
        )


def not_backed_up(status: RepositoryStatus, live: LiveStreams) -> list[str]:
    """Return the server's streams that no newest backup of it has, and that none excludes on purpose."""
    lines = [line for line in status.lines if line.origin == live.origin]
    has = {name for line in lines for name in (*line.complete_streams, *(stream.name for stream in line.streams))}
    left_out = [*live.exclude, *(glob for line in lines if not line.covered for glob in line.leaves_out)]
    return sorted(name for name in live.names if name not in has and not any(glob.matches(name) for glob in left_out))


# --- checks ---


def _of_verifies(status: RepositoryStatus, limits: Limits) -> Iterator[Breach]:
    failed = next((verify for verify in status.verifies if not verify.ok and not _settled(verify, status)), None)
    if failed is not None:
        damaged = [backup for backup in failed.damaged if backup in status.existing]
        what = f"in {_some(damaged)}" if damaged else "in the repository"
        yield Breach(
            BreachRule.VERIFY_FAILED,
            "",
            f"the verify of {failed.ended[:19]}Z found {format_count(failed.problems, 'problem')} {what}, "
            "and no later verify found them repaired",
            "Run 'jsbackup repair', and 'jsbackup verify' again.",
        )
    if limits.max_verify_age_seconds is None:
        return
    good = last_good_verify(status, limits.verify_level)
    wanted = "" if limits.verify_level is Level.MANIFEST else f" at level {limits.verify_level} or deeper"
    command = f"Run 'jsbackup verify --level {limits.verify_level}' on a schedule."
    if good is None:
        yield Breach(BreachRule.VERIFY_AGE, "", f"no verify{wanted} is known to have succeeded", command)
    elif (age := _age(good.ended, status)) > limits.max_verify_age_seconds:
        yield Breach(
            BreachRule.VERIFY_AGE,
            "",
            f"the last verify{wanted} that succeeded was {span(age)} ago; at most "
            f"{span(limits.max_verify_age_seconds)} is allowed",
            command,
        )


def last_good_verify(status: RepositoryStatus, level: Level) -> VerifyOutcome | None:
    deep = _LEVELS[_LEVELS.index(level) :]
    return next((verify for verify in status.verifies if verify.ok and verify.level in deep), None)


def _settled(failed: VerifyOutcome, status: RepositoryStatus) -> bool:
    """Return whether a later run of the same depth and scope found nothing, or the damaged backups are forgotten."""
    damaged = frozenset(failed.damaged)
    if damaged and damaged.isdisjoint(status.existing):
        return True
    later = status.verifies[: status.verifies.index(failed)]
    deep = _LEVELS[_LEVELS.index(failed.level) :]
    return any(
        outcome.ok
        and outcome.level in deep
        and (outcome.everything or (bool(damaged) and damaged & status.existing <= frozenset(outcome.chosen)))
        for outcome in later
    )


def _of_drills(status: RepositoryStatus, limits: Limits) -> Iterator[Breach]:
    for origin in _drilled_origins(status):
        of_it = f" ({origin.words})" if origin is not None else ""
        newest = next(iter(status.drills_of(origin)), None)
        if newest is not None and not newest.ok:
            lost = _some([failure.name for failure in newest.failed])
            why = newest.error or (f"{lost} failed" if newest.failed else "not everything was proved")
            yield Breach(
                BreachRule.DRILL_FAILED,
                newest.backup,
                f"the last drill{of_it}, {newest.ended[:19]}Z, could not restore and prove backup {newest.backup}: "
                f"{why}",
                f"Run 'jsbackup drill {newest.backup}' and 'jsbackup verify' to see what is wrong.",
            )
        if limits.max_drill_age_seconds is None:
            continue
        good = last_good_drill(status, origin)
        about = "" if origin is None else str(origin)
        hint = "Run 'jsbackup drill' on a schedule. A drill of some of the streams does not count."
        if good is None:
            yield Breach(
                BreachRule.DRILL_AGE, about, f"no drill of all streams is known to have succeeded{of_it}", hint
            )
        elif (age := _age(good.ended, status)) > limits.max_drill_age_seconds:
            allowed = span(limits.max_drill_age_seconds)
            reason = f"the last drill that succeeded{of_it} was {span(age)} ago; at most {allowed} is allowed"
            yield Breach(BreachRule.DRILL_AGE, about, reason, hint)


def _drilled_origins(status: RepositoryStatus) -> list[Origin | None]:
    """Return the sources whose drills are checked separately; None stands for all drills, if there is one source."""
    origins = sorted({line.origin for line in status.lines if line.complete_streams}, key=str)
    return [*origins] if len(origins) > 1 else [None]


def last_good_drill(status: RepositoryStatus, origin: Origin | None = None) -> DrillOutcome | None:
    """Return the last successful drill of all streams of a backup of this source."""
    return next((drill for drill in status.drills_of(origin) if drill.ok and drill.everything), None)


# --- retention ---


def _of_retention(status: RepositoryStatus, limits: Limits) -> Iterator[Breach]:
    for line in status.lines:
        if line.covered or line.newest_complete is None:
            continue
        complete: Sequence[BackupSummary] = line.complete
        if limits.min_backups is not None and len(complete) < limits.min_backups:
            yield Breach(
                BreachRule.FEW_BACKUPS,
                line.words,
                f"found {format_count(len(complete), 'complete backup')}; at least {limits.min_backups} required "
                f"({line.title})",
                "Keep more with 'jsbackup forget', and see who else removes backups.",
            )
        if limits.min_history_seconds is not None:
            reach = _age(complete[0].created, status)
            if reach < limits.min_history_seconds:
                yield Breach(
                    BreachRule.SHORT_HISTORY,
                    line.words,
                    f"the oldest complete backup is {span(reach)} old; at least {span(limits.min_history_seconds)} is "
                    f"required ({line.title})",
                    "Keep older ones with 'jsbackup forget'; a new repository has to grow that old first.",
                )
    needed = max((_LEAST_FREE_BYTES, *(line.newest.stored_bytes or 0 for line in status.lines)))
    if status.free_bytes is not None and status.free_bytes < needed:
        yield Breach(
            BreachRule.SPACE,
            "",
            f"{status.free_bytes >> 20:,} MiB are free for the repository; a backup may take {needed >> 20:,} MiB",
            "Give it more room, or run 'jsbackup forget --prune' before nothing is left: it has to write, too.",
        )
    stored = status.stored
    if limits.max_unused_bytes is not None and stored.unused_bytes > limits.max_unused_bytes:
        yield Breach(
            BreachRule.UNUSED,
            "",
            f"no backup needs {format_count(stored.unused_objects, 'object')} of {stored.unused_bytes:,} bytes; "
            f"at most {limits.max_unused_bytes:,} bytes are allowed",
            "Run 'jsbackup prune' on a schedule.",
        )


# --- formatting ---


def _age(moment: str, status: RepositoryStatus) -> float:
    """Return the age in seconds."""
    return (status.now_ns - parse_time(moment)) / 1e9


def _objects(count: int) -> str:
    return f"{count:,} stored object is" if count == 1 else f"{count:,} stored objects are"


def _some(names: Collection[str]) -> str:
    return in_short(list(names), most=_MOST_NAMED)
