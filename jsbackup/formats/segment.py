"""A segment: a run of messages as one Parquet file that any Parquet reader can open.

Version 1 of the format: the five columns of `BATCH_SCHEMA`, all required except `headers`; rows in rising sequence,
declared as sorting columns; row groups of about 4 MiB of messages; zstd pages with checksums; statistics on sequence,
timestamp and subject only (readers can skip by them; headers and payloads do not belong in a footer). The footer's key
`jsbackup.segment` holds `{"subject":"utf8","version":1}`. `subject` is `binary` in a segment with a subject that is not
UTF-8: the column has no string annotation there.

The bytes depend on the messages alone, not on the batches in which they were fed, for one version of the Parquet
library (which is named in the footer).

Reading checks the pages' checksums, the schema, every subject's encoding, and that sequences rise; sizes that the
footer declares are bounded before anything is allocated for them. A hostile file can still do harm: a page may claim up
to 2 GiB when decompressed. The repository compares SHA-256 before it decodes.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from jsbackup import compute as pc
from jsbackup.errors import FormatError, UnsupportedError
from jsbackup.formats import kernels
from jsbackup.formats.batch import BATCH_SCHEMA, BINARY_SUBJECT_SCHEMA, columns_from_batch
from jsbackup.formats.compression import ZSTD, Compression
from jsbackup.formats.digest import MessageBatch
from jsbackup.formats.paged import PagedFile
from jsbackup.strict_json import read_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "BATCH_BYTES",
    "FORMAT_VERSION",
    "GroupBounds",
    "Probe",
    "SegmentEncoder",
    "decode_segment",
    "drop_sequences",
    "scan_segment",
    "split_batch",
]

FORMAT_VERSION = 1
_METADATA_KEY = b"jsbackup.segment"

# Measured with 256 B messages (JSON, and random bytes), 2 cores: writing slows down below 2 MiB; files shrink by 1.2 %
# from 1 to 2 MiB, by 1.7 % to 4, by 1.3 % to 8 and 0.9 % to 16; reading falls from 1.1 GB/s at 4 MiB to 0.7 at 8 and
# 0.3 at 16, where a group no longer fits the caches. 4 MiB is also what a reader of one message must fetch and hold.
BATCH_BYTES = 4 << 20

# Subjects repeat: 1 % smaller with a dictionary. Headers and payloads seldom do, and trying costs a tenth of the speed.
_DICTIONARY = ["subject"]
# Numbers that rise: 4 % smaller files than plain. DELTA_LENGTH_BYTE_ARRAY for payloads would save 2 % more, but readers
# that know it are rarer, and a backup should outlive its tool.
_ENCODING = {"sequence": "DELTA_BINARY_PACKED", "timestamp_ns": "DELTA_BINARY_PACKED"}
# The library ends a page where it has its 1 MiB, but looks only after so many rows. With its own 1024 a row group of
# messages of 4 KiB is one page, and 8 MiB of it stay in memory till the next group. Measured: 64 rows cost nothing, 16
# a tenth of the speed with messages of 64 B.
_WRITE_BATCH_ROWS = 64
_STATISTICS = ["sequence", "timestamp_ns", "subject"]

# The weight of a row besides its bytes, so that a million empty messages still make several row groups.
_ROW_BYTES = 16

# Limits for what a footer may declare. Our largest row group is one message of MAX_ENTRY_BYTES.
_MAX_ROW_GROUPS = 1 << 16
_MAX_GROUP_BYTES = 256 << 20
_MAX_FOOTER_TEXT = 1 << 20
_MAX_FOOTER_ITEMS = 1 << 20


class SegmentEncoder:
    """Encodes batches as one Parquet file. Holds the compressed bytes and up to one row group of messages."""

    def __init__(self, compression: Compression = ZSTD) -> None:
        self._compression = compression
        self._schema = BATCH_SCHEMA
        self._sink = PagedFile()
        self._writer: pq.ParquetWriter | None = None
        self._pending: list[MessageBatch] = []
        self._pending_bytes = 0

    def write(self, batch: MessageBatch) -> None:
        """Append messages. Sequences must keep rising; this is only checked when the segment is read.

        Raises:
            FormatError: not a batch of messages.
        """
        batch = _with_plainest_subject(batch)
        if batch.schema == BINARY_SUBJECT_SCHEMA and self._schema == BATCH_SCHEMA:
            self._start_again_as_binary()
        ends = _Ends(batch)
        row = 0
        while row < ends.count:
            stop = ends.fit(row, BATCH_BYTES - self._pending_bytes)
            if stop == row and self._pending:
                self._write_group()
                continue
            stop = max(stop, row + 1)
            self._pending.append(batch.slice(row, stop - row))
            self._pending_bytes += ends.before(stop) - ends.before(row)
            row = stop

    @property
    def held_bytes(self) -> int:
        """The bytes that it holds."""
        return self._sink.tell() + self._pending_bytes

    def finish(self) -> pa.Buffer:
        """Return the file. The encoder cannot be used afterwards."""
        self._write_group()
        writer = self._writer or self._open()
        writer.add_key_value_metadata({_METADATA_KEY: _metadata(self._schema)})
        writer.close()
        content = self._sink.content()
        # So that the caller decides when the file's memory is released.
        self._sink, self._writer = PagedFile(0), None
        return pa.py_buffer(content)

    def _open(self) -> pq.ParquetWriter:
        return pq.ParquetWriter(
            self._sink,
            self._schema,
            version="2.6",
            compression="zstd" if self._compression.level else "none",
            compression_level=self._compression.level or None,
            use_dictionary=_DICTIONARY,
            column_encoding=_ENCODING,
            write_batch_size=_WRITE_BATCH_ROWS,
            write_statistics=_STATISTICS,
            write_page_checksum=True,
            sorting_columns=[pq.SortingColumn(0)],
            store_schema=False,
        )

    def _write_group(self) -> None:
        if not self._pending:
            return
        self._writer = self._writer or self._open()
        batches = [_with_subject_of(batch, self._schema) for batch in self._pending]
        # One chunk per column: the library ends pages at the ends of chunks, which depend on the caller.
        table = pa.Table.from_batches(batches, schema=self._schema).combine_chunks()
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._pending = []
        self._pending_bytes = 0

    def _start_again_as_binary(self) -> None:
        """Handle the first subject that is not UTF-8: write everything again. Rare, so slow is fine."""
        pending, pending_bytes = self._pending, self._pending_bytes
        self._pending = []
        written = self.finish() if self._writer else None
        self._schema = BINARY_SUBJECT_SCHEMA
        self._sink = PagedFile()
        self._writer = None
        if written is not None:
            # With the same row groups, so that the file equals one that was binary from the start.
            for group in _read_groups(pq.ParquetFile(pa.BufferReader(written))):
                self._pending = group
                self._write_group()
        self._pending, self._pending_bytes = pending, pending_bytes


def decode_segment(data: Buffer) -> Iterator[MessageBatch]:
    """Yield the messages of a segment, in batches of up to about 4 MiB.

    Raises:
        FormatError: not a segment, or a damaged one. Earlier batches are correct as far as known.
        UnsupportedError: a segment of a later version.
    """
    last = 0
    with _explained():
        file = pq.ParquetFile(
            pa.BufferReader(data),
            page_checksum_verification=True,
            thrift_string_size_limit=_MAX_FOOTER_TEXT,
            thrift_container_size_limit=_MAX_FOOTER_ITEMS,
        )
        schema = _checked_schema(file)
        groups = _read_groups(file)
    while True:
        with _explained():
            group = next(groups, None)
            if group is None:
                return
            for batch in group:
                last = _check(batch, schema, last)
        for batch in group:
            yield from split_batch(batch)


class GroupBounds(NamedTuple):
    """The statistics of a row group; None if there are none. Bounds of subjects are bytes."""

    sequence: tuple[int, int] | None
    timestamp_ns: tuple[int, int] | None
    subject: tuple[bytes, bytes] | None


@dataclass(frozen=True, slots=True)
class Probe:
    """Columns of a row group to read first, and the function that decides by them whether it is `wanted`."""

    columns: tuple[str, ...]
    wanted: Callable[[pa.RecordBatch], bool]


def scan_segment(
    file: BinaryIO,
    columns: Sequence[str],
    wanted: Callable[[GroupBounds], bool],
    probe: Probe | None = None,
    *,
    newest_first: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield some columns (of the five, in any order) of the `wanted` row groups; the rest of the file is not read.

    With a `probe` its columns are read first, and a group stays wanted if one of its batches is. The pages that are
    read are checked, but not that they belong to the stored file. `newest_first` yields the batches from the last to
    the first; the rows of each stay in order.

    Raises:
        FormatError: not a segment, or a damaged one.
        UnsupportedError: a segment of a later version.
    """
    with _explained():
        parquet = pq.ParquetFile(
            file,
            pre_buffer=not isinstance(file, pa.BufferReader),  # of memory it takes longer than to read
            page_checksum_verification=True,
            thrift_string_size_limit=_MAX_FOOTER_TEXT,
            thrift_container_size_limit=_MAX_FOOTER_ITEMS,
        )
        schema = _checked_schema(parquet)
        groups = [index for index in range(parquet.metadata.num_row_groups) if wanted(_bounds(parquet, index))]
    for index in reversed(groups) if newest_first else groups:
        with _explained():
            if probe is not None and not any(map(probe.wanted, _read_columns(parquet, index, probe.columns, schema))):
                continue
            batches = _read_columns(parquet, index, columns, schema)
        for batch in reversed(batches) if newest_first else batches:
            yield batch.select(list(columns))


