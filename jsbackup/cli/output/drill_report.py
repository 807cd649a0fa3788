"""Print the result of a drill as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jsbackup.cli.output.colour import State
from jsbackup.cli.output.grouped import Said, tell_each
from jsbackup.cli.output.output import Output, format_bytes, format_count, format_seconds
from jsbackup.cli.output.reports import consumer_result_json, consumer_result_text
from jsbackup.model import JsonObject

if TYPE_CHECKING:
    from jsbackup.engine.check.drill_run import DrillReport
    from jsbackup.engine.restore.restored_stream import RestoredStream

__all__ = ["tell_drill"]


def tell_drill(output: Output, report: DrillReport) -> int:
    """Print the result; return the exit code."""
    output.result(_drill_json(report), lambda: _tell(output, report))
    return report.outcome.code


def _drill_json(report: DrillReport) -> JsonObject:
    outcome, newest_age = report.outcome, report.newest_message_age_seconds
    return {
        "backup": outcome.backup,
        "created": outcome.backup_created,
        "ok": outcome.ok,
        "seconds": round(report.seconds, 3),
        "server": {"version": outcome.server, "nodes": outcome.nodes},
        "everything": outcome.everything,
        "uncounted": report.uncounted or None,
        "recovery_point": {
            "backup_age_seconds": round(report.backup_age_seconds, 3),
            "newest_message": outcome.newest_message,
            "newest_message_age_seconds": None if newest_age is None else round(newest_age, 3),
        },
        "streams": [
            {
                "name": s.name,
                "messages": s.messages,
                "bytes": s.bytes,
                "digest": s.digest,
                "verified": s.verified,
                "seconds": round(s.seconds, 3),
                "consumers": [consumer_result_json(consumer) for consumer in s.consumers],
                "notes": _notes(report, s),
            }
            for s in report.restored.streams
        ],
        "failed": [
            {"name": one.name, "code": one.error.exit_code, "reason": one.error.message}
            for one in report.restored.failures
        ],
        "warnings": list(report.warnings),
    }


def _notes(report: DrillReport, stream: RestoredStream) -> list[str]:
    return [*report.adapted.get(stream.name, ()), *stream.notes]


def _remarks(report: DrillReport) -> Iterator[Said]:
    for s in report.restored.streams:
        for note in _notes(report, s):
            yield Said("note", s.name, note)
        for c in s.consumers:
            if c.note:
                yield Said("note", s.name, consumer_result_text(c))
    for failure in report.restored.failures:
        yield Said("failed", failure.name, failure.error.message)


def _tell(output: Output, report: DrillReport) -> None:
    from jsbackup.engine.check.health_rules import span

    outcome, streams = report.outcome, report.restored.streams
    output.table(
        ["STREAM", ">MESSAGES", ">BYTES", ">CONSUMERS", ">TIME", "PROOF"],
        [
            (
                s.name,
                format_count(s.messages),
                format_bytes(s.bytes),
                str(len(s.consumers)),
                format_seconds(s.seconds),
                State("verified" if s.verified else "not verified"),
            )
            for s in streams
        ],
    )
    tell_each(output, _remarks(report))
    newest_age = report.newest_message_age_seconds
    last = "" if newest_age is None else f", its newest message {span(newest_age)}"
    output.line(f"recovery point: the backup is {span(report.backup_age_seconds)} old{last}")
    if report.uncounted:
        output.line(f"note: it does not count as a drill of everything: {report.uncounted}")
    came = "all restored and proved" if outcome.ok else "NOT all restored and proved"
    if not streams and not report.restored.failures:
        came = "nothing restored, nothing proved: the backup has no stream"
    where = f"nats-server {outcome.server}" + (f", {outcome.nodes} of them" if outcome.nodes > 1 else "")
    output.line(f"drilled backup {outcome.backup} in {format_seconds(report.seconds)} ({where}): ", State(came))
