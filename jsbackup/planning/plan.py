"""The decision about a restore or a clone: `shape` its streams, find out the facts, `judge` both.

A shape is one stream as it is asked for: its name, configuration and cut at the target. `stored_facts.py` and the
engine find out what a shape needs. Nothing is sent and nothing is read here. Every decision has its reason, its
consequences are warnings, and anything that blocks a stream is a refusal, each with its rule (`rules.py`); one refusal
refuses the whole plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jsbackup.model import ArchivedConsumer, Fidelity, JsonObject
from jsbackup.planning.archive_choice import choose_wire, is_kept_in_memory
from jsbackup.planning.configs.features import (
    fit_consumer,
    fit_stream,
)
from jsbackup.planning.configs.limits import against_limits
from jsbackup.planning.configs.overrides import against_overrides, against_subjects
from jsbackup.planning.configs.stream_config import (
    about_config,
    adapt,
    against_config,
    as_created,
    check_configs,
    config_changes,
    overrides_for,
)
from jsbackup.planning.copies.copies import cut_of_copy, ends_of_mirrors, fit_copies
from jsbackup.planning.copies.copy_facts import NOTHING_KNOWN, CopyFacts
from jsbackup.planning.copies.creation_order import origins_first
from jsbackup.planning.copies.mirrors import about_origins, against_origins, configs_after
from jsbackup.planning.forecast import (
    about_destroyed,
    about_left_out,
    about_messages,
    against_expiry,
    estimate_seconds,
    find_dropped,
    find_expiring,
    may_come_again,
)
from jsbackup.planning.interrupted import find_copies, grown_leftovers, is_marked
from jsbackup.planning.model import (
    Action,
    Consumers,
    IfExists,
    LeftOut,
    Outlived,
    PlannedConsumer,
    RestoreOptions,
    RestorePlan,
    SendAs,
    Target,
)
from jsbackup.planning.reshaping import Reshaped, about_deliveries, about_kept, rename_streams, reshape_stream
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.selection.chosen_streams import (
    about_missed,
    about_missing,
    choose_streams,
    staged_copies,
    with_cause,
)
from jsbackup.planning.selection.masking import about_unseen, unseen
from jsbackup.planning.selection.point_in_time import against_cut, is_imported
from jsbackup.planning.selection.subset import KeptStream, about_renumbered, against_renumbering, kept_by_bounds
from jsbackup.planning.subjects import SubjectIndex
from jsbackup.protocol.info import stored_config
from jsbackup.repository.manifest import ArchiveFormat, ConsumerBackup, Manifest, StreamBackup
from jsbackup.server_state import stream_state_to_json
from jsbackup.strict_json import write_json
from jsbackup.transforms.renumber import renumbered_consumer
from jsbackup.transforms.subjects import contains

__all__ = ["Decision", "Facts", "Shape", "Shapes", "judge", "plan_restore", "shape"]

_OCCUPIED = (
    "Choose --if-exists skip (also after an interrupted restore) or replace, or restore beside it with --rename."
)


@dataclass(frozen=True, slots=True)
class Shape:
    """One stream as it is asked for: `entry` is its backup, whole; `wanted` its configuration for any server, `config`
    that for the target. `unmet` is what blocks its cut.
    """

    entry: StreamBackup
    options: RestoreOptions  # with what is for this stream only
    reshaped: Reshaped
    wanted: JsonObject
    config: JsonObject
    overrides: JsonObject
    wire: SendAs
    wire_reason: str
    replaces: bool
    unmet: Sequence[Finding]
    refusals: Sequence[Finding]

    @property
    def name(self) -> str:
        return self.reshaped.name


@dataclass(frozen=True, slots=True)
class Shapes:
    """The streams of a restore, those that are skipped, and what blocks or warns before any stream is looked at.
    `ends` are the streams that are cut because their origins end before them.
    """

    manifest: Manifest
    target: Target
    options: RestoreOptions
    streams: Sequence[Shape]
    skipped: tuple[Finding, ...]
    refusals: Sequence[Finding]
    lacking: tuple[Finding, ...]
    ends: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about the streams of a backup, by name. Where nothing is known, bounds of segments count.

    `expired` is the number of messages that are older than the planned `max_age`; `outlived` what is known of the times
    to live of single messages; `left_out` what a replacement leaves out. `findings` were made by reading. Of streams
    `beyond` repair nothing can be restored. `live`: the messages are those that a server has now, and whose own
    `max_age` has left them. `early`: filters are counted later.
    """

    kept: Mapping[str, KeptStream] = field(default_factory=dict)
    copies: CopyFacts = NOTHING_KNOWN
    expired: Mapping[str, int] = field(default_factory=dict)
    outlived: Mapping[str, Outlived] = field(default_factory=dict)
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    beyond: frozenset[str] = frozenset()
    live: bool = False
    early: bool = False

    def kept_of(self, shape: Shape) -> KeptStream:
        """Return what is kept of a stream, as far as that is known."""
        return self.kept.get(shape.entry.name) or kept_by_bounds(shape.entry, shape.reshaped.messages)


