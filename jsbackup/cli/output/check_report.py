"""What `verify` and `diff` say, as JSON and as text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from jsbackup.cli.output.reports import problem_json
from jsbackup.cli.output.result import (
    Block,
    Result,
    Said,
    State,
    TextTable,
    failure_json,
    format_bytes,
    format_count,
    format_time,
    said_lines,
)
from jsbackup.errors import IncompleteError, JsBackupError
from jsbackup.exit_codes import combined, damage
from jsbackup.model import JsonObject
from jsbackup.times import format_time as format_exact_time

if TYPE_CHECKING:
    from jsbackup.repository.checks.verify_run import VerifyReport
    from jsbackup.repository.read.config_diff import FieldChange
    from jsbackup.repository.read.diff import DiffReport, StreamDiff

__all__ = ["diff_result", "verify_result"]

_SHOWN_RANGES = 5
_SIGNS = {"added": "+", "removed": "-", "changed": "!"}


# --- verify ---


def verify_result(level: str, report: VerifyReport, *, alone: bool) -> Result:
    """Return what a verify found; the document of `alone` backup has no list."""
    from jsbackup.repository.checks.verified import RECENT_DAYS
    from jsbackup.repository.pages.stream_json import losses_to_json

    wrong, coverage = {gap.backup for gap in report.gaps}, report.coverage
    documents: list[JsonObject] = [
        {
            "backup": checked.backup,
            "level": level,
            "ok": not checked.problems and checked.backup not in wrong,
            "problems": [{"stream": problem.stream, **problem_json(problem)} for problem in checked.problems],
            "lost": {name: losses_to_json(lost) for name, lost in checked.salvaged.items()},
        }
        for checked in report.backups
    ]
    covered: JsonObject | None = (
        None
        if coverage is None
        else {
            "objects": coverage.objects,
            "bytes": coverage.bytes,
            "checked_objects": coverage.checked_objects,
            "checked_bytes": coverage.checked_bytes,
            "recent_days": RECENT_DAYS,
            "recent_bytes": coverage.recent_bytes,
            "never_bytes": coverage.never_bytes,
            "oldest": None if coverage.oldest_seconds is None else format_time(coverage.oldest_seconds * 10**9),
        }
    )
    more = {
        "chain": [{"backup": gap.backup, "key": gap.key, "problem": gap.problem} for gap in report.gaps],
        "repository": [{"key": flaw.key, "problem": flaw.problem} for flaw in report.flaws],
        "coverage": covered,
    }
    document = {**documents[0], **more} if alone else {"backups": documents, **more}
    return Result(document, _verified_text(documents, report, covered), damage(report.problems))


def _verified_text(
    documents: Sequence[JsonObject], report: VerifyReport, covered: JsonObject | None
) -> Iterator[Block]:
    from jsbackup.repository.read.losses import about_losses

    if not documents:
        yield "there are no backups"
    for document, checked in zip(documents, report.backups, strict=True):
        yield f"{document['backup']}  {document['level']}  ", State("ok" if document["ok"] else "DAMAGED")
        yield from said_lines(Said("  ", problem.stream, problem.problem, lost=problem) for problem in checked.problems)
        lacking = "it was read from a damaged store, and lacks "
        yield from said_lines(
            Said("salvaged", name, lacking + about_losses(lost)) for name, lost in checked.salvaged.items()
        )
    for gap in report.gaps:
        yield f"backup {gap.backup}: {gap.problem}" if gap.backup else f"catalog of backups: {gap.problem}"
    for flaw in report.flaws:
        yield f"repository: {flaw.problem}"
    if covered and covered["objects"]:
        size = covered["bytes"]
        checked_bytes = f"{format_bytes(covered['checked_bytes'])} of {format_bytes(size)}"
        # Rounded down: 100 % means everything.
        percent = math.floor(1000 * covered["recent_bytes"] / size) / 10 if size else 100.0
        never = (
            f", {format_bytes(covered['never_bytes'])} not verified yet or damaged" if covered["never_bytes"] else ""
        )
        oldest = f", oldest check {covered['oldest']}" if covered["oldest"] else ""
        yield (
            f"{format_count(covered['checked_objects'])} of {format_count(covered['objects'], 'object')} checked "
            f"({checked_bytes}); {percent:g} % of all bytes verified in the last {covered['recent_days']} days"
            f"{never}{oldest}"
        )


# --- diff ---


def diff_result(sides: Sequence[str], report: DiffReport, skipped: Mapping[str, str]) -> Result:
    """Return the differences between two `sides` (ids, or `live`) and the streams that were skipped, with the
    reasons.
    """
    equal = not report.failures and all(stream.equal for stream in report.streams)
    document = {
        "a": sides[0],
        "b": sides[1],
        "equal": equal,
        "streams": [_diff_json(stream) for stream in report.streams],
        "failed": [failure_json(failure.name, failure.error) for failure in report.failures],
        "skipped": [{"name": name, "reason": reason} for name, reason in sorted(skipped.items())],
    }
    code = 0 if equal else JsBackupError.exit_code
    if report.failures:
        code = combined((failure.error.exit_code for failure in report.failures), mixed=IncompleteError.exit_code)
    return Result(document, _differences(sides, report, skipped), code)


def _differences(sides: Sequence[str], report: DiffReport, skipped: Mapping[str, str]) -> Iterator[Block]:
    different = [stream for stream in report.streams if not stream.equal]
    if different:
        yield TextTable(
            ["STREAM", ">ADDED", ">REMOVED", ">CHANGED", ">CONFIG", ">CONSUMERS"],
            [
                (
                    s.name,
                    format_count(s.messages.added),
                    format_count(s.messages.removed),
                    format_count(s.messages.changed),
                    str(len(s.config)) if s.only_in is None else f"only in {s.only_in.upper()}",
                    str(len(s.consumers)),
                )
                for s in different
            ],
        )
    for stream in report.streams:
        for line in _details(stream):
            yield f"{stream.name}: {line}"
    yield from said_lines(Said("failed", f.name, f.error.message, f.error.hint or "") for f in report.failures)
    yield from said_lines(Said("skipped", name, reason) for name, reason in sorted(skipped.items()))
    same = format_count(len(report.streams) - len(different), "stream")
    lacking = f", {len(report.failures)} not compared" if report.failures else ""
    yield f"from {sides[0]} to {sides[1]}: {same} equal, {len(different)} different{lacking}"


def _details(stream: StreamDiff) -> Iterator[str]:
    messages = stream.messages
    if stream.recreated:
        a, b = stream.created
        yield f"another stream of that name: created {a}, then {b}" if a != b else "compared across servers"
    for span in messages.ranges[:_SHOWN_RANGES]:
        sequences = str(span.first_seq) if span.messages == 1 else f"{span.first_seq} to {span.last_seq}"
        yield f"{span.change} {sequences} ({format_count(span.messages, 'message')})"
    if more := max(len(messages.ranges) - _SHOWN_RANGES, 0) + messages.ranges_left_out:
        yield f"… and {format_count(more, 'more range')}"
    for e in messages.examples:
        what = f"  ({', '.join(e.what)})" if e.what else ""
        yield f"{_SIGNS[e.change]} {e.sequence}  {format_exact_time(e.timestamp_ns)}  {e.subject}{what}"
    for change in stream.config:
        yield f"config {_change_text(change)}"
    for consumer in stream.consumers:
        if not consumer.config and not consumer.state:
            yield f"consumer {consumer.name}: {consumer.change}"
        for kind, changes in (("config", consumer.config), ("state", consumer.state)):
            for change in changes:
                yield f"consumer {consumer.name}: {kind} {_change_text(change)}"
    for note in stream.notes:
        yield f"note: {note}"


def _change_text(change: FieldChange) -> str:
    old, new = ("-" if value is None else json.dumps(value, ensure_ascii=False) for value in (change.old, change.new))
    return f"{change.field}: {old} -> {new}"


def _diff_json(stream: StreamDiff) -> JsonObject:
    messages = stream.messages
    return {
        "stream": stream.name,
        "equal": stream.equal,
        "only_in": stream.only_in,
        "added": messages.added,
        "removed": messages.removed,
        "changed": messages.changed,
        "ranges": [
            {"change": r.change, "first_seq": r.first_seq, "last_seq": r.last_seq, "messages": r.messages}
            for r in messages.ranges
        ],
        "ranges_left_out": messages.ranges_left_out,
        "messages": [
            {
                "change": e.change,
                "sequence": e.sequence,
                "time": format_exact_time(e.timestamp_ns),
                "subject": e.subject,
                "what": list(e.what),
            }
            for e in messages.examples
        ],
        "config_changes": _changes_json(stream.config),
        "consumer_changes": [
            {
                "consumer": c.name,
                "change": c.change,
                "config_changes": _changes_json(c.config),
                "state_changes": _changes_json(c.state),
            }
            for c in stream.consumers
        ],
        "recreated": stream.recreated,
        "created": {"a": stream.created[0], "b": stream.created[1]},
        "notes": list(stream.notes),
    }


def _changes_json(changes: Sequence[FieldChange]) -> list[JsonObject]:
    return [{"field": change.field, "from": change.old, "to": change.new} for change in changes]
