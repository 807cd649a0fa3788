"""Print stored backups, a list of them or one, as JSON and as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from jsbackup.cli.output.colour import State
from jsbackup.cli.output.grouped import Said, tell_each
from jsbackup.cli.output.output import Output, format_bytes, format_count, format_seconds
from jsbackup.cli.output.reports import consumer_json, created_text, problem_json, read_as, stream_json
from jsbackup.errors import JsBackupError
from jsbackup.model import JsonObject
from jsbackup.times import format_time, parse_time

if TYPE_CHECKING:
    from jsbackup.look.subject_counts import SubjectCount
    from jsbackup.repository.checks.verify import Problem
    from jsbackup.repository.keep.holds import Hold
    from jsbackup.repository.manifest import ConsumerBackup, Manifest, Source, StreamBackup
    from jsbackup.repository.summary import BackupSummary

__all__ = ["tell_listed", "tell_shown", "tell_stream"]


# --- a list ---


def tell_listed(
    output: Output,
    backups: Sequence[tuple[BackupSummary, bool, bool]],
    lost: Iterable[JsBackupError],
    now_ns: int,
    *,
    narrowed: bool,
) -> None:
    """Print backups, each with whether it is held, and known to be damaged, and those that cannot be read. `narrowed`:
    conditions were given.
    """
    from jsbackup.engine.check.health_rules import span

    rows = [_summary_json(one, now_ns) | {"held": held, "damaged": damaged} for one, held, damaged in backups]
    problems = [error.message for error in lost]

    def text() -> None:
        output.table(
            [
                *("BACKUP", ">AGE", "RESULT", ">STREAMS", ">MESSAGES", ">BYTES", ">ADDED", ">TIME"),
                *("SOURCE", "SELECTION", "TAGS"),
            ],
            [
                (
                    row["backup"],
                    span(row["age_seconds"]),
                    _state(row["result"], damaged=row["damaged"], held=row["held"]),
                    str(row["streams"]),
                    format_count(row["messages"]),
                    format_bytes(row["bytes"]),
                    "-" if row["stored_bytes_added"] is None else format_bytes(row["stored_bytes_added"]),
                    "-" if row["seconds"] is None else format_seconds(row["seconds"]),
                    _source_column(summary),
                    _selection_column(summary),
                    ",".join(f"{key}={value}" for key, value in sorted(row["tags"].items())),
                )
                for (summary, *_), row in zip(backups, rows, strict=True)
            ],
        )
        if not rows:
            output.line("no backup matches" if narrowed else "there are no backups")
        for problem in problems:
            output.line(State("cannot be read"), f": {problem}")

    output.result({"backups": rows, "damaged": problems}, text)


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
    from jsbackup.repository.origin import origin_of

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


# --- one backup ---


def tell_shown(
    output: Output, manifest: Manifest, hold: Hold | None, now_ns: int, *, problems: Sequence[Problem]
) -> None:
    """Print one backup, and its known `problems`. JSON has all of its objects."""
    document = _backup_json(manifest, hold, now_ns, objects=output.as_json)
    rows = [{"stream": one.stream, **problem_json(one)} for one in problems]
    output.result(document | {"problems": rows}, lambda: _print_backup(output, manifest, hold, problems))


def _backup_json(manifest: Manifest, hold: Hold | None, now_ns: int, *, objects: bool) -> JsonObject:
    from jsbackup.repository.summary import summary_of

    source = manifest.source
    return {
        **_summary_json(summary_of(manifest), now_ns),
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
            "imported": source.extra.get("imported"),
            "transformed": source.extra.get("transformed"),
        },
        "streams": [_shown_stream_json(stream, objects=objects) for stream in manifest.streams],
        "skipped": [{"name": skipped.name, "reason": skipped.reason} for skipped in manifest.skipped],
        "unlisted": [{"first": one.first, "streams": one.count, "reason": one.reason} for one in manifest.unlisted],
    }


def _shown_stream_json(stream: StreamBackup, *, objects: bool) -> JsonObject:
    return {
        **stream_json(stream),
        "created": stream.created,
        "config": stream.config,
        "captured": {"begun": stream.captured.begun, "ended": stream.captured.ended},
        "objects": _objects_json(stream) if objects else [],
    }


def _print_backup(output: Output, manifest: Manifest, hold: Hold | None, problems: Sequence[Problem]) -> None:
    state = _state(manifest.result, damaged=bool(problems))
    output.line(f"backup    {manifest.id}  ", state, f"  {created_text(manifest)}")
    output.line(f"source    {_source_text(manifest.source)}")
    for key, value in sorted(manifest.tags.items()):
        output.line(f"tag       {key}={value}")
    if hold is not None:
        since = f"since {hold.created}" if hold.created else "since an unknown time"
        output.line(f"held      {since}{f': {hold.reason}' if hold.reason else ''}")
    _print_streams(output, manifest.streams)
    tell_each(output, [*_warnings(manifest.streams), *(Said("skipped", o.name, o.reason) for o in manifest.skipped)])
    unlisted = {one.page.key for one in manifest.unlisted}
    tell_each(output, (Said("damaged", p.stream, p.problem, lost=p) for p in problems if p.key not in unlisted))
    for one in manifest.unlisted:
        output.line(State("cannot be listed"), f": {one.words}: {one.reason}")


def _print_streams(output: Output, streams: Sequence[StreamBackup]) -> None:
    output.line()
    output.table(
        ["STREAM", ">MESSAGES", ">BYTES", ">STORED", ">FIRST", ">LAST", ">CONSUMERS", ">SEGMENTS", "READ AS"],
        map(_stream_row, streams),
    )
    consumers = [_consumer_row(stream.name, each) for stream in streams for each in stream.consumers]
    if consumers:
        output.line()
        output.table(["CONSUMER", "STREAM", ">ACK FLOOR", ">DELIVERED", ">PENDING", "FIDELITY"], consumers)


def _stream_row(stream: StreamBackup) -> tuple[str, ...]:
    return (
        stream.name,
        format_count(stream.captured.messages),
        format_bytes(stream.captured.bytes),
        format_bytes(_stored_size(stream)),
        str(stream.captured.first_seq),
        str(stream.last_seq),
        str(len(stream.consumers)),
        str(len(stream.segments)),
        read_as(stream_json(stream)),
    )


def _consumer_row(stream: str, consumer: ConsumerBackup) -> tuple[str, ...]:
    state = consumer.state
    if state is None:
        return consumer.name, stream, "-", "-", "-", consumer.fidelity
    pending = str(len(state.pending)) if consumer.pending is None else "many"
    floor, delivered = str(state.ack_floor.stream), str(state.delivered.stream)
    return consumer.name, stream, floor, delivered, pending, consumer.fidelity


def _warnings(streams: Iterable[StreamBackup]) -> Iterator[Said]:
    return (Said("warning", stream.name, warning) for stream in streams for warning in stream.warnings)


# --- one stream ---


def tell_stream(
    output: Output,
    manifest: Manifest,
    stream: StreamBackup,
    subjects: tuple[Sequence[SubjectCount], int] | None,
    *,
    problems: Sequence[Problem],
) -> None:
    """Print one stream of a backup, and its known `problems`. Its consumers have their whole states. `subjects` are the
    largest, and how many subjects it has.
    """
    document = {
        "backup": manifest.id,
        "created": manifest.created,
        "result": manifest.result,
        "streams": [
            {
                **_shown_stream_json(stream, objects=output.as_json),
                "consumers": list(map(_consumer_with_state, stream.consumers)),
                **({} if subjects is None else _subjects_json(*subjects)),
            }
        ],
        "problems": [{"stream": each.stream, **problem_json(each)} for each in problems],
    }

    def text() -> None:
        output.line(f"backup    {manifest.id}  ", _state(manifest.result, damaged=bool(problems)))
        output.line(f"created   {stream.created}")
        output.line(f"read      {stream.captured.begun} to {stream.captured.ended}")
        _print_streams(output, [stream])
        if manifest.selection is not None and not manifest.selection.consumers:
            output.line("the backup was made without consumers")
        output.line()
        output.table(["SETTING", "VALUE"], [(name, json.dumps(value)) for name, value in sorted(stream.config.items())])
        if subjects is not None:
            _print_subjects(output, *subjects)
        tell_each(output, _warnings([stream]))
        tell_each(output, (Said("damaged", each.stream, each.problem, lost=each) for each in problems))

    output.result(document, text)


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


def _subjects_json(largest: Sequence[SubjectCount], count: int) -> JsonObject:
    return {
        "subject_count": count,
        "subjects": [
            {
                "subject": each.subject,
                "messages": each.messages,
                "bytes": each.bytes,
                "first": format_time(each.first_ns),
                "last": format_time(each.last_ns),
            }
            for each in largest
        ],
    }


def _print_subjects(output: Output, largest: Sequence[SubjectCount], count: int) -> None:
    output.line()
    output.table(
        ["SUBJECT", ">MESSAGES", ">BYTES", "FIRST", "LAST"],
        [
            (
                each.subject,
                format_count(each.messages),
                format_bytes(each.bytes),
                format_time(each.first_ns),
                format_time(each.last_ns),
            )
            for each in largest
        ],
    )
    if len(largest) < count:
        output.line(f"… and {format_count(count - len(largest), 'more subject')}")


def _objects_json(stream: StreamBackup) -> list[JsonObject]:
    """Return all objects with messages of a stream. Reads all its pages."""
    return [
        {"key": ref.key, "first_seq": ref.first_seq, "last_seq": ref.last_seq, "messages": ref.messages}
        | {"bytes": ref.bytes, "size": ref.size, "sha256": ref.sha256, "digest": ref.digest}
        for ref in stream.segments
    ] + [{"key": piece.key, "bytes": piece.bytes, "size": piece.size} for piece in stream.opaque]


def _source_text(source: Source) -> str:
    transformed, imported = source.extra.get("transformed"), source.extra.get("imported")
    if isinstance(transformed, dict):
        before = _source_text(replace(source, extra={**source.extra, "transformed": None}))
        return f"changed copy of {transformed.get('backup')} ({before})"
    if not isinstance(imported, dict):
        named = f" ({source.account_name})" if source.account_name else ""
        by = f", profile {source.profile}" if source.profile else ""
        return f"nats-server {source.server_version}, {source.cluster}, account {source.account or '-'}{named}{by}"
    written = f", written {imported['written']}" if imported.get("written") else ""
    return f"import of {imported.get('from')}{written}"


def _stored_size(stream: StreamBackup) -> int:
    from jsbackup.repository.pages.segment_list import size_of

    return size_of(stream.segments) + sum(ref.size for ref in stream.opaque)
