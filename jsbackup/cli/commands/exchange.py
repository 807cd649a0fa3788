"""`jsbackup import` and `jsbackup export` of foreign files. Neither needs a server. Slow modules are imported when a
command runs: `--help` and completion load this module.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jsbackup.cli.commands.spark.tables import (
    READ_FORMATS,
    WRITTEN_FORMATS,
    read_tables,
    table_options,
    write_tables,
)
from jsbackup.cli.options.latest import LATEST, WantedBackup, find_backup
from jsbackup.cli.options.leases import reading, writing
from jsbackup.cli.options.opening import no_init_option, open_or_make_repository, open_repository
from jsbackup.cli.options.reshaping import (
    about_messages,
    mask_key_name,
    refuse_obfuscation,
    reshaping_options,
    with_key_beside,
)
from jsbackup.cli.options.spark import Where
from jsbackup.cli.options.tag_options import tagged_as
from jsbackup.cli.options.tagging import parse_tags
from jsbackup.cli.output.exported import export_result
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.reports import import_result, stored_result
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup, complete_stream
from jsbackup.cli.parsing.context import Shared
from jsbackup.config import environment, mask_secret, parse_glob, server_store_keys
from jsbackup.errors import UsageError
from jsbackup.exchange.folder import NewFolder, clear_leftovers
from jsbackup.planning.asked import AskedChanges

if TYPE_CHECKING:
    from jsbackup.exchange.exporting import ChangedStream
    from jsbackup.planning.typed_options import TableOptions
    from jsbackup.repository.manifest import StreamBackup
    from jsbackup.repository.read.broken_lists import BrokenLists

__all__ = ["COMMANDS"]

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
# Messages are private; configs are meant to be shared.
_PRIVATE, _SHARED = 0o700, 0o777


@click.command("import", cls=Command, on_spark=True)
@click.argument("directory", metavar="DIR_OR_TABLE")
@click.option(
    "--format",
    "kind",
    type=click.Choice(READ_FORMATS),
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
) -> int:
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
    start_log(shared)
    chosen_tags = parse_tags(tags)
    if found := _URL.match(directory):
        raise UsageError(
            f"import reads files of this machine, and not {found[1]}:// URLs",
            hint="Copy them here first; what `export` wrote to S3, `aws s3 sync` copies.",
        )
    if server_store:
        if kind is not None or stream is not None or where is not None:
            raise UsageError(
                "--server-store excludes --format, --stream and options of Spark",
                hint="They are for tables; leave them out.",
            )
        keys = server_store_keys(
            {"store_key_file": store_key_files, "store_key_command": store_key_command}, environment()
        )
        return _import_store(
            shared,
            Path(directory),
            account,
            keys,
            configs=[Path(path) for path in configs],
            tags=chosen_tags,
            may_make=not no_init,
        )
    if account is not None or store_key_files or store_key_command:
        raise UsageError(
            "--account and the key of a store make sense with --server-store only",
            hint="Add --server-store, or leave them out.",
        )
    if kind is not None:
        manifest, stored, lost = read_tables(
            shared,
            directory,
            kind,
            stream,
            configs=[Path(path) for path in configs],
            tags=chosen_tags,
            where=where,
            may_make=not no_init,
        )
        return shared.output.show(stored_result(manifest, stored, (), lost_readers=lost))
    if stream is not None or configs or where is not None:
        raise UsageError(
            "--stream, --stream-config and options of Spark make sense for a table only",
            hint="Say with --format what the table is, or leave them out.",
        )
    from jsbackup.exchange.importing import ImportSource, run_import

    with ImportSource.open(Path(directory)) as source:
        repository = open_or_make_repository(shared, may_make=not no_init)
        with (
            writing(shared, repository, "import") as lease,
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
    return shared.output.show(import_result(report, repository))


def _import_store(
    shared: Shared,
    path: Path,
    account: str | None,
    keys: tuple[bytes, ...],
    *,
    configs: Sequence[Path],
    tags: Mapping[str, str],
    may_make: bool,
) -> int:
    """Import the streams in the store folder of a server that is not running."""
    from jsbackup.exchange.config_files import read_printed_configs
    from jsbackup.exchange.server_store.import_store import import_store
    from jsbackup.exchange.server_store.store_files import ServerStore, refuse_users

    given = {name: config for file in configs for name, config in read_printed_configs(file).items()}
    refuse_users(path)
    if shared.repo and Path(shared.repo).resolve().is_relative_to(path.resolve()):
        raise UsageError(
            f"repository {shared.repo} is in {path}, and nothing is written there", hint="Put it somewhere else."
        )
    with ServerStore.open(path, account) as store:
        for note in store.notes:
            shared.output.note(note)
        store.check_keys(keys)
        repository = open_or_make_repository(shared, may_make=may_make)
        with (
            writing(shared, repository, "import") as lease,
            make_progress("import", wanted=shared.progress) as progress,
        ):
            report = import_store(
                store,
                repository,
                keys=keys,
                configs=given,
                lease=lease,
                tags=tags,
                progress=progress,
                clock_ns=time.time_ns,
                random=os.urandom,
            )
    return shared.output.show(import_result(report, repository))


@click.command(cls=Command, chooses=True, on_spark=True)
@click.argument("backup", shell_complete=complete_backup)
@click.argument("streams", nargs=-1, metavar="[STREAM_OR_GLOB]...", shell_complete=complete_stream)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["nats-cli", "config", "nack", "terraform", *WRITTEN_FORMATS]),
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
@table_options
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
    tables: TableOptions,
    archive: str | None,
    asked: AskedChanges,
    mask_key: tuple[tuple[str, str], ...],
    where: Where | None,
) -> int:
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
    from jsbackup.planning.transforming import plan_streams
    from jsbackup.repository.manifest import ArchiveFormat, StreamBackup
    from jsbackup.repository.read.broken_lists import broken_lists, refuse_broken

    start_log(shared)
    patterns = tuple(map(parse_glob, streams))
    wanted = None if archive is None else ArchiveFormat(archive)
    if archive is not None and kind != "nats-cli":
        raise UsageError(
            f"--archive is for --format nats-cli, and this is --format {kind}",
            hint="Leave out --archive, or write --format nats-cli.",
        )
    tables.check(asked)
    asked = with_key_beside(asked, directory)
    if kind in CONFIG_FORMATS and (given := about_messages(asked)):
        raise UsageError(f"{given[0]} is about messages, and --format {kind} has none", hint="Leave it out.")
    from jsbackup.planning.typed_options import keeping_obfuscated, transform_options

    options, secret = transform_options(asked, streams), mask_secret(dict(mask_key), environment())
    options.reshape.masks.check_secret(secret)
    whole = None if "://" in directory else Path(directory)
    keeping = keeping_obfuscated(asked.obfuscation_key, options.reshape, whole=whole)
    if kind in WRITTEN_FORMATS:
        if where is not None and where.is_elsewhere:
            refuse_obfuscation(options.reshape, "Spark on other machines: its secret stays on this one")
        with keeping:
            written_tables = write_tables(
                shared,
                WantedBackup(backup, patterns, as_newest=tables.append and backup == LATEST),
                options,
                tables=tables,
                output=directory,
                mask_key=mask_key,
                where=where,
            )
        return shared.output.show(
            export_result(
                written_tables.files,
                written_tables.bytes,
                written_tables.streams,
                broken=written_tables.refused,
                directory=directory,
                append=tables.append,
                is_new=written_tables.is_new,
            )
        )
    if where is not None:
        raise UsageError("options of Spark make sense for tables only", hint="Leave them out.")
    repository = open_repository(shared)
    with reading(shared, repository, "export"), keeping:
        manifest = find_backup(shared, repository, WantedBackup(backup, patterns))
        chosen = choose_streams(manifest, [one.pattern for one in patterns])
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
                entries = [one if isinstance(one, StreamBackup) else one.entry for one in written]
                exported = export_configs(new, entries, kind)
            elif len(patterns) == 1 and patterns[0].is_literal:
                exported = [export_stream(new, "", repository.objects, written[0], archive=wanted, progress=progress)]
            else:
                exported = export_account(new, repository.objects, written, wanted, progress=progress)
            new.commit()
    return shared.output.show(export_result(new.files, new.bytes, exported, broken=broken, directory=directory))


COMMANDS = {"import": import_, "export": export}