@dataclass(frozen=True, slots=True)
class Decision:
    """A plan, refused or not, and what it was made of."""

    shapes: Shapes
    facts: Facts
    plan: RestorePlan

    @property
    def target(self) -> Target:
        return self.shapes.target

    @property
    def entries(self) -> dict[str, StreamBackup]:
        """The streams of the plan as they are in the backup, by name."""
        return {shape.entry.name: shape.entry for shape in self.shapes.streams}

    def knowing(self, facts: Facts) -> Decision:
        """Judge again with other facts."""
        return Decision(self.shapes, facts, judge(self.shapes, facts))

    def finding(self, more: Iterable[Finding]) -> Decision:
        """Judge again with these findings too; itself if there are none."""
        findings = (*self.facts.findings, *more)
        return self if findings == self.facts.findings else self.knowing(replace(self.facts, findings=findings))


def plan_restore(
    manifest: Manifest, target: Target, options: RestoreOptions, facts: Facts | None = None
) -> RestorePlan:
    """Plan a restore of `manifest` into `target`, if all facts are known. Raises the errors of `shape`."""
    facts = facts or Facts()
    return judge(shape(manifest, target, options, facts.copies.ends), facts)


def shape(manifest: Manifest, target: Target, options: RestoreOptions, ends: Mapping[str, int] | None = None) -> Shapes:
    """Shape the streams that a restore of `manifest` into `target` is asked for; those with `ends` are cut there.

    Raises:
        UsageError: the options match no stream of the backup.
        FormatError: a configuration is damaged.
    """
    staged = list(staged_copies(manifest, options))
    chosen = choose_streams(manifest, options, staged)
    restored, refusals = rename_streams(chosen, options, manifest.id)
    names = {restored.reshape.stream_name(entry.name): entry for entry in restored.streams}
    target = replace(target, leftovers=target.leftovers - grown_leftovers(names, target))
    skipped = [copy for copy in staged if copy.rule is Rule.STAGED_COPY]
    going: list[StreamBackup] = []
    for entry in restored.streams:
        name = restored.reshape.stream_name(entry.name)
        if options.if_exists is IfExists.SKIP and (_exists(name, target) or name in target.unborn | target.silent):
            skipped.append(Finding(entry.name, _rule_of(name, target), _there(name, target, entry.name)))
        else:
            going.append(entry)
    ends = {**(ends or {}), **ends_of_mirrors(going, manifest, target)}
    streams = []
    for entry in going:
        own = options.of_stream(entry.name)
        check_configs(entry)
        reshaped = adapt(reshape_stream(entry, restored, own), entry, target, own)
        if entry.name in ends and (entry.archive_format is not ArchiveFormat.OPAQUE):
            cut = cut_of_copy(reshaped.messages.cut, ends[entry.name])
            reshaped = replace(reshaped, messages=replace(reshaped.messages, cut=cut))
        overrides = overrides_for(entry, target, own)
        # An imported configuration may have the mark of an interrupted restore.
        asked = stored_config({**reshaped.config, **overrides})
        wanted = as_created({key: value for key, value in asked.items() if value is not None}, target)
        config = fit_stream(wanted, target.version)
        wire, why, problem = choose_wire(entry, reshaped.name, config, manifest.source, target=target, options=own)
        streams.append(
            Shape(
                entry=entry,
                options=own,
                reshaped=reshaped,
                wanted=wanted,
                config=config,
                overrides=overrides,
                wire=wire,
                wire_reason=why,
                replaces=_exists(reshaped.name, target) and options.if_exists is IfExists.REPLACE,
                unmet=list(against_cut(entry, options.reshape.cut, imported=is_imported(manifest))),
                refusals=[*([problem] if problem is not None else []), *reshaped.refusals],
            )
        )
    lacking = tuple(about_missing(manifest, options, staged))
    return Shapes(manifest, target, options, streams, tuple(skipped), refusals, lacking, ends)


