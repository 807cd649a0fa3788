"""Store small tables in tasks that read them without Spark: several tables to a task, all in one job.

A job for each would take a fifth of a second and more, of which little is for its messages. What a task cannot read is
left to the job that Spark does for a table by itself, which also reports what is wrong (`write.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from jsbackup.errors import ExecutorsLost, JsBackupError, StoreError
from jsbackup.formats.batch import BATCH_SCHEMA
from jsbackup.pipeline.session.repository_ref import RepositoryRef
from jsbackup.pipeline.tasks.packing import pack_tasks
from jsbackup.pipeline.tasks.row_rules import NO_COUNTS, RowCounts, SinkRules
from jsbackup.pipeline.tasks.runner import TaskRunner
from jsbackup.pipeline.tasks.segment_sink import store_messages
from jsbackup.progress import Progress
from jsbackup.repository.segments import StoredSegments

__all__ = ["ReadRows", "SmallTable", "StoreTables", "StoredTable", "store_tables"]

_log = logging.getLogger(__name__)

ReadRows = Callable[[], Iterator[pa.RecordBatch]]
"""Yields the rows of a table, in any order, with the columns of `BATCH_SCHEMA`, and others. It can be pickled."""

# Rows are sorted in memory. A table that has more is left to Spark, which sorts on disk.
_MOST_BYTES = 64 << 20
# As many as Spark sends at once.
_BATCH_ROWS = 10_000
# What a table weighs beside its bytes: it takes some milliseconds, however small it is (measured: 5), and all cores
# should have some.
_TABLE_BYTES = 1 << 20
_NONE = SinkRules()


@dataclass(frozen=True, slots=True)
class SmallTable:
    """A table of so many bytes, to be stored below `folder`. `counts_subjects`: the result says how many messages a
    subject has.
    """

    read: ReadRows
    bytes: int
    folder: str
    counts_subjects: bool = False
    rules: SinkRules = _NONE


@dataclass(frozen=True, slots=True)
class StoredTable:
    """What was stored, in so many seconds. `most` messages have the same subject, if that was asked."""

    segments: StoredSegments
    seconds: float
    most: int = 0
    counts: RowCounts = NO_COUNTS


@dataclass(frozen=True, slots=True)
class StoreTables:
    """A task: stores tables, and returns what was stored of each; None for one that is left to Spark."""

    place: RepositoryRef
    tables: tuple[SmallTable, ...]

    def __call__(self) -> tuple[StoredTable | None, ...]:
        done: list[StoredTable | None] = []
        for table in self.tables:
            try:
                done.append(self._store(table))
            except StoreError:  # likely also for the others, after as many attempts
                break
            except (JsBackupError, OSError, pa.ArrowException, ValueError):
                done.append(None)
        return (*done, *[None] * (len(self.tables) - len(done)))

    def _store(self, table: SmallTable) -> StoredTable | None:
        begun = time.monotonic()
        rows = _sorted_rows(table.read)
        if rows is None:
            return None
        batches = iter(rows.to_batches(_BATCH_ROWS))
        found = store_messages(self.place, table.folder, batches, table.rules)
        if isinstance(found, JsBackupError):
            raise found
        most = pc.max(pc.value_counts(rows["subject"]).field("counts")).as_py() if table.counts_subjects else 0
        return StoredTable(found.segments, time.monotonic() - begun, most or 0, found.counts)


def store_tables(
    runner: TaskRunner, place: RepositoryRef, tables: Mapping[str, SmallTable], progress: Progress | None
) -> dict[str, StoredTable]:
    """Store the tables of streams, in one job; return what was stored of those that are not left to Spark.

    Raises ExecutorsLost if there is nothing any more that would do it.
    """
    names = list(tables)
    parts = pack_tasks([table.bytes + _TABLE_BYTES for table in tables.values()], runner.cores)
    tasks = [StoreTables(place, tuple(tables[name] for name in names[part])) for part in parts]
    weights = [sum(table.bytes for table in task.tables) for task in tasks]
    stored: dict[str, StoredTable] = {}
    try:
        doing = f"{'storing' if all(one.rules.stores for one in tables.values()) else 'checking'} {len(names)} tables"
        for part, results in zip(parts, runner.run(doing, tasks, weights=weights, progress=progress), strict=True):
            stored |= {name: one for name, one in zip(names[part], results, strict=True) if one is not None}
    except ExecutorsLost:
        raise
    except JsBackupError as error:  # one of them may have ended its worker again and again: each is tried by itself
        _log.info("%s", error)
    return stored


def _sorted_rows(read: ReadRows) -> pa.Table | None:
    """Return messages in order of their sequences; None if they take too much memory."""
    batches, size = [], 0
    for batch in read():
        size += batch.nbytes
        if size > _MOST_BYTES:
            return None
        batches.append(batch.select(BATCH_SCHEMA.names))
    if not batches:
        return BATCH_SCHEMA.empty_table()
    return pa.Table.from_batches(batches).sort_by("sequence").combine_chunks()
