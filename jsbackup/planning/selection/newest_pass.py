"""Find what `--last-per-subject` and `--kv-compact` keep of a stored stream, in a pass over its messages.

It decodes no payloads and no headers that are not judged by. Segments are looked at in parallel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial

import pyarrow as pa

from jsbackup.planning.selection.subset import segments_within
from jsbackup.repository.background import in_order
from jsbackup.repository.manifest import SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.segments import read_columns
from jsbackup.transforms.filters.newest import NEWEST_SCHEMA, NewestRule, find_newest, newest_rows, rows_of_subjects
from jsbackup.transforms.reshape import Reshape

__all__ = ["newest_in_segment", "with_newest"]

_THREADS = 3  # they wait for the store, or compute SHA-256


def with_newest(objects: Objects, entry: StreamBackup, reshape: Reshape) -> Reshape:
    """Return the value with what its `newest` keeps; itself if there is nothing to look for.

    Raises IntegrityError, KeyUnavailable and StoreError.
    """
    rule = reshape.newest
    if rule is None or reshape.chosen is not None:
        return reshape
    keeping = replace(reshape.keeping, newest=None)

    def read() -> Iterator[pa.Table]:
        refs = segments_within(entry, reshape.cut)
        tasks = (partial(newest_in_segment, objects, ref, entry.name, keeping, rule=rule) for ref in refs)
        with closing(in_order(tasks, _THREADS)) as found:
            yield from found

    return replace(reshape, chosen=find_newest(rule, read))


def newest_in_segment(
    objects: Objects, ref: SegmentRef, stream: str, keeping: Reshape, *, rule: NewestRule
) -> pa.Table:
    """Return the rows of the newest messages of each subject, among those of a segment that `keeping` keeps.

    Raises as `with_newest`.
    """
    columns = {*keeping.filters.columns, *rule.columns}
    batches = keeping.apply(read_columns(objects, ref, columns), stream=stream)
    rows = [NEWEST_SCHEMA.empty_table(), *(rows_of_subjects(batch, rule) for batch in batches)]
    return newest_rows(pa.concat_tables(rows), rule)
