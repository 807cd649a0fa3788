"""`jsbackup iceberg`: describe the backups of a repository as Iceberg tables. Runs without Spark.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jsbackup.cli.options.backup_choice import LATEST, WantedBackup, find_backup
from jsbackup.cli.options.opening import open_repository, place_given, reading
from jsbackup.cli.output.result import Result, TextTable, format_count
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_stream
from jsbackup.cli.parsing.context import Shared
from jsbackup.config import Glob, environment, is_chosen, nearest, parse_glob, s3_settings
from jsbackup.errors import UnsupportedError, UsageError
from jsbackup.exchange.folder import check_output
from jsbackup.times import parse_time

if TYPE_CHECKING:
    from jsbackup.pipeline.tables.iceberg_backups import BackedUp
    from jsbackup.repository.keep.retention import TagRule
    from jsbackup.repository.manifest import Manifest
    from jsbackup.repository.repository import Repository

__all__ = ["COMMANDS"]


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
    from jsbackup.stores.local import remove_incoming

    require_pyiceberg()
    from jsbackup.pipeline.tables.iceberg_backups import described_streams, write_iceberg

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
        backed_up, left_out, others = _backed_up(repository, newest, patterns, shared.choosing.tags)
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
    cells = [
        (
            table.stream,
            *map(format_count, (table.backups, table.files, table.messages)),
            table.metadata if table.new else f"{table.metadata} (as before)",
        )
        for table in tables
    ]
    return Result(
        {"tables": list(map(asdict, tables))},
        [TextTable(["STREAM", ">BACKUPS", ">FILES", ">MESSAGES", "METADATA"], cells)],
    )


def _backed_up(
    repository: Repository, newest: Manifest, patterns: Sequence[Glob], tags: Sequence[TagRule]
) -> tuple[dict[str, list[BackedUp]], list[str], list[str]]:
    """Return the backups of each stream of the account that `newest` is of, with these tags, streams of an unknown
    format, and the names of others that were not asked for or have no messages.
    """
    from jsbackup.pipeline.tables.iceberg_backups import BackedUp
    from jsbackup.repository.origin import origin_of
    from jsbackup.repository.read.sources import counts
    from jsbackup.repository.summary import summary_of

    like = summary_of(newest)
    backed_up: dict[str, list[BackedUp]] = {}
    unknown: dict[str, None] = {}
    others: dict[str, None] = {}
    for summary in sorted(repository.inventory().summaries, key=lambda one: (one.created, one.id)):
        mine = origin_of(summary) == origin_of(like) and (summary.imported is None) == (like.imported is None)
        if not mine or summary.transformed != like.transformed or not counts(summary, tags, ()):
            continue
        created_ms = parse_time(summary.created) // 10**6
        for stream in repository.manifest(summary.id).streams:
            if is_chosen(stream.name, patterns, ()) and stream.unknown_format:
                unknown[stream.name] = None
            elif is_chosen(stream.name, patterns, ()) and stream.archive_format.has_messages:
                backed_up.setdefault(stream.name, []).append(BackedUp(summary.id, created_ms, stream.segments))
            else:
                others[stream.name] = None
    return backed_up, list(unknown), list(others)


COMMANDS = {"iceberg": iceberg}
