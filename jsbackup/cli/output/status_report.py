"""Print the results of `status` as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from jsbackup.cli.output.result import Block, State, format_bytes, format_count, format_seconds, time_to_second
from jsbackup.engine.check.health_rules import (
    Breach,
    Limits,
    LiveStreams,
    find_breaches,
    last_good_drill,
    last_good_verify,
    not_backed_up,
)
from jsbackup.engine.check.live_streams import LiveAccounts, find_account_breaches
from jsbackup.engine.check.status import BackupSeries, RepositoryStatus, StoredTotals
from jsbackup.model import JsonObject
from jsbackup.readable import span
from jsbackup.repository.checks.ledger import DrillOutcome, VerifyOutcome
from jsbackup.repository.checks.verify import Level
from jsbackup.repository.manifest import BackupSummary
from jsbackup.times import parse_time

__all__ = ["Report", "growth_of_line", "status_json", "status_text"]

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
        breaches = find_breaches(self.status, self.limits, self.live)
        breaches += [] if self.accounts is None else find_account_breaches(self.status, self.accounts)
        object.__setattr__(self, "breaches", tuple(breaches))

    def age_seconds(self, moment: str) -> float:
        return (self.status.now_ns - parse_time(moment)) / 1e9


def growth_of_line(line: BackupSeries) -> list[JsonObject]:
    """Return the growth within some `days`, from the newest complete backup that was so old when the newest of all was
    made, to that one: in `messages` and `bytes`, negative if there is less now.
    """
    complete = line.complete
    growth: list[JsonObject] = []
    for days in _GROWTH_DAYS if complete else ():
        newest = complete[-1]
        since = parse_time(newest.created) - days * _DAY_SECONDS * 10**9
        before = next((backup for backup in reversed(complete) if parse_time(backup.created) <= since), None)
        if before is not None:
            messages, size = newest.messages - before.messages, newest.bytes - before.bytes
            growth.append({"days": days, "messages": messages, "bytes": size})
    return growth


# --- JSON ---


def status_json(report: Report, location: str) -> JsonObject:
    status = report.status
    newest, live, stored = status.newest_complete, report.live, status.stored
    return {
        "repository": location,
        "time": time_to_second(status.now_ns),
        "ok": not report.breaches,
        "newest_backup": None if newest is None else _backup_json(report, newest),
        "newest_verify": _verify_json(report, next(iter(status.verifies), None)),
        "last_good_verify": _verify_json(report, last_good_verify(status, Level.MANIFEST)),
        "newest_drill": _drill_json(report, next(iter(status.drills_of(None)), None)),
        "last_good_drill": _drill_json(report, last_good_drill(status)),
        "breaches": [
            {"rule": breach.rule, "about": breach.about, "reason": breach.reason, "hint": breach.hint}
            for breach in report.breaches
        ],
        "lines": [_line_json(report, line) for line in status.lines],
        "other_backups": status.others,
        "unreadable": [backup.id for backup in status.unreadable],
        "from_the_future": [backup.id for backup in status.ahead],
        "stored": {
            "objects": stored.objects,
            "bytes": stored.bytes,
            "unused_objects": stored.unused_objects,
            "unused_bytes": stored.unused_bytes,
            "interrupted_runs": stored.interrupted_runs,
        },
        "work": [
            {
                "command": work.text and work.text.purpose,
                "host": work.text and work.text.host,
                "since": work.text and work.text.created,
                "exclusive": work.exclusive,
                "live": work.live,
                "expires": time_to_second(work.expires_ns),
            }
            for work in status.work
        ],
        "live": live and {"origin": str(live.origin), **_live_json(status, live)},
        "live_accounts": report.accounts
        and [
            {
                "origin": str(account.origin),
                "account": account.origin.account,
                "account_name": account.origin.account_name or None,
                "domain": account.origin.domain or None,
                **_live_json(status, account),
            }
            for account in report.accounts.accounts
        ],
    }


def _live_json(status: RepositoryStatus, live: LiveStreams) -> JsonObject:
    return {"streams": len(live.names), "not_backed_up": not_backed_up(status, live)}


def _backup_json(report: Report, backup: BackupSummary) -> JsonObject:
    return {
        "backup": backup.id,
        "created": backup.created,
        "age_seconds": round(report.age_seconds(backup.created), 3),
        "streams": backup.streams,
        "messages": backup.messages,
        "bytes": backup.bytes,
    }


def _verify_json(report: Report, outcome: VerifyOutcome | None) -> JsonObject | None:
    return (
        None
        if outcome is None
        else {
            "begun": outcome.begun,
            "ended": outcome.ended,
            "age_seconds": round(report.age_seconds(outcome.ended), 3),
            "ok": outcome.ok,
            "level": outcome.level,
            "everything": outcome.everything,
            "part": outcome.part,
            "backups": outcome.backups,
            "problems": outcome.problems,
            "damaged": list(outcome.damaged),
        }
    )


def _drill_json(report: Report, outcome: DrillOutcome | None) -> JsonObject | None:
    return (
        None
        if outcome is None
        else {
            "backup": outcome.backup,
            "begun": outcome.begun,
            "ended": outcome.ended,
            "age_seconds": round(report.age_seconds(outcome.ended), 3),
            "ok": outcome.ok,
            "code": outcome.code,
            "error": outcome.error or None,
            "seconds": round(outcome.seconds, 3),
            "server": outcome.server,
            "nodes": outcome.nodes,
            "everything": outcome.everything,
            "streams": outcome.restored,
            "messages": outcome.messages,
            "failed": [{"name": failed.name, "reason": failed.reason} for failed in outcome.failed],
            # The age of the backup when it was restored: newer messages would have been lost.
            "recovery_point_seconds": round((parse_time(outcome.begun) - parse_time(outcome.backup_created)) / 1e9, 3),
        }
    )


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
        "skipped": [{"name": skip.name, "reason": skip.reason} for skip in line.skipped],
        "in_part": list(line.warned),
        "new": list(line.new),
        "gone": list(line.gone),
        "growth": growth_of_line(line),
    }


# --- for people ---


def status_text(report: Report, location: str, unanswered: str = "") -> Iterator[Block]:
    """Return the report as text. `unanswered` is why the server did not list its streams, if it was asked."""
    status = report.status
    yield f"repository  {location}"
    for line in status.lines:
        yield f"{'superseded' if line.covered else 'series':<10}  {_line_text(report, line)}"
        for names, word in ((line.new, "new streams"), (line.gone, "gone streams")):
            if names:
                yield f"            {word} since the backup before: {', '.join(names[:10])}"
    verify, drill = next(iter(status.verifies), None), next(iter(status.drills_of(None)), None)
    yield f"verify      {'never' if verify is None else _verify_text(report, verify)}"
    yield f"drill       {'never' if drill is None else _drill_text(report, drill)}"
    yield f"stored      {_stored_text(status.stored)}"
    for work in status.work:
        what = "an unknown command" if work.text is None else str(work.text)
        yield f"at work     {what}" if work.live else f"stopped     {what}; see 'jsbackup unlock'"
    if report.live is not None:
        yield f"server      {format_count(len(report.live.names), 'stream')} ({report.live.origin})"
    if report.accounts is not None:
        accounts = report.accounts.accounts
        streams = format_count(sum(len(account.names) for account in accounts), "stream")
        yield f"system      {format_count(len(accounts), 'account')} with JetStream, {streams}"
    for breach in report.breaches:
        yield State("BREACH"), f"      {breach.rule}: {breach.reason}"
        yield f"            {breach.hint}"
    if unanswered:
        yield f"server      not known: {unanswered}"
    elif not report.breaches:
        yield State("all is well")


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
        f", {'+' if growth['bytes'] >= 0 else '-'}{format_bytes(abs(growth['bytes']))} in {growth['days']} d"
        for growth in growth_of_line(line)
    )
    sizes = f"{format_count(newest.streams, 'stream')}, {format_bytes(newest.bytes)}{grown}"
    return f"{line.title}: {counts}, the newest {newest.id} {span(report.age_seconds(newest.created))} ago ({sizes})"


def _verify_text(report: Report, newest: VerifyOutcome) -> str:
    part = ", a part of the objects" if newest.part else ""
    what = "all backups" if newest.everything else format_count(newest.backups, "backup")
    verdict = "nothing wrong" if newest.ok else format_count(newest.problems, "problem")
    return f"{span(report.age_seconds(newest.ended))} ago, level {newest.level}, {what}{part}: {verdict}"


def _drill_text(report: Report, newest: DrillOutcome) -> str:
    came = "restored and proved" if newest.ok else "FAILED"
    took = format_seconds(newest.seconds)
    said = f"{span(report.age_seconds(newest.ended))} ago, backup {newest.backup} {came} in {took}"
    counts = f"{format_count(newest.restored, 'stream')}, {format_count(newest.messages, 'message')}"
    if newest.everything:
        return f"{said} ({counts})"
    names = ", ".join(drilled.name for drilled in newest.streams[:_MOST_DRILLED])
    names += ", …" if newest.restored > _MOST_DRILLED else ""
    return f"{said}, only in part: {names or 'no stream'} ({counts})"
