"""Plan what becomes of streams of a backup that are written elsewhere: as a new backup, or as files. Reads no messages.

The rules are those of a restore (`planning/reshaping.py`, `planning/selection/point_in_time.py`), so that a restore of
the result equals a restore of the old backup with these options.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from jsbackup.config import Glob
from jsbackup.errors import PlanRefused
from jsbackup.planning.configs.stream_config import check_configs
from jsbackup.planning.model import RestoreOptions, RestorePlan
from jsbackup.planning.preflight import refuse_if_refused
from jsbackup.planning.reshaping import Reshaped, about_kept, rename_streams, reshape_stream
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.selection.chosen_streams import against_missed
from jsbackup.planning.selection.masking import about_unseen, obfuscated_entry, unseen
from jsbackup.planning.selection.point_in_time import against_cut, is_imported
from jsbackup.planning.selection.subset import KeptStream, about_renumbered, against_renumbering
from jsbackup.planning.subjects import SubjectIndex, first_overlap
from jsbackup.repository import layout
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.transforms.obfuscate.names import keyed_hash
from jsbackup.transforms.rename import RenameOptions
from jsbackup.transforms.renumber import renumbered_consumer
from jsbackup.transforms.reshape import Reshape

__all__ = [
    "ChangeOptions",
    "PlannedStream",
    "about_changed",
    "changed_entry",
    "plan_streams",
    "refuse_results",
]


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """The options. `streams` are names or globs; none means all."""

    streams: tuple[Glob, ...] = ()
    renames: RenameOptions = field(default_factory=RenameOptions)
    reshape: Reshape = field(default_factory=Reshape)  # without names, as in a restore
    allow_nothing: bool = False  # as in a restore

    @property
    def words(self) -> list[str]:
        """The options as typed. Edges of a cut are left out: they move on with each day, with the same meaning."""
        renames, reshape = self.renames, self.reshape
        words = [f"--rename {old}={new}" for old, new in renames.names]
        words += [f"--map-subject {subject_map}" for subject_map in reshape.maps.maps]
        words += [f"--{name}" for name in reshape.cut.typed]
        words += reshape.filters.words
        words += [] if reshape.newest is None else [str(reshape.newest)]
        words += ["--renumber"] if reshape.renumber else []
        words += [f"--mask {mask}" for mask in reshape.masks.masks]
        words += [f"--unmaskable {reshape.masks.unmaskable}"] if reshape.masks else []
        return words + (["--obfuscate"] if reshape.obfuscation else [])


@dataclass(frozen=True, slots=True)
class PlannedStream:
    """One stream and its changes."""

    entry: StreamBackup
    reshaped: Reshaped

    @property
    def reads(self) -> bool:
        """Whether its messages have to be read: they change, or move to another folder."""
        return (self.renamed or self.works) and bool(self.entry.segments)

    @property
    def renamed(self) -> bool:
        return self.reshaped.name != self.entry.name

    @property
    def drops(self) -> bool:
        return self.reshaped.messages.drops

    @property
    def moves_consumers(self) -> bool:
        """Whether positions of consumers may change."""
        return self.drops or self.reshaped.messages.renumber

    @property
    def works(self) -> bool:
        """Whether its messages change."""
        return bool(self.reshaped.messages)

    @property
    def incarnation(self) -> str:
        """A new incarnation, unless nothing changes: no backup of the server may reuse it as a state of the original
        stream.
        """
        if not self.renamed and not self.reads and not self.moves_consumers:
            return self.entry.incarnation
        before, obfuscation = self.entry.incarnation, self.reshaped.messages.obfuscation
        if obfuscation is not None:  # it is a hash of names without a key
            before = keyed_hash(obfuscation.names.secret, before.encode())
        return layout.incarnation("transform", before, self.reshaped.name, self.entry.created)


def plan_streams(
    manifest: Manifest, entries: Sequence[StreamBackup], options: ChangeOptions, done: str
) -> tuple[PlannedStream, ...]:
    """Plan the changes of each stream; `done` says what is to be done with them, in errors.

    Raises:
        PlanRefused, TargetConflict: a restore with these options would be refused.
        FormatError: a configuration is damaged.
    """
    asked = RestoreOptions(
        streams=options.streams,
        renames=options.renames,
        reshape=options.reshape,
        allow_nothing=options.allow_nothing,
    )
    restored, refusals = rename_streams(entries, asked, manifest.id)
    planned = []
    for entry in restored.streams:
        refusals += against_cut(entry, options.reshape.cut, imported=is_imported(manifest))
        check_configs(entry)
        reshaped = reshape_stream(entry, restored, asked)
        refusals += reshaped.refusals
        planned.append(PlannedStream(entry, reshaped))
    renumbered = {stream.reshaped.name for stream in planned if stream.reshaped.messages.renumber}
    for stream in planned if renumbered else ():
        refusals += against_renumbering(stream.entry, stream.reshaped.name, stream.reshaped.config, renumbered)
    refusals += _new_overlaps(planned)
    refuse_if_refused(RestorePlan(manifest.id, (), tuple(refusals)), done, "jsbackup plan")
    return tuple(planned)


def changed_entry(planned: PlannedStream, kept: KeptStream) -> StreamBackup:
    """Return what was kept of the stream with its new name and configurations, which follow new sequences."""
    configs = planned.reshaped.consumers
    if kept.numbers is not None:
        configs = {name: renumbered_consumer(config, kept.numbers) for name, config in configs.items()}
    obfuscation = planned.reshaped.messages.obfuscation
    entry = kept.entry if obfuscation is None else obfuscated_entry(kept.entry, obfuscation.names)
    return replace(
        entry,
        name=planned.reshaped.name,
        config=planned.reshaped.config,
        consumers=tuple(
            replace(
                consumer, name=planned.reshaped.messages.consumer_name(consumer.name), config=configs[consumer.name]
            )
            for consumer in entry.consumers
        ),
    )


def about_changed(planned: PlannedStream, kept: KeptStream, options: ChangeOptions) -> Iterator[Finding]:
    """Yield findings on the result of a stream, after its messages were read. Some are refusals."""
    messages, meant = planned.reshaped.messages, options.allow_nothing
    yield from planned.reshaped.warnings
    if kept.had and planned.works:
        yield from about_kept(replace(kept, counted=True), messages, may_be_empty=meant, may_miss=meant)
        if messages.renumber:
            yield from about_renumbered(planned.entry, kept.entry)


def refuse_results(
    backup: str,
    options: ChangeOptions,
    results: Sequence[tuple[PlannedStream, KeptStream]],
    done: str,
    *,
    masks_only: bool = False,
) -> None:
    """Raise PlanRefused if a mask or a filter has found nothing, or no messages are left of a stream, unless an option
    allows it. All messages were read. `masks_only`: only for masks.
    """
    if options.allow_nothing:
        return
    total, left = (sum(counts) for counts in zip((0, 0), *map(_counts, results), strict=True))
    if total and not left and not masks_only:
        raise PlanRefused(
            f"nothing was {done}: none of the {total:,} messages would be left",
            hint="Check the options that choose messages, such as --since, --subject and --header.",
        )
    findings = [finding for stream, kept in results for finding in about_changed(stream, kept, options)]
    refusals = [
        finding for finding in findings if finding.code and not (masks_only and finding.rule is Rule.KEEPS_NOTHING)
    ]
    if left:
        masks = options.reshape.masks.masks
        refusals += about_unseen(unseen(masks, [kept.masked for _, kept in results]), may_miss=False)
    if left and not masks_only:
        matched = sum((kept.matched for _, kept in results if kept.matched is not None), Counter())
        refusals += against_missed(options.reshape.filters, matched)
    refuse_if_refused(RestorePlan(backup, (), tuple(refusals)), done, "jsbackup plan")


def _counts(result: tuple[PlannedStream, KeptStream]) -> tuple[int, int]:
    """Return how many messages a stream had, and has now."""
    planned, kept = result
    return planned.entry.captured.messages, kept.entry.captured.messages


def _new_overlaps(planned: Sequence[PlannedStream]) -> Iterator[Finding]:
    """Yield streams of which a server would accept only one because of the new subjects (not of the old ones)."""
    index = SubjectIndex()
    for stream in planned:
        subjects = stream.reshaped.config.get("subjects") or []
        for number, pair in index.overlaps(subjects):
            other = planned[number]
            before = first_overlap(stream.entry.config.get("subjects") or [], other.entry.config.get("subjects") or [])
            if before is None:
                reason = f"its subject {pair[0]} overlaps with {pair[1]} of stream {other.reshaped.name}"
                hint = "Map subjects so that they stay apart, or take one of them alone."
                yield Finding(stream.entry.name, Rule.SUBJECT_OVERLAP_IN_PLAN, reason, hint)
        index.add(subjects)
