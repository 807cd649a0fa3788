"""Messages of a segment with only some of their columns, for a pass that looks at no more."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import BinaryIO, cast

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.formats.batch import BATCH_SCHEMA
from jsbackup.formats.digest import MessageBatch
from jsbackup.formats.segment import scan_segment
from jsbackup.memory import give_back
from jsbackup.repository.objects import Objects
from jsbackup.repository.refs import SegmentRef

__all__ = ["read_columns"]

_HEAD = ("sequence", "timestamp_ns", "subject")


def read_columns(objects: Objects, ref: SegmentRef, columns: Collection[str]) -> Iterator[MessageBatch]:
    """Yield batches of messages. Of `headers` and `data` only those among `columns` are decoded; the others are empty.

    Raises:
        IntegrityError: the object is missing, or damaged.
        KeyUnavailable: it is encrypted, and no key that opens it was given.
        StoreError: it cannot be read.
    """
    # The whole object is fetched: its SHA-256 has to be compared before a footer is trusted (`look/segments.py`).
    needed = [name for name in BATCH_SCHEMA.names if name in _HEAD or name in columns]
    with objects.room.share() as share:
        share.hold(ref.size)
        file = cast(BinaryIO, pa.BufferReader(objects.fetch(ref)))
        for batch in scan_segment(file, needed, lambda _group: True):
            yield _filled_up(batch)
    give_back(ref.bytes)


def _filled_up(batch: pa.RecordBatch) -> MessageBatch:
    held = set(batch.schema.names)
    nothing = {
        "headers": lambda: pa.nulls(batch.num_rows, pa.binary()),
        "data": lambda: pa.repeat(pc.binary_array([b""])[0], batch.num_rows),
    }
    arrays = [batch.column(name) if name in held else nothing[name]() for name in BATCH_SCHEMA.names]
    schema = BATCH_SCHEMA.set(2, BATCH_SCHEMA.field(2).with_type(batch.column("subject").type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
