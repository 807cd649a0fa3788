"""Print the results of `status` as JSON and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jsbackup.cli.output.colour import State
from jsbackup.cli.output.output import Output, format_bytes, format_count, format_seconds, format_time
from jsbackup.engine.check.backup_series import BackupSeries
from jsbackup.engine.check.health_rules import (
    Breach,
    Limits,
    LiveStreams,
    find_breaches,
    last_good_drill,
    last_good_verify,
    not_backed_up,
    span,
)
from jsbackup.engine.check.live_accounts import LiveAccounts, find_account_breaches
from jsbackup.engine.check.status import RepositoryStatus, SeenWork, StoredTotals
from jsbackup.model import JsonObject
from jsbackup.repository.checks.outcomes import DrillOutcome, VerifyOutcome
from jsbackup.repository.checks.verify import Level
from jsbackup.repository.summary import BackupSummary
from jsbackup.times import parse_time

__all__ = ["Growth", "Report", "growth_of_line", "recovery_point_seconds", "status_json", "tell_status"]

_MOST_DRILLED = 5  # streams of a drill in a line
_DAY_SECONDS = 86_400
_GROWTH_DAYS = (1, 7, 30)


@dataclass(frozen=True, slots=True)
class Report:
    """The facts, the rules given by options, and the breaches."""

    status: RepositoryStatus
    limits: Limits
    live: LiveStreams | None
    accounts: LiveAccounts | None = None
    breaches: Sequence[Breach] = field(init=False)

    def __post_init__(self) -> None:
        found = find_breaches(self.status, self.limits, self.live)
        found += [] if self.accounts is None else find_account_breaches(self.status, self.accounts)
        object.__setattr__(self, "breaches", tuple(found))

    def age_seconds(self, moment: str) -> float:
        return (self.status.now_ns - parse_time(moment)) / 1e9


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth within that many days; negative if there is less now."""

    days: int
    messages: int
    bytes: int


def growth_of_line(line: BackupSeries) -> list[Growth]:
    """Return the growth from the newest complete backup that was so old when the newest of all was made, to
    that one.
    """
    complete = line.complete
    found: list[Growth] = []
    for days in _GROWTH_DAYS if complete else ():
        newest = complete[-1]
        since = parse_time(newest.created) - days * _DAY_SECONDS * 10**9
        before = next((one for one in reversed(complete) if parse_time(one.created) <= since), None)
        if before is not None:
            found.append(Growth(days, newest.messages - before.messages, newest.bytes - before.bytes))
    return found


def recovery_point_seconds(drill: DrillOutcome) -> float:
    """Return the age of the backup when it was restored: newer messages would have been lost."""
    return (parse_time(drill.begun) - parse_time(drill.backup_created)) / 1e9


# --- JSON ---


def status_json(report: Report, location: str) -> JsonObject:
    status = report.status
    newest, live, stored = status.newest_complete, report.live, status.stored
    return {
        "repository": location,
        "time": format_time(status.now_ns),
        "ok": not report.breaches,
        "newest_backup": None if newest is None else _backup_json(report, newest),
        "newest_verify": _verify_json(report, next(iter(status.verifies), None)),
        "last_good_verify": _verify_json(report, last_good_verify(status, Level.MANIFEST)),
        "newest_drill": _drill_json(report, next(iter(status.drills_of(None)), None)),
        "last_good_drill": _drill_json(report, last_good_drill(status)),
        "breaches": [
            {"rule": one.rule, "about": one.about, "reason": one.reason, "hint": one.hint} for one in report.breaches
        ],
        "lines": [_line_json(report, line) for line in status.lines],
        "other_backups": status.others,
        "unreadable": [one.id for one in status.unreadable],
        "from_the_future": [one.id for one in status.ahead],
        "stored": {
            "objects": stored.objects,
            "bytes": stored.bytes,
            "unused_objects": stored.unused_objects,
            "unused_bytes": stored.unused_bytes,
            "interrupted_runs": stored.interrupted_runs,
        },
        "work": [_work_json(work) for work in status.work],
        "live": None
        if live is None
        else {"origin": str(live.origin), "streams": len(live.names), "not_backed_up": not_backed_up(status, live)},
        "live_accounts": None
        if report.accounts is None
        else [_live_account_json(status, one) for one in report.accounts.accounts],
    }


def _live_account_json(status: RepositoryStatus, live: LiveStreams) -> JsonObject:
    origin = live.origin
    return {
        "origin": str(origin),
        "account": origin.account,
        "account_name": origin.account_name or None,
        "domain": origin.domain or None,
        "streams": len(live.names),
        "not_backed_up": not_backed_up(status, live),
    }


def _backup_json(report: Report, backup: BackupSummary) -> JsonObject:
    return {
        "backup": backup.id,
        "created": backup.created,
        "age_seconds": round(report.age_seconds(backup.created), 3),
        "streams": backup.streams,
        "messages": backup.messages,
        "bytes": backup.bytes,
    }


def _verify_json(report: Report, one: VerifyOutcome | None) -> JsonObject | None:
    if one is None:
        return None
    return {
        "begun": one.begun,
        "ended": one.ended,
        "age_seconds": round(report.age_seconds(one.ended), 3),
        "ok": one.ok,
        "level": one.level,
        "everything": one.everything,
        "part": one.part,
        "backups": one.backups,
        "problems": one.problems,
        "damaged": list(one.damaged),
    }


