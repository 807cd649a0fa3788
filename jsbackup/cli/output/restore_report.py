"""Print the result of a restore or a clone as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from jsbackup.cli.options.latest import notes_json
from jsbackup.cli.output.colour import State
from jsbackup.cli.output.grouped import Said, tell_each
from jsbackup.cli.output.output import Output, failure_json, format_bytes, format_count, format_seconds
from jsbackup.cli.output.reports import (
    consumer_result_text,
    problem_json,
    restored_stream_json,
)
from jsbackup.cli.parsing.context import Shared
from jsbackup.failure import FailedProof, Failure
from jsbackup.model import JsonObject
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.cli.options.latest import Finder
    from jsbackup.engine.restore.restore import RestoreReport
    from jsbackup.engine.restore.restored_stream import RestoredStream

__all__ = ["restored_json", "tell_report", "tell_restored"]

# How much of a stream was compared (`ProofLevel`).
_PROVED = {
    "full": "verified",
    "sample": "a tenth verified",
    "quick": "counts verified",
    "none": "not verified",
}


def _stream_json(stream: RestoredStream) -> JsonObject:
    return {
        **restored_stream_json(stream, stream.notes),
        "usable_at": format_time(stream.usable_ns),
        "wire": stream.wire,
        "copying": None
        if stream.copying is None
        else {
            "settled": stream.copying.settled,
            "new_messages": stream.copying.new_messages,
            "waiting_for": list(stream.copying.waiting),
        },
        "lost": [problem_json(problem) for problem in stream.lost],
    }


def restored_json(report: RestoreReport, finder: Finder | None = None) -> JsonObject:
    """Return the document of `restore --json` and, without a `finder`, of `clone --json`."""
    return {
        "streams": [_stream_json(stream) for stream in report.streams],
        "failed": [{**failure_json(one.name, one.error), "usable_at": _usable_at(one)} for one in report.failures],
        "skipped": [{"name": refusal.stream, "reason": refusal.reason} for refusal in report.plan.skipped],
        "missing": [{"name": one.stream, "reason": one.reason} for one in report.plan.missing],
        **({} if finder is None else {"backup": report.plan.backup, **notes_json(finder)}),
    }


def _usable_at(failure: Failure) -> str | None:
    """Return from when on a stream could be used whose proof failed; None if it is not at the target."""
    return format_time(failure.usable_ns) if isinstance(failure, FailedProof) else None


def tell_restored(shared: Shared, report: RestoreReport, done: str, finder: Finder | None = None) -> int:
    """Print the result, with the verb `done`; return the exit code. `finder` has found the backup."""
    if finder is not None:
        from jsbackup.planning.elsewhere import with_elsewhere

        report = replace(report, plan=with_elsewhere(report.plan, finder.choice))
    shared.output.result(restored_json(report, finder), lambda: tell_report(shared.output, report, done))
    return report.code


def tell_report(output: Output, report: RestoreReport, done: str) -> None:
    """Print the document of `restored_json` as text."""
    output.table(
        ["STREAM", ">MESSAGES", ">BYTES", ">CONSUMERS", ">TIME", "SENT AS", "PROOF"],
        [
            (
                s.as_name,
                format_count(s.messages),
                format_bytes(s.bytes),
                str(len(s.consumers)),
                format_seconds(s.seconds),
                s.wire,
                State(_PROVED[s.proof]),
            )
            for s in report.streams
        ],
    )
    tell_each(output, _remarks(report))
    restored = format_count(len(report.streams), "stream")
    lost = sum(problem.messages for stream in report.streams for problem in stream.lost)
    lacking = f"; {format_count(lost, 'message')} lost" if lost else ""
    incomplete = sum(stream.incomplete for stream in report.streams)
    restored += f", {incomplete} of them incomplete" if incomplete else ""
    failed = f"{len(report.failures)} failed"
    if unproved := sum(isinstance(one, FailedProof) and not one.wrong for one in report.failures):
        failed += f" ({unproved} of them could be used, but {'was' if unproved == 1 else 'were'} not verified)"
    output.line(f"{done} {restored}, {failed}, {len(report.plan.skipped)} skipped{lacking}")


def _remarks(report: RestoreReport) -> Iterator[Said]:
    for s in report.streams:
        for note in s.notes:
            yield Said("note", s.as_name, note)
        for c in s.consumers:
            if c.note:
                yield Said("note", s.as_name, consumer_result_text(c))
        for problem in s.lost:
            yield Said("lost", s.as_name, problem.problem, lost=problem)
    for missing in report.plan.missing:
        yield Said("missing", missing.stream, missing.reason, missing.hint)
    for refusal in report.plan.skipped:
        yield Said("skipped", refusal.stream, refusal.reason)
    for failure in report.failures:
        yield Said("failed", failure.name, failure.error.message, failure.error.hint or "")