def _read_columns(file: pq.ParquetFile, index: int, columns: Sequence[str], schema: pa.Schema) -> list[pa.RecordBatch]:
    batches = _read_group(file, index, columns)
    for batch in batches:
        if "subject" in columns and schema == BATCH_SCHEMA:
            batch.column("subject").validate(full=True)
    return batches


def _bounds(file: pq.ParquetFile, index: int) -> GroupBounds:
    group = file.metadata.row_group(index)
    if group.num_columns != len(BATCH_SCHEMA):  # checked first: a missing column would end the process
        raise FormatError("segment: a row group without all columns")
    limits = []
    for column in range(3):
        statistics = group.column(column).statistics
        known = statistics is not None and statistics.has_min_max
        limits.append((statistics.min_raw, statistics.max_raw) if known else None)
    return GroupBounds(*limits)


def split_batch(batch: MessageBatch, max_bytes: int = BATCH_BYTES) -> Iterator[MessageBatch]:
    """Yield slices of up to `max_bytes`, or of one message; the buffers are shared."""
    ends = _Ends(batch)
    row = 0
    while row < ends.count:
        stop = max(ends.fit(row, max_bytes), row + 1)
        yield batch.slice(row, stop - row)
        row = stop


def drop_sequences(batch: MessageBatch, sequences: Iterable[int]) -> MessageBatch:
    """Return the batch without the messages of these sequences."""
    unwanted = pa.array(sequences, pa.int64())
    return batch.filter(pc.invert(pc.is_in(batch.column("sequence"), value_set=unwanted)))


