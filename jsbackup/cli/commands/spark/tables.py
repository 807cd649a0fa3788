"""`jsbackup export` and `import` with `--format parquet`, `jsonl` and `delta`, which run on Spark.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jsbackup.cli.options.context import Shared
from jsbackup.cli.options.latest import Choosing
from jsbackup.cli.options.leases import writing
from jsbackup.cli.options.opening import open_or_make_repository
from jsbackup.cli.options.spark import Where, choose_readable, open_with_spark, place_given, require_spark, settings_of
from jsbackup.cli.output.progress import make_progress
from jsbackup.config import environment, s3_settings
from jsbackup.errors import UsageError
from jsbackup.model import JsonObject

if TYPE_CHECKING:
    from jsbackup.pipeline.tables.export import Exported
    from jsbackup.repository.manifest import Manifest
    from jsbackup.repository.read.broken_lists import BrokenLists
    from jsbackup.repository.write.new_backup import StoredStream

__all__ = ["READ_FORMATS", "WRITTEN_FORMATS", "read_tables", "write_tables"]

# As in `pipeline/tables/export.py`. Delta tables are not read: files in their folders may be obsolete.
READ_FORMATS = ("parquet", "jsonl")
WRITTEN_FORMATS = (*READ_FORMATS, "delta")


def write_tables(
    shared: Shared,
    backup: str,
    choosing: Choosing,
    streams: Sequence[str],
    *,
    kind: str,
    output: str,
    where: Where,
    lock_timeout: str,
) -> tuple[Exported, BrokenLists]:
    """Write streams of a backup to `output`, a folder or a URL; return also those that cannot be read.

    Raises the errors of `export_tables` and `new_target`.
    """
    require_spark()
    from jsbackup.pipeline.session.repository_ref import place_of
    from jsbackup.pipeline.tables.delta import require_deltalake
    from jsbackup.pipeline.tables.export import TableFormat, export_tables
    from jsbackup.pipeline.tables.target import new_target

    if kind == TableFormat.DELTA:
        require_deltalake()
    place = place_of(output, s3_settings(shared.s3, environment()), {})
    # The target is checked first: Spark takes a while to start.
    with (
        new_target(place, os.urandom(4).hex()) as target,
        open_with_spark(
            shared, "export", backup, choosing, streams=streams, where=where, lock_timeout=lock_timeout
        ) as opened,
        make_progress("export", wanted=shared.progress) as progress,
    ):
        readable, broken = choose_readable(shared, opened, streams)
        exported = export_tables(
            opened.session,
            opened.place,
            target,
            TableFormat(kind),
            backup=opened.manifest.id,
            streams=opened.streams(readable),
            progress=progress,
        )
        return exported, broken


def read_tables(
    shared: Shared,
    table: str,
    kind: str,
    stream: str | None,
    *,
    configs: Sequence[Path],
    tags: Mapping[str, str],
    where: Where,
    lock_timeout: str,
    may_make: bool,
) -> tuple[Manifest, list[StoredStream]]:
    """Make a backup of the tables at `table`. Raises the errors of `find_tables`, `read_printed_configs`,
    `write_streams`.
    """
    settings = settings_of(where)
    from jsbackup.pipeline.jobs.write import TableStream, write_streams
    from jsbackup.pipeline.session.session import open_session
    from jsbackup.pipeline.tables.export import TableFormat
    from jsbackup.pipeline.tables.table_files import find_tables, read_table

    # Errors in the command are reported before Spark starts, and before a repository is created.
    found = find_tables(Path(table), TableFormat(kind), stream)
    told = _configs(configs, [one.stream for one in found])
    place = place_given(shared)
    repository = open_or_make_repository(shared, may_make=may_make)
    with (
        writing(shared, repository, "import", lock_timeout) as lease,
        open_session(settings) as session,
        make_progress("import", wanted=shared.progress) as progress,
    ):
        streams = {
            one.stream: TableStream(read_table(session, one, TableFormat(kind)), told.get(one.stream, {}), one.bytes)
            for one in found
        }
        origin = f"table ({kind})"
        written = write_streams(
            session, place, repository, lease, streams=streams, tags=tags, origin=origin, progress=progress
        )
    for name in sorted(streams.keys() - told.keys()):
        shared.output.note(f"stream {name} has no configuration, and got that of a plain one; see --stream-config")
    return written


def _configs(files: Sequence[Path], streams: Sequence[str]) -> dict[str, JsonObject]:
    """Return the configurations of streams by name; a single configuration also fits a single stream."""
    from jsbackup.exchange.printed_configs import read_printed_configs

    told: dict[str, JsonObject] = {}
    for file in files:
        found = read_printed_configs(file)
        if twice := found.keys() & told.keys():
            raise UsageError(f"there are two configurations of stream {min(twice)}")
        told |= found
    if len(told) == len(streams) == 1:
        return dict(zip(streams, told.values(), strict=True))
    if files and not told.keys() & set(streams):
        raise UsageError(f"there is no configuration of stream {streams[0]} in what was given")
    return told
