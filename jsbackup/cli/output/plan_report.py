"""Print a plan as JSON and as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jsbackup.cli.options.latest import notes_json
from jsbackup.cli.output.colour import State
from jsbackup.cli.output.grouped import Said, tell_each
from jsbackup.cli.output.output import Output, format_bytes, format_count, format_seconds
from jsbackup.cli.output.reports import again_text
from jsbackup.errors import IncompleteError
from jsbackup.model import JsonObject
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.cli.options.latest import Finder
    from jsbackup.engine.restore.preview import Preview
    from jsbackup.planning.model import Action, PlannedConsumer, RestorePlan, Target
    from jsbackup.planning.rules import Finding
    from jsbackup.repository.manifest import StreamBackup

__all__ = ["plan_code", "plan_json", "preview_json", "tell_plan", "tell_preview"]


def plan_code(plan: RestorePlan) -> int:
    """Return the exit code: that of the restore, which is incomplete if the backup lacks requested streams."""
    return plan.code or (IncompleteError.exit_code if plan.missing else 0)


def plan_json(finder: Finder, preview: Preview, saved: str | None) -> JsonObject:
    """Return the document of `plan --json`, for the backup that `finder` has found."""
    from jsbackup.repository.origin import origin_of

    manifest, search = finder.choice.manifest, finder.search
    named = "" if search.text == manifest.id else f"the one that {search.text} names, "
    chosen = "the latest, " if search.is_latest else named
    chosen += f"{manifest.result}, made {_second(manifest.created)}"
    if search.is_latest and "imported" not in manifest.source.extra:
        chosen += f", of {origin_of(manifest.source).words}"
    document: JsonObject = {"backup": preview.plan.backup, "chosen": chosen} | preview_json(preview)
    return document | notes_json(finder) | {"saved": saved}


def tell_plan(output: Output, document: JsonObject) -> None:
    """Print the document of `plan_json` as text."""
    last = [f"saved: {document['saved']}"] if document["saved"] else []
    tell_preview(output, document, "restored", f"backup {document['backup']}: {document['chosen']}", last=last)


def preview_json(preview: Preview) -> JsonObject:
    """Return the document of `plan --json` without the origin of streams."""
    from jsbackup.planning.forecast import ESTIMATE

    made, target = preview.plan, preview.target
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
        "refusals": [{"code": found.code} | _finding_json(found) for found in made.refusals],
        "warnings": [_finding_json(found) for found in _warnings(made)],
        "seconds": round(sum(action.seconds for action in made.actions), 1),
        "estimate": ESTIMATE,
    }


def _action_json(action: Action, order: int, target: Target) -> JsonObject:
    from jsbackup.planning.forecast import time_bounds

    entry = action.entry
    first_ns, last_ns, exact = (*action.times, True) if action.times else time_bounds(entry)
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
        "first_dropped": _dropped_json(action),
        "wire": action.wire,
        "wire_reason": action.wire_reason,
        "config_changes": [{"field": c.field, "before": c.before, "after": c.after} for c in action.changes],
        "consumers": [_consumer_json(entry, planned) for planned in action.consumers],
        "destroys": _destroyed_json(action, target),
        "seconds": round(action.seconds, 1),
        "notes": [found.reason for found in action.warnings],
    }


def _dropped_json(action: Action) -> JsonObject | None:
    """Return the first message after the end of a cut."""
    if action.first_dropped is None:
        return None
    sequence, time_ns = action.first_dropped
    return {"sequence": sequence, "time": format_time(time_ns)}


def _warnings(plan: RestorePlan) -> list[Finding]:
    return [*plan.warnings, *(found for action in plan.actions for found in action.warnings)]


def _finding_json(found: Finding) -> JsonObject:
    return {"stream": found.stream, "rule": found.rule, "reason": found.reason, "hint": found.hint or None}


def _consumer_json(entry: StreamBackup, planned: PlannedConsumer) -> JsonObject:
    from jsbackup.planning.forecast import may_come_again

    return {
        "name": planned.consumer.name,
        "fidelity": planned.fidelity,
        "note": planned.note,
        "may_come_again": may_come_again(entry, planned),
    }


def _destroyed_json(action: Action, target: Target) -> JsonObject | None:
    """Return what exists under the name, and would be removed."""
    there = target.streams.get(action.name)
    if there is None or not (action.replaces or action.leftover):
        return None
    return {
        "messages": there.state.messages,
        "bytes": there.state.bytes,
        "last_seq": there.state.last_seq,
        "created": there.created,
        "leftover": action.leftover,
        "left_out": _left_out_json(action),
    }


def _left_out_json(action: Action) -> JsonObject | None:
    """Return what exists, is not selected, and would be removed."""
    left_out = action.left_out
    if left_out is None:
        return None
    return {
        "messages": left_out.messages,
        "exact": left_out.exact,
        "subjects": left_out.subjects,
        "by": left_out.by,
    }


def tell_preview(output: Output, document: JsonObject, done: str, origin: str, *, last: Iterable[str] = ()) -> None:
    """Print the document of `preview_json` as text: what would be `done`, and the `origin`."""
    actions, refusals = document["actions"], document["refusals"]
    if actions:
        output.table(
            ["STREAM", "AS", "ACTION", ">STEP", ">MESSAGES", ">BYTES", ">FIRST", ">LAST", ">CONSUMERS", "SENT AS"],
            [
                (
                    a["stream"],
                    a["as"],
                    a["action"],
                    str(a["order"]),
                    format_count(a["messages"]),
                    format_bytes(a["bytes"]),
                    str(a["first_seq"]),
                    str(a["last_seq"]),
                    str(len(a["consumers"])),
                    a["wire"],
                )
                for a in actions
            ],
        )
    tell_each(output, (said for action in actions for said in _details(action)))
    tell_each(output, (Said("skipped", item["name"], item["reason"]) for item in document["skipped"]))
    tell_each(output, (_said("warning", found) for found in document["warnings"]))
    reasons = tell_each(output, (replace(_said("refused", found), rule=found["rule"]) for found in refusals))
    target = document["target"]
    where = f"nats-server {target['version']}" + (f", cluster {target['cluster']}" if target["cluster"] else "")
    output.line(origin)
    if refusals:
        output.line(State("refused"), f": nothing can be {done} into {where}, for {format_count(reasons, 'reason')}")
    elif actions:
        streams = format_count(len(actions), "stream")
        output.line(f"{streams} can be {done} into {where} in about {format_seconds(document['seconds'])}")
    else:
        output.line(f"nothing is left to be {done} into {where}")
    for line in last:
        output.line(line)


def _said(word: str, found: JsonObject) -> Said:
    return Said(word, found["stream"] or "all", found["reason"], found["hint"] or "")


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
        text = f"{change['field']}: {_value(change['before'])} → {_value(change['after'])}"
        yield Said("changed", name, text)
    for consumer in action["consumers"]:
        yield Said("consumer", name, f"{consumer['name']}: {_consumer_text(consumer)}")
    if gone := action["destroys"]:
        what = "the leftover of an interrupted restore" if gone["leftover"] else "the existing stream"
        messages = format_count(gone["messages"], "message")
        made = _second(gone["created"])
        yield Said("will be deleted", name, f"{what}, {messages} up to sequence {gone['last_seq']}, made {made}")


def _consumer_text(consumer: JsonObject) -> str:
    known = f"{consumer['fidelity']}; {again_text(consumer['may_come_again'])}"
    return known + (f"; {consumer['note']}" if consumer["note"] else "")


def _second(moment: str) -> str:
    """Return RFC 3339 in UTC without fractions of a second."""
    return moment if "." not in moment else moment.partition(".")[0] + "Z"


def _value(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)
