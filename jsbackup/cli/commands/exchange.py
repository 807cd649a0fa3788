"""`jsbackup import` and `jsbackup export` of foreign files. Neither needs a server. Slow modules are imported when a
command runs: `--help` and completion load this module.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jsbackup.cli.commands.spark.tables import READ_FORMATS, WRITTEN_FORMATS, read_tables, write_tables
from jsbackup.cli.options.command import Command
from jsbackup.cli.options.completion import complete_backup, complete_stream
from jsbackup.cli.options.context import Shared
from jsbackup.cli.options.latest import choosing_options, find_backup, parse_choosing
from jsbackup.cli.options.leases import lock_timeout_option, reading, writing
from jsbackup.cli.options.opening import no_init_option, open_or_make_repository, open_repository
from jsbackup.cli.options.spark import Where, on_spark
from jsbackup.cli.options.tag_options import tagged_as
from jsbackup.cli.options.tagging import parse_tags
from jsbackup.cli.output.grouped import broken_json, in_short, tell_broken
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.output import format_bytes, format_count
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.reports import tell_backup
from jsbackup.config import Glob, parse_glob
from jsbackup.errors import IncompleteError, UsageError
from jsbackup.exchange.new_folder import NewFolder

if TYPE_CHECKING:
    from jsbackup.exchange.exporting import ExportedStream
    from jsbackup.repository.manifest import Manifest, StreamBackup
    from jsbackup.repository.read.broken_lists import BrokenLists

__all__ = ["COMMANDS"]

# Messages are private; configs are meant to be shared.
_PRIVATE, _SHARED = 0o700, 0o777


@click.command("import", cls=Command)
@click.argument("directory", metavar="DIR_OR_TABLE")
@click.option(
    "--format",
    "kind",
    type=click.Choice(READ_FORMATS),
    help="Import a table of messages in this format (by Spark): what `export` writes, or any other with the "
    "same columns.",
)
@click.option(
    "--stream", metavar="NAME", help="The stream that a table becomes, where there is no folder for each stream."
)
@click.option(
    "--stream-config",
    "configs",
    multiple=True,
    metavar="FILE",
    help="Configuration of a table's stream: the JSON of `nats stream info --json` or `jsbackup show --json`.",
)
@tagged_as("Tag the backup.")
@no_init_option
@on_spark
@lock_timeout_option
def import_(
    shared: Shared,
    directory: str,
    kind: str | None,
    stream: str | None,
    *,
    configs: tuple[str, ...],
    tags: tuple[str, ...],
    no_init: bool,
    where: Where,
    lock_timeout: str,
) -> int:
    """Import DIR as a backup: what `nats backup stream` or `nats backup account` wrote, or config files.

    Archives of servers of any version are accepted, under any name, and checked first. Where the location is empty,
    the repository is created as soon as there is something to store, unless you give --no-init. A damaged stream does
    not stop the others: the output names it, and the exit code is 3.

    With --format, import a TABLE, a local file or folder: all of it or nothing. A folder for each stream, as `export`
    makes them, says which streams there are; else give --stream. Columns: sequence, timestamp_ns (in JSON lines:
    time), subject, data, and headers if there are any. A stream without a configuration is stored in files, with its
    own name as its subject.
    """
    start_log(shared)
    chosen_tags = parse_tags(tags)
    if kind is not None:
        written = read_tables(
            shared,
            directory,
            kind,
            stream,
            configs=[Path(path) for path in configs],
            tags=chosen_tags,
            where=where,
            lock_timeout=lock_timeout,
            may_make=not no_init,
        )
        return tell_backup(shared.output, *written, ())
    if stream is not None or configs or where.given:
        raise UsageError(
            "--stream, --stream-config and options of Spark make sense for a table only",
            hint="Say with --format what the table is, or leave them out.",
        )
    from jsbackup.exchange.importing import run_import
    from jsbackup.exchange.source import ImportSource

    with ImportSource.open(Path(directory)) as source:
        repository = open_or_make_repository(shared, may_make=not no_init)
        with (
            writing(shared, repository, "import", lock_timeout) as lease,
            make_progress("import", wanted=shared.progress) as progress,
        ):
            report = run_import(
                source,
                repository,
                lease=lease,
                tags=chosen_tags,
                progress=progress,
                clock_ns=time.time_ns,
                random=os.urandom,
            )
    return tell_backup(shared.output, report.manifest, report.streams, report.failures)


@click.command(cls=Command)
@click.argument("backup", shell_complete=complete_backup)
@click.argument("streams", nargs=-1, metavar="[STREAM_OR_GLOB]...", shell_complete=complete_stream)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["nats-cli", "config", *WRITTEN_FORMATS]),
    required=True,
    help="nats-cli: what `nats backup restore stream` and `… account` take; config: JSON files without messages; "
    "parquet, jsonl, delta: the messages as tables, by Spark.",
)
@click.option(
    "--output",
    "directory",
    required=True,
    metavar="DIR",
    help="Folder to create, or an empty one; for tables also s3://bucket/prefix.",
)
@click.option(
    "--archive",
    type=click.Choice(["v1", "v2"]),
    help="Archive format for nats-cli: v1 is for every server, v2 for 2.15 and newer, and for `nats backup info`, "
    "`validate` and `edit`. Default: v1, for streams kept in memory v2.",
)
@choosing_options
@on_spark
@lock_timeout_option
def export(
    shared: Shared,
    backup: str,
    streams: tuple[str, ...],
    kind: str,
    *,
    directory: str,
    archive: str | None,
    origins: tuple[str, ...],
    tags: tuple[str, ...],
    where: Where,
    lock_timeout: str,
) -> int:
    """Write BACKUP (an id, its start, or `latest`) to files: all streams, or those that you name (globs are allowed).

    For the nats CLI, each stream gets a folder in DIR, as `nats backup restore account DIR` takes them. If you name
    exactly one stream, without a glob, DIR is the folder of that stream, for `nats backup restore stream DIR`.

    Tables have a folder for each stream, with files of up to about 32 MiB of messages.

    DIR appears when everything is written, or not at all. In S3, an object _SUCCESS is written last.
    """
    from jsbackup.exchange.exporting import Archive, export_account, export_configs, export_stream
    from jsbackup.repository.read.broken_lists import broken_lists, refuse_broken

    start_log(shared)
    patterns = tuple(map(parse_glob, streams))
    wanted, choosing = None if archive is None else Archive(archive), parse_choosing(backup, origins, tags)
    if archive is not None and kind != "nats-cli":
        raise UsageError("--archive makes sense for --format nats-cli only")
    if kind in WRITTEN_FORMATS:
        tables, lost = write_tables(
            shared, backup, choosing, streams, kind=kind, output=directory, where=where, lock_timeout=lock_timeout
        )
        return _tell(shared, tables.files, tables.bytes, tables.streams, broken=lost, directory=directory)
    if where.given:
        raise UsageError("options of Spark make sense for tables only", hint="Leave them out.")
    repository = open_repository(shared)
    with reading(shared, repository, "export", lock_timeout):
        manifest = find_backup(shared, repository, backup, choosing, streams=patterns)
        chosen = _choose(manifest, patterns)
        broken: BrokenLists = {} if kind == "config" else broken_lists(chosen)
        refuse_broken(broken, of=len(chosen))
        chosen = [stream for stream in chosen if stream.name not in broken]
        new = NewFolder(Path(directory), os.urandom(4).hex(), _PRIVATE if kind == "nats-cli" else _SHARED)
        with new, make_progress("export", wanted=shared.progress) as progress:
            if kind == "config":
                exported = export_configs(new, chosen)
            elif len(patterns) == 1 and patterns[0].is_literal:
                exported = [export_stream(new, "", repository.objects, chosen[0], archive=wanted, progress=progress)]
            else:
                exported = export_account(new, repository.objects, chosen, wanted, progress=progress)
            new.commit()
    return _tell(shared, new.files, new.bytes, exported, broken=broken, directory=directory)


def _choose(manifest: Manifest, patterns: Sequence[Glob]) -> list[StreamBackup]:
    for pattern in patterns:
        if not any(pattern.matches(stream.name) for stream in manifest.streams):
            raise UsageError(
                f"backup {manifest.id} has no stream {pattern.pattern}",
                hint=f"See 'jsbackup show {manifest.id}' for the streams it has.",
            )
    chosen = [s for s in manifest.streams if not patterns or any(p.matches(s.name) for p in patterns)]
    if not chosen:
        raise UsageError(f"backup {manifest.id} has no streams")
    return chosen


def _tell(
    shared: Shared,
    files: int,
    size: int,
    exported: Sequence[ExportedStream],
    *,
    broken: BrokenLists,
    directory: str,
) -> int:
    output = shared.output
    messages = sum(stream.messages for stream in exported)

    def text() -> None:
        output.table(
            ["STREAM", ">MESSAGES", "WRITTEN AS"], [(s.name, format_count(s.messages), s.archive) for s in exported]
        )
        for note, names in _by_note(exported).items():
            output.line(f"note: {in_short(names)}: {note}")
        tell_broken(output, broken)
        output.line(
            f"wrote {directory}: {format_count(len(exported), 'stream')}, {format_count(messages, 'message')}, "
            f"{format_count(files, 'file')}, {format_bytes(size)}"
        )

    document = {
        "files": files,
        "rows": messages,
        "bytes": size,
        "streams": [
            {"name": s.name, "messages": s.messages, "archive": s.archive, "notes": list(s.notes)} for s in exported
        ],
        "failed": broken_json(broken),
    }
    output.result(document, text)
    return IncompleteError.exit_code if broken or any(stream.incomplete for stream in exported) else 0


def _by_note(exported: Sequence[ExportedStream]) -> dict[str, list[str]]:
    """Return the streams by note: many have the same one, which is printed once."""
    found: dict[str, list[str]] = {}
    for stream in exported:
        for note in stream.notes:
            found.setdefault(note, []).append(stream.name)
    return found


COMMANDS = {"import": import_, "export": export}
