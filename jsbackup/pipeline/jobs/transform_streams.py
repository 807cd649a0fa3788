"""Carry out the transform of streams: messages by tasks, then states and consumers of the kept messages.

Messages are changed by tasks (`reshape_task.py`), and a stream's state and consumers as in a restore
(`planning/selection/subset.py`). The newest messages of all subjects are found (`newest.py`) after the cut and the
filter of subjects, before masks and maps; markers of deleted keys are messages too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import SparkSession

from jsbackup.pipeline.jobs.compact import merge_groups
from jsbackup.pipeline.jobs.transform_plan import PlannedStream, TransformPlan
from jsbackup.pipeline.messages.newest import Sequences, newest_sequences
from jsbackup.pipeline.session.repository_ref import RepositoryRef
from jsbackup.pipeline.tasks.reshape_task import MaskKey, ReshapedRun, ReshapePieces, SegmentRun
from jsbackup.pipeline.tasks.tasks import pack_tasks, run_tasks
from jsbackup.planning.rules import Finding
from jsbackup.planning.selection.count_subset import WatchedConsumers
from jsbackup.planning.selection.masking import about_masks, about_nothing_kept
from jsbackup.planning.selection.subset import KeptSequences, kept_from
from jsbackup.progress import Progress
from jsbackup.repository.manifest import ArchiveFormat, Captured, StreamBackup, total_of
from jsbackup.repository.objects import Objects
from jsbackup.repository.write.pending_acks import load_consumer, store_consumer
from jsbackup.times import format_time, parse_time
from jsbackup.transforms.cut import AtSequence, AtTime, Cut
from jsbackup.transforms.mask import MaskCount
from jsbackup.transforms.reshape import Reshape

__all__ = ["Made", "transform_streams"]

_WITHOUT_MESSAGES = (ArchiveFormat.CONFIG, ArchiveFormat.OPAQUE)


@dataclass(frozen=True, slots=True)
class Made:
    """A new stream, stored, with notes. `masked` counts what masks did.

    `refusals` block the commit.
    """

    entry: StreamBackup
    notes: tuple[str, ...]
    refusals: tuple[Finding, ...] = ()
    masked: MaskCount = field(default_factory=MaskCount)


def transform_streams(
    session: SparkSession,
    place: RepositoryRef,
    objects: Objects,
    plan: TransformPlan,
    *,
    mask_key: MaskKey,
    progress: Progress | None = None,
) -> list[Made]:
    """Store the streams of a plan. Raises the same errors as `transform_backup` (`transform.py`)."""
    return _Making(session, place, objects, plan, mask_key, progress).make()


@dataclass(frozen=True, slots=True)
class _Making:
    """One run of a plan."""

    session: SparkSession
    place: RepositoryRef
    objects: Objects
    plan: TransformPlan
    mask_key: MaskKey
    progress: Progress | None

    def make(self) -> list[Made]:
        reading = [one for one in self.plan.streams if one.reads]
        newest = self._newest(reading)
        consumers = {
            one.entry.name: WatchedConsumers(self.objects, one.entry if one.drops else replace(one.entry, consumers=()))
            for one in reading
        }
        pieces = [
            piece
            for one in reading
            for piece in self._pieces(one, newest.get(one.entry.name), sorted(consumers[one.entry.name].to_know))
        ]
        stored = {one.entry.name: ReshapedRun() for one in reading}
        for piece, part in zip(pieces, self._run(pieces), strict=True):
            stored[piece.stream] = stored[piece.stream].followed_by(part)
        merged = merge_groups(self.session, self.place, [one.refs for one in stored.values()], self.progress)
        stored = {name: replace(one, refs=refs) for (name, one), refs in zip(stored.items(), merged, strict=True)}
        return [
            self._finished(one, stored.get(one.entry.name), consumers.get(one.entry.name)) for one in self.plan.streams
        ]

    def _newest(self, reading: Sequence[PlannedStream]) -> dict[str, list[Sequences]]:
        """Return what to keep of each group of a stream's segments."""
        asked = self.plan.options.reshape
        keeping = Reshape(cut=asked.cut, subjects=asked.subjects)
        wanted = {one.entry.name: one.groups(self.objects.segment_bytes) for one in reading if one.latest}
        if not wanted:
            return {}
        refs = {name: [ref for group in groups for ref in group] for name, groups in wanted.items()}
        found = newest_sequences(self.session, self.place, refs, keeping, progress=self.progress)
        kept: dict[str, list[Sequences]] = {}
        for name, groups in wanted.items():
            sequences, at = found[name], 0
            for group in groups:
                to = bisect_right(sequences, group[-1].last_seq, at, key=lambda value: value.as_py())
                kept.setdefault(name, []).append(Sequences.of(sequences.slice(at, to - at)))
                at = to
        return kept

    def _pieces(
        self, one: PlannedStream, newest: Sequence[Sequences] | None, to_know: Sequence[int]
    ) -> Iterator[SegmentRun]:
        folder = self.objects.sealing.folder(one.reshaped.name, one.incarnation)
        for number, group in enumerate(one.groups(self.objects.segment_bytes)):
            known = to_know[bisect_left(to_know, group[0].first_seq) : bisect_right(to_know, group[-1].last_seq)]
            kept = None if newest is None else newest[number]
            yield SegmentRun(one.entry.name, folder, (group,), one.reshaped.messages, kept, tuple(known))

    def _run(self, pieces: Sequence[SegmentRun]) -> Iterator[ReshapedRun]:
        tasks, weights = [], []
        for part in pack_tasks([piece.bytes for piece in pieces]):
            tasks.append(ReshapePieces(self.place, self.mask_key, tuple(pieces[part])))
            weights.append(sum(piece.bytes for piece in pieces[part]))
        for results in run_tasks(self.session, "the transform", tasks, weights=weights, progress=self.progress):
            yield from results

    def _finished(self, one: PlannedStream, stored: ReshapedRun | None, consumers: WatchedConsumers | None) -> Made:
        entry, reshaped = one.entry, one.reshaped
        cut = reshaped.messages.cut
        kept, found = entry, list(reshaped.warnings)
        if entry.archive_format in _WITHOUT_MESSAGES or not one.works:
            pass
        elif stored is not None and consumers is not None:
            kept = kept_from(entry, cut, stored.counted, KeptSequences(stored.found, ()), whole=consumers.whole)
            if not one.drops:
                kept = replace(kept, consumers=entry.consumers)
            found += about_masks(
                entry.name,
                entry.config,
                reshaped.messages.masks.masks,
                stored.masked,
                may_miss=self.plan.options.mask_may_miss,
            )
            if not kept.captured.messages:
                empty = self.plan.options.allow_empty
                found.append(about_nothing_kept(entry.name, entry.captured.messages, may_be_empty=empty))
        elif cut:  # an empty stream
            known = WatchedConsumers(self.objects, entry)
            kept = kept_from(entry, cut, ReshapedRun().counted, KeptSequences((), ()), whole=known.whole)
        notes = [finding.reason for finding in found if not finding.code]
        notes += [
            f"consumer {after.name}: {after.reason}"
            for before, after in zip(entry.consumers, kept.consumers, strict=True)
            if after.reason != before.reason
        ]
        segments = entry.segments if stored is None else stored.refs
        kept = replace(
            kept,
            name=reshaped.name,
            incarnation=one.incarnation,
            config=reshaped.config,
            segments=segments,
            digest=kept.digest if stored is None else total_of(segments).digest,
            captured=_not_after(kept.captured, cut, stored),
            consumers=tuple(replace(c, config=reshaped.consumers[c.name]) for c in kept.consumers),
        )
        return Made(
            self._with_pending(kept, moved=one.incarnation != entry.incarnation),
            tuple(notes),
            tuple(finding for finding in found if finding.code),
            MaskCount() if stored is None else stored.masked,
        )

    def _with_pending(self, entry: StreamBackup, *, moved: bool) -> StreamBackup:
        """Store large pending sets in the new folder."""
        if not moved:
            return entry
        folder = self.objects.sealing.folder(entry.name, entry.incarnation)
        whole = (load_consumer(self.objects, consumer) for consumer in entry.consumers)
        return replace(entry, consumers=tuple(store_consumer(self.objects, folder, one) for one in whole))


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
