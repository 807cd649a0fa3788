"""Make a changed copy of a backup, in another repository or the same: streams are as a restore with the same options
would send them.

The changes of each stream are planned first, then carried out, and then the driver commits the manifest. An unchanged
stream keeps its incarnation, and in the same repository its segments; any other stream gets a new incarnation.

The manifest has `source.transformed`: the original backup, the options, and the edges of the cut. Its time is that of
the copy, `captured` is that of the server; but not later than the end of a cut, so that it is not used as a backup of a
later state.

Messages are changed by tasks (`reshape_task.py`), and a stream's state and consumers as in a restore
(`planning/selection/subset.py`). What needs a pass before is found by other tasks: the newest messages of all subjects,
and for new sequences how many messages each run of segments keeps.

Some thousands of segments are held: runs are planned in waves, and what a wave has made is joined and listed in pages
before the next one.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, groupby, pairwise
from operator import attrgetter, itemgetter

from jsbackup.config import is_chosen
from jsbackup.errors import UsageError
from jsbackup.pipeline.jobs.job_run import JobRun
from jsbackup.pipeline.jobs.joining import grouped, merge_groups
from jsbackup.pipeline.messages.chosen import choose_streams
from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened
from jsbackup.pipeline.tasks.packing import as_one, pack_tasks, waves
from jsbackup.pipeline.tasks.reshape_passes import numbered_runs, with_newest_of
from jsbackup.pipeline.tasks.reshape_task import MaskKey, ReshapedRun, ReshapePieces, SegmentRun
from jsbackup.pipeline.tasks.runner import TaskRunner
from jsbackup.planning.changed_streams import (
    ChangeOptions,
    PlannedStream,
    about_changed,
    changed_entry,
    plan_streams,
    refuse_results,
)
from jsbackup.planning.selection.kept_messages import WatchedConsumers
from jsbackup.planning.selection.masking import obfuscated_skipped, obfuscated_source
from jsbackup.planning.selection.subset import KeptSequences, KeptStream, kept_from, renumbered_entry, segments_within
from jsbackup.progress import Progress
from jsbackup.repository.keep import leases
from jsbackup.repository.manifest import (
    BackupResult,
    Captured,
    Manifest,
    SegmentRef,
    Selection,
    Source,
    StreamBackup,
    total_of,
)
from jsbackup.repository.objects import Objects
from jsbackup.repository.pages.segment_list import raw_bytes_of
from jsbackup.repository.pages.segment_pages import ListWriter
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.new_backup import NewBackup, StoredStream
from jsbackup.repository.write.segment_writer import StoredSegments
from jsbackup.repository.write.stream_objects import OpaqueWriter, load_consumer, read_opaque, store_consumer
from jsbackup.times import format_time, parse_time
from jsbackup.transforms.cut import AtSequence, AtTime, Cut
from jsbackup.transforms.renumber import KnownRanks

__all__ = ["ChangedCopyPlan", "Made", "make_changed_copy", "make_changed_streams", "plan_changed_copy"]


@dataclass(frozen=True, slots=True)
class ChangedCopyPlan:
    """The planned changes of a backup."""

    manifest: Manifest
    options: ChangeOptions
    streams: tuple[PlannedStream, ...]


def plan_changed_copy(manifest: Manifest, options: ChangeOptions) -> ChangedCopyPlan:
    """Plan the changes of each stream; reads no messages.

    Raises:
        UsageError: the options name no stream of the backup, or change nothing.
        PlanRefused, TargetConflict: a restore with these options would be refused.
        FormatError: a configuration is damaged.
    """
    if not options.words and not options.streams:
        raise UsageError("nothing to change", hint="Say what, such as --mask or --rename.")
    entries = choose_streams(manifest, [glob.pattern for glob in options.streams])
    return ChangedCopyPlan(manifest, options, plan_streams(manifest, entries, options, "copied"))


@dataclass(frozen=True, slots=True)
class Made:
    """A new stream, stored, with notes, and what is `kept` in it of the old one."""

    stored: StoredStream
    notes: tuple[str, ...]
    kept: KeptStream


def make_changed_streams(
    run: JobRun[TaskRunner], plan: ChangedCopyPlan, source: RepositoryRef, *, mask_key: MaskKey
) -> list[Made]:
    """Store the streams of a plan. Arguments and errors are those of `make_changed_copy`."""
    return _Making(run, plan, source, mask_key).make()


@dataclass(frozen=True, slots=True)
class _Making:
    """One run of a plan."""

    run: JobRun[TaskRunner]
    plan: ChangedCopyPlan
    source: RepositoryRef
    mask_key: MaskKey

    @property
    def objects(self) -> Objects:
        """Those of the source."""
        return opened(self.source).objects

    @property
    def target(self) -> Objects:
        return self.run.repository.objects

    def make(self) -> list[Made]:
        moves = self.source != self.run.place
        reading = [stream for stream in self.plan.streams if stream.reads or (moves and stream.entry.segments)]
        reading = with_newest_of(self.source, reading)
        storing = {stream.entry.name: _Storing(self.run.repository, stream, self.objects) for stream in reading}
        with closing(self._reshaped(storing)) as reshaped:
            streams = ((name, (ref for _, ref in refs)) for name, refs in groupby(reshaped, itemgetter(0)))
            joined = (
                merge_groups(self.run.runner, self.run.place, streams, self.run.progress)
                if self.target.sealing.reads
                else ((name, (), StoredSegments((ref,))) for name, ref in reshaped)
            )
            for name, _, merged in joined:
                storing[name].take_merged(merged)
        return [self._finished(stream, storing.get(stream.entry.name)) for stream in self.plan.streams]

    def _reshaped(self, storing: Mapping[str, _Storing]) -> Generator[tuple[str, SegmentRef], None, None]:
        """Store the changed messages of streams; yield the name of the stream and each segment, in order."""
        obfuscation = self.plan.options.reshape.obfuscation
        before: Counter[str] = Counter()
        runs = (
            run
            for storing_stream in storing.values()
            for run in self._runs(storing_stream.planned, storing_stream.consumers)
        )
        raw_bytes = sum(raw_bytes_of(_segments_of(storing_stream.planned)) for storing_stream in storing.values())
        with as_one(self.run.progress, raw_bytes) as progress:
            for wave in waves(runs, attrgetter("segments")):
                numbered = numbered_runs(
                    self.run.runner, self.source, self.mask_key, wave, before=before, progress=progress
                )
                parts: dict[str, list[ReshapedRun]] = {}
                for run, part in zip(numbered, self._store(numbered, progress), strict=True):
                    if obfuscation is not None:
                        obfuscation.names.learn(part.hashed)
                        part = replace(part, hashed=frozenset())
                    parts.setdefault(run.stream, []).append(part)
                for name, result in parts.items():
                    refs = storing[name].take(result)
                    yield from ((name, ref) for ref in refs)

    def _runs(self, planned: PlannedStream, consumers: WatchedConsumers) -> Iterator[SegmentRun]:
        folder = self.target.sealing.folder(planned.reshaped.name, planned.incarnation)
        reshape, to_know = planned.reshaped.messages, sorted(consumers.to_know)
        to_rank = sorted(consumers.to_rank) if reshape.renumber else []
        groups = grouped(_segments_of(planned), self.target.segment_bytes)
        for group, following in pairwise(chain(groups, [None])):
            assert group is not None, "only the last one is"
            first, last = group[0].first_seq, group[-1].last_seq
            # Ranks of sequences between two runs are those of the end of the first one.
            before = 1 << 63 if following is None else following[0].first_seq
            known = to_know[bisect_left(to_know, first) : bisect_right(to_know, last)]
            ranked = to_rank[bisect_left(to_rank, first) : bisect_left(to_rank, before)]
            run = SegmentRun.of(planned.entry.name, group, reshape, folder=folder)
            yield replace(run, to_know=tuple(known), to_rank=tuple(ranked))

    def _store(self, runs: Sequence[SegmentRun], progress: Progress | None) -> Iterator[ReshapedRun]:
        tasks, weights = [], []
        for part in pack_tasks([run.cost for run in runs], self.run.runner.cores):
            tasks.append(ReshapePieces(self.source, self.run.place, self.mask_key, tuple(runs[part])))
            weights.append(sum(run.bytes for run in runs[part]))
        for results in self.run.runner.run("the copy", tasks, weights=weights, progress=progress):
            yield from results

    def _finished(self, planned: PlannedStream, stored: _Storing | None) -> Made:
        run = None if stored is None else stored.run
        kept = self._kept(planned, run, None if stored is None else stored.consumers)
        findings = list(about_changed(planned, kept, self.plan.options))
        notes = [finding.reason for finding in findings if not finding.code]
        notes += [
            f"consumer {after.name}: {after.reason}"
            for before, after in zip(planned.entry.consumers, kept.entry.consumers, strict=True)
            if after.reason != before.reason
        ]
        segments = planned.entry.segments if stored is None else stored.listed.finish()
        made = changed_entry(planned, kept)
        made = replace(
            made,
            incarnation=planned.incarnation,
            segments=segments,
            digest=made.digest if stored is None else total_of(segments).digest,
            captured=_not_after(made.captured, planned.reshaped.messages.cut, run),
        )
        if self.source != self.run.place or planned.incarnation != planned.entry.incarnation:
            made = self._with_others(made)
        reused, stored_bytes = (0, 0) if stored is None else (stored.reused, stored.stored_bytes)
        return Made(StoredStream(made, reused, stored_bytes), tuple(notes), kept)

    def _kept(
        self, planned: PlannedStream, stored: ReshapedRun | None, consumers: WatchedConsumers | None
    ) -> KeptStream:
        """Return what is kept of a stream, as a restore finds it (`planning/selection/kept_messages.py`)."""
        entry, messages, count_before = planned.entry, planned.reshaped.messages, planned.entry.captured.messages
        if not entry.archive_format.has_messages or not planned.works:
            return KeptStream(entry, had=count_before)
        stored = stored or ReshapedRun()
        if consumers is None:  # an empty stream
            consumers = WatchedConsumers(self.objects, entry)
        kept = entry
        if stored.counted.cut.messages or messages.cut:
            present = KeptSequences(stored.found, ())
            kept = kept_from(entry, messages.cut, stored.counted, present, whole=consumers.whole)
            if not planned.moves_consumers:
                kept = replace(kept, consumers=entry.consumers)
        numbers = None
        if messages.renumber:
            extent = stored.counted.kept
            numbers = KnownRanks(stored.ranks, extent.last_seq, extent.messages)
            kept = renumbered_entry(kept, numbers)
        return KeptStream(
            kept,
            masked=stored.masked,
            had=count_before,
            matched=stored.matched,
            markers=stored.markers,
            numbers=numbers,
        )

    def _with_others(self, entry: StreamBackup) -> StreamBackup:
        """Store large pending sets, and what is stored undecoded, in the new folder."""
        folder = self.target.sealing.folder(entry.name, entry.incarnation)
        whole = (load_consumer(self.objects, consumer) for consumer in entry.consumers)
        undecoded = OpaqueWriter(self.target, folder)
        for piece in read_opaque(self.objects, entry.opaque):
            undecoded.feed(piece)
        consumers = tuple(store_consumer(self.target, folder, consumer) for consumer in whole)
        return replace(entry, consumers=consumers, opaque=tuple(undecoded.finish()))


class _Storing:
    """A `planned` stream that is being stored: `run` is the result of all its runs so far, without segments. These are
    `listed` when short ones are joined.
    """

    def __init__(self, repository: Repository, planned: PlannedStream, source: Objects) -> None:
        entry = planned.entry if planned.moves_consumers else replace(planned.entry, consumers=())
        self.planned = planned
        self.consumers = WatchedConsumers(source, entry)
        self.run = ReshapedRun()
        self.listed = ListWriter(repository.pages)
        self.reused = 0
        self.stored_bytes = 0

    def take(self, parts: Sequence[ReshapedRun]) -> tuple[SegmentRef, ...]:
        """Add the results of the next runs, and return their segments."""
        whole = ReshapedRun.joined([self.run, *parts])
        self._count(whole.stored)
        self.run = replace(whole, stored=StoredSegments())
        return whole.stored.refs

    def take_merged(self, merged: StoredSegments) -> None:
        self._count(merged)
        self.listed.add(merged.refs)

    def _count(self, stored: StoredSegments) -> None:
        self.reused += stored.reused
        self.stored_bytes += stored.stored_bytes


def _segments_of(planned: PlannedStream) -> Sequence[SegmentRef]:
    """Return the segments that are read."""
    return segments_within(planned.entry, planned.reshaped.messages.cut)


def _not_after(captured: Captured, cut: Cut, stored: ReshapedRun | None) -> Captured:
    """Limit the time of what is known about the stream to the end of the cut."""
    if isinstance(cut.until, AtTime):
        known_ns = cut.until.time_ns
    elif isinstance(cut.until, AtSequence) and stored is not None and stored.counted.cut.messages:
        known_ns = stored.counted.cut.last_ns
    else:
        return captured
    return (
        captured
        if parse_time(captured.begun, "captured") <= known_ns
        else replace(captured, begun=format_time(known_ns))
    )


def make_changed_copy(
    run: JobRun[TaskRunner],
    plan: ChangedCopyPlan,
    source: RepositoryRef,
    *,
    mask_key: MaskKey | None = None,
) -> tuple[Manifest, list[Made]]:
    """Make the new backup in the repository of the run, and commit it; return it, and its streams in the order of the
    plan. The backup of the plan is in `source`: the same place, or another repository.

    Nothing is committed if an error is raised.

    Raises:
        PlanRefused: a message cannot be masked, two counters would become one, a mask has masked nothing, or no message
            is left of a stream.
        UsageError: there is no key to hash with.
        IntegrityError: a segment is missing or damaged.
        RepositoryLocked: the lease was lost.
        KeyUnavailable, StoreError: something cannot be read or stored.
    """
    key, obfuscation = mask_key or MaskKey(), plan.options.reshape.obfuscation
    if plan.options.reshape.masks.needs_secret:
        key = key.marked(run.random(16))
    new = NewBackup(
        run.repository,
        source=_source(plan),
        begun_ns=time.time_ns(),
        clock_ns=time.time_ns,
        random=run.random,
        tags={} if obfuscation else plan.manifest.tags,
        selection=Selection(() if obfuscation else tuple(glob.pattern for glob in plan.options.streams)),
    )
    made = make_changed_streams(run, plan, source, mask_key=key)
    results = [(planned, result.kept) for planned, result in zip(plan.streams, made, strict=True)]
    refuse_results(plan.manifest.id, plan.options, results, "copied")
    run.lease.check()
    manifest = _manifest(plan, new, made)
    leases.commit(run.repository, manifest, run.lease)
    return manifest, made


def _manifest(plan: ChangedCopyPlan, new: NewBackup, made: Sequence[Made]) -> Manifest:
    before = plan.manifest
    skipped = tuple(skip for skip in before.skipped if is_chosen(skip.name, plan.options.streams, ()))
    if (obfuscation := plan.options.reshape.obfuscation) is not None:
        skipped = tuple(obfuscated_skipped(skipped, obfuscation.names))
    manifest = new.manifest([made_stream.stored for made_stream in made])
    incomplete = skipped or any(made_stream.stored.stream.remarks for made_stream in made)
    return replace(manifest, result=before.result if incomplete else BackupResult.COMPLETE, skipped=skipped)


def _source(plan: ChangedCopyPlan) -> Source:
    before, options = plan.manifest, plan.options
    done = {"backup": before.id, "options": options.words, "cut": options.reshape.cut.typed}
    if options.reshape.obfuscation is not None:  # without the values of options, which name streams and subjects
        done["options"] = list(dict.fromkeys(word.partition(" ")[0] for word in options.words))
        return obfuscated_source(before.source, done)
    return replace(before.source, transformed=done)
