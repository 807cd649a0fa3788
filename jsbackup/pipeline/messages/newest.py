"""Find the sequences of the newest message of each subject, for streams of any size.

No task has the whole stream. So the tasks of a first pass read only sequences and subjects, and return the last of each
subject within a segment; Spark groups these over all segments of a stream. The driver receives sequences, eight bytes
for each subject, and passes to the tasks of the second pass those within their segments.

Subjects are those in the backup, before any is mapped. "Newest" is the highest sequence among the messages that the cut
and the filter of subjects keep.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from jsbackup.formats.segment import scan_segment
from jsbackup.pipeline.session.failures import explained
from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened
from jsbackup.pipeline.tasks.task_source import encode_tasks
from jsbackup.pipeline.tasks.tasks import pack_tasks, watched
from jsbackup.progress import Progress
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.object_file import ObjectFile
from jsbackup.repository.segments import SegmentReader
from jsbackup.transforms.reshape import Reshape

__all__ = ["Sequences", "last_of_subjects", "newest_sequences"]

_HEAD = ("sequence", "timestamp_ns", "subject")
_ROWS = pa.schema([("stream", pa.int32()), ("subject", pa.binary()), ("sequence", pa.int64())])
_DDL = "stream int, subject binary, sequence bigint"


@dataclass(frozen=True, slots=True)
class Sequences:
    """Rising sequences in the form sent with a task: as differences, compressed."""

    packed: bytes

    @classmethod
    def of(cls, rising: pa.Int64Array) -> Sequences:
        shifted = pa.concat_arrays([pa.array([0], pa.int64()), rising.slice(0, max(0, len(rising) - 1))])
        steps = pc.subtract(rising, shifted.slice(0, len(rising)))
        data = memoryview(steps.buffers()[1] or b"")[: 8 * len(steps)]  # buffers may be longer than their content
        return cls(zlib.compress(data, 1))

    def array(self) -> pa.Int64Array:
        data = zlib.decompress(self.packed)
        return pc.cumulative_sum(pa.Array.from_buffers(pa.int64(), len(data) // 8, [None, pa.py_buffer(data)]))


@dataclass(frozen=True, slots=True)
class _LastOfSubjects:
    """A task; its rows are the last sequences of the subjects of each segment. `runs` are numbered by stream."""

    place: RepositoryRef
    runs: tuple[tuple[int, str, tuple[SegmentRef, ...]], ...]
    keeping: Reshape

    def __call__(self) -> Iterator[pa.RecordBatch]:
        objects = opened(self.place).objects
        for number, stream, refs in self.runs:
            for ref in refs:
                found = last_of_subjects(objects, ref, stream, self.keeping)
                numbers = pa.repeat(pa.scalar(number, pa.int32()), found.num_rows)
                for batch in found.combine_chunks().to_batches():
                    yield pa.RecordBatch.from_arrays([numbers, *batch.columns], schema=_ROWS)


def newest_sequences(
    session: SparkSession,
    place: RepositoryRef,
    streams: Mapping[str, Sequence[SegmentRef]],
    keeping: Reshape,
    *,
    progress: Progress | None = None,
) -> dict[str, pa.Int64Array]:
    """Return by stream the sequences, rising, of the newest message of each subject among those that `keeping` keeps.

    Raises:
        IntegrityError, KeyUnavailable, StoreError: messages cannot be read.
    """
    names = list(streams)
    found = [(number, ref) for number, name in enumerate(names) for ref in streams[name]]
    tasks = []
    for piece in pack_tasks([ref.bytes for _, ref in found]):
        runs: dict[int, list[SegmentRef]] = {}
        for number, ref in found[piece]:
            runs.setdefault(number, []).append(ref)
        tasks.append(_LastOfSubjects(place, tuple((n, names[n], tuple(refs)) for n, refs in runs.items()), keeping))
    if not tasks:
        return {name: pa.array([], pa.int64()) for name in names}
    doing = "looking for the newest messages"
    total_bytes = sum(ref.bytes for _, ref in found)
    with watched(session, doing, total_bytes, progress), explained(doing):
        rows = session.read.format("jsbackup_rows").schema(_DDL).option("tasks", encode_tasks(tasks)).load()
        newest = rows.groupBy("stream", "subject").agg(F.max("sequence").alias("sequence")).select("stream", "sequence")
        table = newest.toArrow().sort_by("sequence")
    return {
        name: table.filter(pc.equal(table.column("stream"), number)).column("sequence").combine_chunks()
        for number, name in enumerate(names)
    }


def last_of_subjects(objects: Objects, ref: SegmentRef, stream: str, keeping: Reshape) -> pa.Table:
    """Return columns `subject` (binary) and `sequence`: the last kept message of each subject in a segment."""
    parts = [
        pa.table({"subject": batch.column(2).cast(pa.binary()), "sequence": batch.column(0)})
        for batch in keeping.apply(_heads(objects, ref), stream=stream)
    ]
    schema = pa.schema([("subject", pa.binary()), ("sequence", pa.int64())])
    whole = pa.concat_tables(parts) if parts else schema.empty_table()
    last = whole.group_by("subject").aggregate([("sequence", "max")])
    return pa.table([last.column("subject"), last.column("sequence_max")], schema=schema)


def _heads(objects: Objects, ref: SegmentRef) -> Iterator[pa.RecordBatch]:
    """Yield a segment's messages; without their content if that can be left out."""
    if objects.sealing.suffix:  # can only be decrypted as a whole
        yield from SegmentReader(objects).prove(ref)
        return
    file = cast(BinaryIO, ObjectFile(objects.store, ref.key, ref.size))
    for batch in scan_segment(file, _HEAD, lambda _group: True):
        nothing = [pa.nulls(batch.num_rows, pa.binary()), pa.repeat(pa.scalar(b""), batch.num_rows)]
        yield pa.RecordBatch.from_arrays([*batch.columns, *nothing], names=[*_HEAD, "headers", "data"])
