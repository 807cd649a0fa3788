"""`jsbackup import`, `export` and `iceberg`: foreign files and tables, which need no server; tables also on Spark.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jsbackup.cli.options.backup_choice import LATEST, WantedBackup, find_backup, job_runner, open_job
from jsbackup.cli.options.opening import (
    Where,
    no_init_option,
    open_or_make_repository,
    open_repository,
    place_given,
    reading,
    writing,
)
from jsbackup.cli.options.restore_options import (
    about_messages,
    mask_key_name,
    refuse_obfuscation,
    reshaping_options,
    with_key_beside,
)
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.reports import stored_result
from jsbackup.cli.output.result import Block, Result, broken_json, broken_lines, format_bytes, format_count, table
from jsbackup.cli.parsing.command import Command, tagged_as
from jsbackup.cli.parsing.completion import complete_backup, complete_stream
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.parsing.typed_values import parse_tags
from jsbackup.config import (
    environment,
    is_chosen,
    mask_secret,
    nearest,
    parse_glob,
    s3_settings,
    server_store_keys,
)
from jsbackup.errors import IncompleteError, JsBackupError, UnsupportedError, UsageError
from jsbackup.exchange.folder import NewFolder, check_output, clear_leftovers
from jsbackup.model import JsonObject
from jsbackup.planning.asked import AskedChanges
from jsbackup.readable import in_short
from jsbackup.times import parse_time

if TYPE_CHECKING:
    from jsbackup.exchange.exporting import ChangedStream, ExportedStream
    from jsbackup.pipeline.messages.chosen import ChosenBackup
    from jsbackup.pipeline.tables.export import Exported, PlannedExport
    from jsbackup.planning.changed_streams import ChangeOptions
    from jsbackup.planning.typed_options import TableOptions
    from jsbackup.repository.manifest import StreamBackup
    from jsbackup.repository.read.losses import BrokenLists

__all__ = ["COMMANDS"]

# As in `pipeline/tables/export.py`. Tables of Delta and Iceberg are not read: files in their folders may be obsolete.
_READ_FORMATS = ("parquet", "jsonl")
_WRITTEN_FORMATS = (*_READ_FORMATS, "delta", "iceberg")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
# Messages are private; configs are meant to be shared.
_PRIVATE, _SHARED = 0o700, 0o777


@click.command("import", cls=Command, on_spark=True)
@click.argument("directory", metavar="DIR_OR_TABLE")
@click.option(
    "--format",
    "kind",
    type=click.Choice(_READ_FORMATS),
    help="Import a table of messages in this format: what `export` writes, or any other with the same columns.",
)
@click.option("--stream", metavar="NAME", help="Name of the stream, where the table has no folder for each stream.")
@click.option(
    "--stream-config",
    "configs",
    multiple=True,
    metavar="FILE",
    help="Configuration of a table's stream, or of one whose own is lost: the JSON of `nats stream info --json` or "
    "`jsbackup show --json`.",
)
@click.option(
    "--server-store",
    is_flag=True,
    help="DIR is the store folder of a nats-server that is stopped or dead, or a copy; damaged or not.",
)
@click.option("--account", metavar="NAME", help="The account of a --server-store, if there are several.")
@click.option(
    "--store-key-file",
    "store_key_files",
    multiple=True,
    metavar="FILE",
    help="The key of an encrypted --server-store, as `jetstream { key }` of the server; another one for its old key "
    "[env: JSBACKUP_STORE_KEY_FILE, or JSBACKUP_STORE_KEY itself].",
)
@click.option(
    "--store-key-command", metavar="COMMAND", help="Command that prints that key [env: JSBACKUP_STORE_KEY_COMMAND]."
)
@tagged_as("Tag the backup.")
@no_init_option
def import_(
    shared: Shared,
    directory: str,
    kind: str | None,
    stream: str | None,
    *,
    configs: tuple[str, ...],
    server_store: bool,
    account: str | None,
    store_key_files: tuple[str, ...],
    store_key_command: str | None,
    tags: tuple[str, ...],
    no_init: bool,
    where: Where | None,
) -> Result:
    """Import DIR as a backup: what `nats backup stream` or `nats backup account` wrote, or config files: those of
    `export`, or resources of NACK (*.yaml) or Terraform (*.tf.json).

    With --server-store, DIR is the `store_dir` of a nats-server that is not running, or a folder in it. Everything
    that checksums prove is imported, and what is lost is named; see 'jsbackup help salvage'. DIR is only read.

    Archives of servers of any version are accepted, under any name, and checked first. Where the location is empty,
    the repository is created as soon as there is something to store, unless you give --no-init. A damaged stream does
    not stop the others: the output names it, and the exit code is 3.

    With --format, import a TABLE, a local file or folder: all of it or nothing. A folder for each stream, as `export`
    makes them, says which streams there are; else give --stream. Columns: sequence (without it, rows are numbered),
    timestamp_ns or time (in any unit; integers are nanoseconds), subject, data, and headers if there are any. A
    misspelt `headers` is refused, and so are headers and subjects that no client writes, but for those that `export`
    wrote. A stream without a configuration is stored in files, with its own name as its subject; KV_NAME and OBJ_NAME
    get what clients need of a bucket or an object store.
    """
    from jsbackup.repository.checks.verify_run import lost_readers

    chosen_tags, files, may_make = parse_tags(tags), [Path(path) for path in configs], not no_init
    if match := _URL.match(directory):
        raise UsageError(
            f"import reads files of this machine, and not {match[1]}:// URLs",
            hint="Copy them here first; what `export` wrote to S3, `aws s3 sync` copies.",
        )
    if server_store:
        if kind is not None or stream is not None or where is not None:
            raise UsageError(
                "--server-store excludes --format, --stream and options of Spark",
                hint="They are for tables; leave them out.",
            )
    elif account is not None or store_key_files or store_key_command:
        raise UsageError(
            "--account and the key of a store make sense with --server-store only",
            hint="Add --server-store, or leave them out.",
        )
    if kind is not None:
        return _read_tables(
            shared,
            Path(directory),
            kind,
            stream,
            configs=files,
            tags=chosen_tags,
            where=where,
            may_make=may_make,
        )
    if not server_store and (stream is not None or configs or where is not None):
        raise UsageError(
            "--stream, --stream-config and options of Spark make sense for a table only",
            hint="Say with --format what the table is, or leave them out.",
        )
    path = Path(directory)
    with ExitStack() as stack:
        if server_store:
            from jsbackup.exchange.config_files import read_printed_configs
            from jsbackup.exchange.server_store.import_store import import_store
            from jsbackup.exchange.server_store.store_files import ServerStore, refuse_users

            typed = {"store_key_file": store_key_files, "store_key_command": store_key_command}
            keys = server_store_keys(typed, environment())
            given = {name: config for file in files for name, config in read_printed_configs(file).items()}
            refuse_users(path)
            if shared.repo and Path(shared.repo).resolve().is_relative_to(path.resolve()):
                raise UsageError(
                    f"repository {shared.repo} is in {path}, and nothing is written there",
                    hint="Put it somewhere else.",
                )
            store = stack.enter_context(ServerStore.open(path, account))
            for note in store.notes:
                shared.output.note(note)
            store.check_keys(keys)
            work = partial(import_store, store, keys=keys, configs=given)
        else:
            from jsbackup.exchange.importing import ImportSource, run_import

            work = partial(run_import, stack.enter_context(ImportSource.open(path)))
        repository = open_or_make_repository(shared, may_make=may_make)
        report = work(
            repository,
            lease=stack.enter_context(writing(shared, repository, "import")),
            tags=chosen_tags,
            progress=stack.enter_context(make_progress("import", wanted=shared.progress)),
            clock_ns=time.time_ns,
            random=os.urandom,
        )
    return stored_result(report.manifest, report.streams, report.failures, lost_readers=lost_readers(repository))


def _read_tables(
    shared: Shared,
    path: Path,
    kind: str,
    stream: str | None,
    *,
    configs: Sequence[Path],
    tags: Mapping[str, str],
    where: Where | None,
    may_make: bool,
) -> Result:
    """Make a backup of the tables at `path`.

    Raises the errors of `find_tables`, `read_printed_configs`, `write_streams`.
    """
    from jsbackup.exchange.config_files import read_configs_of
    from jsbackup.pipeline.jobs.imported_streams import RowStream, default_subjects, write_rows
    from jsbackup.pipeline.jobs.job_run import JobRun
    from jsbackup.pipeline.tables.table_files import find_tables
    from jsbackup.pipeline.tables.table_rows import row_tasks
    from jsbackup.pipeline.tables.writing import TableFormat
    from jsbackup.repository.checks.verify_run import lost_readers

    # Errors in the command are reported before Spark starts, and before a repository is created.
    tables = find_tables(path, TableFormat(kind), stream)
    configured = read_configs_of(configs, [stored_table.stream for stored_table in tables])
    streams = {
        stored_table.stream: RowStream(
            stored_table, row_tasks(stored_table, TableFormat(kind)), configured.get(stored_table.stream, {})
        )
        for stored_table in tables
    }
    place, origin = place_given(shared), f"table ({kind})"
    repository = open_or_make_repository(shared, may_make=may_make)
    with (
        writing(shared, repository, "import") as lease,
        make_progress("import", wanted=shared.progress) as progress,
        job_runner(where, place, repository) as runner,
    ):
        run: JobRun[Any] = JobRun(runner, place, repository, lease, progress)
        if where is None:
            manifest, stored = write_rows(run, streams, tags=tags, origin=origin)
        else:
            from jsbackup.pipeline.jobs.write import write_row_streams

            manifest, stored = write_row_streams(run, streams, tags=tags, origin=origin)
    for stored_table in stored:
        name = stored_table.stream.name
        if name in configured:
            continue
        said = f"stream {name} has no configuration, so a default one is used"
        if stored_table.others:  # what a restored one would not store again
            other = "has another subject" if stored_table.others == 1 else "have other subjects"
            said += f", for {' and '.join(default_subjects(name))} alone, and {stored_table.others:,} of its "
            said += f"{format_count(stored_table.stream.captured.messages, 'message')} {other}"
        shared.output.note(f"{said}; see --stream-config")
    return stored_result(manifest, stored, (), lost_readers=lost_readers(repository))


@click.command(cls=Command, chooses=True, on_spark=True)
@click.argument("backup", shell_complete=complete_backup)
@click.argument("streams", nargs=-1, metavar="[STREAM_OR_GLOB]...", shell_complete=complete_stream)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["nats-cli", "config", "nack", "terraform", *_WRITTEN_FORMATS]),
    required=True,
    help="nats-cli: what `nats backup restore stream` and `… account` take; config: JSON files without messages; "
    "nack, terraform: the configurations as resources of NACK (Kubernetes) or Terraform; "
    "parquet, jsonl, delta, iceberg: the messages as tables.",
)
@click.option(
    "--output",
    "directory",
    required=True,
    metavar="DIR",
    help="Folder to create, or an empty one; for tables also s3://bucket/prefix.",
)
@click.option(
    "--append",
    is_flag=True,
    help="For parquet, delta and iceberg: add to the tables in DIR what they lack of all backups up to BACKUP, "
    "oldest first. The first time that is all that the repository has.",
)
@click.option(
    "--partition-by",
    type=click.Choice(("day",)),
    help="For parquet, delta and iceberg: a partition for each day (of the message's time, in UTC).",
)
@click.option(
    "--catalog",
    metavar="NAME",
    help="For iceberg: the catalog of the tables, NAME or NAME/NAMESPACE of pyiceberg's configuration, or a URI of "
    "SQL such as sqlite:////lake.db. Without it a file in DIR.",
)
@click.option(
    "--archive",
    type=click.Choice(["v1", "v2"]),
    help="Archive format for nats-cli: v1 is for every server, v2 for 2.15 and newer, and for `nats backup info`, "
    "`validate` and `edit`. Default: v1, for streams kept in memory v2.",
)
@reshaping_options
@mask_key_name
def export(
    shared: Shared,
    backup: str,
    streams: tuple[str, ...],
    kind: str,
    *,
    directory: str,
    append: bool,
    partition_by: str | None,
    catalog: str | None,
    archive: str | None,
    asked: AskedChanges,
    mask_key: tuple[tuple[str, str | bytes], ...],
    where: Where | None,
) -> Result:
    """Write BACKUP (an id, its start, or `latest`) to files: all streams, or those that you name (globs are allowed).

    For the nats CLI, each stream gets a folder in DIR, as `nats backup restore account DIR` takes them. If you name
    exactly one stream, without a glob, DIR is the folder of that stream, for `nats backup restore stream DIR`.

    Tables have a folder for each stream, with files of up to about 32 MiB of messages.

    As resources of NACK or Terraform, what these cannot express is named, and the exit code is 3. See 'jsbackup help
    configs'.

    With --subject, --since, --mask and the other options of 'jsbackup restore' that change streams, what is written is
    what a restore with them would send; all of it is read once before.

    DIR appears when everything is written, or not at all; but each table of parquet, delta and iceberg on its own.

    With --append, run it after each backup, with the same options: the tables get what they lack of all backups up to
    BACKUP, each message once, whatever interrupts the command. Messages that were deleted since stay in the table. See
    'jsbackup help tables'.
    """
    from jsbackup.exchange.exporting import (
        CONFIG_FORMATS,
        change_streams,
        export_account,
        export_configs,
        export_stream,
    )
    from jsbackup.pipeline.messages.chosen import choose_streams
    from jsbackup.planning.changed_streams import plan_streams
    from jsbackup.planning.typed_options import TableOptions, change_options, keeping_obfuscated
    from jsbackup.repository.manifest import ArchiveFormat, StreamBackup
    from jsbackup.repository.read.losses import broken_lists, refuse_broken

    patterns = tuple(map(parse_glob, streams))
    wanted = None if archive is None else ArchiveFormat(archive)
    if archive is not None and kind != "nats-cli":
        raise UsageError(
            f"--archive is for --format nats-cli, and this is --format {kind}",
            hint="Leave out --archive, or write --format nats-cli.",
        )
    tables = TableOptions(kind, append, partition_by is not None, catalog)
    tables.check(asked)
    asked = with_key_beside(asked, directory)
    if kind in CONFIG_FORMATS and (given := about_messages(asked)):
        raise UsageError(f"{given[0]} is about messages, and --format {kind} has none", hint="Leave it out.")
    options, secret = change_options(asked, streams), mask_secret(dict(mask_key), environment())
    options.reshape.masks.check_secret(secret)
    whole = None if "://" in directory else Path(directory)
    keeping = keeping_obfuscated(asked.obfuscation_key, options.reshape, whole=whole)
    if kind in _WRITTEN_FORMATS:
        if where is not None and where.is_elsewhere:
            refuse_obfuscation(options.reshape, "Spark on other machines: its secret stays on this one")
        with keeping:
            exported_tables = _write_tables(
                shared,
                WantedBackup(backup, patterns, as_newest=append and backup == LATEST),
                options,
                tables=tables,
                output=directory,
                mask_key=mask_key,
                where=where,
            )
        return _export_result(
            exported_tables.files,
            exported_tables.bytes,
            exported_tables.streams,
            broken=exported_tables.refused,
            directory=directory,
            append=append,
            is_new=exported_tables.is_new,
        )
    if where is not None:
        raise UsageError("options of Spark make sense for tables only", hint="Leave them out.")
    repository = open_repository(shared)
    with reading(shared, repository, "export"), keeping:
        manifest = find_backup(shared, repository, WantedBackup(backup, patterns))
        chosen = choose_streams(manifest, [pattern.pattern for pattern in patterns])
        if not chosen:
            raise UsageError(f"backup {manifest.id} has no streams")
        broken: BrokenLists = {} if kind in CONFIG_FORMATS else broken_lists(chosen)
        refuse_broken(broken, of=len(chosen))
        chosen = [stream for stream in chosen if stream.name not in broken]
        written: Sequence[StreamBackup | ChangedStream] = chosen
        if options.words:
            planned = plan_streams(manifest, chosen, options, "exported")
            written = change_streams(repository.objects, manifest.id, planned, options, secret=secret)
        for leftover in clear_leftovers(Path(directory)):
            shared.output.note(leftover)
        new = NewFolder(Path(directory), os.urandom(4).hex(), _PRIVATE if kind == "nats-cli" else _SHARED)
        with new, make_progress("export", wanted=shared.progress) as progress:
            if kind in CONFIG_FORMATS:
                entries = [stream if isinstance(stream, StreamBackup) else stream.entry for stream in written]
                exported = export_configs(new, entries, kind)
            elif len(patterns) == 1 and patterns[0].is_literal:
                exported = [export_stream(new, "", repository.objects, written[0], archive=wanted, progress=progress)]
            else:
                exported = export_account(new, repository.objects, written, wanted, progress=progress)
            new.commit()
    return _export_result(new.files, new.bytes, exported, broken=broken, directory=directory)


def _write_tables(
    shared: Shared,
    wanted: WantedBackup,
    options: ChangeOptions,
    *,
    tables: TableOptions,
    output: str,
    mask_key: tuple[tuple[str, str | bytes], ...],
    where: Where | None,
) -> Exported:
    """Write streams of a backup, changed as the options say, to `output`, a folder or a URL.

    Raises the errors of `export_tables`, `plan_export` and `export_target`.
    """
    from jsbackup.pipeline.session.repository_ref import place_of
    from jsbackup.pipeline.tables.export import TablesAsked, export_tables, export_target, plan_export
    from jsbackup.pipeline.tables.writing import TableFormat
    from jsbackup.pipeline.tasks.reshape_task import MaskKey

    kind = TableFormat(tables.kind)
    asked = TablesAsked(kind, options, MaskKey(mask_key), tables.append, tables.by_day, tables.catalog)
    place = place_of(output, s3_settings(shared.s3, environment()), {})
    planned: list[PlannedExport] = []
    with export_target(place_given(shared), place, asked, note=shared.output.note) as target:

        def plan(backup: ChosenBackup) -> None:
            for reason in backup.left_out():
                shared.output.note(f"{reason}, and left out")
            planned.append(plan_export(backup.place, backup.manifest, target, asked, patterns=wanted.streams))

        with (
            open_job(shared, "export", wanted, where=where, look=plan) as job,
            make_progress("export", wanted=shared.progress) as progress,
        ):
            return export_tables(job.runner, job.backup.place, target, planned[0], progress=progress)


def _export_result(
    files: int,
    size: int,
    exported: Sequence[ExportedStream],
    *,
    broken: Mapping[str, JsBackupError],
    directory: str,
    append: bool = False,
    is_new: bool = True,
) -> Result:
    """Return what was written, or with `append` added to tables, to `directory`. `broken` could not be read, or their
    tables not be extended. `is_new`: nothing was there.
    """
    messages, done = sum(stream.messages for stream in exported), "wrote" if is_new else "appended to"
    streams: list[JsonObject] = [
        {"name": s.name, "messages": s.messages, "archive": s.archive, "notes": list(s.notes)} for s in exported
    ]
    document: JsonObject = {
        "files": files,
        "rows": messages,
        "bytes": size,
        "streams": streams,
        "failed": broken_json(broken),
        **({"appended": True} if append else {}),
    }
    by_note: dict[str, list[str]] = {}  # many streams have the same one, which is printed once
    for stream in exported:
        for note in stream.notes:
            by_note.setdefault(note, []).append(stream.name)
    text: list[Block] = [
        table(streams, {"STREAM": "name", ">MESSAGES": ("messages", format_count), "WRITTEN AS": "archive"}),
        *(f"note: {in_short(names)}: {note}" for note, names in by_note.items()),
    ]
    for part in [{name: error} for name, error in broken.items()] if append else [broken]:  # each has to be seen to
        text += broken_lines(part)
    text.append(
        f"{done} {directory}: {format_count(len(exported), 'stream')}, {format_count(messages, 'message')}, "
        f"{format_count(files, 'file')}, {format_bytes(size)}"
    )
    return Result(document, text, IncompleteError.exit_code if broken or any(s.incomplete for s in exported) else 0)


@click.command(cls=Command, chooses=True)
@click.argument("streams", nargs=-1, metavar="[STREAM_OR_GLOB]...", shell_complete=complete_stream)
@click.option(
    "--output",
    "directory",
    required=True,
    metavar="DIR",
    help="Folder for the tables, made if it does not exist; or s3://bucket/prefix. Run it again with the same one.",
)
def iceberg(shared: Shared, streams: tuple[str, ...], directory: str) -> Result:
    """Describe backups as Iceberg tables, without a copy: a table for each stream, a snapshot for each backup.

    DIR gets metadata only, in DIR/STREAM/metadata. The messages stay in the repository, which is not
    changed; readers of Iceberg read them there. The tag of a snapshot is the id of its backup: `SELECT * FROM orders
    VERSION AS OF '20261121T094249Z-acd9df'`. The tables have all backups of the account that `latest` is of; with --tag
    those that have it.

    Run it after each backup, and after each prune: tables from before name segments that prune has deleted.

    Not for encrypted repositories. Streams of an unknown format and backups without messages are left out.
    """
    from jsbackup.pipeline.session.repository_ref import place_of
    from jsbackup.pipeline.tables.iceberg_table import require_pyiceberg
    from jsbackup.pipeline.tables.target import location_of, refuse_foreign, refuse_place
    from jsbackup.repository.manifest import summary_of
    from jsbackup.repository.origin import origin_of
    from jsbackup.repository.read.sources import counts
    from jsbackup.stores.local import remove_incoming

    require_pyiceberg()
    from jsbackup.pipeline.tables.iceberg_backups import BackedUp, described_streams, write_iceberg

    patterns = tuple(map(parse_glob, streams))
    place = place_of(directory, s3_settings(shared.s3, environment()), {})
    source = place_given(shared)
    refuse_place(source, place)
    if place.folder is not None:
        check_output(Path(place.folder), hint="Name a folder, or one that does not exist yet.")
    refuse_foreign(place)
    repository = open_repository(shared)
    if repository.objects.sealing.suffix:
        raise UnsupportedError(
            "the repository is encrypted, and readers of Iceberg cannot read it",
            hint="Make tables with `jsbackup export --format iceberg`, or delta; they are not encrypted.",
        )
    wanted = WantedBackup(LATEST, patterns, all_needed=False)
    with reading(shared, repository, "iceberg"):
        newest = find_backup(shared, repository, wanted)
        # Of the account that the newest is of, with the tags: the backups of each stream, streams of an unknown format,
        # and the names of others that were not asked for or have no messages.
        like = summary_of(newest)
        backed_up: dict[str, list[BackedUp]] = {}
        left_out: dict[str, None] = {}
        others: dict[str, None] = {}
        for summary in sorted(repository.inventory().summaries, key=lambda summary: (summary.created, summary.id)):
            mine = origin_of(summary) == origin_of(like) and (summary.imported is None) == (like.imported is None)
            if not mine or summary.transformed != like.transformed or not counts(summary, shared.choosing.tags, ()):
                continue
            created_ms = parse_time(summary.created) // 10**6
            for stream in repository.manifest(summary.id).streams:
                if is_chosen(stream.name, patterns, ()) and stream.unknown_format:
                    left_out[stream.name] = None
                elif is_chosen(stream.name, patterns, ()) and stream.archive_format.has_messages:
                    backed_up.setdefault(stream.name, []).append(BackedUp(summary.id, created_ms, stream.segments))
                else:
                    others[stream.name] = None
        store, data, repository_id = place.store(), location_of(source), repository.descriptor.id
        described = described_streams(store)
        names = [*backed_up, *left_out, *others]
        for pattern in patterns:
            if not any(map(pattern.matches, [*names, *(described if backed_up else ())])):
                raise UsageError(
                    f"no backup has a stream {pattern.pattern}",
                    hint=nearest(pattern.pattern, names) or "See 'jsbackup show' for the streams that there are.",
                )
        for name in left_out:
            shared.output.note(f"stream {name} is of an archive format that is not known here, and left out")
        if not backed_up:
            raise UsageError(f"no backup has messages of {' '.join(streams) or 'any stream'}")
        for name in sorted(set(described) - backed_up.keys()):
            if is_chosen(name, patterns, ()):
                shared.output.note(
                    f"no backup has messages of stream {name} any more: its table stays as it was, and names segments "
                    "that prune deletes"
                )
        tables = [
            write_iceberg(store, location_of(place), name, backups, data=data, repository=repository_id)
            for name, backups in sorted(backed_up.items())
        ]
    if place.folder is not None:
        remove_incoming(Path(place.folder))
    rows = list(map(asdict, tables))
    shown = [row if row["new"] else row | {"metadata": f"{row['metadata']} (as before)"} for row in rows]
    figures = {f">{name.upper()}": (name, format_count) for name in ("backups", "files", "messages")}
    return Result({"tables": rows}, [table(shown, {"STREAM": "stream", **figures, "METADATA": "metadata"})])


COMMANDS = {"import": import_, "export": export, "iceberg": iceberg}