def judge(shapes: Shapes, facts: Facts) -> RestorePlan:
    """Return the plan for these streams, given the facts."""
    manifest, target, options = shapes.manifest, shapes.target, shapes.options
    refusals, actions = list(shapes.refusals), []
    for shape in shapes.streams:
        action, reasons = _judge_stream(shape, facts, target)
        actions.append(action)
        refusals += shape.unmet
        # A cut that cannot be met always keeps nothing.
        refusals += [finding for finding in reasons if not (shape.unmet and finding.rule is Rule.KEEPS_NOTHING)]
    if not any(finding.rule is Rule.MASK_AIMLESS for finding in refusals):
        refusals += _unseen(facts.kept, actions, options)
    refusals = with_cause(refusals, list(about_missed(facts.kept, actions, options)), actions)
    refusals += _renumbering(actions)
    actions, ahead = fit_copies(actions, manifest, target, options, facts=facts.copies, cuts=shapes.ends)
    refusals += ahead
    refusals += _overlaps(actions, target)
    refusals += against_limits(actions, target)
    refusals += against_origins(actions, target)
    refusals += _too_large(actions, target)
    refusals += [finding for finding in facts.findings if finding.code]
    selves = {finding.stream for finding in refusals if finding.rule is Rule.ITSELF}
    refusals = [finding for finding in refusals if finding.stream not in selves or finding.rule is Rule.ITSELF]
    brought, configs = {action.name for action in actions}, configs_after(actions, target)
    noted = [finding for finding in facts.findings if not finding.code]
    actions = [
        replace(
            action,
            warnings=(
                *action.warnings,
                *about_origins(action, brought, configs, target),
                *(finding for finding in noted if finding.stream == action.entry.name),
            ),
            seconds=estimate_seconds(action, target),
        )
        for action in actions
    ]
    if len(actions) == 1 and not options.allow_nothing:  # of several it may be meant for others
        actions = [replace(action, filters_may_miss=False) for action in actions]
    by_name = {action.name: action for action in actions if action.entry.name not in facts.beyond}
    stages = origins_first({name: action.config for name, action in by_name.items()})
    ordered = tuple(tuple(by_name[name] for name in stage) for stage in stages)
    return RestorePlan(manifest.id, ordered, tuple(refusals), shapes.skipped, shapes.lacking)


def _unseen(kept: Mapping[str, KeptStream], actions: Sequence[Action], options: RestoreOptions) -> Iterable[Finding]:
    """Yield findings on masks that matched no message of the whole restore, if all messages were read."""
    counted = [kept[action.entry.name] for action in actions if action.entry.name in kept]
    if options.allow_nothing or len(counted) < len(actions) or not all(action.counted for action in counted):
        return ()
    if not any(action.entry.captured.messages for action in counted):
        return ()
    return about_unseen(unseen(options.reshape.masks.masks, [action.masked for action in counted]), may_miss=False)


def _renumbering(actions: Sequence[Action]) -> Iterable[Finding]:
    """Refuse new sequences that mirrors and sources cannot follow."""
    renumbered = {action.name for action in actions if action.reshape.renumber}
    for action in actions if renumbered else ():
        yield from against_renumbering(action.entry, action.name, action.config, renumbered)


def _renumbered(config: JsonObject, kept: KeptStream) -> JsonObject:
    """Return a consumer's configuration for the new sequences of its stream, if it gets some."""
    return config if kept.numbers is None else renumbered_consumer(config, kept.numbers)


def _exists(name: str, target: Target) -> bool:
    return name in target.streams and name not in target.leftovers


def _is_grown(name: str, target: Target) -> bool:
    """Return whether it is a leftover of an interrupted restore that has been used since."""
    return _exists(name, target) and is_marked(target.streams[name].config)


def _rule_of(name: str, target: Target) -> Rule:
    """Return the rule for a skipped stream."""
    if name in target.silent:
        return Rule.SILENT
    return Rule.LEFTOVER_KEPT if _is_grown(name, target) else Rule.SKIPPED


