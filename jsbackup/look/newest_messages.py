"""Of the wanted messages of a stream only the newest ones of each subject: found in a pass of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import pyarrow as pa

from jsbackup.errors import UsageError
from jsbackup.formats.batch import BATCH_SCHEMA
from jsbackup.look.message_filter import MessageFilter
from jsbackup.look.segments import heads, in_parallel, refs_within
from jsbackup.repository.manifest import Manifest, SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.transforms.filters.newest import NEWEST_SCHEMA, NewestRule, find_newest, newest_rows, rows_of_subjects
from jsbackup.transforms.rename import StreamKind, kinds_of

__all__ = ["check_newest", "newest_messages"]


def check_newest(manifest: Manifest, stream: StreamBackup, rule: NewestRule | None) -> None:
    """Raise UsageError if the rule is not for this stream of a backup."""
    if rule is not None and rule.compact and StreamKind.KEY_VALUE not in kinds_of(stream.name, stream.config):
        raise UsageError(
            f"stream {stream.name} of backup {manifest.id} is not a key-value bucket, and --kv-compact is for keys",
            hint="For other streams there is --last-per-subject 1.",
        )


def newest_messages(
    objects: Objects, stream: StreamBackup, wanted: MessageFilter, rule: NewestRule | None
) -> MessageFilter:
    """Return the filter for those of the wanted messages that the rule keeps, all without one. Raises as `matching`."""
    if rule is None:
        return wanted

    def read() -> Iterable[pa.Table]:
        return in_parallel(partial(_newest, objects, wanted, rule), refs_within(stream.segments, wanted))

    return replace(wanted, chosen=find_newest(rule, read))


def _newest(objects: Objects, wanted: MessageFilter, rule: NewestRule, ref: SegmentRef) -> pa.Table:
    names = {*wanted.columns, *rule.columns}
    batches = heads(objects, ref, wanted, [name for name in BATCH_SCHEMA.names if name in names])
    rows = [NEWEST_SCHEMA.empty_table(), *(rows_of_subjects(batch, rule) for batch in batches)]
    return newest_rows(pa.concat_tables(rows), rule)
