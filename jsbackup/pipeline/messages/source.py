"""The data source `jsbackup`: messages of a backup as rows, read by the executors from our own stores.

    spark.read.format("jsbackup").option("repo", "/backups").option("stream", "ORDERS").load()

Options (names as on the command line, without dashes before them; `_` and `-` are the same):

    repo        where the repository is
    backup      an id, the start of one, or `latest` (the default)
    stream      a name or a pattern such as `KV_*`; without it all streams
    streams     the same as a JSON list
    columns     names of columns, separated by commas (`columns.py` has them); fewer are faster
    cores       how many cores Spark has; for more than five, work is split into more than sixteen partitions
    pushdown    `true` where `spark.sql.python.filterPushdown.enabled` is: filters spare reading then
    s3-…, identity, identity-command, passphrase-file, passphrase-command, writer-key, …: as on the command line

Options may be visible to others, so none of them is a secret; executors read the files and variables that they name.

A partition is a run of segments, of one stream or of several short ones. Segments that filters rule out by the manifest
are not read. All others are read whole, and verified against the manifest before they are decoded: a damaged footer has
no checksum; it ends the process when its statistics are read (pyarrow 26), or hides row groups. With fewer columns or
filters pushed down, only the row groups and columns that are needed are decoded. If only the stream and the backup are
asked for, as to count messages, their number is that in the manifest, and nothing is read.

Measured, two columns of a local segment of 30 MB that cannot be compressed: 30 ms, and 5 by ranges; of one of JSON with
32 MiB, 1.7 MB stored: 5 ms and 4.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, Filter, InputPartition
from pyspark.sql.types import StructType

from jsbackup.config import environment, parse_bool, s3_settings
from jsbackup.errors import FormatError, UsageError
from jsbackup.formats.segment import Probe, decode_segment, scan_segment
from jsbackup.model import S3Settings
from jsbackup.pipeline.messages.bounds import ALL, bounds_of
from jsbackup.pipeline.messages.chosen import choose_streams
from jsbackup.pipeline.messages.columns import (
    COLUMNS,
    CONSTANT,
    as_text_subjects,
    check_columns,
    ddl,
    rows_alone,
    shaped,
    stored_columns,
)
from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened, place_of
from jsbackup.pipeline.tasks.packing import pack_tasks
from jsbackup.pipeline.tasks.task_source import freeze_worker
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.repository import Repository
from jsbackup.strict_json import read_json

__all__ = ["BackupSource", "options_of"]

_KEYS = (
    "writer_key",
    "writer_key_command",
    "identity",
    "identity_command",
    "passphrase_file",
    "passphrase_command",
    "expect_signer",
)
_S3 = ("endpoint", "region", "profile", "path_style", "ca", "sse", "sse_kms_key", "storage_class")
_OWN = {"repo", "backup", "stream", "streams", "columns", "cores", "pushdown"}


class BackupSource(DataSource):
    """The data source for reading. Backups are written by `write.py`, not by `df.write`."""

    @classmethod
    def name(cls) -> str:
        return "jsbackup"

    def schema(self) -> str:
        return ddl(_columns(_named(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = _named(self.options)
        columns = check_columns(schema.fieldNames())
        kind = _FilteringReader if parse_bool(options.get("pushdown", "false")) else _Reader
        return kind(
            _place(options), options.get("backup", "latest"), _patterns(options), columns, cores=_cores(options)
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        raise UsageError(
            "a backup is not written by df.write, which cannot say what it made",
            hint="Call jsbackup.pipeline.jobs.write.write_backup.",
        )


class _Reader(DataSourceReader):
    def __init__(
        self, place: RepositoryRef, backup: str, patterns: Sequence[str], columns: tuple[str, ...], *, cores: int = 0
    ) -> None:
        self._place = place
        self._backup = backup
        self._patterns = tuple(patterns)
        self._columns = columns
        self._cores = cores
        self._bounds = ALL

    def partitions(self) -> Sequence[InputPartition]:
        repository = opened(self._place)
        manifest = repository.find(self._backup)
        streams = choose_streams(manifest, self._patterns)
        wanted = [
            (stream.name, [ref for ref in stream.segments if self._bounds.wants_segment(ref)])
            for stream in streams
            if self._bounds.wants_stream(stream.name)
        ]
        found: list[tuple[str, SegmentRef]] = [(name, ref) for name, refs in wanted for ref in refs]
        slices = pack_tasks([ref.bytes for _, ref in found], self._cores)
        return [InputPartition((manifest.id, tuple(found[piece]))) for piece in slices]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        freeze_worker()
        if partition.value is None:  # Spark's partition if there are none
            return
        backup, refs = partition.value
        repository = opened(self._place)
        counted = CONSTANT.issuperset(self._columns) and not self._bounds.columns
        for stream, ref in refs:
            if counted:
                yield from rows_alone(ref.messages, self._columns, stream, backup)
                continue
            for batch in self._batches(repository, ref):
                yield from shaped(self._bounds.keep(batch), self._columns, stream, backup)

    def _batches(self, repository: Repository, ref: SegmentRef) -> Iterator[pa.RecordBatch]:
        needed = stored_columns((*self._columns, *self._bounds.columns))
        # SHA-256 proves that it is the object in the manifest. Digests of messages are checked by `verify`: computing
        # them takes longer than everything else.
        data = repository.objects.fetch(ref)
        if self._bounds == ALL and "data" in needed:
            batches: Iterator[pa.RecordBatch] = decode_segment(data)
        else:
            file = cast(BinaryIO, pa.BufferReader(data))
            probe = Probe(self._bounds.columns, self._wants_any) if self._bounds.on_subjects else None
            batches = scan_segment(file, needed, self._bounds.wants_group, probe)
        yield from map(as_text_subjects, batches)

    def _wants_any(self, batch: pa.RecordBatch) -> bool:
        return bool(self._bounds.keep(as_text_subjects(batch)).num_rows)


class _FilteringReader(_Reader):
    """Spark refuses a reader that takes filters if pushing down is disabled; therefore there are two classes."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._bounds = bounds_of(filters)
        return filters


