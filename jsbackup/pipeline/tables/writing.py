"""Tasks that write files of tables: each reads, verifies, encodes and writes runs of a stream's segments.

Parquet files have the columns of `columns.py`, including the stream's name, so that they can be added to any table, and
those of a parser of payloads (`payloads/`) if these are to be columns.
JSON lines are described in `formats/json_lines.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jsbackup.errors import TargetConflict, UsageError
from jsbackup.formats.digest import MessageBatch
from jsbackup.formats.json_lines import encode_lines
from jsbackup.formats.paged import PagedFile
from jsbackup.formats.segment import split_batch
from jsbackup.memory import give_back
from jsbackup.pipeline.messages.columns import COLUMNS, as_text_subjects, shaped
from jsbackup.pipeline.payloads.parsing import CORRUPT, PAYLOAD, PayloadParser
from jsbackup.pipeline.payloads.payload_tally import PayloadTally
from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened
from jsbackup.pipeline.tables.bounds import BoundsOfRows, FileBounds
from jsbackup.pipeline.tables.iceberg.columns import numbered
from jsbackup.pipeline.tables.partitions import Partitions
from jsbackup.pipeline.tables.table_state import set_back
from jsbackup.pipeline.tables.target import put_again
from jsbackup.pipeline.tasks.reshape_task import MaskKey, SegmentRun
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.segments import SegmentReader
from jsbackup.stores.base import Data, Store
from jsbackup.transforms.reshape import ReshapeTally

__all__ = ["FileToWrite", "TableFormat", "WriteFiles", "WrittenFile", "WrittenRun"]

# The amount that readers of tables read at once; our segments are made for readers of single messages. Twice as much
# takes 40 MiB more.
_GROUP_BYTES = 16 << 20

# Messages become objects of Python, which take several times their bytes.
_LINES_BYTES = 1 << 20


class TableFormat(StrEnum):
    PARQUET = "parquet"
    JSONL = "jsonl"
    DELTA = "delta"
    ICEBERG = "iceberg"

    @property
    def suffix(self) -> str:
        """The suffix of its files."""
        return self.value if self is TableFormat.JSONL else "parquet"


@dataclass(frozen=True, slots=True)
class FileToWrite:
    """A file to write, `number` of its stream there, with a run of segments of a stream that may change on the way.

    `folder` is where tasks write it, `ending` what follows the sequences in its name. Messages up to the sequence
    `after` are left out; `known` are sequence and time of the last of them that was exported, and the latest time of
    all, if any were. With `partitions` it is a file for each partition that the run has messages of; `joint` is between
    the name of its folder and that of the file. `payloads` makes columns of payloads, in Parquet files only.
    """

    stream: str
    number: int
    folder: str
    ending: str
    run: SegmentRun
    after: int = 0
    known: tuple[int, int, int] | None = None
    partitions: Partitions | None = None
    joint: str = "/"
    payloads: PayloadParser | None = None

    @property
    def refs(self) -> tuple[SegmentRef, ...]:
        return self.run.groups[0]

    @property
    def name(self) -> str:
        """The name says which messages were looked at: they were not read yet when it is given."""
        first, last = max(self.refs[0].first_seq, self.after + 1), self.refs[-1].last_seq
        if self.run.reshape.renumber:  # the sequences say nothing any more
            return f"{self.number:020}{self.ending}"
        return f"{first:020}-{last:020}{self.ending}"

    @property
    def raw_bytes(self) -> int:
        return sum(ref.bytes for ref in self.refs)

    @property
    def stored_bytes(self) -> int:
        return sum(ref.size for ref in self.refs)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that a task wrote; `bounds` only of Parquet. `partition` is the value of its partition, and `folder` the
    name that the partition's folder has in the table; "" without partitions.
    """

    name: str
    rows: int
    bytes: int
    bounds: FileBounds | None
    partition: str = ""
    folder: str = ""

    def path(self, joint: str = "/") -> str:
        """Return its path in the table, or where its task wrote it."""
        return f"{self.folder}{joint}{self.name}" if self.folder else self.name


