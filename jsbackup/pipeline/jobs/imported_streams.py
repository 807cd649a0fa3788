"""Streams of a backup that are made from rows of tables: stored in this process, or by Spark (`write.py`)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jsbackup.errors import JsBackupError
from jsbackup.exchange.config_files import made_up_config
from jsbackup.model import JsonObject, StreamState
from jsbackup.names import BUCKET_STREAM, OBJECT_STREAM
from jsbackup.pipeline.jobs.job_run import JobRun
from jsbackup.pipeline.tables.table_files import Table
from jsbackup.pipeline.tables.table_rows import ReadRows, Unordered, in_order, sorted_rows
from jsbackup.pipeline.tasks.row_storing import OddRows, RowCounts, SinkRules, StoredPartition, store_messages
from jsbackup.progress import NullProgress
from jsbackup.readable import format_count
from jsbackup.repository import layout
from jsbackup.repository.keep import leases
from jsbackup.repository.manifest import ArchiveFormat, Captured, Manifest, Source, StreamBackup, total_of
from jsbackup.repository.objects import SegmentRef
from jsbackup.repository.write.late_repository import is_late, make_now
from jsbackup.repository.write.new_backup import NewBackup, StoredStream
from jsbackup.repository.write.segment_writer import StoredSegments
from jsbackup.times import ZERO_TIME, format_time

__all__ = [
    "RowStream",
    "bucket_config",
    "commit_streams",
    "default_subjects",
    "imported_incarnation",
    "imported_stream",
    "is_bucket",
    "notes_on",
    "rules_of",
    "with_notes",
    "write_rows",
]

_HEADERS = "headers that clients may not read: after such a message nats-py reads nothing more, and nats.go drops them"
_SUBJECTS = "subjects that clients may not read: nats-py reads nothing more after such a message"


_UNIT = "timestamp_ns is in nanoseconds since 1970"
# NATS is younger, and so is any time in nanoseconds that is meant. One in microseconds is in 1970 until 3973.
_EARLY_NS = 315_532_800 * 10**9  # 1980


def notes_on(name: str, segments: Sequence[SegmentRef], counts: RowCounts, *, from_server: bool) -> Iterator[str]:
    """Yield sentences about messages of a stream, in these segments, that clients may not read; and about their times,
    if these are not `from_server`.
    """
    newest_ns = max((segment.max_ns for segment in segments), default=_EARLY_NS)
    if newest_ns < _EARLY_NS and not from_server:
        newest = format_time(newest_ns) if newest_ns else "1970-01-01T00:00:00Z"
        yield f"stream {name}: {_UNIT}, so its newest message is of {newest}; other units need to be converted"
    for odd, what in ((counts.headers, _HEADERS), (counts.subjects, _SUBJECTS)):
        if odd.messages:
            yield f"stream {name}: {_of(odd)} {what}"


def _of(odd: OddRows) -> str:
    if odd.messages == 1:
        return f"1 message ({odd.first}) has"
    return f"{format_count(odd.messages, 'message')} (the first is {odd.first}) have"


@dataclass(frozen=True, slots=True)
class RowStream:
    """A stream to be made from the rows of a table, which tasks read. `config` is the stream's configuration as a
    server has it; the default is a file stream with its own name as its subject, and for the name of a bucket or an
    object store what clients need of one.
    """

    table: Table
    tasks: Sequence[ReadRows]
    config: JsonObject = field(default_factory=dict)


def write_rows(
    run: JobRun[Any], streams: Mapping[str, RowStream], *, tags: Mapping[str, str], origin: str
) -> tuple[Manifest, list[StoredStream]]:
    """Make a backup of streams by their names, in a repository that is open for writing.

    Raises:
        UsageError: a row lacks a value, has one that clients could not read after a restore, or is of another stream.
        FormatError: a sequence is repeated, less than 1, or more than 2^62 - 1; a file is damaged.
        StoreError: nothing can be stored now.
    """
    named = dict(sorted(streams.items()))
    if is_late(run.repository):  # nothing is left behind for tables that are refused
        for name, table in named.items():
            _store(run, name, table, stores=False)
        make_now(run.repository)
    return commit_streams(run, (_stored(run, name, table) for name, table in named.items()), tags=tags, origin=origin)


def commit_streams(
    run: JobRun[Any], streams: Iterable[StoredStream], *, tags: Mapping[str, str], origin: str
) -> tuple[Manifest, list[StoredStream]]:
    """Commit a backup of streams that are stored one after the other."""
    made = NewBackup(
        run.repository,
        source=Source(imported={"from": origin}),
        begun_ns=time.time_ns(),
        clock_ns=time.time_ns,
        random=run.random,
        tags=tags,
    )
    written = []
    run.lease.check()
    for stream in streams:
        written.append(stream)
        run.lease.check()
    manifest = made.manifest(written)
    leases.commit(run.repository, manifest, run.lease)
    return manifest, written


def _stored(run: JobRun[Any], name: str, stream: RowStream) -> StoredStream:
    begun_ns, progress = time.time_ns(), run.progress or NullProgress()
    progress.start(name, stream.table.bytes, 0)
    try:
        segments, most = _store(run, name, stream, stores=True)
    finally:
        progress.finish(name)
    config = stream.config or (bucket_config(name, most) if is_bucket(name) else {})
    stored = imported_stream(name, config, segments.segments, (begun_ns, time.time_ns()))
    return with_notes(stored, segments.counts, from_server=stream.table.any_headers)


def _store(run: JobRun[Any], name: str, stream: RowStream, *, stores: bool) -> tuple[StoredPartition, int]:
    """Store the rows of a stream, or only look at them; also return how many have the same subject, of a bucket."""
    folder = run.repository.objects.sealing.folder(name, imported_incarnation(name))
    rules = replace(rules_of(name, stream.config, stream.table.any_headers), stores=stores)
    for rows in (in_order, sorted_rows):
        subjects: Counter[bytes] = Counter()

        def counted(batches: Iterable[pa.RecordBatch], subjects: Counter[bytes] = subjects) -> Iterable[pa.RecordBatch]:
            for batch in batches:
                if not stream.config and is_bucket(name):
                    counts = pc.value_counts(batch.column("subject").view(pa.binary()))
                    subjects.update(dict(zip(*(part.to_pylist() for part in counts.flatten()), strict=True)))
                yield batch

        try:
            stored = store_messages(run.place, folder, iter(counted(rows(stream.table, stream.tasks))), rules)
        except Unordered:
            continue
        if isinstance(stored, JsBackupError):
            raise stored.with_message(f"stream {name}: {stored.message}")
        return stored, max(subjects.values(), default=0)
    raise AssertionError("sorted rows are in order")


def rules_of(name: str, config: JsonObject, any_headers: bool) -> SinkRules:
    return SinkRules(any_headers, () if config else default_subjects(name))


def default_subjects(name: str) -> tuple[str, ...]:
    """Return the subjects of a stream without a configuration."""
    return tuple(bucket_config(name, 1)["subjects"]) if is_bucket(name) else (name,)


def is_bucket(name: str) -> bool:
    return name.startswith((BUCKET_STREAM, OBJECT_STREAM))


def bucket_config(name: str, most: int | None) -> JsonObject:
    return made_up_config(name, Counter({b"": most or 1}))


def imported_incarnation(name: str) -> str:
    return layout.incarnation("", "", name, ZERO_TIME)


def with_notes(stored: StoredStream, counts: RowCounts, *, from_server: bool) -> StoredStream:
    stream = stored.stream
    notes = notes_on(stream.name, stream.segments, counts, from_server=from_server)
    return replace(stored, others=counts.others, notes=tuple(notes))


def imported_stream(name: str, config: JsonObject, stored: StoredSegments, times: tuple[int, int]) -> StoredStream:
    """Return a stream for the manifest. It was stored between `times`, in nanoseconds."""
    total = total_of(stored.refs)
    stream = StreamBackup(
        name=name,
        incarnation=imported_incarnation(name),
        config=_config_of(name, config),
        created=ZERO_TIME,
        state=StreamState(
            messages=total.messages,
            bytes=total.bytes,
            first_seq=total.first_seq,
            last_seq=total.last_seq,
            deleted=total.last_seq - total.first_seq + 1 - total.messages if stored.refs else 0,
        ),
        captured=Captured.of(total, *(format_time(time_ns) for time_ns in times)),
        archive_format=ArchiveFormat.MESSAGES,
        digest=total.digest,
        segments=stored.refs,
    )
    return StoredStream(stream, stored.reused, stored.stored_bytes, (times[1] - times[0]) / 1e9)


def _config_of(name: str, config: JsonObject) -> JsonObject:
    """Return the configuration for a restore. Mirrors have no subjects, and streams with sources need none."""
    subjects = {} if config.keys() & {"subjects", "mirror", "sources"} else {"subjects": [name]}
    return {**subjects, "retention": "limits", "storage": "file", **config, "name": name}
