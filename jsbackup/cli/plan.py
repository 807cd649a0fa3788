"""`jsbackup plan`. The engine is imported when it is called: `--help` and completion load this module."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jsbackup import __version__
from jsbackup.cli.command import Command, Shared
from jsbackup.cli.latest import make_finder, notes_json, with_elsewhere
from jsbackup.cli.leases import lock_timeout_option, reading
from jsbackup.cli.log import start_log
from jsbackup.cli.output import Output, format_bytes, format_count, format_seconds
from jsbackup.cli.planning import Asked, planning_options, refuse_beside, runbook_option
from jsbackup.cli.reports import again_text
from jsbackup.cli.reshaping import mask_key_options
from jsbackup.cli.session import connection_of, open_repository, run_async
from jsbackup.errors import IncompleteError
from jsbackup.model import JsonObject
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.cli.latest import Finder
    from jsbackup.engine.planned import Action, PlannedConsumer, RestorePlan, Target
    from jsbackup.engine.preview import Preview
    from jsbackup.engine.rules import Finding
    from jsbackup.repository.manifest import StreamBackup

__all__ = ["COMMANDS", "plan_code", "plan_json", "preview_json", "tell_plan", "tell_preview"]


@click.command(cls=Command, needs_server=True)
@planning_options
@click.option(
    "-o",
    "--output",
    "output_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Save the plan for 'restore --plan', unless something stands against it.",
)
@runbook_option("Plan all restores that this file lists; in place of BACKUP and what says how to restore it.")
@mask_key_options
@lock_timeout_option
def plan(
    shared: Shared,
    asked: Asked,
    output_file: Path | None,
    runbook: Path | None,
    mask_secret: bytes,
    lock_timeout: str,
) -> int:
    """Say what 'jsbackup restore' would do with the same arguments, why, and what stands against it.

    Which backup `latest` is, and what of it is in others, is said as by a restore.

    Nothing is changed at the target. The exit code is 0 if the plan can be carried out, 3 if the backup lacks
    something that was asked for, else that of the refusals.
    """
    from jsbackup.engine.plan_file import encode_plan, write_plan
    from jsbackup.engine.preview import preview_restore

    start_log(shared)
    if runbook is not None:
        from jsbackup.cli.runbook import plan_runbook

        refuse_beside(click.get_current_context(), "--runbook", "output_file")
        return plan_runbook(shared, runbook, mask_secret, lock_timeout)
    options = asked.options()
    if mask_secret:  # else whoever carries the plan out has it
        options.reshape.masks.check_secret(mask_secret)
    connection = connection_of(shared)
    repository = open_repository(shared)
    with reading(shared, repository, "plan", lock_timeout):
        finder = make_finder(
            shared,
            repository,
            asked.backup,
            asked.choosing(),
            streams=options.streams,
            exclude=options.exclude,
            silent=True,
        )
        preview = run_async(preview_restore(connection, repository, finder.early(), options, now_ns=time.time_ns))
    manifest, preview = finder.found, replace(preview, plan=with_elsewhere(preview.plan, finder.choice))
    saved = None
    if output_file is not None and not preview.plan.refusals:
        created = format_time(time.time_ns())
        data = encode_plan(
            preview.plan, preview.target, manifest, options, tool=f"jsbackup {__version__}", created=created
        )
        write_plan(output_file, data)
        saved = str(output_file)
    document = plan_json(finder, preview, saved)
    shared.output.result(document, lambda: tell_plan(shared.output, document))
    if output_file is not None and saved is None:
        shared.output.note("the plan was not saved, since it is refused")
    return plan_code(preview.plan)


def plan_code(plan: RestorePlan) -> int:
    """The exit code: that of the restore, which is incomplete if the backup lacks what was asked for."""
    return plan.code or (IncompleteError.exit_code if plan.missing else 0)


def plan_json(finder: Finder, preview: Preview, saved: str | None) -> JsonObject:
    """The document of `plan --json`, for the backup that `finder` has found."""
    from jsbackup.repository.origin import origin_of

    manifest = finder.found
    chosen = "the latest" if finder.is_latest else f"the one that {finder.text} names"
    chosen = f"{chosen}, {manifest.result}, made {_second(manifest.created)}"
    if finder.is_latest and "imported" not in manifest.source.extra:
        chosen += f", of {origin_of(manifest.source).words}"
    document: JsonObject = {"backup": preview.plan.backup, "chosen": chosen} | preview_json(preview)
    return document | notes_json(finder) | {"saved": saved}


def tell_plan(output: Output, document: JsonObject) -> None:
    """What `plan_json` tells, for people."""
    last = [f"saved: {document['saved']}"] if document["saved"] else []
    tell_preview(output, document, "restored", f"backup {document['backup']}: {document['chosen']}", last)


def preview_json(preview: Preview) -> JsonObject:
    """The document of `plan --json`, but for where streams come from."""
    from jsbackup.engine.forecast import ESTIMATE

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
    from jsbackup.engine.forecast import time_bounds

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
    """The first message behind the end of a cut."""
    if action.first_dropped is None:
        return None
    sequence, time_ns = action.first_dropped
    return {"sequence": sequence, "time": format_time(time_ns)}


def _warnings(plan: RestorePlan) -> list[Finding]:
    return [*plan.warnings, *(found for action in plan.actions for found in action.warnings)]


def _finding_json(found: Finding) -> JsonObject:
    return {"stream": found.stream, "rule": found.rule, "reason": found.reason, "hint": found.hint or None}


def _consumer_json(entry: StreamBackup, planned: PlannedConsumer) -> JsonObject:
    from jsbackup.engine.forecast import may_come_again

    return {
        "name": planned.consumer.name,
        "fidelity": planned.fidelity,
        "note": planned.note,
        "may_come_again": may_come_again(entry, planned),
    }


def _destroyed_json(action: Action, target: Target) -> JsonObject | None:
    """What there is under the name, and will not be any more."""
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
    """What is there, is not selected, and will not be any more."""
    left_out = action.left_out
    if left_out is None:
        return None
    return {
        "messages": left_out.messages,
        "exact": left_out.exact,
        "subjects": left_out.subjects,
        "by": left_out.by,
    }


def tell_preview(output: Output, document: JsonObject, done: str, origin: str, last: Iterable[str] = ()) -> None:
    """What `preview_json` tells, for people: what would be `done`, and the `origin` of it."""
    actions, refusals = document["actions"], document["refusals"]
    if actions:
        output.table(
            ["STREAM", "AS", "ACTION", ">ORDER", ">MESSAGES", ">BYTES", ">FIRST", ">LAST", ">CONSUMERS", "SENT AS"],
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
    for action in actions:
        for line in _details(action):
            output.line(line)
    for item in document["skipped"]:
        output.line(f"skipped: {item['name']}: {item['reason']}")
    for kind, found in (("warning", document["warnings"]), ("refused", refusals)):
        for one in found:
            output.line(f"{kind}: {one['stream'] or 'all'}: {one['reason']}")
            if one["hint"]:
                output.line(f"hint: {one['hint']}")
    target = document["target"]
    where = f"nats-server {target['version']}" + (f", cluster {target['cluster']}" if target["cluster"] else "")
    output.line(origin)
    if refusals:
        output.line(f"refused: nothing can be {done} into {where}, for {format_count(len(refusals), 'reason')}")
    elif actions:
        streams = format_count(len(actions), "stream")
        output.line(f"{streams} can be {done} into {where} in about {format_seconds(document['seconds'])}")
    else:
        output.line(f"nothing is left to be {done} into {where}")
    for line in last:
        output.line(line)


def _details(action: JsonObject) -> Iterator[str]:
    name = action["as"]
    if action["first_time"]:
        about = "" if action["times_exact"] else "about "
        yield f"times: {name}: {about}{_second(action['first_time'])} to {_second(action['last_time'])}"
    if not action["counted"]:
        yield f"estimate: {name}: messages and bytes are the most that can be kept; the restore counts them"
    if dropped := action["first_dropped"]:
        yield f"left out: {name}: from sequence {dropped['sequence']} on, stored {dropped['time']}"
    yield f"sent as {action['wire']}: {name}: {action['wire_reason']}"
    for change in action["config_changes"]:
        yield f"changed: {name}: {change['field']}: {_value(change['before'])} → {_value(change['after'])}"
    for consumer in action["consumers"]:
        yield f"consumer: {name}: {consumer['name']}: {_consumer_text(consumer)}"
    if gone := action["destroys"]:
        what = "a leftover of an interrupted restore" if gone["leftover"] else "the stream that is there"
        messages = format_count(gone["messages"], "message")
        made = _second(gone["created"])
        yield f"destroyed: {name}: {what}, {messages} up to sequence {gone['last_seq']}, made {made}"


def _consumer_text(consumer: JsonObject) -> str:
    told = f"{consumer['fidelity']}; {again_text(consumer['may_come_again'])}"
    return told + (f"; {consumer['note']}" if consumer["note"] else "")


def _second(moment: str) -> str:
    """RFC 3339 in UTC, without what is less than a second."""
    return moment if "." not in moment else moment.partition(".")[0] + "Z"


def _value(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)


COMMANDS = {"plan": plan}
