"""The JSON documents and tables of backups: one shape, whoever made the backup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jsbackup.cli.output import Output, format_bytes, format_count, format_seconds, format_time
from jsbackup.model import JsonObject
from jsbackup.protocol.times import parse_time
from jsbackup.repository.manifest import ConsumerBackup, Manifest, StreamBackup

__all__ = ["backup_json", "print_stream_table", "stream_json"]


def consumer_json(consumer: ConsumerBackup) -> JsonObject:
    return {"name": consumer.name, "fidelity": consumer.fidelity, "reason": consumer.reason}


def stream_json(
    stream: StreamBackup, *, segments_reused: int = 0, stored_bytes_added: int = 0, seconds: float = 0.0
) -> JsonObject:
    """A stream in `backup --json` and `show --json`."""
    return {
        "name": stream.name,
        "messages": stream.captured.messages,
        "bytes": stream.captured.bytes,
        "first_seq": stream.captured.first_seq,
        "last_seq": stream.captured.last_seq,
        "digest": stream.digest.hex,
        "segments": len(stream.segments),
        "segments_reused": segments_reused,
        "stored_bytes_added": stored_bytes_added,
        "seconds": round(seconds, 3),
        "archive_format": stream.archive_format,
        "consumers": [consumer_json(consumer) for consumer in stream.consumers],
        "warnings": list(stream.warnings),
    }


def backup_json(manifest: Manifest | None, streams: Sequence[JsonObject], skipped: Iterable[JsonObject]) -> JsonObject:
    """The document of `backup --json` and `import --json`. Without a manifest nothing was committed."""
    return {
        "backup": manifest.id if manifest else None,
        "result": manifest.result if manifest else "failed",
        "streams": list(streams),
        "skipped": list(skipped),
    }


def print_stream_table(output: Output, streams: Sequence[JsonObject]) -> None:
    """One line per stream of `backup --json`, for people."""
    output.table(
        ["STREAM", ">MESSAGES", ">BYTES", ">FIRST", ">LAST", ">CONSUMERS", ">SEGMENTS", ">ADDED", ">TIME", "FROM"],
        [
            (
                s["name"],
                format_count(s["messages"]),
                format_bytes(s["bytes"]),
                str(s["first_seq"]),
                str(s["last_seq"]),
                str(len(s["consumers"])),
                str(s["segments"]),
                format_bytes(s["stored_bytes_added"]),
                format_seconds(s["seconds"]),
                s["archive_format"],
            )
            for s in streams
        ],
    )
    for s in streams:
        for warning in s["warnings"]:
            output.line(f"warning: {s['name']}: {warning}")
        for consumer in s["consumers"]:
            if consumer["fidelity"] != "exact":
                reason = f": {consumer['reason']}" if consumer["reason"] else ""
                output.line(
                    f"note: {s['name']}: consumer {consumer['name']} is known by {consumer['fidelity']}{reason}"
                )


def created_text(manifest: Manifest) -> str:
    return format_time(parse_time(manifest.created))
