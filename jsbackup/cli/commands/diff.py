"""`jsbackup diff`. Modules for backups and servers are imported when it is called: `--help` and completion load
this.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from jsbackup.cli.options.latest import LATEST, WantedBackup, make_finder
from jsbackup.cli.options.leases import reading
from jsbackup.cli.options.opening import connection_of, open_repository, run_async
from jsbackup.cli.output.grouped import Said, said_lines
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.output import failure_json, format_count
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.result import Block, Result, Table
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup, complete_stream
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.parsing.typed_amounts import WholeNumber
from jsbackup.config import parse_glob
from jsbackup.errors import IncompleteError, JsBackupError, UsageError
from jsbackup.exit_codes import combined
from jsbackup.model import JsonObject
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.repository.read.config_diff import FieldChange
    from jsbackup.repository.read.diff import DiffReport, StreamDiff

__all__ = ["COMMANDS"]

_SHOWN_RANGES = 5
_SIGNS = {"added": "+", "removed": "-", "changed": "!"}


def _result(sides: Sequence[str], report: DiffReport, skipped: Mapping[str, str]) -> Result:
    """Return the differences between two `sides` (ids, or `live`) and the streams that were skipped, with the
    reasons.
    """
    equal = not report.failures and all(stream.equal for stream in report.streams)
    document = {
        "a": sides[0],
        "b": sides[1],
        "equal": equal,
        "streams": [_stream_json(stream) for stream in report.streams],
        "failed": [failure_json(failure.name, failure.error) for failure in report.failures],
        "skipped": [{"name": name, "reason": reason} for name, reason in sorted(skipped.items())],
    }
    code = 0 if equal else JsBackupError.exit_code
    if report.failures:
        code = combined((failure.error.exit_code for failure in report.failures), mixed=IncompleteError.exit_code)
    return Result(document, _text(sides, report, skipped), code)


def _text(sides: Sequence[str], report: DiffReport, skipped: Mapping[str, str]) -> Iterator[Block]:
    different = [stream for stream in report.streams if not stream.equal]
    if different:
        yield Table(
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
        yield f"{_SIGNS[e.change]} {e.sequence}  {format_time(e.timestamp_ns)}  {e.subject}{what}"
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


LIVE = "live"


def _complete_side(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    live = [CompletionItem(LIVE)] if LIVE.startswith(incomplete) else []
    return live + complete_backup(ctx, param, incomplete)


@click.command(cls=Command, needs_server=True, answers=True, chooses=True)
@click.argument("a", shell_complete=_complete_side)
@click.argument("b", shell_complete=_complete_side)
@click.argument("streams", nargs=-1, metavar="[STREAM_OR_GLOB]...", shell_complete=complete_stream)
@click.option(
    "--exclude", multiple=True, metavar="GLOB", shell_complete=complete_stream, help="Leave these streams out."
)
@click.option(
    "--messages",
    "named",
    type=WholeNumber(0),
    default=5,
    show_default=True,
    metavar="N",
    help="Show up to this many added, removed and changed messages of each stream.",
)
def diff(
    shared: Shared,
    a: str,
    b: str,
    streams: tuple[str, ...],
    *,
    exclude: tuple[str, ...],
    named: int,
) -> Result:
    """Compare two backups, or a backup and the streams of a server: what was added, removed and changed from A to B.

    A and B are ids of backups, their starts, or `latest`. One of them may be `live`; then `latest` is the newest
    backup of the connected source, if there is one. Streams with equal digests are equal; of others, only the
    segments that differ are read. A live stream is read whole, up to its last message at that time.
    """
    from jsbackup.repository.read.compared_streams import ComparedStreams
    from jsbackup.repository.read.diff import DiffRun, Side, diff_backups

    start_log(shared)
    globs, excluded = tuple(map(parse_glob, streams)), tuple(map(parse_glob, exclude))
    if a == b == LIVE:
        raise UsageError("both sides are live", hint="Name a backup on one side.")
    if LIVE not in (a, b) and shared.server:
        raise UsageError("server options make no sense between two backups", hint="Leave them out, or name `live`.")
    connection = connection_of(shared) if LIVE in (a, b) else None
    repository = open_repository(shared)
    with (
        reading(shared, repository, "diff"),
        make_progress("diff", wanted=shared.progress) as progress,
    ):
        source = None
        if connection is not None and LATEST in (a, b):
            from jsbackup.engine.link.source import read_source

            source = run_async(read_source(connection))
        finders = [
            make_finder(
                shared,
                repository,
                WantedBackup(text, globs, excluded, silent=True, all_needed=False),
            )
            for text in (a, b)
            if text != LIVE
        ]
        found = iter([finder(source) for finder in finders])
        sides = [None if text == LIVE else next(found) for text in (a, b)]
        manifests = [manifest for manifest in sides if manifest is not None]
        choice = ComparedStreams(globs, excluded, manifests)
        consumers = all(m.selection is None or m.selection.consumers for m in manifests)
        run = DiffRun(repository.objects, choice.choose, consumers, named, progress)
        if connection is None:
            old, new = manifests
            report = diff_backups(run, old, new)
        else:
            from jsbackup.engine.check.diff_live import diff_live

            side = Side.A if sides[0] is not None else Side.B
            report = run_async(diff_live(run, connection, manifests[0], side))
    names = [LIVE if manifest is None else manifest.id for manifest in sides]
    return _result(names, report, choice.skipped)


COMMANDS = {"diff": diff}
