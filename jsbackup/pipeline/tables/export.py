"""Export streams as tables of files: of one backup, or of all that the tables do not have yet.

Messages may be changed on the way, as a restore would change them (`planning/changed_streams.py`).

Tables are extended by a walk over the backups, oldest first (`stream_walk.py`): each message comes from the first
backup that has it, once, whatever was removed at the source later; so does what a backup has that came late. A table
gets what a backup has in one commit, which also says which backups the table has (`table_state.py`).

A task reads, verifies, encodes and writes a few files (`writing.py`): three times as fast as sending the messages
through Spark to its own writers, and without Spark the same files.

Tables that an export does without: the others are brought up to date, and each of these is named.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial, reduce
from pathlib import Path

from jsbackup.config import Glob, is_chosen
from jsbackup.errors import (
    FormatError,
    IntegrityError,
    JsBackupError,
    StoreError,
    TargetConflict,
    UnsupportedError,
    UsageError,
)
from jsbackup.exchange.exporting import ExportedStream
from jsbackup.exchange.folder import clear_leftovers
from jsbackup.pipeline.messages.followed import sequences_of
from jsbackup.pipeline.messages.stream_walk import BackupWalk, FollowedBackup, MessageRange
from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened
from jsbackup.pipeline.tables.delta_table import DeltaLakeTable, require_deltalake
from jsbackup.pipeline.tables.iceberg_table import PyIcebergTable, open_catalog, require_pyiceberg
from jsbackup.pipeline.tables.parquet_table import GrowingTable, ParquetTable
from jsbackup.pipeline.tables.table_state import TableState, life_of, refuse_unsteady, source_of
from jsbackup.pipeline.tables.target import ExportTarget, files_target, refuse_place, tables_target
from jsbackup.pipeline.tables.writing import DAY, FileToWrite, TableFormat, WriteFiles, WrittenFile, WrittenRun
from jsbackup.pipeline.tasks.packing import pack, pack_tasks
from jsbackup.pipeline.tasks.reshape_passes import numbered_runs, with_newest_of
from jsbackup.pipeline.tasks.reshape_task import MaskKey, SegmentRun
from jsbackup.pipeline.tasks.runner import TaskRunner
from jsbackup.planning.changed_streams import (
    ChangeOptions,
    PlannedStream,
    about_changed,
    plan_streams,
    refuse_results,
)
from jsbackup.planning.rules import Rule
from jsbackup.planning.selection.subset import KeptStream, renumbered_entry, segments_within
from jsbackup.progress import Progress
from jsbackup.readable import alike, format_count, without_name
from jsbackup.repository.checks.verify import FolderListings, Level, check_object
from jsbackup.repository.layout import encode_name
from jsbackup.repository.manifest import BackupSummary, Manifest, StreamBackup, summary_of
from jsbackup.repository.objects import SEGMENT_BYTES, SegmentRef
from jsbackup.repository.origin import origin_of
from jsbackup.repository.read.losses import broken_lists
from jsbackup.times import parse_time
from jsbackup.transforms.cut import Extent
from jsbackup.transforms.mask import MaskCount

__all__ = ["Exported", "PlannedExport", "TablesAsked", "all_refused", "export_tables", "export_target", "plan_export"]


def all_refused(refused: Mapping[str, JsBackupError]) -> JsBackupError:
    """Return one error for an export of which nothing is left: all streams have one in `refused`, which is not empty.

    It names each stream, and is of their kind if all have the same exit code.
    """
    first = next(iter(refused.values()))
    if len(refused) == 1:
        return first
    groups = alike((name, name, without_name(name, error.message), None) for name, error in refused.items())
    sentences = []
    hints: dict[str, None] = {}
    for names in groups:
        name, error = names[0], refused[names[0]]
        alone = len(names) == 1
        said = error.message if alone else _of_several(name, error.message)
        sentences.append(f"stream{'' if alone else 's'} {', '.join(names)}: {said}")
        if error.hint:
            hints[error.hint if alone else _of_several(name, error.hint)] = None
    message = f"nothing was exported: {'; '.join(sentences)}"
    codes = {error.exit_code for error in refused.values()}
    whole = first.with_message(message) if len(codes) == 1 else JsBackupError(message)
    return whole.with_hint(" ".join(hints)) if hints else whole


def _of_several(name: str, text: str) -> str:
    """Return a text about a stream as it is after the names of several."""
    said = without_name(name, text)
    for words, instead in (
        (" of stream <stream>", ""),
        ("in its table", "in their tables"),
        ("the table of <stream>", "its table"),
        ("stream <stream>", "each"),
    ):
        said = said.replace(words, instead)
    return said


_MANIFESTS = 16  # that are kept, for backups around one that came late


@dataclass(frozen=True, slots=True)
class TablesAsked:
    """What tables were asked for. With `append`, tables that are there get what they lack of the backups up to one.
    `catalog` as `open_catalog` takes it.
    """

    kind: TableFormat
    options: ChangeOptions = field(default_factory=ChangeOptions)
    mask_key: MaskKey = field(default_factory=MaskKey)
    append: bool = False
    by_day: bool = False
    catalog: str | None = None


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
class Addition:
    """What of a backup is added to a table, whose state it is afterwards."""

    table: GrowingTable
    planned: PlannedStream
    ranges: tuple[MessageRange, ...]
    state: TableState


@dataclass(frozen=True, slots=True)
class PlannedExport:
    """What an export adds, backup by backup, as `plan_export` decided. `names` are those of all streams; `told` says of
    some what their tables do not get. `refused` are streams that are left out.
    """

    asked: TablesAsked
    additions: tuple[tuple[Manifest, tuple[Addition, ...]], ...]
    tables: Mapping[str, GrowingTable]
    names: tuple[str, ...]
    refused: Mapping[str, JsBackupError]
    notes: Mapping[str, Sequence[str]]
    told: Mapping[str, Sequence[str]]

    @property
    def raw_bytes(self) -> int:
        """How much is to be read: of tables that are there, what they lack."""
        return sum(
            message_range.ref.bytes for _, some in self.additions for added in some for message_range in added.ranges
        )


@contextmanager
def export_target(
    source: RepositoryRef, output: RepositoryRef, asked: TablesAsked, *, note: Callable[[str], object]
) -> Iterator[ExportTarget]:
    """Provide where tables of backups of `source` are written. What killed exports have left there is removed; `note`
    gets sentences about what may be of such.

    Raises:
        UnsupportedError: the package for Delta or Iceberg tables is not installed.
        UsageError, StoreError: as `refuse_place`, `files_target` and `tables_target`.
    """
    if asked.kind is TableFormat.DELTA:
        require_deltalake()
    elif asked.kind is TableFormat.ICEBERG:
        require_pyiceberg()
    refuse_place(source, output)
    for leftover in clear_leftovers(Path(output.folder)) if output.folder is not None else ():
        note(leftover)
    token = os.urandom(4).hex()
    lines = asked.kind is TableFormat.JSONL
    with files_target(output, token) if lines else tables_target(output, token, append=asked.append) as target:
        yield target


class _LinesTable:
    """Files of JSON lines, which have no commit but that of the target."""

    joint = "/"
    state = None

    def __init__(self, target: ExportTarget, name: str) -> None:
        self.place, self.name = target.place, name
        self.folder, self.ending = encode_name(name), f"{target.own}.{TableFormat.JSONL.suffix}"

    def commit(self, files: Sequence[WrittenFile], state: TableState, backup: str) -> None:
        """All files become visible together."""

    def finish(self) -> None:
        """Nothing is left to do."""


def plan_export(
    place: RepositoryRef, chosen: Manifest, target: ExportTarget, asked: TablesAsked, *, patterns: Sequence[Glob] = ()
) -> PlannedExport:
    """Decide what is written to the target of the streams that match; nothing is written. Without `append` that is
    what the chosen backup has, else what tables lack of all backups up to that.

    Raises:
        UsageError, TargetConflict, UnsupportedError, FormatError: no table can be extended (if all have one code).
        JsBackupError: no table can be extended.
        UsageError: the options cannot be those of tables that are extended; no backup has a stream that was asked for.
        PlanRefused: a restore with these options would be refused.
        IntegrityError, KeyUnavailable, StoreError: the repository or the target cannot be read.
    """
    if asked.append:
        refuse_unsteady(asked.options)
    planning = _Planning(place, chosen, target, asked, patterns=patterns)
    planning.run()
    return planning.planned()


class _Planning:
    def __init__(
        self,
        place: RepositoryRef,
        chosen: Manifest,
        target: ExportTarget,
        asked: TablesAsked,
        *,
        patterns: Sequence[Glob],
    ) -> None:
        self._repository = opened(place)
        self._chosen, self._target, self._asked, self._patterns = chosen, target, asked, patterns
        self._typed = tuple(sorted(pattern.pattern for pattern in patterns))
        needs_secret = asked.options.reshape.masks.needs_secret
        self._secret = asked.mask_key.secret() if needs_secret else b""
        self._opener = _opener(target, asked)
        self._listings = FolderListings(self._repository.store)
        self._manifest = lru_cache(_MANIFESTS)(self._repository.manifest)
        self._tables: dict[str, GrowingTable] = {}
        self._states: dict[str, TableState] = {}
        self._names: dict[str, str] = {}  # of streams, by those of tables
        self._refused: dict[str, JsBackupError] = {}
        self._notes: dict[str, list[str]] = {}
        self._told: dict[str, list[str]] = {}
        self._additions: list[tuple[Manifest, tuple[Addition, ...]]] = []
        self._seen: set[str] = set()
        self._present: dict[str, int] = {chosen.id: 0}  # backups like the chosen one, with the time when they ended

    def planned(self) -> PlannedExport:
        for glob in self._patterns:
            if not any(map(glob.matches, self._seen)):
                raise UsageError(f"no backup has a stream {glob.pattern}", hint="See 'jsbackup show' for the streams.")
        missing = self._asked.options.renames.unknown(self._seen)
        if missing and self._asked.append:
            raise UsageError(f"--rename {missing[0]}: no backup has a stream of that name")
        if self._refused and not self._additions and not (self._names.keys() - self._refused.keys()):
            raise all_refused(self._refused)
        return PlannedExport(
            self._asked,
            tuple(self._additions),
            self._tables,
            tuple(self._names),
            self._refused,
            self._notes,
            self._told,
        )

    def run(self) -> None:
        backups = self._backups() if self._asked.append else {self._chosen.id: 0}
        finished = self._done(backups) if self._asked.append else set()
        for backup in [backup for backup in backups if backup not in finished]:
            try:
                manifest = self._chosen if backup == self._chosen.id else self._manifest(backup)
            except (FormatError, IntegrityError, UnsupportedError) as error:  # the next export tries again
                self._refused[f"backup {backup}"] = error
                continue
            if self._add(manifest, finished):
                finished.add(backup)

    def _backups(self) -> dict[str, int]:
        """Return the backups like the chosen one, up to that, with the time when they ended; and those that cannot be
        read, which stop the export.
        """
        inventory, like = self._repository.inventory(), summary_of(self._chosen)
        ours = {
            summary.id: parse_time(summary.ended or summary.created)
            for summary in inventory.summaries
            if _is_like(summary, like)
        }
        ours |= {backup.id: 0 for backup in inventory.unreadable}
        self._present = ours
        return {our: ours[our] for our in sorted(ours) if our <= self._chosen.id}

    def _done(self, backups: Mapping[str, int]) -> set[str]:
        """Return the backups of which all tables have all, by what their last export says. If it was of other streams,
        or one of the newest backup has no table, that is not known.
        """
        entries = [planned for planned in self._wanted(self._chosen) if planned.captured.messages]
        for entry in self._plan(self._chosen, entries):
            self._open(entry, self._chosen)
        states = [table.state for table in self._tables.values() if table.state is not None]
        states = [state for state in states if state.streams == self._typed]
        if len(states) < len(entries) or not states:
            return set()
        self._seen |= {*self._names.values()}
        return {backup for backup in backups if any(state.is_done(backup) for state in states)}

    def _wanted(self, manifest: Manifest) -> list[StreamBackup]:
        chosen = [stream for stream in manifest.streams if is_chosen(stream.name, self._patterns, ())]
        self._seen |= {entry.name for entry in chosen}
        for entry in chosen:
            literal = any(glob.is_literal and glob.matches(entry.name) for glob in self._patterns)
            if entry.unknown_format and literal:
                raise UnsupportedError(entry.unknown_format)
        return [entry for entry in chosen if not entry.unknown_format]

    def _plan(self, manifest: Manifest, entries: Sequence[StreamBackup]) -> tuple[PlannedStream, ...]:
        options, cut = self._asked.options, self._asked.options.reshape.cut
        if not entries:
            return ()
        if not self._asked.append:
            return plan_streams(manifest, entries, options, "exported")
        # An earlier backup may lack what options are for, and end before an edge.
        renames = options.renames.among([entry.name for entry in entries])
        options = options if manifest.id == self._chosen.id else _lenient(options)
        reshape = replace(options.reshape, cut=replace(cut, until=None))
        options = replace(options, renames=renames, reshape=reshape)
        return tuple(
            replace(stream, reshaped=replace(stream.reshaped, messages=replace(stream.reshaped.messages, cut=cut)))
            for stream in plan_streams(manifest, entries, options, "exported")
        )

    def _open(self, planned: PlannedStream, manifest: Manifest) -> GrowingTable | None:
        """Open the table of a stream; None if it is refused."""
        name = planned.reshaped.name
        if name in self._refused:
            return None
        if name in self._tables:
            return self._tables[name]
        partition = DAY if self._asked.by_day else ""
        source = source_of(
            planned.entry.name, manifest, self._asked.options, mask_secret=self._secret, partition=partition
        )
        try:
            table = self._opener(name)
            state = table.state
            if state is not None:
                source.refuse_other(name, state.source)
        except (FormatError, TargetConflict, UnsupportedError, UsageError) as error:
            self._refused[name] = error
            return None
        self._tables[name], self._names[name] = table, planned.entry.name
        self._states[name] = TableState(source, streams=self._typed) if state is None else state
        return table

    def _add(self, manifest: Manifest, finished: set[str]) -> bool:
        """Plan what of a backup is added. Returns whether nothing of it is left out."""
        entries = self._wanted(manifest)
        broken = broken_lists(entries)
        self._refused.update(broken)
        planned = self._plan(manifest, [entry for entry in entries if entry.name not in broken])
        additions = []
        for stream in planned:
            table = self._open(stream, manifest)
            if table is None:
                continue
            if not stream.entry.archive_format.has_messages:
                self._note(stream.reshaped.name, f"backup {manifest.id} has no messages of it")
                continue
            addition = self._addition(table, stream, manifest.id, finished=finished)
            if addition is not None:
                additions.append(addition)
        if additions:
            self._additions.append((manifest, tuple(additions)))
        return not broken and all(stream.reshaped.name not in self._refused for stream in planned)

    def _addition(
        self, table: GrowingTable, planned: PlannedStream, backup: str, *, finished: set[str]
    ) -> Addition | None:
        name = table.name
        state = self._states[name]
        if self._asked.append and table.state is not None:
            state = state.with_done(finished)
        if state.position.knows(backup):
            return None
        # Also those after the chosen one, which was made when a clock was ahead.
        present = {id_: ns for id_, ns in self._present.items() if id_ == backup or state.position.knows(id_)}
        told: list[str] = []
        walk = BackupWalk(
            state.position,
            present,
            read=partial(self._followed, planned, backup),
            sequences=partial(sequences_of, self._repository),
            told=told.append,
        )
        walk.run()
        if told:
            self._told.setdefault(name, []).extend(told)
        after = replace(
            state,
            position=walk.end,
            pending=tuple(sorted(id_ for id_ in walk.end.taken if id_ not in finished)),
            streams=self._typed,
        )
        if not walk.ranges:
            self._states[name] = after
            return None
        self._states[name] = after = replace(after, commits=state.commits + 1)
        within = {ref.key for ref in segments_within(planned.entry, planned.reshaped.messages.cut)}
        ranges = tuple(message_range for message_range in walk.ranges if message_range.ref.key in within)
        for ref in [
            message_range.ref for message_range in ranges if self._asked.append and self._is_suspect(message_range.ref)
        ]:
            # Other streams are not to wait for its repair.
            if flaw := check_object(self._repository.objects, ref, Level.DATA):
                hint = "Bring it back with 'jsbackup repair'."
                self._refused[name] = IntegrityError(f"backup {backup}: {flaw.text}", hint=hint)
                return None
        return Addition(table, planned, ranges, after)

    def _is_suspect(self, ref: SegmentRef) -> bool:
        """Return whether an object was found damaged, or is not listed with its size."""
        return not self._listings.has(ref) or self._repository.objects.is_damaged(ref)

    def _followed(self, planned: PlannedStream, backup: str, ids: Sequence[str]) -> Iterator[FollowedBackup]:
        """Yield backups with the stream of a table only, called as that; it is never asked what was forgotten."""
        life = partial(life_of, reshape=planned.reshaped.messages)
        for id_ in ids:
            streams = [planned.entry]
            if id_ != backup:
                streams = [entry for entry in self._manifest(id_).streams if entry.name == planned.entry.name]
            shown = [replace(entry, name=planned.reshaped.name, incarnation=life(entry), life="") for entry in streams]
            yield FollowedBackup(id_, "", tuple(entry for entry in shown if entry.archive_format.has_messages))

    def _note(self, name: str, note: str) -> None:
        if not self._asked.append:
            self._notes.setdefault(name, []).append(note)


def _opener(target: ExportTarget, asked: TablesAsked) -> Callable[[str], GrowingTable]:
    place, token = target.place, target.token
    if asked.kind is TableFormat.PARQUET:
        return lambda name: ParquetTable(place, name, token)
    if asked.kind is TableFormat.DELTA:
        return lambda name: DeltaLakeTable(place, name, token)
    if asked.kind is TableFormat.ICEBERG:
        catalog, namespace = open_catalog(place, asked.catalog)
        is_own = asked.catalog is None
        return lambda name: PyIcebergTable(catalog, place, name, token, namespace=namespace, is_own=is_own)
    return lambda name: _LinesTable(target, name)


def _is_like(summary: BackupSummary, like: BackupSummary) -> bool:
    """Return whether a backup is of the same source as another one, and was made in the same way."""
    if summary.transformed != like.transformed or summary.imported != like.imported:
        return False
    return like.imported is not None or origin_of(summary) == origin_of(like)


def export_tables(
    runner: TaskRunner, place: RepositoryRef, target: ExportTarget, plan: PlannedExport, *, progress: Progress
) -> Exported:
    """Write what is planned, and commit it. `runner` runs the tasks.

    Raises:
        PlanRefused: a message cannot be masked, a mask or a filter has found nothing, or nothing is left of a stream.
        TargetConflict: something else changed a table meanwhile.
        IntegrityError: the repository is damaged.
        StoreError: something cannot be read or written.
    """
    asked, options = plan.asked, plan.asked.options
    results: dict[str, list[tuple[Addition, list[WrittenRun]]]] = {}
    grown = {name for name, table in plan.tables.items() if table.state is not None}
    for manifest, additions in plan.additions:
        settled: set[str] = set()  # tables whose commit was tried
        try:
            written = _write(runner, place, manifest, additions, asked=asked, progress=progress)
            if options.reshape.obfuscation is not None:
                for run in (run for runs in written for run in runs):
                    options.reshape.obfuscation.names.learn(run.hashed)
            checked = _lenient(options) if asked.append and grown else options
            kept = [(_came(added, runs), _kept(added, runs)) for added, runs in zip(additions, written, strict=True)]
            # Until there is a table; that no message passes a filter may change.
            refuse_results(manifest.id, checked, kept, "exported", masks_only=asked.append)
            for added, runs in zip(additions, written, strict=True):
                files = [file for run in runs for file in run.files]
                results.setdefault(added.table.name, []).append((added, runs))
                settled.add(added.table.name)
                if files or added.table.name in grown:
                    try:
                        added.table.commit(files, added.state, manifest.id)
                    except TargetConflict:
                        settled.remove(added.table.name)
                        raise
                    grown.add(added.table.name)
        except BaseException:
            unsettled = [addition.table for addition in additions if addition.table.name not in settled]
            _remove_own(unsettled, _about(asked.kind, manifest.id))
            raise
    try:
        target.commit()
    except TargetConflict:
        _remove_own(plan.tables.values(), "")  # JSON lines, which have no other commit
        raise
    for table in plan.tables.values():
        table.finish()
    lenient = options if target.was_empty else _lenient(options)
    exported = tuple(
        _exported(name, results.get(name, ()), plan, options=lenient, target=target) for name in plan.names
    )
    runs = [run for some in results.values() for _, part_runs in some for run in part_runs]
    files = [file for run in runs for file in run.files]
    return Exported(len(files), sum(file.bytes for file in files), exported, target.was_empty, plan.refused)


def _lenient(options: ChangeOptions) -> ChangeOptions:
    """That nothing of what is new matches says nothing about the options."""
    return replace(options, allow_nothing=True)


def _write(
    runner: TaskRunner,
    place: RepositoryRef,
    manifest: Manifest,
    additions: Sequence[Addition],
    *,
    asked: TablesAsked,
    progress: Progress,
) -> list[list[WrittenRun]]:
    """Write the files of a backup, and return what was written for each addition."""
    changed = with_newest_of(place, [addition.planned for addition in additions])
    some = [
        list(_files_of(replace(written_file, planned=planned), manifest.id, asked))
        for written_file, planned in zip(additions, changed, strict=True)
    ]
    files = [file for files_of_part in some for file in files_of_part]
    runs = numbered_runs(
        runner, place, asked.mask_key, [file.run for file in files], before=Counter(), progress=progress
    )
    files = [replace(file, run=run) for file, run in zip(files, runs, strict=True)]
    tasks, weights = [], []
    for piece in pack_tasks([file.raw_bytes for file in files], runner.cores):
        part = tuple(files[piece])
        tasks.append(WriteFiles(place, asked.kind, manifest.id, asked.mask_key, part))
        weights.append(sum(file.raw_bytes for file in part))
    written = [
        addition for part in runner.run("the export", tasks, weights=weights, progress=progress) for addition in part
    ]
    ends = [sum(map(len, some[: number + 1])) for number in range(len(some))]
    return [written[end - len(files_of_part) : end] for files_of_part, end in zip(some, ends, strict=True)]


def _files_of(addition: Addition, backup: str, asked: TablesAsked) -> Iterator[FileToWrite]:
    reshape, table = addition.planned.reshaped.messages, addition.table
    about = _about(asked.kind, backup)
    for number, piece in enumerate(
        pack([message_range.ref.bytes for message_range in addition.ranges], SEGMENT_BYTES), start=1
    ):
        ranges = tuple(addition.ranges[piece])
        name = f"{ranges[0].first_seq:020}-{ranges[-1].last_seq:020}{about}"
        if reshape.renumber:  # the sequences say nothing any more
            name = f"{number:020}{about}"
        run = SegmentRun.of(addition.planned.entry.name, tuple(message_range.ref for message_range in ranges), reshape)
        life = life_of(addition.planned.entry, reshape)
        yield FileToWrite(
            table.place, table.name, life, table.folder, name + table.ending, run, ranges, asked.by_day, table.joint
        )


def _came(addition: Addition, runs: Sequence[WrittenRun]) -> PlannedStream:
    """Return the stream as if the backup had only what came of it. Raises IntegrityError if not all did."""
    entry, came = addition.planned.entry, sum(run.tally.came.messages for run in runs)
    whole = [message_range.ref.messages for message_range in addition.ranges if message_range.is_whole]
    if len(whole) == len(addition.ranges) and came != sum(whole):
        raise IntegrityError(f"stream {entry.name} has {sum(whole)} messages, and {came} came out")
    return replace(addition.planned, entry=replace(entry, captured=replace(entry.captured, messages=came)))


def _kept(addition: Addition, runs: Sequence[WrittenRun]) -> KeptStream:
    """Return what was written of a stream."""
    entry, tallies = addition.planned.entry, [run.tally for run in runs]
    extent = reduce(Extent.followed_by, (tally.kept for tally in tallies), Extent())
    captured = replace(entry.captured, messages=extent.messages, first_seq=extent.first_seq, last_seq=extent.last_seq)
    kept = replace(entry, captured=captured, consumers=())
    if addition.planned.reshaped.messages.renumber:
        kept = renumbered_entry(kept, None)
    return KeptStream(
        kept,
        masked=reduce(MaskCount.plus, (tally.masked for tally in tallies), MaskCount()),
        had=sum(tally.came.messages for tally in tallies),
        matched=sum((tally.matched for tally in tallies), Counter()),
        markers=sum(tally.markers for tally in tallies),
    )


def _exported(
    name: str,
    results: Sequence[tuple[Addition, Sequence[WrittenRun]]],
    plan: PlannedExport,
    *,
    options: ChangeOptions,
    target: ExportTarget,
) -> ExportedStream:
    told = list(plan.told.get(name, ()))
    notes = list(plan.notes.get(name, ()))
    messages = sum(file.rows for _, runs in results for run in runs for file in run.files)
    for addition, runs in results[-1:]:
        kept = _kept(addition, runs)
        findings = about_changed(_came(addition, runs), kept, options) if messages or target.was_empty else ()
        # Of messages of which nothing is written, nothing is restored.
        nothing = f"nothing is written: none of its {format_count(kept.had, 'message')} is kept"
        notes += [nothing if about.rule is Rule.NOTHING_KEPT else about.reason for about in findings]
    if results and not messages and not target.was_empty:
        notes.append("nothing that is new matches")
    if not results and not notes:
        notes.append("nothing is new" if plan.tables[name].state is not None else "it has no messages")
    if plan.asked.kind is not TableFormat.JSONL and not all(run.is_text for _, runs in results for run in runs):
        notes.append("has subjects that are not UTF-8, where DuckDB, pyarrow and pyiceberg fail; Spark reads them")
    return ExportedStream(name, plan.asked.kind, messages, (*notes, *told), incomplete=bool(told))


def _about(kind: TableFormat, backup: str) -> str:
    """Return what names of files say of the backup, before the ending of the run."""
    return "" if kind is TableFormat.JSONL else f"-{backup}"


def _remove_own(tables: Iterable[GrowingTable], about: str) -> None:
    """Remove what this run has written for tables of the backup that names say (`_about`), and that did not become a
    part of them. What it has written of the backups before did.
    """
    for table in tables:
        with suppress(StoreError):
            store = table.place.store()
            for info in list(store.list(f"{table.folder}/")):
                if info.key.endswith(about + table.ending):
                    store.delete(info.key)