class _Ends:
    """The end of each row's content, as if subjects, headers and payloads were stored row by row."""

    def __init__(self, batch: MessageBatch) -> None:
        if batch.schema != BATCH_SCHEMA and batch.schema != BINARY_SUBJECT_SCHEMA:
            raise FormatError(f"not a batch of messages: {', '.join(batch.schema.names)}"[:200])
        columns = columns_from_batch(batch)
        offsets = (columns.subject_offsets, columns.header_offsets, columns.data_offsets)
        self._subject, self._headers, self._data = (memoryview(o).cast("B").cast("i") for o in offsets)
        self.count = columns.count

    def before(self, row: int) -> int:
        """Return the bytes of all rows before `row`."""
        starts = self._subject[0] + self._headers[0] + self._data[0]
        return self._subject[row] + self._headers[row] + self._data[row] - starts + row * _ROW_BYTES

    def fit(self, row: int, budget: int) -> int:
        """Return the end of the rows from `row` on that fit into `budget` bytes; `row` itself if none fits."""
        limit = self.before(row) + budget
        return bisect_right(range(self.count + 1), limit, lo=row, key=self.before) - 1 if budget >= 0 else row


def _with_plainest_subject(batch: MessageBatch) -> MessageBatch:
    """Return the batch with string subjects if possible: the schema must only depend on these messages."""
    if batch.schema != BINARY_SUBJECT_SCHEMA:
        return batch
    try:
        return _with_subject_of(batch, BATCH_SCHEMA)
    except pa.ArrowInvalid:
        return batch


