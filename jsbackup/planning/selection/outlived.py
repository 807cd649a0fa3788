"""Stored messages that a stream removes as soon as they are restored because of their own time to live (`Nats-TTL`), or
publishes because their schedule is due.

That is in their headers, so all segments have to be fetched; only these columns are decoded. The first ones are looked
at, up to a limit: what is known of the others is nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pyarrow as pa

from jsbackup.model import JsonObject
from jsbackup.planning.model import Outlived
from jsbackup.planning.selection.subset import segments_within
from jsbackup.repository.background import in_order
from jsbackup.repository.manifest import SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.columns import read_columns
from jsbackup.transforms.batches import TIMESTAMP
from jsbackup.transforms.cut import Cut
from jsbackup.transforms.removal import Cause, removal_of

__all__ = ["MOST_BYTES", "find_outlived"]

# Stored bytes and messages of a stream that are looked at: some seconds from S3, and some of one core.
MOST_BYTES = 512 << 20
_MOST_MESSAGES = 4_000_000

_THREADS = 3  # they wait for the store, or compute SHA-256
# What stands for a deletion: no content is lost with it.
_MARKERS = (b"\r\nNats-Marker-Reason:", b"\r\nKV-Operation: DEL\r\n", b"\r\nKV-Operation: PURGE\r\n")


def find_outlived(
    objects: Objects, entry: StreamBackup, cut: Cut, config: JsonObject, *, now_ns: int, most_bytes: int = MOST_BYTES
) -> Outlived:
    """Return how many of the messages within a cut are gone at once from a stream with this configuration. Markers of
    deleted keys are not counted.

    Raises IntegrityError, KeyUnavailable and StoreError.
    """
    look = partial(_look_at, objects, cut=cut, config=config, now_ns=now_ns)
    tasks = (partial(look, ref) for ref in _first(entry, cut, most_bytes))
    with closing(in_order(tasks, _THREADS)) as outlived:
        return sum(outlived, Outlived())


def _first(entry: StreamBackup, cut: Cut, most_bytes: int) -> Iterator[SegmentRef]:
    size = messages = 0
    for ref in segments_within(entry, cut):
        if size and (size + ref.size > most_bytes or messages + ref.messages > _MOST_MESSAGES):
            return
        size, messages = size + ref.size, messages + ref.messages
        yield ref


def _look_at(objects: Objects, ref: SegmentRef, *, cut: Cut, config: JsonObject, now_ns: int) -> Outlived:
    by_ttl = expired = looked = due = 0
    ageless = {**config, "max_age": 0}

    def is_gone(stored_ns: int, block: bytes, rules: JsonObject) -> Cause | None:
        removal = removal_of(stored_ns, block, rules)
        return removal[1] if removal is not None and removal[0] <= now_ns else None

    for batch in read_columns(objects, ref, ["headers"]):
        kept: pa.RecordBatch = batch.filter(cut.rows(batch)) if cut else batch
        looked += kept.num_rows
        headers = kept.column("headers")
        if headers.null_count == len(headers) and not config.get("max_age"):
            continue
        for stored_ns, block in zip(kept.column(TIMESTAMP).to_pylist(), headers.to_pylist(), strict=True):
            cause = is_gone(stored_ns, block or b"", config)
            if cause is Cause.FIRED:
                due += 1
            elif cause is not None and not (block and any(marker in block for marker in _MARKERS)):
                expired += 1
                by_ttl += is_gone(stored_ns, block or b"", ageless) is not None
    return Outlived(by_ttl, expired, looked, due)