@dataclass(frozen=True, slots=True)
class WrittenRun:
    """What was written of a run: no file without rows. `old` messages were left out because they are in the table;
    `is_text`: all subjects of the others are UTF-8. `refused`: nothing becomes a part of the table, because its last
    message is another one in the backup, or because of its partitions. `payloads` counts those that became columns.
    """

    files: tuple[WrittenFile, ...]
    tally: ReshapeTally
    hashed: tuple[str, ...] = ()  # tokens that were obfuscated for the first time
    old: int = 0
    is_text: bool = True
    refused: TargetConflict | UsageError | None = None
    payloads: PayloadTally = field(default_factory=PayloadTally)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class WriteFiles:
    """A task; returns what was written of each file."""

    source: RepositoryRef
    target: RepositoryRef
    kind: TableFormat
    backup: str
    mask_key: MaskKey
    files: tuple[FileToWrite, ...]

    def __call__(self) -> list[WrittenRun]:
        objects, store = opened(self.source).objects, self.target.store()
        hashing = any(file.run.reshape.masks.needs_secret for file in self.files)
        secret = self.mask_key.secret() if hashing else b""
        written = []
        for file in self.files:
            # Its first object is fetched while another thread may still encode; then what is large takes turns.
            first, *rest = file.refs
            batches = SegmentReader(objects).prove(first)
            with objects.room.share() as share:
                share.hold(self._held_bytes(file))
                others = (batch for ref in rest for batch in SegmentReader(objects).prove(ref))
                tally, obfuscation = ReshapeTally(), file.run.reshape.obfuscation
                known = 0 if obfuscation is None else obfuscation.names.count
                newer, payloads = _Newer(file), PayloadTally()
                changed = file.run.changed(newer.of(chain(batches, others)), secret, tally)
                try:
                    files = tuple(self._files_of(store, file, changed, payloads))
                except (TargetConflict, UsageError) as error:
                    written.append(WrittenRun((), ReshapeTally(), refused=error))
                    continue
                hashed = () if obfuscation is None else obfuscation.names.since(known)
                written.append(WrittenRun(files, tally, hashed, newer.old, newer.is_text, payloads=payloads))
            give_back()
        return written

    def _held_bytes(self, file: FileToWrite) -> int:
        if file.partitions is not None or file.payloads is not None:
            return 2 * file.raw_bytes
        return file.raw_bytes if self.kind is TableFormat.JSONL else file.stored_bytes

    def _files_of(
        self, store: Store, file: FileToWrite, messages: Iterator[MessageBatch], payloads: PayloadTally
    ) -> Iterator[WrittenFile]:
        """Write the messages, a file for each partition, and yield what was written. `payloads` counts them.

        Raises:
            TargetConflict: the last message of the table is another one in the backup.
            UsageError: they cannot be divided; then nothing was written.
        """
        encode, columns, numbers = _ENCODERS[self.kind], COLUMNS, self.kind is TableFormat.ICEBERG
        parts: Iterable[tuple[str, str, Iterable[MessageBatch]]] = [("", "", messages)]
        if file.partitions is not None:
            columns, parts = file.partitions.columns, file.partitions.divide(list(messages), file.stream)
        for value, folder, batches in parts:
            rows, data, bounds = encode(batches, _Rows(file, self.backup, columns, payloads, numbers))
            if rows:
                written = WrittenFile(file.name, rows, memoryview(data).nbytes, bounds, value, folder)
                put_again(store, f"{file.folder}/{written.path(file.joint)}", data)
                yield written
            del data


class _Newer:
    """Leaves out the messages that are in the table; `old` counts them. `is_text`: all other subjects are UTF-8."""

    def __init__(self, file: FileToWrite) -> None:
        self._file = file
        self.old = 0
        self.is_text = True

    def of(self, batches: Iterable[MessageBatch]) -> Iterator[MessageBatch]:
        """Yield the newer messages. Raises TargetConflict if one of the others is not the one that was exported."""
        after = self._file.after
        for batch in batches:
            sequence = batch.column("sequence")
            if not batch.num_rows or sequence[0].as_py() > after:
                self._look(batch)
                yield batch
                continue
            self._check(batch)
            rows = pc.greater(sequence, after)
            newer = batch.filter(rows)
            self.old += batch.num_rows - newer.num_rows
            if newer.num_rows:
                self._look(newer)
                yield newer

    def _look(self, batch: MessageBatch) -> None:
        subjects = batch.column("subject")
        if self.is_text and pa.types.is_binary(subjects.type):
            try:
                subjects.cast(pa.string())
            except pa.ArrowInvalid:
                self.is_text = False

    def _check(self, batch: MessageBatch) -> None:
        if self._file.known is None:
            return
        message, time_ns, newest_ns = self._file.known
        sequences, times = batch.column("sequence"), batch.column("timestamp_ns")
        row = pc.index(sequences, message).as_py()
        old = pc.less_equal(sequences, self._file.after)
        younger = pc.indices_nonzero(pc.and_(old, pc.greater(times, newest_ns)))
        if len(younger):
            message = sequences[younger[0].as_py()].as_py()
        if len(younger) or (row >= 0 and times[row].as_py() != time_ns):
            raise set_back(self._file.run.stream, self._file.stream, message)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a file: their columns, without those of payloads, which `payloads` counts. `numbered`: columns have
    numbers, by which readers of Iceberg find them.
    """

    file: FileToWrite
    backup: str
    columns: Sequence[str]
    payloads: PayloadTally
    numbered: bool

    def of(self, batch: MessageBatch) -> list[pa.RecordBatch]:
        """Return the rows that messages are."""
        parts, parser = shaped(as_text_subjects(batch), self.columns, self.file.stream, self.backup), self.file.payloads
        return list(parts) if parser is None else [parser.with_payloads(part, self.payloads) for part in parts]


def _parquet(batches: Iterable[MessageBatch], rows: _Rows) -> tuple[int, Data, FileBounds | None]:
    sink = PagedFile()
    writer: pq.ParquetWriter | None = None
    waiting: list[pa.RecordBatch] = []
    bounds = BoundsOfRows()
    size = 0

    def write() -> None:
        nonlocal writer, size
        table = pa.Table.from_batches(waiting)
        if rows.numbered:
            table = table.cast(numbered(table.schema))
        writer = writer or pq.ParquetWriter(sink, table.schema, compression="zstd", write_page_checksum=True)
        writer.write_table(table, row_group_size=max(1, table.num_rows))
        waiting.clear()
        size = 0

    for batch in batches:
        parts = rows.of(batch)
        size += batch.nbytes
        if rows.file.payloads is not None:
            size += sum(part.column(PAYLOAD).nbytes + part.column(CORRUPT).nbytes for part in parts)
        waiting += parts
        bounds.add(batch)
        if size >= _GROUP_BYTES:
            write()
    if waiting:
        write()
    if writer is not None:
        writer.close()
    return bounds.rows, sink.content(), bounds.found()


def _json_lines(batches: Iterable[MessageBatch], rows: _Rows) -> tuple[int, Data, FileBounds | None]:
    count = 0
    lines = PagedFile()
    for batch in batches:
        for part in split_batch(batch, _LINES_BYTES):
            lines.write(encode_lines(part, rows.file.stream))
        count += batch.num_rows
    return count, lines.content(), None


_ENCODERS = {kind: _json_lines if kind is TableFormat.JSONL else _parquet for kind in TableFormat}
