"""Print what is on a throwaway server, after a drill, as JSON and as text."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from jsbackup.cli.output.colour import State
from jsbackup.cli.output.grouped import Said, tell_each
from jsbackup.cli.output.output import Output, failure_json, format_bytes, format_count, format_seconds
from jsbackup.cli.output.reports import consumer_result_text, restored_stream_json
from jsbackup.model import JsonObject

if TYPE_CHECKING:
    from jsbackup.engine.check.drill_run import DrillReport
    from jsbackup.engine.check.kept_server import KeptServer
    from jsbackup.engine.restore.restore import RestoreReport
    from jsbackup.engine.restore.restored_stream import RestoredStream

__all__ = ["tell_drill"]


def tell_drill(output: Output, report: DrillReport) -> int:
    """Print the result; return the exit code."""
    if report.kept is None:
        output.result(_drill_json(report), lambda: _tell(output, report))
        return report.outcome.code
    kept = report.kept

    def tell() -> None:
        _tell(output, report)
        _tell_kept(output, kept)

    output.ready({**_drill_json(report), "kept": _kept_json(kept)}, tell)
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
        "streams": [restored_stream_json(s, _notes(report, s)) for s in report.restored.streams],
        "failed": [failure_json(one.name, one.error) for one in report.restored.failures],
        "warnings": list(report.warnings),
    }


def _notes(report: DrillReport, stream: RestoredStream) -> list[str]:
    return [*report.adapted.get(stream.name, ()), *stream.notes]


def _tell(output: Output, report: DrillReport) -> None:
    from jsbackup.engine.check.health_rules import span

    outcome, streams = report.outcome, report.restored.streams
    _tell_proved_streams(output, report.restored, report.adapted)
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


def _kept_json(kept: KeptServer) -> JsonObject:
    """Return how to reach a server that stays."""
    return {
        "url": kept.url,
        "user": kept.user,
        "password": kept.password,
        "context": str(kept.context),
        "folder": str(kept.folder),
    }


def _tell_kept(output: Output, kept: KeptServer) -> None:
    """Print how to reach a server that stays."""
    output.line()
    for name, value in (
        ("url", kept.url),
        ("user", kept.user),
        ("password", kept.password),
        ("folder", str(kept.folder)),
        ("look", f"nats --context {shlex.quote(str(kept.context))} stream ls -a"),
    ):
        output.line(f"{name:<10}{value}")
    output.line("Ctrl-C ends the server and removes the folder.")


def _tell_proved_streams(output: Output, restored: RestoreReport, adapted: Mapping[str, Sequence[str]]) -> None:
    """Print the streams of a throwaway server; `adapted` says by stream what was adapted."""
    output.table(
        ["STREAM", ">MESSAGES", ">BYTES", ">CONSUMERS", ">TIME", "PROOF"],
        [
            (
                s.as_name,
                format_count(s.messages),
                format_bytes(s.bytes),
                str(len(s.consumers)),
                format_seconds(s.seconds),
                State("verified" if s.verified else "not verified"),
            )
            for s in restored.streams
        ],
    )
    tell_each(output, _remarks(restored, adapted))


def _remarks(restored: RestoreReport, adapted: Mapping[str, Sequence[str]]) -> Iterator[Said]:
    for s in restored.streams:
        for note in (*adapted.get(s.name, ()), *s.notes):
            yield Said("note", s.as_name, note)
        for c in s.consumers:
            if c.note:
                yield Said("note", s.as_name, consumer_result_text(c))
    for failure in restored.failures:
        yield Said("failed", failure.name, failure.error.message)