def _with_subject_of(batch: MessageBatch, schema: pa.Schema) -> MessageBatch:
    if batch.schema == schema:
        return batch
    columns = [batch.column(i) for i in range(batch.num_columns)]
    columns[2] = columns[2].cast(schema.field("subject").type)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _metadata(schema: pa.Schema) -> bytes:
    kind = "utf8" if schema == BATCH_SCHEMA else "binary"
    return json.dumps({"subject": kind, "version": FORMAT_VERSION}, separators=(",", ":"), sort_keys=True).encode()


@contextmanager
def _explained() -> Iterator[None]:
    """Convert the library's errors: Arrow's own, built-in ones, and failed allocations of a declared size."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, TypeError, OverflowError, MemoryError, RecursionError) as error:
        text = " ".join(str(error).split())[:200] or type(error).__name__
        raise FormatError(f"segment: {text}") from error


def _checked_schema(file: pq.ParquetFile) -> pa.Schema:
    footer = file.metadata
    declared = (footer.metadata or {}).get(_METADATA_KEY)
    if declared is None:
        raise FormatError("segment: a Parquet file, but not of jsbackup")
    about = read_json(declared, "segment: its metadata")
    version = about.get("version") if isinstance(about, dict) else None
    if not isinstance(version, int) or version < 1:
        raise FormatError("segment: no version in the footer")
    if version > FORMAT_VERSION:
        raise UnsupportedError(f"segment of format version {version}, known up to {FORMAT_VERSION}")
    schema = {"utf8": BATCH_SCHEMA, "binary": BINARY_SUBJECT_SCHEMA}.get(str(about.get("subject")))
    if schema is None or file.schema_arrow.remove_metadata() != schema:
        raise FormatError("segment: wrong columns")
    if footer.num_row_groups > _MAX_ROW_GROUPS:
        raise FormatError(f"segment: {footer.num_row_groups} row groups declared")
    # The library reads as many rows as a group declares, even if its columns have more. Checking the columns
    # (`row_group(i).column(j)`) is not possible: on a damaged footer that call ends the process (pyarrow 26).
    if sum(footer.row_group(i).num_rows for i in range(footer.num_row_groups)) != footer.num_rows:
        raise FormatError("segment: the row groups do not add up")
    return schema


def _read_groups(file: pq.ParquetFile) -> Iterator[list[MessageBatch]]:
    for index in range(file.metadata.num_row_groups):
        yield _read_group(file, index, None)


def _read_group(file: pq.ParquetFile, index: int, columns: Sequence[str] | None) -> list[pa.RecordBatch]:
    group = file.metadata.row_group(index)
    rows, size = group.num_rows, group.total_byte_size
    if not 0 <= size <= _MAX_GROUP_BYTES or not 0 <= rows <= _MAX_GROUP_BYTES:
        raise FormatError(f"segment: row group of {rows} rows and {size} bytes declared")
    wanted = None if columns is None else list(columns)
    batches: list[pa.RecordBatch] = file.read_row_group(index, columns=wanted, use_threads=False).to_batches()
    if sum(batch.num_rows for batch in batches) != rows:
        raise FormatError(f"segment: not the {rows} rows that row group {index} declares")
    return batches


def _check(batch: MessageBatch, schema: pa.Schema, last: int) -> int:
    """Check what the library does not; return the last sequence."""
    if batch.schema.remove_metadata() != schema:
        raise FormatError("segment: wrong columns")
    batch.column("subject").validate(full=True)  # the library trusts the string annotation
    if batch.num_rows == 0:
        return last
    sequences = memoryview(columns_from_batch(batch).sequences).cast("B")
    fall = kernels.first_fall(sequences, last)
    numbers = sequences.cast("q")
    if fall >= 0:
        raise FormatError(f"segment: sequence {numbers[fall]} after {numbers[fall - 1] if fall else last}")
    return numbers[-1]
