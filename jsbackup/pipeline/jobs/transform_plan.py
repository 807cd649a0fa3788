"""Plan a transform: the changes of each stream of a backup, and what blocks them. Reads no messages.

The rules are those of a restore (`planning/reshaping.py`, `planning/selection/point_in_time.py`), so that a restore of
the new backup equals a restore of the old one with these options. Only `--latest-per-subject` is not an option of
restores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from jsbackup.config import Glob
from jsbackup.errors import PlanRefused, UsageError
from jsbackup.pipeline.jobs.compact import Group, grouped
from jsbackup.pipeline.messages.source import choose_streams
from jsbackup.planning.configs.stream_config import check_configs
from jsbackup.planning.model import Consumers, RestoreOptions, RestorePlan
from jsbackup.planning.preflight import refuse_if_refused
from jsbackup.planning.reshaping import Reshaped, rename_streams, reshape_stream
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.selection.point_in_time import against_cut, is_imported
from jsbackup.planning.selection.subset import segments_within
from jsbackup.planning.subjects import SubjectIndex, first_overlap
from jsbackup.repository import layout
from jsbackup.repository.manifest import ArchiveFormat, Manifest, StreamBackup
from jsbackup.transforms.rename import RenameOptions, StreamKind, bucket_of
from jsbackup.transforms.reshape import Reshape

__all__ = ["PlannedStream", "TransformOptions", "TransformPlan", "plan_transform"]


@dataclass(frozen=True, slots=True)
class TransformOptions:
    """The options. `streams` are names or globs; none means all."""

    streams: tuple[Glob, ...] = ()
    renames: RenameOptions = field(default_factory=RenameOptions)
    reshape: Reshape = field(default_factory=Reshape)  # without names, as in a restore
    latest_per_subject: bool = False
    consumers: Consumers = Consumers.ALL  # or NONE
    mask_may_miss: bool = False  # a mask may mask nothing
    pattern_may_miss: bool = False  # a map or a filter of subjects may match nothing
    allow_empty: bool = False  # nothing may be left of a stream that has messages

    @property
    def words(self) -> list[str]:
        """The options as typed. Edges of a cut are left out: they move on with each day, with the same meaning."""
        renames, reshape = self.renames, self.reshape
        words = [f"--rename {old}={new}" for old, new in renames.names]
        words += [f"--rename-prefix {renames.prefix}"] if renames.prefix else []
        words += [f"--map-subject {one}" for one in reshape.maps.maps]
        words += [f"--{name}" for name in reshape.cut.to_json()]
        words += [f"--subject {one}" for one in (reshape.subjects.patterns if reshape.subjects else ())]
        words += [f"--mask {one}" for one in reshape.masks.masks]
        words += [f"--unmaskable {reshape.masks.unmaskable}"] if reshape.masks else []
        words += ["--latest-per-subject"] if self.latest_per_subject else []
        return words + (["--consumers none"] if self.consumers is Consumers.NONE else [])


@dataclass(frozen=True, slots=True)
class PlannedStream:
    """One stream and its changes."""

    entry: StreamBackup
    reshaped: Reshaped
    latest: bool

    @property
    def reads(self) -> bool:
        """Whether its messages have to be read: they change, or move to another folder."""
        return (self.renamed or self.works) and bool(self.entry.segments)

    @property
    def renamed(self) -> bool:
        return self.reshaped.name != self.entry.name

    @property
    def drops(self) -> bool:
        return self.reshaped.messages.drops or self.latest

    @property
    def works(self) -> bool:
        """Whether its messages change."""
        return bool(self.reshaped.messages) or self.latest

    def groups(self, segment_bytes: int) -> list[Group]:
        """Return the segments that may be kept in part, those to be joined to segments of that size together."""
        return grouped(segments_within(self.entry, self.reshaped.messages.cut), segment_bytes)

    @property
    def incarnation(self) -> str:
        """A new incarnation, unless nothing changes: no backup of the server may reuse it as a state of the original
        stream.
        """
        if not self.renamed and not self.reads and not self.drops:
            return self.entry.incarnation
        return layout.incarnation("transform", self.entry.incarnation, self.reshaped.name, self.entry.created)


@dataclass(frozen=True, slots=True)
class TransformPlan:
    """The planned changes of a backup."""

    manifest: Manifest
    options: TransformOptions
    streams: tuple[PlannedStream, ...]


def plan_transform(manifest: Manifest, options: TransformOptions) -> TransformPlan:
    """Plan the changes of each stream; reads no messages.

    Raises:
        UsageError: the options name no stream of the backup, or nothing is to be done.
        PlanRefused, TargetConflict: a restore with these options would be refused.
        FormatError: a configuration is damaged.
    """
    if not options.words:
        raise UsageError("nothing to transform", hint="Say what to change, such as --mask or --rename-prefix.")
    entries = choose_streams(manifest, [glob.pattern for glob in options.streams])
    if options.consumers is Consumers.NONE:
        entries = [replace(entry, consumers=()) for entry in entries]
    asked = RestoreOptions(
        streams=options.streams,
        renames=options.renames,
        reshape=options.reshape,
        pattern_may_miss=options.pattern_may_miss,
    )
    restored, refusals = rename_streams(entries, asked, manifest.id)
    planned = []
    for entry in restored.streams:
        refusals += against_cut(entry, options.reshape.cut, imported=is_imported(manifest))
        check_configs(entry)
        reshaped = reshape_stream(entry, restored, asked)
        refusals += reshaped.refusals
        latest = options.latest_per_subject and entry.archive_format is not ArchiveFormat.CONFIG
        if latest:
            refusals += _against_latest(entry)
        planned.append(PlannedStream(entry, reshaped, latest))
    refusals += _new_overlaps(planned)
    refuse_if_refused(RestorePlan(manifest.id, (), tuple(refusals)), "transformed", "jsbackup plan")
    return TransformPlan(manifest, options, tuple(planned))


def _against_latest(entry: StreamBackup) -> Iterator[Finding]:
    if entry.archive_format is ArchiveFormat.OPAQUE:
        reason = "is stored undecoded; its messages cannot be told apart"
        yield Finding(entry.name, Rule.OPAQUE_RESHAPED, reason, "Name the streams to transform.")
    names = [entry.name, str((entry.config.get("mirror") or {}).get("name") or "")]
    if any(bucket_of(name)[0] is StreamKind.OBJECT for name in names):
        raise PlanRefused(
            f"nothing was transformed: stream {entry.name} is an object bucket, whose objects are in many messages of "
            "one subject",
            hint="Name the streams that --latest-per-subject is for.",
        )


def _new_overlaps(planned: Sequence[PlannedStream]) -> Iterator[Finding]:
    """Yield streams of which a server would accept only one because of the new subjects (not of the old ones)."""
    index = SubjectIndex()
    for one in planned:
        subjects = one.reshaped.config.get("subjects") or []
        for number, pair in index.overlaps(subjects):
            other = planned[number]
            before = first_overlap(one.entry.config.get("subjects") or [], other.entry.config.get("subjects") or [])
            if before is None:
                reason = f"its subject {pair[0]} overlaps with {pair[1]} of stream {other.reshaped.name}"
                hint = "Map subjects so that they stay apart, or transform one of them alone."
                yield Finding(one.entry.name, Rule.SUBJECT_OVERLAP_IN_PLAN, reason, hint)
        index.add(subjects)