def options_of(place: RepositoryRef) -> dict[str, str]:
    """Return a place as options of the data source."""
    s3 = {f"s3_{name}": getattr(place.s3, name) for name in _S3}
    return {"repo": place.location, **dict(place.keys), **{k: str(v) for k, v in s3.items() if v is not None}}


def _named(options: Mapping[str, str]) -> dict[str, str]:
    found = {name.lower().replace("-", "_"): value for name, value in options.items()}
    known = _OWN | set(_KEYS) | {f"s3_{name}" for name in _S3}
    if unknown := sorted(set(found) - known):
        raise UsageError(f"the data source has no option {unknown[0][:80]!r}")
    if not found.get("repo"):
        raise UsageError("the data source takes an option 'repo'")
    return found


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    text = options.get("columns", "")
    return check_columns([name.strip() for name in text.split(",")]) if text else COLUMNS


def _cores(options: Mapping[str, str]) -> int:
    text = options.get("cores", "0")
    if not re.fullmatch("[0-9]{1,6}", text):
        raise UsageError("the option 'cores' is not a number")
    return int(text)


def _patterns(options: Mapping[str, str]) -> list[str]:
    if "streams" not in options:
        return [options["stream"]] if options.get("stream") else []
    try:
        names = read_json(options["streams"], "streams")
    except FormatError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError("the option 'streams' is not a JSON list of names")
    return names


def _place(options: Mapping[str, str]) -> RepositoryRef:
    given: dict[str, Any] = {name: options[name] for name in options if name.startswith("s3_")}
    if "s3_path_style" in given:
        given["s3_path_style"] = parse_bool(given["s3_path_style"])
    settings = s3_settings(given, environment()) if options["repo"].startswith("s3://") else S3Settings()
    return place_of(options["repo"], settings, {name: options[name] for name in _KEYS if name in options})