def _there(name: str, target: Target, old_name: str) -> str:
    """Say that the stream is there; under which name, if that is not the one it had."""
    reason = "exists at the target" if name == old_name else f"{name} exists at the target"
    if name in target.silent:
        return f"{reason} and does not answer"
    if not _is_grown(name, target):
        return reason
    return f"{reason}: a leftover of an interrupted restore, with newer messages or consumers"


def _judge_stream(shape: Shape, facts: Facts, target: Target) -> tuple[Action, list[Finding]]:
    kept, name, options, config = facts.kept_of(shape), shape.name, shape.options, shape.config
    entry, reshaped = kept.entry, shape.reshaped
    consumers: list[PlannedConsumer] = []
    if options.consumers is not Consumers.NONE:
        consumers = [
            _plan_consumer(
                replace(
                    consumer,
                    name=reshaped.messages.consumer_name(consumer.name),
                    config=_renumbered(reshaped.consumers[consumer.name], kept),
                ),
                config,
                shape.wire,
                target,
                options=options,
            )
            for consumer in entry.consumers
        ]
    action = Action(
        entry=entry,
        name=name,
        wire=shape.wire,
        wire_reason=shape.wire_reason,
        config=config,
        replaces=shape.replaces,
        leftover=name in target.leftovers | target.unborn,
        forced=options.if_exists is IfExists.REPLACE,
        changes=tuple(config_changes(entry.config, shape.wanted, shape.overrides)),
        consumers=tuple(consumers),
        reshape=reshaped.with_chosen(kept),
        counted=kept.exact,
        first_dropped=kept.first_dropped,
        times=kept.times,
        may_miss=options.allow_nothing,
        had=kept.had,
        may_be_empty=options.allow_nothing or not options.reshape.drops,
        copies=tuple(copy for copy in find_copies(target.streams) if copy.original == name),
        expiring=find_expiring(kept, config, target.now_ns, expired=facts.expired.get(entry.name), live=facts.live),
        outlived=facts.outlived.get(entry.name, Outlived()),
    )
    expiry = list(against_expiry(action, target, options, live=facts.live))
    left_out = facts.left_out.get(entry.name)
    if left_out is None and not facts.early:
        left_out = find_dropped(action, target, options)
    if left_out is not None and not any(findings.rule is Rule.PART_REPLACES for findings in expiry):
        action = replace(action, left_out=left_out)
    findings = list(about_kept(kept, action.reshape, may_be_empty=action.may_be_empty, may_miss=action.may_miss))
    findings += [*about_deliveries(action, target), *about_left_out(action, options)]
    if action.reshape.renumber:
        findings += about_renumbered(shape.entry, entry)
    warnings = (
        *about_config(action, target),
        *about_messages(action, target),
        *_about_consumers(action),
        *(about_destroyed(action, target.streams[name]) if action.replaces else ()),
        *_staged_before(action),
        *reshaped.warnings,
        *(finding for finding in findings if not finding.code),
    )
    refusals = [*_taken(action, target, options), *against_config(action, shape.wanted, target, options)]
    refusals += against_overrides(action)
    refusals += against_subjects(action, reshaped.config, options)
    refusals += [finding for finding in findings if finding.code]
    return replace(action, warnings=warnings), [*refusals, *shape.refusals, *expiry]


def _taken(action: Action, target: Target, options: RestoreOptions) -> Iterable[Finding]:
    """Refuse names that are occupied by a stream or a restore."""
    name = action.entry.name
    if action.name in target.silent:
        hint = "Wait until it has a leader, or leave it out with --exclude; --if-exists skip leaves it as it is."
        yield Finding(name, Rule.SILENT, _there(action.name, target, name), hint)
    if options.if_exists is not IfExists.FAIL:
        return
    if _exists(action.name, target):
        yield Finding(name, Rule.EXISTS, _there(action.name, target, name), _OCCUPIED)
    if action.name in target.unborn:
        hint = "If that one has failed, choose --if-exists replace."
        yield Finding(name, Rule.NAME_TAKEN, "has a name that another restore uses", hint)


