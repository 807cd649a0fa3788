"""Write rows to segments on executors, for backups from DataFrames (`write.py`).

Each partition has a separate range of sequences, in order. A repeated attempt stores the same segments under the same
keys, and finds them there; unused ones are in no manifest. References are returned as commit messages; the process in
which Spark collects them writes them to a file for the driver. Our errors are returned likewise: if they were raised,
Spark would retry in vain. On Spark Connect that process is on another machine: there the results are rows of a function
over batches, which needs pandas on the client, as all of Connect does.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from jsbackup.errors import FormatError, JsBackupError, UsageError
from jsbackup.formats.archive.archive_items import refuse_too_large
from jsbackup.formats.batch import BATCH_SCHEMA, BINARY_SUBJECT_SCHEMA
from jsbackup.pipeline.session.data_sources import register
from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened
from jsbackup.pipeline.tasks.task_source import freeze_worker
from jsbackup.repository.segments import SegmentWriter, StoredSegments

__all__ = [
    "SegmentSink",
    "SinkRules",
    "StoredPartition",
    "as_messages",
    "store_by_writer",
    "store_messages",
    "store_rows",
]

# What ends a subject on the wire (nats-server `server/parser.go`).
_SEPARATORS = r"[ \t\r\n]"
# Which servers match with nothing.
_EMPTY_TOKEN = r"(^|\.)(\.|$)"
# What all clients write around headers. A server stores any bytes as headers, but clients that read others stop
# reading (nats-py, measured), or drop the headers (nats.go).
_HEADERS_BEGIN, _HEADERS_STATUS, _HEADERS_END = b"NATS/1.0\r\n", b"NATS/1.0 ", b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class SinkRules:
    """What is asked of rows: for `any_headers` see `as_messages`. Messages whose subjects are not among `subjects` are
    counted; these are literal, or end with `>`.
    """

    any_headers: bool = False
    subjects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """What was stored of a partition. `others` counts its messages of other subjects than those of the rules, 0 without
    any.
    """

    segments: StoredSegments
    others: int = 0


@dataclass
class _Result(WriterCommitMessage):
    result: StoredPartition | JsBackupError


class SegmentSink(DataSource):
    """`frame.write.format("jsbackup_segments")`; options `place` with rules (pickled, in hex), `folder`, `result`."""

    @classmethod
    def name(cls) -> str:
        return "jsbackup_segments"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        place, rules = pickle.loads(bytes.fromhex(self.options["place"]))
        return _SegmentWriter(place, self.options["folder"], self.options["result"], rules)


class _SegmentWriter(DataSourceArrowWriter):
    def __init__(self, place: RepositoryRef, folder: str, result: str, rules: SinkRules) -> None:
        self._place = place
        self._folder = folder
        self._result = result
        self._rules = rules

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _Result(store_messages(self._place, self._folder, iterator, self._rules))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        results = [message.result for message in messages if isinstance(message, _Result)]
        Path(self._result).write_bytes(pickle.dumps(results))


def store_by_writer(
    place: RepositoryRef, folder: str, frame: DataFrame, rules: SinkRules
) -> list[StoredPartition | JsBackupError]:
    """Store the partitions of a frame; return the result of each."""
    with tempfile.TemporaryDirectory(prefix="jsbackup-write-") as temporary:
        result = Path(temporary) / "segments"
        options = {"place": pickle.dumps((place, rules)).hex(), "folder": folder, "result": str(result)}
        register(frame.sparkSession, SegmentSink)
        frame.write.format(SegmentSink.name()).options(**options).mode("append").save()
        found: list[StoredPartition | JsBackupError] = pickle.loads(result.read_bytes())
    return found


def store_rows(
    place: RepositoryRef, folder: str, frame: DataFrame, rules: SinkRules
) -> list[StoredPartition | JsBackupError]:
    """As `store_by_writer`, on Spark Connect."""

    def store(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        result = pickle.dumps(store_messages(place, folder, batches, rules))
        yield pa.RecordBatch.from_pydict({"result": pa.array([result], pa.binary())})

    return [pickle.loads(row.result) for row in frame.mapInArrow(store, "result binary").collect()]


def store_messages(
    place: RepositoryRef, folder: str, batches: Iterator[pa.RecordBatch], rules: SinkRules
) -> StoredPartition | JsBackupError:
    """Store rows in order of their sequences, in a task. Return our error, if there is one, as Spark retries others."""
    freeze_worker()
    try:
        writer = SegmentWriter(opened(place).objects, folder)
        last = others = 0
        try:
            for batch in batches:
                if batch.num_rows:
                    messages = as_messages(batch, any_headers=rules.any_headers)
                    last = _rising(messages.column("sequence"), last)
                    others += _others(messages.column("subject"), rules.subjects)
                    writer.add(messages)
            return StoredPartition(writer.finish_all(), others)
        finally:
            writer.close()
    except JsBackupError as error:
        return error


def _rising(sequences: pa.Array, last: int) -> int:
    """Return the last of sequences in order after `last`. Raises FormatError for a repeated or an invalid one."""
    first, end = sequences[0].as_py(), sequences[-1].as_py()
    if first < 1:
        raise FormatError(f"{first} is not a sequence: sequences start at 1")
    try:
        refuse_too_large(end)
    except FormatError as error:
        raise error.with_hint("The messages need other sequences: a backup of these could not be restored.") from None
    again = sequences[1:].filter(pc.equal(sequences[1:], sequences[:-1]))
    if first == last or len(again):
        raise FormatError(f"sequence {first if first == last else again[0].as_py()} is there twice")
    return int(end)


def _others(subjects: pa.Array, among: Sequence[str]) -> int:
    """Return how many subjects match none of these as a server matches them, 0 if there are none to match."""
    if not among:
        return 0
    raw = subjects.view(pa.binary())
    found = pa.repeat(False, len(raw))
    for one in among:
        text = one.removesuffix(">").encode()
        found = pc.or_(found, pc.starts_with(raw, text) if one.endswith(".>") else pc.equal(raw, text))
    return int(pc.sum(pc.invert(pc.and_not(found, pc.match_substring_regex(raw, _EMPTY_TOKEN)))).as_py())


def as_messages(batch: pa.RecordBatch, *, any_headers: bool = False) -> pa.RecordBatch:
    """Convert a batch of a DataFrame to messages. With `any_headers`, a server may have stored any block of headers.

    Raises `UsageError` if a row lacks a required value, has a subject that no server could have, or headers that no
    client writes.
    """
    arrays = []
    for field in BATCH_SCHEMA:
        array = batch.column(batch.schema.get_field_index(field.name))
        if array.null_count and not field.nullable:
            raise UsageError(f"a message without {field.name} cannot be stored")
        arrays.append(array)
    _refuse_unsendable(arrays[0], arrays[2])
    if not any_headers:
        _refuse_unreadable(arrays[0], arrays[3])
    schema = BATCH_SCHEMA
    try:
        arrays[2].validate(full=True)
    except pa.ArrowInvalid:
        schema = BINARY_SUBJECT_SCHEMA
        arrays[2] = arrays[2].view(pa.binary())
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _refuse_unsendable(sequences: pa.Array, subjects: pa.Array) -> None:
    """Refuse subjects that break the protocol between servers and clients: whoever gets such a message is cut off."""
    raw = subjects.view(pa.binary())
    refused = pc.or_(pc.equal(pc.binary_length(raw), 0), pc.match_substring_regex(raw, _SEPARATORS))
    if pc.any(refused).as_py():
        sequence, subject = (array.filter(refused)[0].as_py() for array in (sequences, raw))
        shown = subject.decode(errors="replace")[:80]
        raise UsageError(
            f"message {sequence} has the subject {shown!r}, which no server takes: it must not be empty, or have "
            "spaces, tabs or line breaks"
        )


def _refuse_unreadable(sequences: pa.Array, headers: pa.Array) -> None:
    """Refuse header blocks that do not begin or end as those of all clients. No bytes are no headers, as for servers.

    What is between is not looked at: old and careless clients have sent lines without a colon, and others read on.
    """
    if headers.null_count == len(headers):
        return
    begins = pc.or_(pc.starts_with(headers, _HEADERS_BEGIN), pc.starts_with(headers, _HEADERS_STATUS))
    sound = pc.or_(pc.and_(begins, pc.ends_with(headers, _HEADERS_END)), pc.equal(pc.binary_length(headers), 0))
    refused = pc.fill_null(pc.invert(sound), False)
    if pc.any(refused).as_py():
        sequence, block = (array.filter(refused)[0].as_py() for array in (sequences, headers))
        lacks = "end with '\\r\\n\\r\\n'"
        if not block.startswith((_HEADERS_BEGIN, _HEADERS_STATUS)):
            lacks = "begin with 'NATS/1.0\\r\\n'"
        raise UsageError(
            f"message {sequence} has headers that do not {lacks}: {block[:60]!r}",
            hint="Clients cannot read such headers. If a server had them so, import JSON lines with headers_base64.",
        )
