"""`jsbackup export --format parquet` and `jsonl`, which run on Spark.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jsbackup.cli.command import Shared
from jsbackup.cli.progress import make_progress
from jsbackup.cli.spark import Where, note_left_out, open_with_spark, require_spark
from jsbackup.config import environment, s3_settings

if TYPE_CHECKING:
    from jsbackup.pipeline.export import Exported

__all__ = ["TABLE_FORMATS", "write_tables"]

TABLE_FORMATS = ("parquet", "jsonl")  # as `pipeline/export.py` has them


def write_tables(
    shared: Shared, backup: str, streams: Sequence[str], kind: str, output: str, where: Where, lock_timeout: str
) -> Exported:
    """Write streams of a backup at `output`, a folder or a URL. Errors as of `export_tables` and `new_target`."""
    require_spark()
    from jsbackup.pipeline.export import TableFormat, export_tables
    from jsbackup.pipeline.place import place_of
    from jsbackup.pipeline.target import new_target

    place = place_of(output, s3_settings(shared.s3, environment()), {})
    # The target is looked at first: Spark takes a while to start.
    with (
        new_target(place, os.urandom(4).hex()) as target,
        open_with_spark(shared, "export", backup, streams, where, lock_timeout) as opened,
        make_progress("export", wanted=shared.progress) as progress,
    ):
        note_left_out(shared, opened, streams)
        chosen = opened.streams(streams)
        return export_tables(
            opened.session, opened.place, target, TableFormat(kind), opened.manifest.id, chosen, progress
        )