def _plan_consumer(
    entry: ConsumerBackup, stream: JsonObject, wire: SendAs, target: Target, *, options: RestoreOptions
) -> PlannedConsumer:
    config = fit_consumer(entry.config, target.version)
    replicas, most = config.get("num_replicas", 0), stream.get("num_replicas", 1)
    # If consumers decide what a stream keeps, servers require as many replicas for them as for the stream.
    if replicas > most or (replicas != most and stream.get("retention", "limits") != "limits"):
        config.pop("num_replicas", None)  # as many as the stream
    consumer = ArchivedConsumer(entry.name, config, entry.state, entry.created)
    if wire is SendAs.OPAQUE:
        return PlannedConsumer(consumer, entry.fidelity, entry.reason, above_floor=entry.above_floor)
    if options.consumers is Consumers.CONFIG or entry.state is None:
        note = entry.reason or "starts from its beginning"
    elif wire is not SendAs.V2 and is_kept_in_memory(entry):
        note = "starts from its beginning: only a v2 restore (2.15) brings the state of a consumer kept in memory"
    else:
        return PlannedConsumer(consumer, entry.fidelity, entry.reason, entry.pending, entry.above_floor)
    return PlannedConsumer(replace(consumer, state=None), Fidelity.CONFIG_ONLY, note)


def _about_consumers(action: Action) -> Iterable[Finding]:
    floors = [
        f"{planned.consumer.name} (at most {may_come_again(action.entry, planned) or 0:,})"
        for planned in action.consumers
        if planned.fidelity is Fidelity.FLOOR and planned.consumer.state is not None
    ]
    if floors:
        reason = f"messages may be redelivered to consumers of which only the ack floor is known: {', '.join(floors)}"
        yield Finding(action.entry.name, Rule.ACK_FLOOR, reason)
    if action.config.get("retention") == "interest" and not action.consumers and action.entry.captured.messages:
        yield Finding(
            action.entry.name,
            Rule.NOBODY_INTERESTED,
            "keeps messages only for its consumers, and none is restored: the target may delete all messages",
            "Restore its consumers as well.",
        )


def _staged_before(action: Action) -> Iterable[Finding]:
    """Warn about copies that interrupted replacements have left beside the stream."""
    for copy in action.copies:
        when = "when this stream is in place" if copy.needed else "before anything else"
        reason = f"an earlier replace was interrupted and left the copy {copy.name}, which is removed {when}"
        yield Finding(action.entry.name, Rule.STAGED_BEFORE, reason)


def _overlaps(actions: Sequence[Action], target: Target) -> Iterable[Finding]:
    """Refuse subjects that overlap with those of other streams, which clusters do not check during a restore.

    That includes streams that will be replaced: they exist until their turn comes.
    """
    names = list(target.streams)
    index, planned = SubjectIndex(), SubjectIndex()
    for stream in target.streams.values():
        index.add(stream.config.get("subjects") or [])
    for action in actions:
        ours = action.config.get("subjects") or []
        for number, pair in index.overlaps(ours):
            name = names[number]
            if name != action.name:
                reason = f"its subject {pair[0]} overlaps with {pair[1]} of stream {name} at the target"
                hint = f"{_how_to_map(action, pair[0])}, leave it out with --exclude, or change that one."
                yield Finding(action.entry.name, Rule.SUBJECT_OVERLAP, reason, hint)
        for number, pair in planned.overlaps(ours):
            other = actions[number].name
            reason = f"its subject {pair[0]} overlaps with {pair[1]} of stream {other} in the same backup"
            hint = "Leave one of them out with --exclude, or map its subjects with --map-subject."
            yield Finding(action.entry.name, Rule.SUBJECT_OVERLAP_IN_PLAN, reason, hint)
        planned.add(ours)


def _how_to_map(action: Action, subject: str) -> str:
    """Return what maps this subject of the stream. A map of a part of it leaves it as it is."""
    for subject_map in action.reshape.maps.maps:
        if subject_map.source != subject and contains(subject, subject_map.source):
            return f"--map-subject {subject_map} leaves the rest of {subject} as it is: map {subject} as a whole"
    return "Map its subjects with --map-subject"


def _too_large(actions: Sequence[Action], target: Target) -> Iterable[Finding]:
    """Refuse configurations that do not fit into one message to the target."""
    for action in actions:
        request = {"config": action.config, "state": stream_state_to_json(action.entry.state)}
        size = len(write_json(request, f"the configuration of stream {action.entry.name}"))
        if 0 < target.max_payload_bytes < size:
            yield Finding(
                action.entry.name,
                Rule.REQUEST_TOO_LARGE,
                f"has a configuration of {size} bytes, the max_payload of the target is {target.max_payload_bytes}",
                "Raise max_payload at the target.",
            )
