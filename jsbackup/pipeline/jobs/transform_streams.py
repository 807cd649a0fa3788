"""Carry out the transform of streams: messages by tasks, then states and consumers of the kept messages.

Messages are changed by tasks (`reshape_task.py`), and a stream's state and consumers as in a restore
(`planning/selection/subset.py`). What needs a pass before is found by other tasks: the newest messages of all subjects
(`newest.py`), and for new sequences how many messages each run of segments keeps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jsbackup.pipeline.jobs.job_run import JobRun
from jsbackup.pipeline.jobs.joining import Group, grouped, merge_groups
from jsbackup.pipeline.jobs.transform_plan import TransformPlan
from jsbackup.pipeline.tasks.packing import pack_tasks
from jsbackup.pipeline.tasks.reshape_passes import numbered_runs, with_newest_of
from jsbackup.pipeline.tasks.reshape_task import MaskKey, ReshapedRun, ReshapePieces, SegmentRun
from jsbackup.pipeline.tasks.tasks import OnSpark
from jsbackup.planning.selection.count_subset import WatchedConsumers
from jsbackup.planning.selection.renumbering import renumbered_entry
from jsbackup.planning.selection.subset import KeptSequences, KeptStream, kept_from, segments_within
from jsbackup.planning.transforming import PlannedStream, about_transformed, transformed_entry
from jsbackup.repository.manifest import Captured, StreamBackup, total_of
from jsbackup.repository.objects import Objects
from jsbackup.repository.segments import StoredSegments
from jsbackup.repository.write.new_backup import StoredStream
from jsbackup.repository.write.pending_acks import load_consumer, store_consumer
from jsbackup.times import format_time, parse_time
from jsbackup.transforms.cut import AtSequence, AtTime, Cut
from jsbackup.transforms.renumber import KnownRanks

__all__ = ["Made", "transform_streams"]


@dataclass(frozen=True, slots=True)
class Made:
    """A new stream, stored, with notes, and what is `kept` in it of the old one."""

    stored: StoredStream
    notes: tuple[str, ...]
    kept: KeptStream

    @property
    def entry(self) -> StreamBackup:
        return self.stored.stream


def transform_streams(run: JobRun[OnSpark], plan: TransformPlan, *, mask_key: MaskKey) -> list[Made]:
    """Store the streams of a plan. Raises the same errors as `transform_backup` (`transform.py`)."""
    return _Making(run, plan, mask_key).make()


@dataclass(frozen=True, slots=True)
class _Making:
    """One run of a plan."""

    run: JobRun[OnSpark]
    plan: TransformPlan
    mask_key: MaskKey

    @property
    def objects(self) -> Objects:
        return self.run.repository.objects

    def make(self) -> list[Made]:
        runner, place, progress = self.run.runner, self.run.place, self.run.progress
        reading = [one for one in self.plan.streams if one.reads]
        reading = with_newest_of(runner, place, reading, progress)
        consumers = {one.entry.name: self._watched(one) for one in reading}
        runs = [run for one in reading for run in self._runs(one, consumers[one.entry.name])]
        runs = numbered_runs(runner, place, self.mask_key, runs, progress=progress)
        parts: dict[str, list[ReshapedRun]] = {one.entry.name: [] for one in reading}
        obfuscation = self.plan.options.reshape.obfuscation
        for run, part in zip(runs, self._store(runs), strict=True):
            if obfuscation is not None:
                obfuscation.names.learn(part.hashed)
                part = replace(part, hashed=frozenset())
            parts[run.stream].append(part)
        stored = {name: ReshapedRun.joined(found) for name, found in parts.items()}
        merged = merge_groups(runner, place, [one.stored.refs for one in stored.values()], progress)
        stored = {name: one.merged_to(joined) for (name, one), joined in zip(stored.items(), merged, strict=True)}
        return [
            self._finished(one, stored.get(one.entry.name), consumers.get(one.entry.name)) for one in self.plan.streams
        ]

    def _watched(self, one: PlannedStream) -> WatchedConsumers:
        return WatchedConsumers(self.objects, one.entry if one.moves_consumers else replace(one.entry, consumers=()))

    def _runs(self, one: PlannedStream, consumers: WatchedConsumers) -> Iterator[SegmentRun]:
        folder = self.objects.sealing.folder(one.reshaped.name, one.incarnation)
        reshape, to_know = one.reshaped.messages, sorted(consumers.to_know)
        to_rank = sorted(consumers.to_rank) if reshape.renumber else []
        groups = groups_of(one, self.objects.segment_bytes)
        for number, group in enumerate(groups, start=1):
            first, last = group[0].first_seq, group[-1].last_seq
            # Ranks of sequences between two runs are those of the end of the first one.
            before = groups[number][0].first_seq if number < len(groups) else 1 << 63
            known = to_know[bisect_left(to_know, first) : bisect_right(to_know, last)]
            ranked = to_rank[bisect_left(to_rank, first) : bisect_left(to_rank, before)]
            run = SegmentRun.of(one.entry.name, group, reshape, folder=folder)
            yield replace(run, to_know=tuple(known), to_rank=tuple(ranked))

    def _store(self, runs: Sequence[SegmentRun]) -> Iterator[ReshapedRun]:
        tasks, weights = [], []
        for part in pack_tasks([run.bytes for run in runs], self.run.runner.cores):
            tasks.append(ReshapePieces(self.run.place, self.mask_key, tuple(runs[part])))
            weights.append(sum(run.bytes for run in runs[part]))
        for results in self.run.runner.run("the transform", tasks, weights=weights, progress=self.run.progress):
            yield from results

    def _finished(self, one: PlannedStream, stored: ReshapedRun | None, consumers: WatchedConsumers | None) -> Made:
        kept = self._kept(one, stored, consumers)
        found = list(about_transformed(one, kept, self.plan.options))
        notes = [finding.reason for finding in found if not finding.code]
        notes += [
            f"consumer {after.name}: {after.reason}"
            for before, after in zip(one.entry.consumers, kept.entry.consumers, strict=True)
            if after.reason != before.reason
        ]
        segments = one.entry.segments if stored is None else stored.stored.refs
        made = transformed_entry(one, kept)
        made = replace(
            made,
            incarnation=one.incarnation,
            segments=segments,
            digest=made.digest if stored is None else total_of(segments).digest,
            captured=_not_after(made.captured, one.reshaped.messages.cut, stored),
        )
        made = self._with_pending(made, moved=one.incarnation != one.entry.incarnation)
        added = StoredSegments() if stored is None else stored.stored
        return Made(StoredStream(made, added.reused, added.stored_bytes), tuple(notes), kept)

    def _kept(self, one: PlannedStream, stored: ReshapedRun | None, consumers: WatchedConsumers | None) -> KeptStream:
        """Return what is kept of a stream, as a restore finds it (`planning/selection/count_subset.py`)."""
        entry, messages, had = one.entry, one.reshaped.messages, one.entry.captured.messages
        if not entry.archive_format.has_messages or not one.works:
            return KeptStream(entry, had=had)
        stored = stored or ReshapedRun()
        if consumers is None:  # an empty stream
            consumers = WatchedConsumers(self.objects, entry)
        kept = entry
        if stored.counted.cut.messages or messages.cut:
            present = KeptSequences(stored.found, ())
            kept = kept_from(entry, messages.cut, stored.counted, present, whole=consumers.whole)
            if not one.moves_consumers:
                kept = replace(kept, consumers=entry.consumers)
        numbers = None
        if messages.renumber:
            extent = stored.counted.kept
            numbers = KnownRanks(stored.ranks, extent.last_seq, extent.messages)
            kept = renumbered_entry(kept, numbers)
        return KeptStream(
            kept, masked=stored.masked, had=had, matched=stored.matched, markers=stored.markers, numbers=numbers
        )

    def _with_pending(self, entry: StreamBackup, *, moved: bool) -> StreamBackup:
        """Store large pending sets in the new folder."""
        if not moved:
            return entry
        folder = self.objects.sealing.folder(entry.name, entry.incarnation)
        whole = (load_consumer(self.objects, consumer) for consumer in entry.consumers)
        return replace(entry, consumers=tuple(store_consumer(self.objects, folder, one) for one in whole))


def groups_of(one: PlannedStream, segment_bytes: int) -> list[Group]:
    """Return the segments that may be kept in part, those to be joined to segments of that size together."""
    return grouped(segments_within(one.entry, one.reshaped.messages.cut), segment_bytes)


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
