"""`jsbackup list` and `jsbackup show`: what backups there are, and what is in one.

What only one of them needs is imported where it is used.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import click

from jsbackup.cli.commands.look.contents import check_readable, find_opened
from jsbackup.cli.options.backup_choice import WantedBackup, find_backup
from jsbackup.cli.options.opening import open_repository
from jsbackup.cli.output.reports import consumer_json, problem_json, read_as, stream_json
from jsbackup.cli.output.result import (
    Block,
    Result,
    Said,
    State,
    TextTable,
    format_bytes,
    format_count,
    format_seconds,
    said_lines,
    table,
)
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup, complete_stream
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.parsing.typed_values import WholeNumber
from jsbackup.errors import IntegrityError, UsageError
from jsbackup.exit_codes import damage, unreadable
from jsbackup.model import JsonObject
from jsbackup.readable import span, time_to_second
from jsbackup.repository.checks.verify import Problem
from jsbackup.repository.inventory import find_missing
from jsbackup.repository.keep.damage import known_damage, known_problems
from jsbackup.repository.keep.holds import Hold, find_hold, held_backups
from jsbackup.repository.manifest import BackupSummary, ConsumerBackup, Manifest, Source, StreamBackup, summary_of
from jsbackup.repository.origin import origin_of
from jsbackup.repository.pages.segment_list import size_of
from jsbackup.repository.read.sources import counts
from jsbackup.repository.repository import Repository
from jsbackup.times import format_time, parse_time

__all__ = ["COMMANDS"]


# --- list ---


@click.command("list", cls=Command, chooses=True)
@click.option("--last", type=WholeNumber(1), metavar="N", help="Only the newest N of them.")
def list_backups(shared: Shared, last: int | None) -> Result:
    """List the backups of a repository, oldest first: age, duration, what was added, server and account, and which
    streams were asked for.

    A backup that cannot be read or is missing is always listed, whatever you filter by, because its content is
    unknown. One that is known to be damaged is marked; `show` says what it lacks. The exit code is 14 if there is any.
    """

    rules, globs = shared.choosing.tags, shared.choosing.origins
    now_ns = time.time_ns()
    repository = open_repository(shared)
    inventory, held = repository.inventory(), held_backups(repository)
    wanted = [each for each in inventory.summaries if counts(each, rules, globs)][-(last or 0) :]
    damaged, unknown = known_damage(repository, [each.id for each in wanted])
    for warning in (*inventory.warnings, *unknown):
        shared.output.note(warning)
    lost = [each.error for each in inventory.unreadable]
    removed = find_missing(repository.documents) if inventory.gaps else []
    lost += [IntegrityError(f"manifest {gap.key}: {gap.problem}") for gap in removed]
    rows = [_summary_json(each, now_ns) | {"held": each.id in held, "damaged": each.id in damaged} for each in wanted]
    shown = [
        row
        | {
            "state": _state(row["result"], damaged=row["damaged"], held=row["held"]),
            "of": _source_column(summary),
            "asked": _selection_column(summary),
        }
        for summary, row in zip(wanted, rows, strict=True)
    ]
    blocks: list[Block] = [
        table(
            shown,
            {
                "BACKUP": "backup",
                ">AGE": ("age_seconds", span),
                "RESULT": ("state", State),
                ">STREAMS": "streams",
                ">MESSAGES": ("messages", format_count),
                ">BYTES": ("bytes", format_bytes),
                ">ADDED": ("stored_bytes_added", lambda size: "-" if size is None else format_bytes(size)),
                ">TIME": ("seconds", lambda seconds: "-" if seconds is None else format_seconds(seconds)),
                "SOURCE": "of",
                "SELECTION": "asked",
                "TAGS": ("tags", lambda tags: ",".join(f"{key}={value}" for key, value in sorted(tags.items()))),
            },
        )
    ]
    if not rows:
        blocks.append("no backup matches" if rules or globs else "there are no backups")
    blocks += [(State("cannot be read"), f": {error.message}") for error in lost]
    document = {"backups": rows, "damaged": [error.message for error in lost]}
    return Result(document, blocks, unreadable(lost) or damage(damaged))


def _state(result: str, *, damaged: bool, held: bool = False) -> State:
    return State(", ".join([*(["damaged"] if damaged else []), result, *(["held"] if held else [])]))


def _summary_json(summary: BackupSummary, now_ns: int) -> JsonObject:
    """Return a backup for `list --json`; `show --json` has more about the source."""
    selection = summary.selection
    return {
        "backup": summary.id,
        "created": summary.created,
        "age_seconds": round((now_ns - parse_time(summary.created)) / 1e9, 3),
        "seconds": None if summary.seconds is None else round(summary.seconds, 3),
        "result": summary.result,
        "streams": summary.streams,
        "messages": summary.messages,
        "bytes": summary.bytes,
        "stored_bytes_added": summary.stored_bytes,
        "tags": dict(summary.tags),
        "source": {
            "cluster": summary.cluster,
            "account": summary.account,
            "account_name": summary.account_name,
            "domain": summary.domain,
            "api_prefix": summary.api_prefix,
            "profile": summary.profile,
            "imported": summary.imported,
            "transformed": summary.transformed,
        },
        "selection": {
            "streams": list(selection.streams),
            "exclude": list(selection.exclude),
            "consumers": selection.consumers,
            "config_only": selection.config_only,
        },
    }


def _source_column(summary: BackupSummary) -> str:
    if summary.imported is not None:
        return "import"
    return ("changed copy of " if summary.transformed is not None else "") + origin_of(summary).short


def _selection_column(summary: BackupSummary) -> str:
    asked = summary.selection
    words = [" ".join(asked.streams) or "all"] if summary.imported is None else ["-"]
    words += [f"except {' '.join(asked.exclude)}"] if asked.exclude else []
    words += [] if asked.consumers else ["without consumers"]
    words += ["configs only"] if asked.config_only else []
    return ", ".join(words)


# --- show ---


@click.command(cls=Command, chooses=True)
@click.argument("backup", shell_complete=complete_backup)
@click.argument("stream", required=False, shell_complete=complete_stream)
@click.option(
    "--subjects",
    "most_subjects",
    type=WholeNumber(1),
    metavar="N",
    help="Also the N subjects of STREAM with the most bytes. All of its messages are read for that.",
)
def show(
    shared: Shared,
    backup: str,
    stream: str | None,
    *,
    most_subjects: int | None,
) -> Result:
    """Show one backup: its streams, consumers, segments, warnings. BACKUP is an id, its start, or `latest`.

    With STREAM, that one is shown, with its configuration; --json has those of its consumers, too. Sequences of
    consumers are those of the stream. Pending are messages that were delivered and not acknowledged.

    `latest` is the backup that a restore of the same would take. If the backup is known to be damaged, what it lacks is
    named, and the exit code is 14.
    """
    if stream is not None:
        reads = most_subjects is not None
        repository, manifest = find_opened(shared, backup, stream, reads=reads, needed=[stream])
        return _show_stream(shared, repository, manifest, stream, most_subjects=most_subjects)
    if most_subjects is not None:
        raise UsageError("--subjects is of one stream", hint="Name it after the backup.")
    repository = open_repository(shared)
    manifest = find_backup(shared, repository, WantedBackup(backup, silent=True, in_part=True))
    hold = find_hold(repository, manifest.id)
    problems = _known_problems(shared, repository, manifest)
    source = manifest.source
    document = {
        **_summary_json(summary_of(manifest), time.time_ns()),
        "held": None if hold is None else {"since": hold.created, "reason": hold.reason},
        "tool": manifest.tool,
        "previous": manifest.previous,
        "source": {
            "server_version": source.server_version,
            "cluster": source.cluster,
            "account": source.account,
            "account_name": source.account_name,
            "domain": source.domain,
            "api_prefix": source.api_prefix,
            "profile": source.profile,
            "context": source.context,
            "imported": source.imported,
            "transformed": source.transformed,
        },
        "streams": [_shown_stream_json(stream, objects=shared.output.as_json) for stream in manifest.streams],
        "skipped": [{"name": skipped.name, "reason": skipped.reason} for skipped in manifest.skipped],
        "unlisted": [
            {"first": group.first, "streams": group.count, "reason": group.reason} for group in manifest.unlisted
        ],
        "problems": _problems_json(problems),
    }
    return Result(document, _backup_text(manifest, hold, problems), damage(manifest.unlisted or problems))


def _known_problems(shared: Shared, repository: Repository, manifest: Manifest) -> list[Problem]:
    damaged, unknown = known_damage(repository, [manifest.id])
    for note in unknown:
        shared.output.note(note)
    return known_problems(repository, manifest) if damaged else []


def _problems_json(problems: Sequence[Problem]) -> list[JsonObject]:
    return [{"stream": each.stream, **problem_json(each)} for each in problems]


def _shown_stream_json(stream: StreamBackup, *, objects: bool) -> JsonObject:
    """Return a stream of `show --json`. With `objects`, all its pages are read."""
    segments, opaque = (stream.segments, stream.opaque) if objects else ((), ())
    return {
        **stream_json(stream),
        "created": stream.created,
        "config": stream.config,
        "captured": {"begun": stream.captured.begun, "ended": stream.captured.ended},
        "objects": [
            {"key": ref.key, "first_seq": ref.first_seq, "last_seq": ref.last_seq, "messages": ref.messages}
            | {"bytes": ref.bytes, "size": ref.size, "sha256": ref.sha256, "digest": ref.digest}
            for ref in segments
        ]
        + [{"key": piece.key, "bytes": piece.bytes, "size": piece.size} for piece in opaque],
    }


def _backup_text(manifest: Manifest, hold: Hold | None, problems: Sequence[Problem]) -> Iterator[Block]:
    state = _state(manifest.result, damaged=bool(problems))
    yield f"backup    {manifest.id}  ", state, f"  {time_to_second(parse_time(manifest.created))}"
    yield f"source    {_source_text(manifest.source)}"
    for key, value in sorted(manifest.tags.items()):
        yield f"tag       {key}={value}"
    if hold is not None:
        since = f"since {hold.created}" if hold.created else "since an unknown time"
        yield f"held      {since}{f': {hold.reason}' if hold.reason else ''}"
    yield from _streams_text(manifest.streams)
    skipped = [Said("skipped", each.name, each.reason) for each in manifest.skipped]
    yield from said_lines([*_warnings(manifest.streams), *skipped])
    unlisted = {each.page.key for each in manifest.unlisted}
    yield from said_lines(Said("damaged", p.stream, p.problem, lost=p) for p in problems if p.key not in unlisted)
    for each in manifest.unlisted:
        yield State("cannot be listed"), f": {each.words}: {each.reason}"


def _streams_text(streams: Sequence[StreamBackup]) -> Iterator[Block]:
    yield ""
    rows = [(stream_json(each), size_of(each.segments) + sum(ref.size for ref in each.opaque)) for each in streams]
    yield table(
        ({**row, "stored": stored, "read as": read_as(row)} for row, stored in rows),
        {
            "STREAM": "name",
            ">MESSAGES": ("messages", format_count),
            ">BYTES": ("bytes", format_bytes),
            ">STORED": ("stored", format_bytes),
            ">FIRST": "first_seq",
            ">LAST": "stream_last_seq",
            ">CONSUMERS": ("consumers", lambda consumers: str(len(consumers))),
            ">SEGMENTS": "segments",
            "READ AS": "read as",
        },
    )
    consumers = [_consumer_row(stream.name, each) for stream in streams for each in stream.consumers]
    if consumers:
        yield ""
        yield TextTable(["CONSUMER", "STREAM", ">ACK FLOOR", ">DELIVERED", ">PENDING", "FIDELITY"], consumers)


def _consumer_row(stream: str, consumer: ConsumerBackup) -> tuple[str, ...]:
    state = consumer.state
    if state is None:
        return consumer.name, stream, "-", "-", "-", consumer.fidelity
    pending = str(len(state.pending)) if consumer.pending is None else "many"
    floor, delivered = str(state.ack_floor.stream), str(state.delivered.stream)
    return consumer.name, stream, floor, delivered, pending, consumer.fidelity


def _warnings(streams: Iterable[StreamBackup]) -> Iterator[Said]:
    return (Said("warning", stream.name, warning) for stream in streams for warning in stream.remarks)


def _show_stream(
    shared: Shared, repository: Repository, manifest: Manifest, name: str, *, most_subjects: int | None
) -> Result:
    from jsbackup.look.stream import find_stream, with_messages
    from jsbackup.look.subject_counts import largest_subjects
    from jsbackup.repository.write.stream_objects import load_consumer

    entry = find_stream(manifest, name)
    problems = _known_problems(shared, repository, replace(manifest, streams=(entry,)))
    if any(each.pending is not None for each in entry.consumers):
        check_readable(repository)
    entry = replace(entry, consumers=tuple(load_consumer(repository.objects, each) for each in entry.consumers))
    row = _shown_stream_json(entry, objects=shared.output.as_json)
    row["consumers"] = list(map(_consumer_with_state, entry.consumers))
    if most_subjects is not None:
        largest, count = largest_subjects(repository.objects, with_messages(manifest, entry), most_subjects)
        subjects = [
            {
                "subject": each.subject,
                "messages": each.messages,
                "bytes": each.bytes,
                "first": format_time(each.first_ns),
                "last": format_time(each.last_ns),
            }
            for each in largest
        ]
        row |= {"subject_count": count, "subjects": subjects}
    document = {
        "backup": manifest.id,
        "created": manifest.created,
        "result": manifest.result,
        "streams": [row],
        "problems": _problems_json(problems),
    }
    return Result(document, _stream_text(manifest, entry, row, problems), damage(problems))


def _stream_text(
    manifest: Manifest, stream: StreamBackup, row: JsonObject, problems: Sequence[Problem]
) -> Iterator[Block]:
    yield f"backup    {manifest.id}  ", _state(manifest.result, damaged=bool(problems))
    yield f"created   {stream.created}"
    yield f"read      {stream.captured.begun} to {stream.captured.ended}"
    yield from _streams_text([stream])
    if manifest.selection is not None and not manifest.selection.consumers:
        yield "the backup was made without consumers"
    yield ""
    yield TextTable(["SETTING", "VALUE"], [(name, json.dumps(value)) for name, value in sorted(stream.config.items())])
    if "subjects" in row:
        yield ""
        yield table(
            row["subjects"],
            {
                "SUBJECT": "subject",
                ">MESSAGES": ("messages", format_count),
                ">BYTES": ("bytes", format_bytes),
                "FIRST": "first",
                "LAST": "last",
            },
        )
        if (more := row["subject_count"] - len(row["subjects"])) > 0:
            yield f"… and {format_count(more, 'more subject')}"
    yield from said_lines(_warnings([stream]))
    yield from said_lines(Said("damaged", each.stream, each.problem, lost=each) for each in problems)


def _consumer_with_state(consumer: ConsumerBackup) -> JsonObject:
    state, exact = consumer.state, consumer.fidelity == "exact"
    return {
        **consumer_json(consumer),
        "delivered_seq": None if state is None else state.delivered.stream,
        "delivered": None if state is None else state.delivered.consumer,
        "ack_floor_seq": None if state is None else state.ack_floor.stream,
        "pending": len(state.pending) if exact and state is not None else None,
        "redelivered": len(state.redelivered) if exact and state is not None else None,
        "config": consumer.config,
    }


def _source_text(source: Source) -> str:
    transformed, imported = source.transformed, source.imported
    if transformed is not None:
        return f"changed copy of {transformed.get('backup')} ({_source_text(replace(source, transformed=None))})"
    if imported is None:
        named = f" ({source.account_name})" if source.account_name else ""
        by = f", profile {source.profile}" if source.profile else ""
        return f"nats-server {source.server_version}, {source.cluster}, account {source.account or '-'}{named}{by}"
    written = f", written {imported['written']}" if imported.get("written") else ""
    return f"import of {imported.get('from')}{written}"


COMMANDS = {"list": list_backups, "show": show}
