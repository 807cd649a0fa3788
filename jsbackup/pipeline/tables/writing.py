"""Tasks that write files of tables: each reads, verifies, encodes and writes runs of a stream's segments.

Parquet files have the columns of `columns.py`, including the stream's name, so that they can be added to any table.
JSON lines are described in `formats/json_lines.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jsbackup.errors import TargetConflict
from jsbackup.formats.digest import MessageBatch
from jsbackup.formats.json_lines import encode_lines
from jsbackup.formats.paged import PagedFile
from jsbackup.formats.segment import split_batch
from jsbackup.memory import give_back
from jsbackup.pipeline.messages.columns import COLUMNS, as_text_subjects, shaped
from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened
from jsbackup.pipeline.tables.bounds import BoundsOfRows, FileBounds
from jsbackup.pipeline.tables.target import put_again
from jsbackup.pipeline.tasks.reshape_task import MaskKey, SegmentRun
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.segments import SegmentReader
from jsbackup.stores.base import Data
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

    @property
    def suffix(self) -> str:
        """The suffix of its files."""
        return "parquet" if self is TableFormat.DELTA else self.value


@dataclass(frozen=True, slots=True)
class FileToWrite:
    """A file to write, `number` of its stream there, with a run of segments of a stream that may change on the way.

    `folder` is where tasks write it, `ending` what follows the sequences in its name. Messages up to the sequence
    `after` are left out; `known` are sequence and time of the last of them that was exported, if any.
    """

    stream: str
    number: int
    folder: str
    ending: str
    run: SegmentRun
    after: int = 0
    known: tuple[int, int] | None = None

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
    """A file in the folder where its task wrote; `bounds` only of Parquet."""

    name: str
    rows: int
    bytes: int
    bounds: FileBounds | None


@dataclass(frozen=True, slots=True)
class WrittenRun:
    """What was written of a run: no file without rows. `old` messages were left out because they are in the table."""

    files: tuple[WrittenFile, ...]
    tally: ReshapeTally
    hashed: tuple[str, ...] = ()  # tokens that were obfuscated for the first time
    old: int = 0

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class WriteFiles:
    """A task; returns what was written of each file.

    Raises TargetConflict if the last message of a table is another one in the backup.
    """

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
                newer = _Newer(file)
                changed = file.run.changed(newer.of(chain(batches, others)), secret, tally)
                rows, data, bounds = encode(changed, file.stream, self.backup)
                files: tuple[WrittenFile, ...] = ()
                if rows:
                    put_again(store, f"{file.folder}/{file.name}", data)
                    files = (WrittenFile(file.name, rows, memoryview(data).nbytes, bounds),)
                hashed = () if obfuscation is None else obfuscation.names.since(known)
                written.append(WrittenRun(files, tally, hashed, newer.old))
                del data
            give_back()
        return written


class _Newer:
    """Leaves out the messages that are in the table; `old` counts them."""

    def __init__(self, file: FileToWrite) -> None:
        self._file = file
        self.old = 0

    def of(self, batches: Iterable[MessageBatch]) -> Iterator[MessageBatch]:
        """Yield the newer messages. Raises TargetConflict if one of the others is not the one that was exported."""
        after = self._file.after
        for batch in batches:
            sequence = batch.column("sequence")
            if not batch.num_rows or sequence[0].as_py() > after:
                yield batch
                continue
            self._check(batch)
            rows = pc.greater(sequence, after)
            newer = batch.filter(rows)
            self.old += batch.num_rows - newer.num_rows
            if newer.num_rows:
                yield newer

    def _check(self, batch: MessageBatch) -> None:
        if self._file.known is None:
            return
        message, time_ns = self._file.known
        row = pc.index(batch.column("sequence"), message).as_py()
        if row >= 0 and batch.column("timestamp_ns")[row].as_py() != time_ns:
            raise TargetConflict(
                f"message {message} of stream {self._file.run.stream} is another one than the table of "
                f"{self._file.stream} has: the stream was set back since",
                hint="A server was restored to an older state, it seems. Export to another folder.",
            )


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
