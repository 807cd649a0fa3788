"""Store rows as segments, in order of their sequences: in a task on Spark, or in this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from jsbackup.errors import FormatError, JsBackupError
from jsbackup.formats.archive.archive_items import refuse_too_large
from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened
from jsbackup.pipeline.tasks.row_rules import NO_COUNTS, RowCounts, SinkRules, as_messages, count_rows
from jsbackup.repository.segments import SegmentWriter, StoredSegments

__all__ = ["StoredPartition", "store_messages"]


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """What was stored of a partition."""

    segments: StoredSegments
    counts: RowCounts = NO_COUNTS


def store_messages(
    place: RepositoryRef, folder: str, batches: Iterator[pa.RecordBatch], rules: SinkRules
) -> StoredPartition | JsBackupError:
    """Store rows in order of their sequences, in a task. Return our error, if there is one, as Spark retries others."""
    try:
        if not rules.stores:
            _look_at(batches, rules)
            return StoredPartition(StoredSegments())
        writer = SegmentWriter(opened(place).objects, folder)
        last, counts = 0, NO_COUNTS
        try:
            for batch in batches:
                if batch.num_rows:
                    messages = as_messages(batch, any_headers=rules.any_headers)
                    last = _rising(messages.column("sequence"), last)
                    counts += count_rows(messages, rules)
                    writer.add(messages)
            return StoredPartition(writer.finish_all(), counts)
        finally:
            writer.close()
    except JsBackupError as error:
        return error


def _look_at(batches: Iterator[pa.RecordBatch], rules: SinkRules) -> None:
    """Raise the errors of rows that cannot be stored. Of rows in no order, those that are there twice may be missed."""
    last = 0
    for batch in batches:
        if batch.num_rows:
            sequences = as_messages(batch, any_headers=rules.any_headers).column("sequence")
            last = _rising(sequences, last) if rules.in_order else 0
            if not rules.in_order:
                _rising(sequences.take(pc.sort_indices(sequences)), 0)


def _rising(sequences: pa.Array, last: int) -> int:
    """Return the last of sequences in order after `last`. Raises FormatError for a repeated or an invalid one."""
    first, end = sequences[0].as_py(), sequences[-1].as_py()
    if first < 1:
        raise FormatError(f"{first} is not a sequence: sequences start at 1")
    try:
        refuse_too_large(end)
    except FormatError as error:
        raise error.with_hint("The messages need other sequences: a backup of these could not be restored.") from None
    again = sequences[1:].filter(pc.equal(sequences[1:], sequences[:-1]))
    if first == last or len(again):
        raise FormatError(f"sequence {first if first == last else again[0].as_py()} is there twice")
    return int(end)
