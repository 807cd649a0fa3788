"""Read of a stream only the segments that may have what is looked for, and of these only the row groups and columns.

The manifest's bounds rule out segments, and the statistics in a segment's footer row groups. Then the columns that the
filter judges by are decoded, and the others only of row groups that have wanted messages.

Every object is read whole and its SHA-256 compared before any of it is decoded. Reading ranges would need fewer bytes,
but the footer has no checksum, and a damaged one ends the process when its statistics are read (pyarrow 26): a search
could neither trust it nor survive it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from itertools import chain, islice
from typing import BinaryIO, TypeVar, cast

import pyarrow as pa

from jsbackup.formats.batch import BATCH_SCHEMA
from jsbackup.formats.segment import Probe, scan_segment
from jsbackup.look.message_filter import MessageFilter
from jsbackup.memory import give_back
from jsbackup.repository.background import in_order
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.objects import Objects, PageRef
from jsbackup.repository.pages.segment_list import SegmentList, parts_of

__all__ = ["heads", "in_parallel", "matching", "refs_within"]

# They wait for the store, or compute SHA-256. What they hold is within the budget of `Objects.room`, but not what they
# decode, so few work on large segments at once. Small ones cost little but the wait for the store.
_THREADS, _FOR_SMALL = 3, 16
_SMALL_BYTES = 1 << 20

T = TypeVar("T")


def refs_within(
    segments: Sequence[SegmentRef], wanted: MessageFilter, *, newest_first: bool = False
) -> Iterator[SegmentRef]:
    """Yield the segments that may have such messages, by their bounds. Reads no other pages, and each when it is due.

    Raises as iteration over `StreamBackup.segments`.
    """
    read = segments.read if isinstance(segments, SegmentList) else None
    parts = parts_of(segments)
    for part in reversed(parts) if newest_first else parts:
        if not wanted.wants_part(part):
            continue
        if isinstance(part, PageRef):
            assert read is not None, "only lists have pages"
            yield from refs_within(SegmentList(read(part), read), wanted, newest_first=newest_first)
        else:
            yield part


def matching(
    objects: Objects, segments: Sequence[SegmentRef], wanted: MessageFilter, *, newest_first: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted messages with all columns, in rising sequence, or batch by batch from the last to the first (the
    rows of each still rise). One segment is in memory while its messages are yielded.

    Raises:
        IntegrityError: an object is missing, or damaged.
        KeyUnavailable: it is encrypted, and no key that opens it was given.
        StoreError: it cannot be read.
    """
    refs = refs_within(segments, wanted, newest_first=newest_first)
    for ref in _holding(objects, refs, wanted):
        # Without the memory budget: a thread that reads two streams side by side would wait for itself.
        yield from _scan(objects.fetch(ref), wanted, BATCH_SCHEMA.names, newest_first=newest_first)
        give_back(ref.bytes)


def _holding(objects: Objects, refs: Iterable[SegmentRef], wanted: MessageFilter) -> Iterator[SegmentRef]:
    """Yield the segments that have such messages. Searches them in several threads if bounds do not tell."""
    if not wanted.by_content:
        yield from refs
        return

    def look(ref: SegmentRef) -> SegmentRef | None:
        return ref if any(True for _ in heads(objects, ref, wanted, wanted.columns)) else None

    # The search often ends with the first ones: few are read ahead.
    with closing(in_order((partial(look, ref) for ref in refs), _THREADS)) as found:
        yield from (ref for ref in found if ref is not None)


def heads(
    objects: Objects,
    ref: SegmentRef,
    wanted: MessageFilter,
    columns: Sequence[str],
    *,
    turn: AbstractContextManager[object] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield some columns of the wanted messages of a segment. `columns` have those that the filter judges by. The
    segment is held within the memory budget until the iterator ends. A large one is decoded within `turn`, if there is
    one: what is decoded is not in the budget. Raises as `matching`.
    """
    with objects.room.share() as share:
        share.hold(ref.size)
        data = objects.fetch(ref)
        with turn if turn is not None and ref.bytes > _SMALL_BYTES else nullcontext():
            yield from _scan(data, wanted, columns)


def _scan(
    data: bytes, wanted: MessageFilter, columns: Sequence[str], *, newest_first: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield columns of the wanted messages in a segment that is known to be the stored one."""
    judged = wanted.by_content and not set(columns) <= set(wanted.columns)
    probe = Probe(wanted.columns, wanted.any_row) if judged else None
    source = cast(BinaryIO, pa.BufferReader(data))
    for batch in scan_segment(source, columns, wanted.wants_group, probe, newest_first=newest_first):
        found = batch.filter(wanted.rows(batch))
        if found.num_rows:
            yield found


def in_parallel(task: Callable[[SegmentRef], T], refs: Iterable[SegmentRef]) -> Generator[T, None, None]:
    """Yield the result of the task for each segment, in order. A few are worked on ahead, more of them if the first
    ones are small. Raises as the task.
    """
    iterator = iter(refs)
    first = list(islice(iterator, _FOR_SMALL))
    threads = _FOR_SMALL if all(ref.bytes <= _SMALL_BYTES for ref in first) else _THREADS
    return in_order((partial(task, ref) for ref in chain(first, iterator)), threads)
