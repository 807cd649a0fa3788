"""Export streams of a backup as tables of files, `<stream>/<first sequence>-<last sequence>.parquet` or `.jsonl`.

Messages may be changed on the way, as a restore would change them (`planning/transforming.py`).

Parquet files have the columns of `columns.py`, including the stream's name, so that they can be added to any table. A
Delta table consists of such files and a log beside them. JSON lines are described in `formats/json_lines.py`. A file
has about 32 MiB of messages.

A task reads, verifies, encodes and writes a few files: three times as fast as sending the messages through Spark to its
own writers, and without Spark the same files.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce
from itertools import chain

import pyarrow as pa
import pyarrow.parquet as pq

from jsbackup.errors import IntegrityError
from jsbackup.exchange.exporting import ExportedStream
from jsbackup.formats.digest import MessageBatch
from jsbackup.formats.json_lines import encode_lines
from jsbackup.formats.paged import PagedFile
from jsbackup.formats.segment import split_batch
from jsbackup.memory import give_back
from jsbackup.pipeline.messages.chosen import ChosenBackup
from jsbackup.pipeline.messages.columns import COLUMNS, arrow_schema, as_text_subjects, shaped
from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened
from jsbackup.pipeline.tables.bounds import BoundsOfRows, FileBounds
from jsbackup.pipeline.tables.delta import LOG_KEY, TableFile, first_log, require_deltalake
from jsbackup.pipeline.tables.target import TableTarget, put_again
from jsbackup.pipeline.tasks.packing import pack, pack_tasks
from jsbackup.pipeline.tasks.reshape_passes import numbered_runs, with_newest_of
from jsbackup.pipeline.tasks.reshape_task import MaskKey, SegmentRun
from jsbackup.pipeline.tasks.runner import TaskRunner
from jsbackup.planning.selection.renumbering import renumbered_entry
from jsbackup.planning.selection.subset import KeptStream, segments_within
from jsbackup.planning.transforming import PlannedStream, TransformOptions, about_transformed, refuse_results
from jsbackup.progress import Progress
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.names import encode_name
from jsbackup.repository.segment_size import SEGMENT_BYTES
from jsbackup.repository.segments import SegmentReader
from jsbackup.stores.base import Data, Store
from jsbackup.transforms.cut import Extent
from jsbackup.transforms.mask import MaskCount
from jsbackup.transforms.reshape import ReshapeTally

__all__ = ["Exported", "TableFormat", "export_tables"]

# The amount that readers of tables read at once; our segments are made for readers of single messages. Twice as much
# takes 40 MiB more.
_GROUP_BYTES = 16 << 20

# Messages become objects of Python, which take several times their bytes.
_LINES_BYTES = 1 << 20


class TableFormat(StrEnum):
    PARQUET = "parquet"
    JSONL = "jsonl"
    DELTA = "delta"

    @property
    def suffix(self) -> str:
        """The suffix of its files."""
        return "parquet" if self is TableFormat.DELTA else self.value


@dataclass(frozen=True, slots=True)
class Exported:
    """The written tables. `bytes` is the size of the files."""

    files: int
    bytes: int
    streams: tuple[ExportedStream, ...]


@dataclass(frozen=True, slots=True)
class _File:
    """A file to write, `number` of its stream there, with a run of segments of a stream that may change on the way."""

    stream: str
    number: int
    suffix: str
    run: SegmentRun

    @property
    def refs(self) -> tuple[SegmentRef, ...]:
        return self.run.groups[0]

    @property
    def key(self) -> str:
        """The name says which messages were looked at: they were not read yet when it is given."""
        first, last = self.refs[0].first_seq, self.refs[-1].last_seq
        if self.run.reshape.renumber:  # the sequences say nothing any more
            return f"{encode_name(self.stream)}/{self.number:020}.{self.suffix}"
        return f"{encode_name(self.stream)}/{first:020}-{last:020}.{self.suffix}"

    @property
    def raw_bytes(self) -> int:
        return sum(ref.bytes for ref in self.refs)

    @property
    def stored_bytes(self) -> int:
        return sum(ref.size for ref in self.refs)


@dataclass(frozen=True, slots=True)
class _Written:
    """A written file; `bounds` only of Parquet. Without rows nothing is written."""

    rows: int
    bytes: int
    bounds: FileBounds | None
    tally: ReshapeTally
    hashed: tuple[str, ...] = ()  # tokens that were obfuscated for the first time


@dataclass(frozen=True, slots=True)
class _WriteFiles:
    """A task; returns what was written of each file."""

    source: RepositoryRef
    target: RepositoryRef
    kind: TableFormat
    backup: str
    mask_key: MaskKey
    files: tuple[_File, ...]

    def __call__(self) -> list[_Written]:
        objects, store = opened(self.source).objects, self.target.store()
        hashing = any(file.run.reshape.masks.needs_secret for file in self.files)
        secret = self.mask_key.secret() if hashing else b""
        encode = _ENCODERS[self.kind]
        written = []
        for file in self.files:
            # Its first object is fetched while another thread may still encode; then what is large takes turns.
            first, *rest = file.refs
            batches = SegmentReader(objects).prove(first)
            with objects.room.share() as share:
                share.hold(file.raw_bytes if self.kind is TableFormat.JSONL else file.stored_bytes)
                others = (batch for ref in rest for batch in SegmentReader(objects).prove(ref))
                tally, obfuscation = ReshapeTally(), file.run.reshape.obfuscation
                known = 0 if obfuscation is None else obfuscation.names.count
                changed = file.run.changed(chain(batches, others), secret, tally)
                rows, data, bounds = encode(changed, file.stream, self.backup)
                if rows:
                    put_again(store, file.key, data)
                hashed = () if obfuscation is None else obfuscation.names.since(known)
                written.append(_Written(rows, memoryview(data).nbytes if rows else 0, bounds, tally, hashed))
                del data
            give_back()
        return written


def export_tables(
    runner: TaskRunner,
    backup: ChosenBackup,
    target: TableTarget,
    kind: TableFormat,
    *,
    streams: Sequence[PlannedStream],
    options: TransformOptions | None = None,
    mask_key: MaskKey | None = None,
    progress: Progress,
) -> Exported:
    """Write the messages of `streams` of a backup, and commit the target. `runner` runs the tasks.

    Raises:
        PlanRefused: a message cannot be masked, a mask or a filter has found nothing, or nothing is left of a stream.
        IntegrityError: the repository is damaged; nothing is left.
        UnsupportedError: the package for Delta tables is not installed.
        StoreError: something cannot be read or written.
    """
    if kind is TableFormat.DELTA:
        require_deltalake()
    key = mask_key or MaskKey()
    streams = with_newest_of(runner, backup.place, streams, progress)
    files = [file for one in streams for file in _files_of(one, kind)]
    runs = numbered_runs(runner, backup.place, key, [file.run for file in files], progress=progress)
    files = [replace(file, run=run) for file, run in zip(files, runs, strict=True)]
    tasks, weights = [], []
    for piece in pack_tasks([file.raw_bytes for file in files], runner.cores):
        part = tuple(files[piece])
        tasks.append(_WriteFiles(backup.place, target.place, kind, backup.manifest.id, key, part))
        weights.append(sum(file.raw_bytes for file in part))
    parts = runner.run("the export", tasks, weights=weights, progress=progress)
    written = [one for part in parts for one in part]
    if options is not None and options.reshape.obfuscation is not None:
        for one in written:
            options.reshape.obfuscation.names.learn(one.hashed)
    kept = [(one, _kept(one, files, written)) for one in streams]
    refuse_results(backup.manifest.id, options or TransformOptions(), kept, "exported")
    if kind is TableFormat.DELTA:
        _log_tables(target.place.store(), backup.manifest.id, streams, files=files, written=written)
    target.commit()
    exported = tuple(
        ExportedStream(one.reshaped.name, kind, result.entry.captured.messages, _notes(one, result, options))
        for one, result in kept
    )
    return Exported(sum(one.rows > 0 for one in written), sum(one.bytes for one in written), exported)


def _kept(one: PlannedStream, files: Sequence[_File], written: Sequence[_Written]) -> KeptStream:
    """Return what was written of a stream. Raises IntegrityError if not all of it came."""
    entry, tallies = one.entry, [w.tally for f, w in zip(files, written, strict=True) if f.stream == one.reshaped.name]
    expected = sum(ref.messages for ref in segments_within(entry, one.reshaped.messages.cut))
    came = sum(tally.came.messages for tally in tallies)
    if came != expected or (not one.reshaped.messages.cut and came != entry.captured.messages):
        raise IntegrityError(f"stream {entry.name} has {entry.captured.messages} messages, and {came} came out")
    extent = reduce(Extent.followed_by, (tally.kept for tally in tallies), Extent())
    captured = replace(entry.captured, messages=extent.messages, first_seq=extent.first_seq, last_seq=extent.last_seq)
    kept = replace(entry, captured=captured, consumers=())
    if one.reshaped.messages.renumber:
        kept = renumbered_entry(kept, None)
    return KeptStream(
        kept,
        masked=reduce(MaskCount.plus, (tally.masked for tally in tallies), MaskCount()),
        had=entry.captured.messages,
        matched=sum((tally.matched for tally in tallies), Counter()),
        markers=sum(tally.markers for tally in tallies),
    )


def _notes(one: PlannedStream, kept: KeptStream, options: TransformOptions | None) -> tuple[str, ...]:
    return tuple(finding.reason for finding in about_transformed(one, kept, options or TransformOptions()))


def _files_of(one: PlannedStream, kind: TableFormat) -> Iterator[_File]:
    reshape, name = one.reshaped.messages, one.reshaped.name
    segments = segments_within(one.entry, reshape.cut)
    for number, piece in enumerate(pack([ref.bytes for ref in segments], SEGMENT_BYTES), start=1):
        refs = tuple(segments[piece])
        yield _File(name, number, kind.suffix, SegmentRun.of(one.entry.name, refs, reshape))


def _log_tables(
    store: Store, backup: str, streams: Sequence[PlannedStream], *, files: Sequence[_File], written: Sequence[_Written]
) -> None:
    """Add logs, which make the written files Delta tables."""
    now_ms = time.time_ns() // 1_000_000
    tables: dict[str, list[TableFile]] = {one.reshaped.name: [] for one in streams}
    for file, one in zip(files, written, strict=True):
        if one.rows:
            tables[file.stream].append(TableFile(file.key.rpartition("/")[2], one.bytes, one.rows, one.bounds))
    for name, parts in tables.items():
        log = first_log(name, arrow_schema(COLUMNS), parts, constants={"stream": name, "backup": backup}, now_ms=now_ms)
        store.put(f"{encode_name(name)}/{LOG_KEY}", log)


def _parquet(batches: Iterable[MessageBatch], stream: str, backup: str) -> tuple[int, Data, FileBounds | None]:
    sink = PagedFile()
    writer: pq.ParquetWriter | None = None
    waiting: list[pa.RecordBatch] = []
    bounds = BoundsOfRows()
    size = 0

    def write() -> None:
        nonlocal writer, size
        table = pa.Table.from_batches(waiting)
        writer = writer or pq.ParquetWriter(sink, table.schema, compression="zstd", write_page_checksum=True)
        writer.write_table(table, row_group_size=max(1, table.num_rows))
        waiting.clear()
        size = 0

    for batch in batches:
        waiting += shaped(as_text_subjects(batch), COLUMNS, stream, backup)
        bounds.add(batch)
        size += batch.nbytes
        if size >= _GROUP_BYTES:
            write()
    if waiting:
        write()
    if writer is not None:
        writer.close()
    return bounds.rows, sink.content(), bounds.found()


def _json_lines(batches: Iterable[MessageBatch], stream: str, _backup: str) -> tuple[int, Data, FileBounds | None]:
    rows = 0
    lines = PagedFile()
    for batch in batches:
        for part in split_batch(batch, _LINES_BYTES):
            lines.write(encode_lines(part, stream))
        rows += batch.num_rows
    return rows, lines.content(), None


_ENCODERS = {TableFormat.PARQUET: _parquet, TableFormat.JSONL: _json_lines, TableFormat.DELTA: _parquet}
