"""Commands that create a repository, upgrade it or show its content: `init`, `upgrade`, `list`, `show`.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from jsbackup.cli.commands.keys import encryption_options, new_keys_of, writer_key_file
from jsbackup.cli.options.command import Command
from jsbackup.cli.options.completion import complete_backup
from jsbackup.cli.options.context import Shared
from jsbackup.cli.options.key_file import new_key_file
from jsbackup.cli.options.latest import choosing_options, find_backup, parse_choosing
from jsbackup.cli.options.opening import make_repository, new_repository_id, open_repository
from jsbackup.cli.options.tag_options import only_origin, only_tagged
from jsbackup.cli.options.tagging import parse_origin, parse_tag_rule
from jsbackup.cli.output.colour import State
from jsbackup.cli.output.grouped import Said, tell_each
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.output import format_bytes, format_count, format_seconds
from jsbackup.cli.output.reports import created_text, read_as, stream_json
from jsbackup.config import parse_size
from jsbackup.errors import IntegrityError, UsageError
from jsbackup.exit_codes import first_of
from jsbackup.model import JsonObject
from jsbackup.times import parse_time
from jsbackup.tool import TOOL

if TYPE_CHECKING:
    from jsbackup.repository.manifest import Source, StreamBackup
    from jsbackup.repository.summary import BackupSummary

__all__ = ["COMMANDS"]


@click.command(cls=Command)
@encryption_options
@click.option("--sign", is_flag=True, help="Sign backups of a repository that is not encrypted, too.")
@click.option(
    "--segment-size",
    metavar="SIZE",
    help="Messages in a stored segment, before compression: 4KiB to 256MiB (default 32MiB). It stays for good.",
)
def init(
    shared: Shared, *, encrypt_to: tuple[str, ...], passphrase: str | None, sign: bool, segment_size: str | None
) -> None:
    """Create a repository in an empty location and test its store.

    An encrypted repository is always signed. Its writer key is written to the new file of --writer-key. Backups need
    this key; it reads no messages. Restores need the identity of a recipient.
    """
    start_log(shared)
    segment_bytes = None if segment_size is None else _parse_segment_size(segment_size)
    repository_id = new_repository_id()
    new_keys = new_keys_of(repository_id, encrypt_to, passphrase, sign=sign)
    file = writer_key_file(shared)
    if new_keys is None and file is not None:
        raise UsageError(
            "a writer key is for a repository that is encrypted or signed", hint="Add --encrypt-to or --sign."
        )
    if new_keys is None:
        repository = make_repository(shared, repository_id, segment_bytes=segment_bytes)
    elif file is None:
        raise UsageError("there is no place for the writer key", hint="Name a new file with --writer-key FILE.")
    else:
        from jsbackup.repository.crypto.writer_key import encode_writer_key

        with new_key_file(file, encode_writer_key(new_keys.writer_key)):
            repository = make_repository(shared, repository_id, new_keys, segment_bytes=segment_bytes)
    output, store, descriptor = shared.output, repository.descriptor.extra["store"], repository.descriptor

    def text() -> None:
        output.line(f"made repository {repository.descriptor.id} at {repository.store.location}")
        if new_keys is not None:
            output.line(f"its writer key is in {file}; keep a copy elsewhere")
            output.line(f"root signing key {descriptor.authority} (for --expect-signer)")
        found = [(yes if store[name] else no) for name, (yes, no) in _PROBED.items()]
        output.line(f"its store {', '.join(text for text in found if text)}")
        if segment_bytes is not None:
            output.line(f"its segments take up to {format_bytes(segment_bytes)} of messages")

    document = {
        "repository": descriptor.id,
        "location": repository.store.location,
        "store": store,
        "encrypted": descriptor.recipient is not None,
        "authority": descriptor.authority,
        "segment_bytes": descriptor.segment_bytes,
        "writer_key": None if new_keys is None else str(file),
    }
    output.result(document, text)


def _parse_segment_size(text: str) -> int:
    from jsbackup.repository.segment_size import MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES, is_segment_size

    size = parse_size(text)
    if not is_segment_size(size):
        why = "a segment is held in memory as a whole" if size > MAX_SEGMENT_BYTES else "each segment is an object"
        raise UsageError(
            f"--segment-size {text}: {why}, so sizes from {format_bytes(MIN_SEGMENT_BYTES)} to "
            f"{format_bytes(MAX_SEGMENT_BYTES)} can be chosen"
        )
    return size


# Result of the probe -> text if it is true, text if it is false.
_PROBED = {
    "conditional_writes": ("supports write-once", "does not support write-once (jsbackup looks before it writes)"),
    "checksums": ("rejects what was damaged in transit", ""),
    "object_lock": ("can lock objects", ""),
    "versioned": ("keeps versions (jsbackup deletes them all)", ""),
}


@click.command(cls=Command)
def upgrade(shared: Shared) -> None:
    """Let a repository of an older jsbackup store what new backups list in pages.

    Then a backup writes as much as has changed, however much is stored. Existing backups stay as they are, and nothing
    is read or stored again. A jsbackup before 0.3 refuses the backups that are made from then on, and its 'prune'
    deletes nothing.
    """
    start_log(shared)
    repository = open_repository(shared)
    upgraded = repository.upgrade(TOOL)
    output, location = shared.output, repository.store.location
    said = f"upgraded repository {location}" if upgraded else f"repository {location} is up to date"
    document = {"repository": repository.descriptor.id, "location": location, "upgraded": upgraded}
    output.result(document, lambda: output.line(said))


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
    return ("transform of " if summary.transformed is not None else "") + origin_of(summary).short


def _selection_column(summary: BackupSummary) -> str:
    asked = summary.selection
    words = [" ".join(asked.streams) or "all"] if summary.imported is None else ["-"]
    words += [f"except {' '.join(asked.exclude)}"] if asked.exclude else []
    words += [] if asked.consumers else ["without consumers"]
    words += ["configs only"] if asked.config_only else []
    return ", ".join(words)


@click.command("list", cls=Command)
@only_tagged("Only backups with this tag; if repeated, with all of them.")
@only_origin("Only backups of")
@click.option("--last", type=click.IntRange(1), metavar="N", help="Only the newest N of them.")
def list_backups(shared: Shared, tags: tuple[str, ...], origins: tuple[str, ...], last: int | None) -> int:
    """List the backups of a repository, oldest first: age, duration, what was added, server and account, and which
    streams were asked for.

    A backup that cannot be read or is missing is always listed, whatever you filter by, because its content is
    unknown.
    """
    from jsbackup.engine.check.health_rules import span
    from jsbackup.repository.checks.evidence import find_missing
    from jsbackup.repository.keep.holds import held_backups
    from jsbackup.repository.read.sources import counts

    start_log(shared)
    rules, globs = [parse_tag_rule(text) for text in tags], [parse_origin(text) for text in origins]
    now_ns = time.time_ns()
    repository = open_repository(shared)
    inventory, held = repository.inventory(), held_backups(repository)
    for warning in inventory.warnings:
        shared.output.note(warning)
    wanted = [one for one in inventory.summaries if counts(one, rules, globs)][-(last or 0) :]
    rows = [_summary_json(summary, now_ns) | {"held": summary.id in held} for summary in wanted]
    damaged = [one.error for one in inventory.unreadable]
    removed = find_missing(repository.documents) if inventory.gaps else []
    damaged += [IntegrityError(f"manifest {gap.key}: {gap.problem}") for gap in removed]
    output = shared.output

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
                    State(f"{row['result']}, held" if row["held"] else row["result"]),
                    str(row["streams"]),
                    format_count(row["messages"]),
                    format_bytes(row["bytes"]),
                    "-" if row["stored_bytes_added"] is None else format_bytes(row["stored_bytes_added"]),
                    "-" if row["seconds"] is None else format_seconds(row["seconds"]),
                    _source_column(summary),
                    _selection_column(summary),
                    ",".join(f"{key}={value}" for key, value in sorted(row["tags"].items())),
                )
                for summary, row in zip(wanted, rows, strict=True)
            ],
        )
        for error in damaged:
            output.line(State("cannot be read"), f": {error.message}")

    output.result({"backups": rows, "damaged": [error.message for error in damaged]}, text)
    return first_of((error.exit_code for error in damaged), IntegrityError.exit_code)


@click.command(cls=Command)
@click.argument("backup", shell_complete=complete_backup)
@choosing_options
def show(shared: Shared, backup: str, origins: tuple[str, ...], tags: tuple[str, ...]) -> None:
    """Show one backup: its streams, consumers, segments, warnings. BACKUP is an id, its start, or `latest`.

    `latest` is the backup that a restore of everything would take.
    """
    from jsbackup.repository.keep.holds import find_hold
    from jsbackup.repository.summary import summary_of

    start_log(shared)
    choosing = parse_choosing(backup, origins, tags)
    repository = open_repository(shared)
    manifest = find_backup(shared, repository, backup, choosing, silent=True)
    hold = find_hold(repository, manifest.id)
    output = shared.output
    streams = [
        {
            **stream_json(stream),
            "created": stream.created,
            "config": stream.config,
            "captured": {"begun": stream.captured.begun, "ended": stream.captured.ended},
            "objects": _objects_json(stream) if output.as_json else [],
        }
        for stream in manifest.streams
    ]
    document = {
        **_summary_json(summary_of(manifest), time.time_ns()),
        "held": None if hold is None else {"since": hold.created, "reason": hold.reason},
        "tool": manifest.tool,
        "previous": manifest.previous,
        "source": {
            "server_version": manifest.source.server_version,
            "cluster": manifest.source.cluster,
            "account": manifest.source.account,
            "account_name": manifest.source.account_name,
            "domain": manifest.source.domain,
            "api_prefix": manifest.source.api_prefix,
            "profile": manifest.source.profile,
            "context": manifest.source.context,
            "imported": manifest.source.extra.get("imported"),
            "transformed": manifest.source.extra.get("transformed"),
        },
        "streams": streams,
        "skipped": [{"name": skipped.name, "reason": skipped.reason} for skipped in manifest.skipped],
    }

    def text() -> None:
        output.line(f"backup    {manifest.id}  ", State(manifest.result), f"  {created_text(manifest)}")
        output.line(f"source    {_source_text(manifest.source)}")
        for key, value in sorted(manifest.tags.items()):
            output.line(f"tag       {key}={value}")
        if hold is not None:
            since = f"since {hold.created}" if hold.created else "since nobody knows when"
            output.line(f"held      {since}{f': {hold.reason}' if hold.reason else ''}")
        output.line()
        output.table(
            ["STREAM", ">MESSAGES", ">BYTES", ">STORED", ">FIRST", ">LAST", ">CONSUMERS", ">SEGMENTS", "READ AS"],
            [
                (
                    s.name,
                    format_count(s.captured.messages),
                    format_bytes(s.captured.bytes),
                    format_bytes(_stored_size(s)),
                    str(s.captured.first_seq),
                    str(s.captured.last_seq),
                    str(len(s.consumers)),
                    str(len(s.segments)),
                    read_as(stream_json(s)),
                )
                for s in manifest.streams
            ],
        )
        consumers = [(s.name, c) for s in manifest.streams for c in s.consumers]
        if consumers:
            output.line()
            output.table(
                ["CONSUMER", "STREAM", ">ACK FLOOR", ">DELIVERED", ">PENDING", "FIDELITY"],
                [
                    (
                        c.name,
                        stream,
                        str(c.state.ack_floor.stream) if c.state else "-",
                        str(c.state.delivered.stream) if c.state else "-",
                        (str(len(c.state.pending)) if c.pending is None else "many") if c.state else "-",
                        c.fidelity,
                    )
                    for stream, c in consumers
                ],
            )
        tell_each(output, (Said("warning", s.name, warning) for s in manifest.streams for warning in s.warnings))
        tell_each(output, (Said("skipped", skipped.name, skipped.reason) for skipped in manifest.skipped))

    output.result(document, text)


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
        return f"transform of {transformed.get('backup')} ({before})"
    if not isinstance(imported, dict):
        named = f" ({source.account_name})" if source.account_name else ""
        by = f", profile {source.profile}" if source.profile else ""
        return f"nats-server {source.server_version}, {source.cluster}, account {source.account or '-'}{named}{by}"
    written = f", written {imported['written']}" if imported.get("written") else ""
    return f"import of {imported.get('from')}{written}"


def _stored_size(stream: StreamBackup) -> int:
    from jsbackup.repository.pages.segment_list import size_of

    return size_of(stream.segments) + sum(ref.size for ref in stream.opaque)


COMMANDS = {"init": init, "upgrade": upgrade, "list": list_backups, "show": show}
