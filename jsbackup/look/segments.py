"""Read of segments only what is looked for.

A segment of a plain repository is searched through ranges of its object: the footer, whose statistics rule out row
groups, then the columns that the filter judges by. That checks the pages' checksums, but not that the object is the one
that was stored. So a segment whose messages are returned is then read whole, and its SHA-256 compared. `heads` returns
only what the search has seen.

An encrypted segment can only be read whole, and a small one is faster read so; both are then always compared.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import BinaryIO, TypeVar, cast

import pyarrow as pa

from jsbackup.errors import DigestMismatch, FormatError, IntegrityError, ObjectNotFound
from jsbackup.formats.batch import BATCH_SCHEMA
from jsbackup.formats.segment import Probe, scan_segment
from jsbackup.look.message_filter import MessageFilter
from jsbackup.memory import give_back
from jsbackup.repository.background import in_order
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.objects import Objects
from jsbackup.repository.pages.segment_list import SegmentList, parts_of
from jsbackup.repository.read.object_file import ObjectFile
from jsbackup.repository.refs import PageRef

__all__ = ["heads", "in_parallel", "matching", "refs_within"]

# A store that is far away answers this as fast as the two or three requests for its parts.
_SMALL_BYTES = 1 << 20
# They mostly wait for the store. Each holds a row group, or a segment within the budget of `Objects.room`.
_THREADS = 6

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
    rows of each still rise). Every segment that a message comes from is compared with its SHA-256.

    Raises:
        IntegrityError: an object is missing, or damaged.
        KeyUnavailable: it is encrypted, and no key that opens it was given.
        StoreError: it cannot be read.
    """
    refs = refs_within(segments, wanted, newest_first=newest_first)
    for ref in _holding(objects, refs, wanted):
        # Without the memory budget: a thread that reads two streams side by side would wait for itself.
        source = cast(BinaryIO, pa.BufferReader(objects.fetch(ref)))
        names = BATCH_SCHEMA.names
        probe = _probe(wanted, names)
        yield from _filtered(scan_segment(source, names, wanted.wants_group, probe, newest_first=newest_first), wanted)
        del source
        give_back(ref.bytes)


def _holding(objects: Objects, refs: Iterable[SegmentRef], wanted: MessageFilter) -> Iterator[SegmentRef]:
    """Yield the segments that have such messages, or may have some. Searches them in several threads."""
    if objects.sealing.suffix:
        yield from refs
        return

    def look(ref: SegmentRef) -> SegmentRef | None:
        if ref.size <= _SMALL_BYTES or wanted.takes_all_of(ref):
            return ref
        batches = _ranges(objects, ref, wanted, wanted.columns)
        return ref if any(map(wanted.any_row, batches)) else None

    with closing(in_parallel(look, refs)) as found:
        yield from (ref for ref in found if ref is not None)


def heads(objects: Objects, ref: SegmentRef, wanted: MessageFilter, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield some columns of the wanted messages of a segment, which is not read whole if that is not needed. `columns`
    have those that the filter judges by. Raises as `matching`.
    """
    if objects.sealing.suffix or ref.size <= _SMALL_BYTES or ("data" in columns and not wanted.by_content):
        with objects.room.share() as share:
            share.hold(ref.size)
            source = cast(BinaryIO, pa.BufferReader(objects.fetch(ref)))
            yield from _filtered(scan_segment(source, columns, wanted.wants_group, _probe(wanted, columns)), wanted)
    else:
        yield from _filtered(_ranges(objects, ref, wanted, columns), wanted)


def _filtered(batches: Iterable[pa.RecordBatch], wanted: MessageFilter) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        found = batch.filter(wanted.rows(batch))
        if found.num_rows:
            yield found


def _probe(wanted: MessageFilter, columns: Sequence[str]) -> Probe | None:
    needless = not wanted.by_content or set(columns) <= set(wanted.columns)
    return None if needless else Probe(wanted.columns, wanted.any_row)


def _ranges(
    objects: Objects, ref: SegmentRef, wanted: MessageFilter, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield columns of the row groups that may have wanted messages. Raises as `matching`."""
    file = cast(BinaryIO, ObjectFile(objects.store, ref.key, ref.size))
    try:
        yield from scan_segment(file, columns, wanted.wants_group, _probe(wanted, columns))
    except ObjectNotFound as error:
        raise IntegrityError(f"object {ref.key} is missing") from error
    except FormatError as error:
        raise DigestMismatch(f"object {ref.key} is damaged: {error.message}") from error


def in_parallel(task: Callable[[SegmentRef], T], refs: Iterable[SegmentRef]) -> Generator[T, None, None]:
    """Yield the result of the task for each segment, in order. A few are worked on ahead. Raises as the task."""
    return in_order((partial(task, ref) for ref in refs), _THREADS)
