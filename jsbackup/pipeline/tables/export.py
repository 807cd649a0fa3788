"""Export streams of a backup as tables of files, `<stream>/<first sequence>-<last sequence>.parquet` or `.jsonl`.

Messages may be changed on the way, as a restore would change them (`planning/transforming.py`).

A table of Delta or Iceberg consists of such files and a log beside them. Tables can be extended by what came since:
their logs say how far they go (`table_log.py`). A file has about 32 MiB of messages.

A task reads, verifies, encodes and writes a few files (`writing.py`): three times as fast as sending the messages
through Spark to its own writers, and without Spark the same files.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce

from jsbackup.errors import (
    FormatError,
    JsBackupError,
    StoreError,
    TargetConflict,
    UnsupportedError,
    UsageError,
)
from jsbackup.exchange.exporting import ExportedStream
from jsbackup.pipeline.messages.chosen import ChosenBackup
from jsbackup.pipeline.tables.delta import require_deltalake
from jsbackup.pipeline.tables.delta_log import DeltaLog
from jsbackup.pipeline.tables.gaps.deleted_streams import deleted_tables
from jsbackup.pipeline.tables.gaps.table_gaps import OtherBackups, without_gaps
from jsbackup.pipeline.tables.iceberg.iceberg_log import IcebergLog
from jsbackup.pipeline.tables.iceberg.metadata_files import require_pyiceberg
from jsbackup.pipeline.tables.parquet_log import ParquetLog
from jsbackup.pipeline.tables.partitions import PartitionBy, PartitionCount, Partitions
from jsbackup.pipeline.tables.refused import all_refused
from jsbackup.pipeline.tables.table_growth import TableGrowth, exported_of, kept_of, misfits_of, refusals_of
from jsbackup.pipeline.tables.table_log import TableLog
from jsbackup.pipeline.tables.table_payloads import TablePayloads
from jsbackup.pipeline.tables.table_state import (
    NewMessages,
    TablePosition,
    TableState,
    new_messages,
    refuse_unsteady,
    source_of,
)
from jsbackup.pipeline.tables.target import TableTarget, ignores_case
from jsbackup.pipeline.tables.writing import FileToWrite, TableFormat, WriteFiles, WrittenRun
from jsbackup.pipeline.tasks.packing import pack, pack_tasks
from jsbackup.pipeline.tasks.reshape_passes import numbered_runs, with_newest_of
from jsbackup.pipeline.tasks.reshape_task import MaskKey, SegmentRun
from jsbackup.pipeline.tasks.runner import TaskRunner
from jsbackup.planning.selection.subset import segments_within
from jsbackup.planning.transforming import PlannedStream, TransformOptions, refuse_results
from jsbackup.progress import Progress
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.names import encode_name
from jsbackup.repository.segment_size import SEGMENT_BYTES
from jsbackup.times import parse_time
from jsbackup.transforms.cut import Extent

__all__ = ["Exported", "PlannedExport", "export_tables", "plan_export", "require_package"]

_NO_SCHEMA = "no table is made: it has no messages yet from which a schema could be inferred"


@dataclass(frozen=True, slots=True)
class Exported:
    """The written tables. `bytes` is the size of the files. Of tables that were extended, only what was added.
    `is_new`: nothing was at the target. `refused` are streams that were left out, by their new names, and why.
    """

    files: int
    bytes: int
    streams: tuple[ExportedStream, ...]
    is_new: bool = True
    refused: Mapping[str, JsBackupError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlannedExport:
    """What an export writes of each stream, as `plan_export` decided. `key` is that of masks. `refused` are the streams
    that are left out, and why; `logs` are those of all tables that could be read. `partitions` divide the tables.
    `payloads_may_miss`: the schema of payloads may be that of none of a stream. `deleted` are notes on streams that are
    in earlier backups only.
    """

    kind: TableFormat
    options: TransformOptions
    key: MaskKey
    growths: tuple[TableGrowth, ...]
    refused: Mapping[str, JsBackupError]
    logs: tuple[TableLog, ...]
    partitions: Partitions | None
    payloads_may_miss: bool = False
    deleted: tuple[ExportedStream, ...] = ()

    @property
    def raw_bytes(self) -> int:
        """How much is to be read: of tables that are there, what they lack."""
        return sum(one.new.planned.entry.captured.bytes for one in self.growths if one.new.planned is not None)


def plan_export(
    manifest: Manifest,
    target: TableTarget,
    kind: TableFormat,
    streams: Sequence[PlannedStream],
    *,
    options: TransformOptions | None = None,
    mask_key: MaskKey | None = None,
    append: bool = False,
    refused: Mapping[str, JsBackupError] | None = None,
    partition_by: PartitionBy | None = None,
    payloads: TablePayloads | None = None,
    others: OtherBackups | None = None,
) -> PlannedExport:
    """Decide what of `streams` of a backup is written to the target; nothing is written. With `append`, only what is
    new is added to tables that are there. `refused` are streams that cannot be read; tables that cannot be extended
    come to them. `partition_by` and `payloads`, which become columns, are for tables with a log. With `others`, streams
    whose tables would lack messages of other backups are refused, too.

    Raises:
        PlanRefused, IntegrityError, KeyUnavailable: as `TablePayloads.parser`.
        PlanRefused: of each stream much is to be written, by a schema that is not that of a sample.
        UsageError, TargetConflict, UnsupportedError, FormatError: no table can be extended (if all have one code).
        IncompleteError: the tables would lack messages of other backups.
        JsBackupError: no table can be extended.
        UsageError: the options cannot be those of tables that are extended.
        UnsupportedError: the package for Delta or Iceberg tables is not installed.
        StoreError: the target cannot be read.
    """
    require_package(kind)
    options, key = options or TransformOptions(), mask_key or MaskKey()
    if append:
        refuse_unsteady(options)
    partitions: Partitions | None = None
    if partition_by is not None:
        escapes = partition_by is PartitionBy.SUBJECT and ignores_case(target)
        partitions = Partitions(partition_by, kind is TableFormat.PARQUET, escapes, kind is not TableFormat.DELTA)
    secret = key.secret() if options.reshape.masks.needs_secret else b""
    growths, logs, refusals = _growths(
        manifest, target, kind, streams, options=options, secret=secret, partition=partition_by or "", payloads=payloads
    )
    deleted: dict[str, str] = {}
    if others is not None:

        def log_of(name: str) -> TableLog | None:
            return _log_of(name, manifest, target, kind, now_ms=0, partition=partition_by or "")

        tables = deleted_tables(manifest, target, others.wanted, options, log_of=log_of)
        store = target.place.store()
        found = without_gaps(growths, manifest, others, tables, options=options, store=store, secret=secret)
        growths, deleted = found.growths, found.deleted
        refusals.update(found.refused)
    refused = {**(refused or {}), **refusals}
    if refused and not growths:
        raise all_refused(refused)
    if refusals or any(growth.log is not None and growth.log.state is not None for growth in growths):
        # That nothing of what is new matches says nothing about the options.
        options = _lenient(options)
    may_miss = payloads is None or payloads.may_miss
    gone = tuple(ExportedStream(name, kind, 0, (note,)) for name, note in deleted.items())
    return PlannedExport(kind, options, key, tuple(growths), refused, tuple(logs), partitions, may_miss, gone)


def require_package(kind: TableFormat) -> None:
    """Raise UnsupportedError if the package that tables of this format take is not installed."""
    if kind is TableFormat.DELTA:
        require_deltalake()
    elif kind is TableFormat.ICEBERG:
        require_pyiceberg()


def export_tables(
    runner: TaskRunner, backup: ChosenBackup, target: TableTarget, plan: PlannedExport, *, progress: Progress
) -> Exported:
    """Write what is planned of a backup, and commit the target. `runner` runs the tasks.

    Raises:
        PlanRefused: a message cannot be masked, a mask or a filter has found nothing, nothing is left of a stream, or
            the schema is not that of its payloads.
        TargetConflict: all tables are of other streams, or something else changed one meanwhile.
        IntegrityError: the repository is damaged; nothing is left.
        StoreError: something cannot be read or written.
    """
    kind, options, growths = plan.kind, plan.options, plan.growths
    for log in plan.logs:
        log.finish()
    settled: set[str] = set()  # tables whose commit was tried
    try:
        written = _write(runner, backup, target, plan, progress=progress)
        if options.reshape.obfuscation is not None:
            for one in (one for runs in written.values() for one in runs):
                options.reshape.obfuscation.names.learn(one.hashed)
        refusals = refusals_of(written)
        if refusals and not target.has_tables:
            raise all_refused(refusals)
        if not plan.payloads_may_miss:
            refusals = {**misfits_of(written), **refusals}
        refused = {**plan.refused, **refusals}
        if refusals:
            options = _lenient(options)
            if refused.keys() >= {growth.name for growth in growths}:
                raise all_refused(refused)
            _remove_staged(target, kind, [growth for growth in growths if growth.name in refusals])
            growths = tuple(growth for growth in growths if growth.name not in refusals)
        planned = [growth.new.planned for growth in growths if growth.new.planned is not None]
        kept = {one.reshaped.name: kept_of(one, written[one.reshaped.name]) for one in planned}
        results = [(one, kept[one.reshaped.name]) for one in planned]
        refuse_results(backup.manifest.id, options, results, "exported")
        for growth in growths:
            _commit(growth, backup.manifest, written, settled)
        without_log = {growth.name for growth in growths if growth.log is None}
        settled |= without_log
        try:
            target.commit()
        except TargetConflict:
            settled -= without_log
            raise
    except BaseException:
        if target.own:
            _remove_staged(target, kind, [growth for growth in plan.growths if growth.name not in settled])
        raise
    extended = target.has_tables
    exported = tuple(
        exported_of(
            growth, kept.get(growth.name), written.get(growth.name, ()), kind, options=options, extended=extended
        )
        for growth in growths
    )
    runs = [one for growth in growths for one in written.get(growth.name, ())]
    files, size = sum(len(one.files) for one in runs), sum(one.bytes for one in runs)
    return Exported(files, size, (*exported, *plan.deleted), not extended, refused)


def _lenient(options: TransformOptions) -> TransformOptions:
    return replace(options, mask_may_miss=True, pattern_may_miss=True, allow_empty=True)


def _growths(
    manifest: Manifest,
    target: TableTarget,
    kind: TableFormat,
    streams: Sequence[PlannedStream],
    *,
    options: TransformOptions,
    secret: bytes,
    partition: str,
    payloads: TablePayloads | None,
) -> tuple[list[TableGrowth], list[TableLog], dict[str, JsBackupError]]:
    """Read the logs of all tables, and decide what is added to them; also return the logs, and the tables that cannot
    be extended, or whose schema is not that of a sample. Nothing is written before.
    """
    now_ms = time.time_ns() // 1_000_000
    growths: list[TableGrowth] = []
    logs: list[TableLog] = []
    refused: dict[str, JsBackupError] = {}
    for one in streams:
        source = source_of(one, manifest, options, mask_secret=secret, partition=partition)
        try:
            log = _log_of(one.reshaped.name, manifest, target, kind, now_ms=now_ms, partition=partition)
            logs += [] if log is None else [log]
            state = None if log is None else log.state
            parser = None
            if payloads is not None and one.entry.archive_format.has_messages:
                if payloads.waits(one, state):
                    growths.append(TableGrowth(one, source, log, NewMessages(None, note=_NO_SCHEMA)))
                    continue
                parser = payloads.parser(one, state, secret)
                source = replace(source, payloads=parser.text)
            # Without tables there, every stream is written, as one without messages.
            new = new_messages(one, manifest, source, state) if log and target.has_tables else NewMessages(one)
            if payloads and parser and new.planned and (misfit := payloads.misfit(new.planned, parser, secret)):
                refused[one.reshaped.name] = misfit
                continue
        except (FormatError, TargetConflict, UnsupportedError, UsageError) as error:
            refused[one.reshaped.name] = error
        else:
            inferred = payloads is not None and payloads.given is None and state is None
            growths.append(TableGrowth(one, source, log, new, parser, inferred))
    return growths, logs, refused


def _log_of(
    name: str, manifest: Manifest, target: TableTarget, kind: TableFormat, *, now_ms: int, partition: str
) -> TableLog | None:
    store, new_target = target.place.store(), not target.has_tables
    if kind is TableFormat.PARQUET:
        return ParquetLog(store, name, target.token, own=target.own, new_target=new_target)
    if kind is TableFormat.ICEBERG:
        return IcebergLog(
            store,
            name,
            target.token,
            own=target.own,
            new_target=new_target,
            location=target.location,
            backup=manifest.id,
            now_ms=now_ms,
        )
    if kind is TableFormat.DELTA:
        about = {"stream": name, "backup": manifest.id}
        return DeltaLog(
            store, name, own=target.own, new_target=new_target, constants=about, now_ms=now_ms, partition=partition
        )
    return None


def _write(
    runner: TaskRunner, backup: ChosenBackup, target: TableTarget, plan: PlannedExport, *, progress: Progress
) -> dict[str, list[WrittenRun]]:
    """Write the files, and return what was written of each stream, by its new name."""
    kind, key, partitions = plan.kind, plan.key, plan.partitions
    place, found = backup.place, {growth.name: growth for growth in plan.growths if growth.new.planned is not None}
    planned = [growth.new.planned for growth in found.values() if growth.new.planned is not None]
    changed = with_newest_of(runner, place, planned, progress)
    files = [file for one in changed for file in _files_of(one, found[one.reshaped.name], kind, partitions, target.own)]
    runs = numbered_runs(runner, place, key, [file.run for file in files], before=Counter(), progress=progress)
    files = [replace(file, run=run) for file, run in zip(files, runs, strict=True)]
    tasks, weights = [], []
    for piece in pack_tasks([file.raw_bytes for file in files], runner.cores):
        part = tuple(files[piece])
        tasks.append(WriteFiles(place, target.place, kind, backup.manifest.id, key, part))
        weights.append(sum(file.raw_bytes for file in part))
    parts = runner.run("the export", tasks, weights=weights, progress=progress)
    written: dict[str, list[WrittenRun]] = {name: [] for name in found}
    known = {name: growth.log.partitions for name, growth in found.items() if growth.log is not None}
    count = None if partitions is None else PartitionCount(partitions, known)
    for file, one in zip(files, (one for part in parts for one in part), strict=True):
        written[file.stream].append(one if count is None else count.checked(file.stream, one))
    return written


def _files_of(
    one: PlannedStream, growth: TableGrowth, kind: TableFormat, partitions: Partitions | None, own: str
) -> Iterator[FileToWrite]:
    reshape, name = one.reshaped.messages, one.reshaped.name
    folder, ending = _staging(growth, kind, own)
    joint = "/" if growth.log is None else growth.log.joint
    position = growth.new.position
    known = (position.message, position.message_ns, position.newest_ns) if position.message else None
    segments = segments_within(one.entry, reshape.cut)
    for number, piece in enumerate(pack([ref.bytes for ref in segments], SEGMENT_BYTES), start=1):
        run = SegmentRun.of(one.entry.name, tuple(segments[piece]), reshape)
        after = growth.new.after
        yield FileToWrite(name, number, folder, ending, run, after, known, partitions, joint, growth.payloads)


def _commit(
    growth: TableGrowth, manifest: Manifest, written: Mapping[str, list[WrittenRun]], settled: set[str]
) -> None:
    """Make the written files of a stream a part of its table. Adds it to `settled` unless it has none of them."""
    if growth.log is None or growth.new.planned is None:
        return
    runs, entry = written[growth.name], growth.one.entry
    came = reduce(Extent.followed_by, (run.tally.came for run in runs), Extent())
    position = TablePosition()
    if entry.archive_format.has_messages:
        newest_ns = max((ref.max_ns for ref in growth.new.planned.entry.segments), default=0)
        position = growth.new.position.followed_by(came, entry.last_seq, newest_ns, parse_time(manifest.created))
    settled.add(growth.name)
    try:
        files = [file for run in runs for file in run.files]
        columns = [] if growth.payloads is None else growth.payloads.fields
        growth.log.commit(files, TableState(growth.source, position), columns)
    except TargetConflict:
        settled.remove(growth.name)
        raise


def _staging(growth: TableGrowth, kind: TableFormat, own: str) -> tuple[str, str]:
    """Return the folder to which the files of a table are written, and what follows the sequences in their names."""
    if growth.log is not None:
        return growth.log.staging, growth.log.ending
    return encode_name(growth.name), f"{own}.{kind.suffix}"


def _remove_staged(target: TableTarget, kind: TableFormat, growths: Sequence[TableGrowth]) -> None:
    """Remove what this run has written for tables and did not become a part of them."""
    store = target.place.store()
    for growth in growths:
        folder, ending = _staging(growth, kind, target.own)
        with suppress(StoreError):
            for info in list(store.list(f"{folder}/")):
                if info.key.endswith(ending):
                    store.delete(info.key)