def _drill_json(report: Report, one: DrillOutcome | None) -> JsonObject | None:
    if one is None:
        return None
    return {
        "backup": one.backup,
        "begun": one.begun,
        "ended": one.ended,
        "age_seconds": round(report.age_seconds(one.ended), 3),
        "ok": one.ok,
        "code": one.code,
        "error": one.error or None,
        "seconds": round(one.seconds, 3),
        "server": one.server,
        "nodes": one.nodes,
        "everything": one.everything,
        "streams": one.restored,
        "messages": one.messages,
        "failed": [{"name": failed.name, "reason": failed.reason} for failed in one.failed],
        "recovery_point_seconds": round(recovery_point_seconds(one), 3),
    }


def _line_json(report: Report, line: BackupSeries) -> JsonObject:
    newest = line.newest_complete
    return {
        "line": line.words,
        "cluster": line.origin.cluster,
        "account": line.origin.account,
        "account_name": line.origin.account_name or None,
        "domain": line.origin.domain,
        "covered": line.covered,
        "backups": len(line.backups),
        "complete": len(line.complete),
        "newest": line.newest.id,
        "newest_complete": None if newest is None else _backup_json(report, newest),
        "oldest_complete": None if newest is None else _backup_json(report, line.complete[0]),
        "skipped": [{"name": one.name, "reason": one.reason} for one in line.skipped],
        "in_part": list(line.warned),
        "new": list(line.new),
        "gone": list(line.gone),
        "growth": [{"days": one.days, "messages": one.messages, "bytes": one.bytes} for one in growth_of_line(line)],
    }


def _work_json(work: SeenWork) -> JsonObject:
    text = work.text
    return {
        "command": None if text is None else text.purpose,
        "host": None if text is None else text.host,
        "since": None if text is None else text.created,
        "exclusive": work.exclusive,
        "live": work.live,
        "expires": format_time(work.expires_ns),
    }


# --- for people ---


def tell_status(output: Output, report: Report, location: str, unanswered: str = "") -> None:
    """Print the report. `unanswered` is why the server did not list its streams, if it was asked."""
    status = report.status
    output.line(f"repository  {location}")
    for line in status.lines:
        output.line(f"{'superseded' if line.covered else 'series':<10}  {_line_text(report, line)}")
        for names, word in ((line.new, "new streams"), (line.gone, "gone streams")):
            if names:
                output.line(f"            {word} since the backup before: {', '.join(names[:10])}")
    output.line(f"verify      {_verify_text(report)}")
    output.line(f"drill       {_drill_text(report)}")
    output.line(f"stored      {_stored_text(status.stored)}")
    for work in status.work:
        what = "an unknown command" if work.text is None else str(work.text)
        output.line(f"at work     {what}" if work.live else f"stopped     {what}; see 'jsbackup unlock'")
    if report.live is not None:
        output.line(f"server      {format_count(len(report.live.names), 'stream')} ({report.live.origin})")
    if report.accounts is not None:
        there = report.accounts.accounts
        streams = format_count(sum(len(one.names) for one in there), "stream")
        output.line(f"system      {format_count(len(there), 'account')} with JetStream, {streams}")
    for breach in report.breaches:
        output.line(State("BREACH"), f"      {breach.rule}: {breach.reason}")
        output.line(f"            {breach.hint}")
    if unanswered:
        output.line(f"server      not known: {unanswered}")
    elif not report.breaches:
        output.line(State("all is well"))


def _stored_text(stored: StoredTotals) -> str:
    unused = f", {format_bytes(stored.unused_bytes)} not needed by any backup" if stored.unused_objects else ""
    if stored.objects is None or stored.bytes is None:
        return f"too many objects to list on every run; --all-objects lists them and finds missing ones{unused}"
    return f"{format_count(stored.objects, 'object')}, {format_bytes(stored.bytes)}{unused}"


def _line_text(report: Report, line: BackupSeries) -> str:
    newest = line.newest_complete
    counts = f"{format_count(len(line.complete), 'complete backup')} of {len(line.backups)}"
    if newest is None:
        return f"{line.title}: {counts}"
    grown = "".join(
        f", {'+' if one.bytes >= 0 else '-'}{format_bytes(abs(one.bytes))} in {one.days} d"
        for one in growth_of_line(line)
    )
    sizes = f"{format_count(newest.streams, 'stream')}, {format_bytes(newest.bytes)}{grown}"
    return f"{line.title}: {counts}, the newest {newest.id} {span(report.age_seconds(newest.created))} ago ({sizes})"


def _verify_text(report: Report) -> str:
    newest = next(iter(report.status.verifies), None)
    if newest is None:
        return "never"
    part = ", a part of the objects" if newest.part else ""
    what = "all backups" if newest.everything else format_count(newest.backups, "backup")
    found = "nothing wrong" if newest.ok else format_count(newest.problems, "problem")
    return f"{span(report.age_seconds(newest.ended))} ago, level {newest.level}, {what}{part}: {found}"


def _drill_text(report: Report) -> str:
    newest = next(iter(report.status.drills_of(None)), None)
    if newest is None:
        return "never"
    came = "restored and proved" if newest.ok else "FAILED"
    took = format_seconds(newest.seconds)
    said = f"{span(report.age_seconds(newest.ended))} ago, backup {newest.backup} {came} in {took}"
    counts = f"{format_count(newest.restored, 'stream')}, {format_count(newest.messages, 'message')}"
    if newest.everything:
        return f"{said} ({counts})"
    names = ", ".join(one.name for one in newest.streams[:_MOST_DRILLED])
    names += ", …" if newest.restored > _MOST_DRILLED else ""
    return f"{said}, only in part: {names or 'no stream'} ({counts})"
