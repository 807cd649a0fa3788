"""The JSON documents and tables of backups: the same for all commands that make them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

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
)
from jsbackup.errors import IncompleteError
from jsbackup.exit_codes import damage
from jsbackup.failure import Failure, all_failed
from jsbackup.model import JsonObject
from jsbackup.readable import span

if TYPE_CHECKING:
    from jsbackup.engine.backup.backup import BackupReport
    from jsbackup.engine.follow.follow import FollowReport
    from jsbackup.engine.restore.run import RestoredConsumer, RestoredStream
    from jsbackup.repository.checks.verify import Problem
    from jsbackup.repository.manifest import ConsumerBackup, Manifest, StreamBackup
    from jsbackup.repository.write.new_backup import StoredStream

__all__ = [
    "again_text",
    "backup_json",
    "backup_result",
    "consumer_json",
    "consumer_result_text",
    "follow_result",
    "following_text",
    "problem_json",
    "read_as",
    "restored_stream_json",
    "stored_result",
    "stream_json",
]


def stored_result(
    manifest: Manifest | None,
    stored: Sequence[StoredStream],
    failures: Sequence[Failure],
    *,
    notes: Sequence[str] = (),
    lost_readers: Sequence[str] = (),
) -> Result:
    """Return the result of a backup or an import. Raises `all_failed` if nothing was committed.

    `notes` are sentences about all of it, `lost_readers` about key files of readers that are missing or damaged.
    """
    if manifest is None:
        raise all_failed([failure.error for failure in failures])
    notes = [*notes, *(note for stream in stored for note in stream.notes), *lost_readers]
    document = backup_json(manifest, stored, failures, notes)
    return Result(document, _stored_text(document), _code(manifest, lost_readers))


def _code(manifest: Manifest, lost_readers: Sequence[str]) -> int:
    return damage(lost_readers) or (0 if manifest.result == "complete" else IncompleteError.exit_code)


def _stored_text(document: JsonObject) -> Iterator[Block]:
    streams = document["streams"]
    yield TextTable(
        ["STREAM", ">MESSAGES", ">BYTES", ">FIRST", ">LAST", ">CONSUMERS", ">SEGMENTS", ">ADDED", ">TIME", "READ AS"],
        [
            (
                s["name"],
                format_count(s["messages"]),
                format_bytes(s["bytes"]),
                str(s["first_seq"]),
                str(s["stream_last_seq"]),
                str(len(s["consumers"])),
                str(s["segments"]),
                format_bytes(s["stored_bytes_added"]),
                format_seconds(s["seconds"]),
                read_as(s),
            )
            for s in streams
        ],
    )
    yield from said_lines(said for s in streams for said in _remarks(s))
    yield from said_lines(Said("failed", skipped["name"], skipped["reason"]) for skipped in document["skipped"])
    for note in document["notes"]:
        yield State("warning"), f": {note}"
    messages, added = (sum(s[key] for s in streams) for key in ("messages", "stored_bytes_added"))
    yield (
        f"backup {document['backup']} is ",
        State(document["result"]),
        f": {format_count(len(streams), 'stream')}, {format_count(messages, 'message')}, {format_bytes(added)} added",
    )


def backup_result(report: BackupReport) -> Result:
    """Return the result of a backup. Raises `all_failed` if nothing was committed."""
    lost = report.lost_readers
    return stored_result(report.manifest, report.streams, report.failures, notes=report.notes, lost_readers=lost)


def following_text(report: FollowReport, now_ns: int) -> str:
    """Return the live text, the most important first: a narrow terminal cuts off the end."""
    if report.newest is None:
        return "follow: making the first backup"
    behind, age = (span((now_ns - moment) / 1e9) for moment in (report.up_to_ns, report.committed_ns))
    outages = format_count(report.troubles, "outage") + (", one of them now" if report.trouble else "")
    return (
        f"follow {format_count(len(report.newest.streams), 'stream')}: "
        f"{behind} behind, last backup {age} ago, {outages}; "
        f"{format_count(report.messages, 'message')}, {format_bytes(report.stored_bytes)} stored"
    )


def follow_result(report: FollowReport) -> Result:
    newest = report.newest
    assert newest is not None
    document: JsonObject = {
        "backups": report.backups,
        "newest": newest.id,
        "result": newest.result,
        "streams": len(newest.streams),
        "messages": report.messages,
        "stored_bytes_added": report.stored_bytes,
        "longest_seconds_behind": round(report.behind_seconds, 3),
        "partial": report.partial,
        "outages": report.troubles,
        "failed": [{"name": failure.name, "reason": failure.error.message} for failure in report.failures],
        "notes": list(report.lost_readers),
    }
    return Result(document, _followed_text(document), _code(newest, report.lost_readers))


def _followed_text(document: JsonObject) -> Iterator[Block]:
    yield from said_lines(Said("failed", failure["name"], failure["reason"]) for failure in document["failed"])
    partial = f", {format_count(document['partial'], 'partial backup')}" if document["partial"] else ""
    yield (
        f"{format_count(document['backups'], 'backup')} of {format_count(document['streams'], 'stream')}, "
        f"{format_count(document['messages'], 'new message')}, {format_bytes(document['stored_bytes_added'])} added; "
        f"never more than {format_seconds(document['longest_seconds_behind'])} behind, "
        f"{format_count(document['outages'], 'outage')}{partial}"
    )
    for note in document["notes"]:
        yield State("warning"), f": {note}"
    yield f"newest: {document['newest']}, ", State(document["result"])


def consumer_json(consumer: ConsumerBackup) -> JsonObject:
    return {"name": consumer.name, "fidelity": consumer.fidelity, "reason": consumer.reason}


def consumer_result_text(consumer: RestoredConsumer) -> str:
    """Return what became of a consumer at the target, if its state is not as before."""
    return f"consumer {consumer.name}: {consumer.fidelity}: {consumer.note}; {again_text(consumer.may_come_again)}"


def again_text(count: int | None) -> str:
    """Return how many messages are redelivered; None if unknown."""
    if count is None:
        return "unknown how many messages are redelivered"
    return f"up to {format_count(count, 'message')} redelivered" if count else "no redelivery"


def restored_stream_json(stream: RestoredStream, notes: Sequence[str]) -> JsonObject:
    """Return a stream of `drill --json`, which `restore --json` extends."""
    return {
        "name": stream.name,
        "as": stream.as_name,
        "messages": stream.messages,
        "bytes": stream.bytes,
        "digest": stream.digest,
        "verified": stream.verified,
        "proof": stream.proof.value,
        "seconds": round(stream.seconds, 3),
        "consumers": [
            {"name": c.name, "fidelity": c.fidelity, "note": c.note, "may_come_again": c.may_come_again}
            for c in stream.consumers
        ],
        "notes": list(notes),
    }


def stream_json(stream: StreamBackup) -> JsonObject:
    """Return a stream of `show --json`, which `backup --json` extends."""
    from jsbackup.repository.pages.stream_json import facts_to_json, losses_to_json

    return {
        "name": stream.name,
        "messages": stream.captured.messages,
        "bytes": stream.captured.bytes,
        "first_seq": stream.captured.first_seq,
        "last_seq": stream.captured.last_seq,
        "stream_last_seq": stream.last_seq,
        "digest": stream.digest.hex,
        "segments": len(stream.segments),
        "archive_format": stream.archive_format,
        "read": None if stream.read is None else {"how": stream.read.how, "why": stream.read.why},
        "consumers": [consumer_json(consumer) for consumer in stream.consumers],
        "warnings": list(stream.remarks),
        "facts": facts_to_json(stream.facts),
        "lost": losses_to_json(stream.lost) if stream.lost else None,
    }


def backup_json(
    manifest: Manifest, stored: Sequence[StoredStream], failures: Sequence[Failure], notes: Sequence[str]
) -> JsonObject:
    """The document of `backup --json` and `import --json`."""
    return {
        "backup": manifest.id,
        "result": manifest.result,
        "streams": [
            {
                **stream_json(stream.stream),
                "segments_reused": stream.segments_reused,
                "stored_bytes_added": stream.stored_bytes,
                "seconds": round(stream.seconds, 3),
            }
            for stream in stored
        ],
        "skipped": [{"name": failure.name, "reason": failure.error.message} for failure in failures],
        "notes": list(notes),
    }


def read_as(stream: JsonObject) -> str:
    """Return how a stream of `backup --json` or `show --json` was read, as text."""
    read = stream["read"]
    return "increment" if read and read["how"] == "increment" else str(stream["archive_format"])


def _remarks(stream: JsonObject) -> Iterator[Said]:
    for warning in stream["warnings"]:
        yield Said("warning", stream["name"], warning)
    for consumer in stream["consumers"]:
        if consumer["fidelity"] != "exact" and stream["archive_format"] != "config":  # otherwise no more is expected
            reason = f": {consumer['reason']}" if consumer["reason"] else ""
            text = f"consumer {consumer['name']} is known by {consumer['fidelity']}{reason}"
            yield Said("note", stream["name"], text)


def problem_json(problem: Problem) -> JsonObject:
    """Return what is wrong with an object, and what is lost with it, for `verify --json` and `restore --json`."""
    return {
        "key": problem.key,
        "problem": problem.problem,
        "first_seq": problem.first_seq,
        "last_seq": problem.last_seq,
        "messages": problem.messages,
    }
