"""What `plan`, `restore` and `clone` say: what would be done and what was, as JSON and as text.

Loads the planner: imported when a command has something to say.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jsbackup.cli.options.backup_choice import notes_json
from jsbackup.cli.output.reports import again_text, consumer_result_text, problem_json, restored_stream_json
from jsbackup.cli.output.result import (
    Block,
    Result,
    Said,
    State,
    TextTable,
    failure_json,
    format_bytes,
    format_count,
    format_seconds,
    said_lines,
    table,
)
from jsbackup.errors import IncompleteError
from jsbackup.failure import FailedProof
from jsbackup.model import JsonObject
from jsbackup.planning.forecast import ESTIMATE, may_come_again, time_bounds
from jsbackup.planning.model import Action, RestorePlan, Target
from jsbackup.planning.rules import Finding
from jsbackup.planning.selection.chosen_streams import with_elsewhere
from jsbackup.repository.origin import origin_of
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.engine.restore.restore import RestoreReport
    from jsbackup.planning.plan import Decision
    from jsbackup.repository.read.latest import BackupSearch

__all__ = [
    "plan_code",
    "plan_json",
    "plan_text",
    "preview_json",
    "preview_text",
    "restored_json",
    "restored_result",
    "restored_text",
]

# How much of a stream was compared (`ProofLevel`).
_PROVED = {
    "full": "verified",
    "sample": "a tenth verified",
    "quick": "counts verified",
    "none": "not verified",
}


# --- what would be done ---


def plan_code(plan: RestorePlan) -> int:
    """Return the exit code: that of the restore, which is incomplete if the backup lacks requested streams."""
    return plan.code or (IncompleteError.exit_code if plan.missing else 0)


def plan_json(finder: BackupSearch, preview: Decision, saved: str | None) -> JsonObject:
    """Return the document of `plan --json`, for the backup that `finder` has found."""
    manifest = finder.choice.manifest
    chosen = f"{manifest.result}, made {_second(manifest.created)}"
    if finder.is_latest:
        of = "" if manifest.source.imported is not None else f", of {origin_of(manifest.source).words}"
        chosen = f"the latest, {chosen}{of}"
    elif finder.text != manifest.id:
        chosen = f"the one that {finder.text} names, {chosen}"
    document: JsonObject = {"backup": preview.plan.backup, "chosen": chosen} | preview_json(preview)
    return document | notes_json(finder) | {"saved": saved}


def plan_text(document: JsonObject) -> Iterator[Block]:
    """Return the document of `plan_json` as text."""
    yield from preview_text(document, "restored", f"backup {document['backup']}: {document['chosen']}")
    if document["saved"]:
        yield f"saved: {document['saved']}"


def preview_json(preview: Decision) -> JsonObject:
    """Return the document of `plan --json` without the origin of streams."""
    made, target = preview.plan, preview.target
    warnings = [*made.warnings, *(finding for action in made.actions for finding in action.warnings)]
    return {
        "target": {
            "version": ".".join(map(str, target.version)),
            "clustered": target.clustered,
            "cluster": target.cluster or None,
        },
        "actions": [
            _action_json(action, order, target) for order, stage in enumerate(made.stages, start=1) for action in stage
        ],
        "skipped": [{"name": refusal.stream, "reason": refusal.reason} for refusal in made.skipped],
        "refusals": [{"code": finding.code} | _finding_json(finding) for finding in made.refusals],
        "warnings": [_finding_json(finding) for finding in warnings],
        "seconds": round(sum(action.seconds for action in made.actions), 1),
        "estimate": ESTIMATE,
    }


def _action_json(action: Action, order: int, target: Target) -> JsonObject:
    entry, existing, left_out = action.entry, target.streams.get(action.name), action.left_out
    first_ns, last_ns, exact = (*action.times, True) if action.times else time_bounds(entry)
    dropped = action.first_dropped
    destroyed: JsonObject | None = None
    if existing is not None and (action.replaces or action.leftover):
        destroyed = {
            "messages": existing.state.messages,
            "bytes": existing.state.bytes,
            "last_seq": existing.state.last_seq,
            "created": existing.created,
            "leftover": action.leftover,
            "left_out": left_out
            and {
                "messages": left_out.messages,
                "exact": left_out.exact,
                "subjects": left_out.subjects,
                "by": left_out.by,
            },
        }
    return {
        "stream": entry.name,
        "as": action.name,
        "action": "replace" if action.replaces else "create",
        "order": order,
        "messages": entry.captured.messages,
        "bytes": entry.captured.bytes,
        "first_seq": entry.captured.first_seq,
        "last_seq": entry.captured.last_seq,
        "first_time": format_time(first_ns) if first_ns else None,
        "last_time": format_time(last_ns) if last_ns else None,
        "times_exact": exact and action.counted,
        "counted": action.counted,
        "first_dropped": dropped and {"sequence": dropped[0], "time": format_time(dropped[1])},
        "wire": action.wire,
        "wire_reason": action.wire_reason,
        "config_changes": [{"field": c.field, "before": c.before, "after": c.after} for c in action.changes],
        "consumers": [
            {
                "name": planned.consumer.name,
                "fidelity": planned.fidelity,
                "note": planned.note,
                "may_come_again": may_come_again(entry, planned),
            }
            for planned in action.consumers
        ],
        "destroys": destroyed,
        "seconds": round(action.seconds, 1),
        "notes": [finding.reason for finding in action.warnings],
    }


def _finding_json(finding: Finding) -> JsonObject:
    return {"stream": finding.stream, "rule": finding.rule, "reason": finding.reason, "hint": finding.hint or None}


def preview_text(document: JsonObject, done: str, origin: str) -> Iterator[Block]:
    """Return the document of `preview_json` as text: what would be `done`, and the `origin`."""
    actions, refusals, target = document["actions"], document["refusals"], document["target"]
    if actions:
        yield table(
            actions,
            {
                "STREAM": "stream",
                "AS": "as",
                "ACTION": "action",
                ">STEP": "order",
                ">MESSAGES": ("messages", format_count),
                ">BYTES": ("bytes", format_bytes),
                ">FIRST": "first_seq",
                ">LAST": "last_seq",
                ">CONSUMERS": ("consumers", lambda consumers: str(len(consumers))),
                "SENT AS": "wire",
            },
        )
    lines = list(said_lines(_findings(document)))
    yield from lines
    yield origin
    where = f"nats-server {target['version']}" + (f", cluster {target['cluster']}" if target["cluster"] else "")
    if refusals:
        reasons = format_count(sum(line[0] == "refused" for line in lines), "reason")
        yield State("refused"), f": nothing can be {done} into {where}, for {reasons}"
    elif actions:
        streams = format_count(len(actions), "stream")
        yield f"{streams} can be {done} into {where} in about {format_seconds(document['seconds'])}"
    else:
        yield f"nothing is left to be {done} into {where}"


def _findings(document: JsonObject) -> Iterator[Said]:
    for action in document["actions"]:
        yield from _details(action)
    for skipped in document["skipped"]:
        yield Said("skipped", skipped["name"], skipped["reason"])
    for word, findings in (("warning", document["warnings"]), ("refused", document["refusals"])):
        for finding in findings:
            rule = finding["rule"] if word == "refused" else ""
            yield Said(word, finding["stream"] or "all", finding["reason"], finding["hint"] or "", rule=rule)


def _details(action: JsonObject) -> Iterator[Said]:
    name = action["as"]
    if action["first_time"] and action["last_time"]:
        about = "" if action["times_exact"] else "about "
        yield Said("times", name, f"{about}{_second(action['first_time'])} to {_second(action['last_time'])}")
    if not action["counted"]:
        yield Said("estimate", name, "messages and bytes are the most that can be kept; the restore counts them")
    if dropped := action["first_dropped"]:
        yield Said("left out", name, f"from sequence {dropped['sequence']} on, stored {dropped['time']}")
    yield Said(f"sent as {action['wire']}", name, action["wire_reason"])
    for change in action["config_changes"]:
        yield Said("changed", name, f"{change['field']}: {_value(change['before'])} → {_value(change['after'])}")
    for consumer in action["consumers"]:
        note = f"; {consumer['note']}" if consumer["note"] else ""
        state = f"{consumer['fidelity']}; {again_text(consumer['may_come_again'])}{note}"
        yield Said("consumer", name, f"{consumer['name']}: {state}")
    if destroyed := action["destroys"]:
        what = "the leftover of an interrupted restore" if destroyed["leftover"] else "the existing stream"
        messages, made = format_count(destroyed["messages"], "message"), _second(destroyed["created"])
        yield Said("will be deleted", name, f"{what}, {messages} up to sequence {destroyed['last_seq']}, made {made}")


def _second(moment: str) -> str:
    """Return RFC 3339 in UTC without fractions of a second."""
    return moment if "." not in moment else moment.partition(".")[0] + "Z"


def _value(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)


# --- what was done ---


def restored_result(report: RestoreReport, done: str, finder: BackupSearch | None = None) -> Result:
    """Return the result, with the verb `done`. `finder` has found the backup; a clone has none."""
    if finder is not None:
        report = replace(report, plan=with_elsewhere(report.plan, finder.choice))
    return Result(restored_json(report, finder), restored_text(report, done), report.code)


def restored_json(report: RestoreReport, finder: BackupSearch | None = None) -> JsonObject:
    """Return the document of `restore --json` and, without a `finder`, of `clone --json`."""
    streams = [
        {
            **restored_stream_json(stream, stream.notes),
            "usable_at": format_time(stream.usable_ns),
            "wire": stream.wire,
            "copying": stream.copying
            and {
                "settled": stream.copying.settled,
                "new_messages": stream.copying.new_messages,
                "waiting_for": list(stream.copying.waiting),
            },
            "lost": [problem_json(problem) for problem in stream.lost],
        }
        for stream in report.streams
    ]
    # A stream whose proof failed is at the target, and could be used from then on.
    failed = [
        {
            **failure_json(failure.name, failure.error),
            "usable_at": format_time(failure.usable_ns) if isinstance(failure, FailedProof) else None,
        }
        for failure in report.failures
    ]
    return {
        "streams": streams,
        "failed": failed,
        "skipped": [{"name": refusal.stream, "reason": refusal.reason} for refusal in report.plan.skipped],
        "missing": [{"name": missing.stream, "reason": missing.reason} for missing in report.plan.missing],
        **({} if finder is None else {"backup": report.plan.backup, **notes_json(finder)}),
    }


def restored_text(report: RestoreReport, done: str) -> Iterator[Block]:
    """Return the document of `restored_json` as text."""
    yield TextTable(
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
    yield from said_lines(_remarks(report))
    restored = format_count(len(report.streams), "stream")
    lost = sum(problem.messages for stream in report.streams for problem in stream.lost)
    lacking = f"; {format_count(lost, 'message')} lost" if lost else ""
    incomplete = sum(stream.incomplete for stream in report.streams)
    restored += f", {incomplete} of them incomplete" if incomplete else ""
    failed = f"{len(report.failures)} failed"
    if unproved := sum(isinstance(failure, FailedProof) and not failure.wrong for failure in report.failures):
        failed += f" ({unproved} of them could be used, but {'was' if unproved == 1 else 'were'} not verified)"
    yield f"{done} {restored}, {failed}, {len(report.plan.skipped)} skipped{lacking}"


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
