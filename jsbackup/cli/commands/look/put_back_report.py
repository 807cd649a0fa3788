"""What `put-back` prints: the plan, what was written, and what was not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsbackup.cli.output.output import Output, error_json, format_bytes, format_count, format_seconds
from jsbackup.cli.parsing.context import Shared
from jsbackup.errors import TargetConflict
from jsbackup.model import JsonObject
from jsbackup.names import BUCKET_STREAM
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.putting_back.model import MessageResult, PutBackReport

__all__ = ["tell_put_back"]

_SHOWN = 20
_ORDER = ("refused", "conflict", "duplicate", "write", "written", "there", "left out")


def tell_put_back(shared: Shared, report: PutBackReport, *, dry_run: bool) -> int:
    """Print the report; return the exit code."""
    output, plan = shared.output, report.plan
    refusal = plan.refusal()
    code = report.code if refusal is None else refusal.exit_code
    rows = list(map(_row, report.results()))
    document: JsonObject = {
        "backup": plan.manifest.id,
        "stream": plan.entry.name,
        "to": plan.target.name,
        "dry_run": dry_run,
        "result": _result(report, refused=refusal is not None, dry_run=dry_run),
        "chosen": len(plan.messages),
        **{name.replace(" ", "_"): sum(1 for row in rows if row["action"] == name) for name in _ORDER},
        "replaced": report.replaced,
        "twice": [list(one) for one in report.twice],
        "messages": rows,
        "blocked": [one.reason for one in plan.blocked],
        "notes": [*plan.notes, *report.notes],
        **(error_json(refusal) if refusal is not None else {}),
    }

    def text() -> None:
        _table(output, rows)
        for note in (*plan.notes, *report.notes):
            output.line(f"note: {note}")
        if refusal is None:
            output.line(_summary(report, document, dry_run=dry_run))
            if report.known_ids:
                output.line(f"note: {_about_duplicates(report)}")

    output.result(document, text)
    if refusal is not None and not output.as_json:
        output.error(refusal)
    return code


def _result(report: PutBackReport, *, refused: bool, dry_run: bool) -> str:
    if refused:
        return "refused"
    if dry_run:
        return "planned"
    if report.code:
        return "refused" if report.code == TargetConflict.exit_code else "partial"
    return "complete" if report.written else "nothing to write"


def _row(result: MessageResult) -> JsonObject:
    one = result.message
    return {
        "sequence": one.sequence,
        "time": format_time(one.timestamp_ns),
        "subject": one.subject.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"),
        "name": one.name or None,
        "bytes": one.size,
        "action": result.action,
        "reason": result.reason or None,
        "overwrites": one.overwrites,
        "expected_last": one.expected,
        "as_sequence": result.as_sequence,
    }


def _table(output: Output, rows: list[JsonObject]) -> None:
    if not rows:
        return
    shown = sorted(rows, key=lambda row: (_ORDER.index(row["action"]), row["sequence"]))[:_SHOWN]
    output.table(
        [">SEQ", "TIME", "SUBJECT", ">BYTES", "WHAT", ">AS", "WHY"],
        [
            (
                str(row["sequence"]),
                row["time"],
                row["name"] or row["subject"],
                format_bytes(row["bytes"]),
                row["action"],
                "-" if row["as_sequence"] is None else str(row["as_sequence"]),
                row["reason"] or "",
            )
            for row in shown
        ],
    )
    if len(shown) < len(rows):
        output.line(f"… and {format_count(len(rows) - len(shown), 'more message')}; --json has all")


def _about_duplicates(report: PutBackReport) -> str:
    window = report.plan.target.config.get("duplicate_window")
    seconds = f" ({format_seconds(window / 1e9)})" if isinstance(window, int) else ""
    return (
        f"the server remembers message ids for a while{seconds}, even of removed messages: run the same command "
        "again after that"
    )


def _summary(report: PutBackReport, document: JsonObject, *, dry_run: bool) -> str:
    plan = report.plan
    what = "file" if plan.file is not None else "key" if plan.entry.name.startswith(BUCKET_STREAM) else "message"
    others = {
        "there already": document["there"],
        "left out": document["left_out"],
        "refused": document["refused"],
        "known by their message ids": document["duplicate"],
        "changed by other clients": document["conflict"],
    }
    rest = "".join(f", {format_count(count)} {name}" for name, count in others.items() if count)
    if dry_run:
        return f"would write {format_count(document['write'], what)} into {plan.target.name}{rest}"
    if not report.written:
        return f"nothing was written into {plan.target.name}{rest}"
    proof = "read back and compared"
    if report.replaced:
        proof += f", {format_count(report.replaced)} of them replaced or removed since"
    return f"wrote {format_count(len(report.written), what)} into {plan.target.name}{rest}; {proof}"
