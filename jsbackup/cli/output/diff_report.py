"""Print the differences of two backups as JSON and as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from jsbackup.cli.output.grouped import Said, tell_each
from jsbackup.cli.output.output import Output, failure_json, format_count
from jsbackup.errors import IncompleteError, JsBackupError
from jsbackup.exit_codes import combined
from jsbackup.model import JsonObject
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.repository.read.config_diff import ConsumerChange, FieldChange
    from jsbackup.repository.read.diff import DiffReport, StreamDiff
    from jsbackup.repository.read.message_diff import Example, Range

__all__ = ["tell_diff"]

_SHOWN_RANGES = 5
_SIGNS = {"added": "+", "removed": "-", "changed": "!"}


def tell_diff(output: Output, sides: Sequence[str], report: DiffReport, skipped: Mapping[str, str]) -> int:
    """Print the differences between two `sides` (ids, or `live`) and the streams that were skipped, with the reasons;
    return the exit code.
    """
    equal = not report.failures and all(stream.equal for stream in report.streams)
    failed = [failure_json(one.name, one.error) for one in report.failures]
    document = {
        "a": sides[0],
        "b": sides[1],
        "equal": equal,
        "streams": [_stream_json(stream) for stream in report.streams],
        "failed": failed,
        "skipped": [{"name": name, "reason": reason} for name, reason in sorted(skipped.items())],
    }

    def text() -> None:
        different = [stream for stream in report.streams if not stream.equal]
        if different:
            output.table(
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
                output.line(f"{stream.name}: {line}")
        tell_each(output, (Said("failed", f.name, f.error.message, f.error.hint or "") for f in report.failures))
        tell_each(output, (Said("skipped", name, reason) for name, reason in sorted(skipped.items())))
        same = format_count(len(report.streams) - len(different), "stream")
        lacking = f", {len(failed)} not compared" if failed else ""
        output.line(f"from {sides[0]} to {sides[1]}: {same} equal, {len(different)} different{lacking}")

    output.result(document, text)
    if report.failures:
        return combined((failure.error.exit_code for failure in report.failures), mixed=IncompleteError.exit_code)
    return 0 if equal else JsBackupError.exit_code


def _details(stream: StreamDiff) -> Iterator[str]:
    messages = stream.messages
    if stream.recreated:
        a, b = stream.created
        yield f"another stream of that name: created {a}, then {b}" if a != b else "compared across servers"
    for one in messages.ranges[:_SHOWN_RANGES]:
        yield _range_text(one)
    if more := max(len(messages.ranges) - _SHOWN_RANGES, 0) + messages.ranges_left_out:
        yield f"… and {format_count(more, 'more range')}"
    for example in messages.examples:
        yield _example_text(example)
    for change in stream.config:
        yield f"config {_change_text(change)}"
    for consumer in stream.consumers:
        yield from _consumer_text(consumer)
    for note in stream.notes:
        yield f"note: {note}"


def _range_text(one: Range) -> str:
    sequences = str(one.first_seq) if one.messages == 1 else f"{one.first_seq} to {one.last_seq}"
    return f"{one.change} {sequences} ({format_count(one.messages, 'message')})"


def _example_text(example: Example) -> str:
    what = f"  ({', '.join(example.what)})" if example.what else ""
    return f"{_SIGNS[example.change]} {example.sequence}  {format_time(example.timestamp_ns)}  {example.subject}{what}"


def _change_text(change: FieldChange) -> str:
    old, new = ("-" if value is None else json.dumps(value, ensure_ascii=False) for value in (change.old, change.new))
    return f"{change.field}: {old} -> {new}"


def _consumer_text(consumer: ConsumerChange) -> Iterator[str]:
    if not consumer.config and not consumer.state:
        yield f"consumer {consumer.name}: {consumer.change}"
    for kind, changes in (("config", consumer.config), ("state", consumer.state)):
        for change in changes:
            yield f"consumer {consumer.name}: {kind} {_change_text(change)}"


def _stream_json(stream: StreamDiff) -> JsonObject:
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
                "time": format_time(e.timestamp_ns),
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
