"""Streams to be replaced by a part: count the target's messages that the cut or filter leaves out, and that would be
lost.

Replacing a stream by a complete older backup takes it back to an earlier state, as intended. Replacing it by a part
does not: to get one key back, users do not want to lose all others. So the messages of the existing stream that the
selection leaves out are counted at the target, by its own subjects and sequences, and the plan is refused unless the
user confirms it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from jsbackup.engine.link.jetstream import MAX_DELETED, JetStream
from jsbackup.errors import NatsPermissionDenied, PlanRefused
from jsbackup.planning.model import Action, LeftOut, RestoreOptions, RestorePlan, Target
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.selection.subset import share_of
from jsbackup.protocol.info import StreamInfo
from jsbackup.readable import format_count
from jsbackup.repository.checks.verify import Problem
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.repository.pages.segment_list import parts_of
from jsbackup.transforms.cut import AtSequence, Cut, Edge, KeptShare
from jsbackup.transforms.filters.filters import Filters
from jsbackup.transforms.follow import subjects_of
from jsbackup.transforms.reshape import Reshape

__all__ = ["count_dropped", "count_left_out", "refuse_remains", "with_left_out"]

_HINT = (
    "Restore it under another name with --rename, or whole without the cut or filter; "
    "--replace-with-part replaces it anyway."
)
_SUBJECTS = {"--subject": "subject", "--exclude-subject": "exclude_subject"}
_REMAINS = "Restore it under another name with --rename; --replace-with-part replaces it anyway."


async def count_left_out(
    js: JetStream, manifest: Manifest, plan: RestorePlan, target: Target, *, options: RestoreOptions
) -> RestorePlan:
    """Return the plan with the number of messages that each replacement leaves out by their sequences and subjects.

    That is a refusal, or a warning if the user confirmed it. Nothing is changed. Raises NatsError.
    """
    reshape = options.reshape
    if not (reshape.cut or reshape.filters.by_subject):
        return plan
    entries = {entry.name: entry for entry in manifest.streams}
    counted: dict[str, LeftOut] = {}
    for action in plan.actions:
        there = target.streams.get(action.name)
        if action.replaces and there is not None and there.state.messages:
            left_out = await _left_out(js, entries[action.entry.name], action, there, reshape=reshape)
            if left_out.messages:
                counted[action.name] = left_out
    return _with(plan, counted, options)


def count_dropped(plan: RestorePlan, target: Target, options: RestoreOptions) -> RestorePlan:
    """Return the plan with a least number of messages that each replacement leaves out by their content, or because
    they are not the newest; as `count_left_out`, which has come before.

    What the target has of these is not known. So a stream counts of which the backup has some; or, before its messages
    were counted, every stream.
    """
    reshape = options.reshape
    by = list(dict.fromkeys(option for option, _ in reshape.filters.by_content))
    by += [] if reshape.newest is None else [str(reshape.newest)]
    counted: dict[str, LeftOut] = {}
    for action in plan.actions if by else ():
        there, kept = target.streams.get(action.name), action.entry.captured.messages
        if not action.replaces or there is None or not there.state.messages or action.left_out is not None:
            continue
        if action.reshape.drops_by_filters and (kept < action.had or not action.counted):
            held = there.state.messages
            counted[action.name] = LeftOut(min(held, max(held - kept, 1)), held, False, by=" and ".join(by))
    return _with(plan, counted, options)


def refuse_remains(
    plan: RestorePlan, target: Target, lost: Mapping[str, Collection[Problem]], options: RestoreOptions
) -> RestorePlan:
    """Return the plan, refused if the rest of a damaged backup would replace a stream that has more messages."""
    refusals = []
    for action in plan.actions:
        there = target.streams.get(action.name)
        if action.entry.name not in lost or not action.replaces or there is None or options.replace_with_part:
            continue
        left, held = action.entry.captured.messages, there.state.messages
        if left < held:
            gone = sum(problem.messages for problem in lost[action.entry.name])
            reason = (
                f"lacks {format_count(gone, 'lost message')}, has {left:,}, and would replace a stream with {held:,}"
            )
            refusals.append(Finding(action.entry.name, Rule.PART_REPLACES, reason, _REMAINS))
    return replace(plan, refusals=(*plan.refusals, *refusals))


def with_left_out(plan: RestorePlan, before: RestorePlan, options: RestoreOptions) -> RestorePlan:
    """Return a new plan with the counts of the one `before`."""
    counted = {action.name: action.left_out for action in before.actions if action.left_out is not None}
    return _with(plan, counted, options)


def _with(plan: RestorePlan, counted: Mapping[str, LeftOut], options: RestoreOptions) -> RestorePlan:
    refusals = list(plan.refusals)

    def with_count(action: Action) -> Action:
        left_out = counted.get(action.name)
        if left_out is None or action.left_out is not None:
            return action
        action = replace(action, left_out=left_out)
        if options.replace_with_part:
            finding = Finding(action.entry.name, Rule.DESTROYS_LEFT_OUT, _reason(left_out, "are"))
            return replace(action, warnings=(*action.warnings, finding))
        reason = f"would be replaced by a part of it: {_reason(left_out, 'would be')}"
        refusals.append(Finding(action.entry.name, Rule.PART_REPLACES, reason, _HINT))
        return action

    stages = tuple(tuple(with_count(action) for action in stage) for stage in plan.stages)
    return replace(plan, stages=stages, refusals=tuple(refusals))


def _reason(left_out: LeftOut, verb: str) -> str:
    least = "" if left_out.exact else "at least "
    subjects = "" if left_out.subjects is None else f" ({left_out.subjects:,} of {left_out.of_subjects:,} subjects)"
    return (
        f"left out by {left_out.by}: {least}{left_out.messages:,} of {format_count(left_out.of, 'message')} at the "
        f"target{subjects}, which {verb} deleted"
    )


@dataclass(frozen=True, slots=True)
class _Count:
    """How many messages are left out, or at least how many; subjects may be unknown."""

    messages: int
    exact: bool
    subjects: tuple[int, int] | None = None  # those left out, and all


async def _left_out(
    js: JetStream, entry: StreamBackup, action: Action, there: StreamInfo, *, reshape: Reshape
) -> LeftOut:
    held, counts, by = there.state.messages, [], []
    if reshape.filters.by_subject:
        counts.append(await _by_subjects(js, entry, action, reshape.filters))
        by += [option for option, name in _SUBJECTS.items() if getattr(reshape.filters, name)]
    if any(share_of(ref, reshape.cut) is not KeptShare.ALL for ref in parts_of(entry.segments)):
        counts.append(await _by_cut(js, action, there, reshape.cut))
        by += [f"--{name}" for name in reshape.cut.to_json()]
    counts = [count for count in counts if count.messages] or [_Count(0, True)]
    most = max(counts, key=lambda count: count.messages)
    exact = most.exact and (len(counts) == 1 or most.messages >= held)  # both may leave out the same messages, or not
    subjects = next((count.subjects for count in counts if count.subjects), None)
    gone, of = (None, None) if subjects is None else subjects
    return LeftOut(min(most.messages, held), held, exact, gone, of, " and ".join(by))


async def _by_subjects(js: JetStream, entry: StreamBackup, action: Action, filters: Filters) -> _Count:
    """Count the target's messages whose subjects are not selected."""
    info = await js.stream(action.name)
    excluded = await _of_subjects(js, entry, action, filters.exclude_subject, unknown=(">",))
    if filters.subject:
        selected = await _of_subjects(js, entry, action, filters.subject, unknown=())
        selected = {subject: count for subject, count in selected.items() if subject not in excluded}
        subjects = info.subject_count - len(selected)
        messages = max(info.state.messages - sum(selected.values()), 0)
    else:
        subjects, messages = len(excluded), sum(excluded.values())
    return _Count(messages, True, (subjects, info.subject_count) if subjects > 0 else None)


async def _of_subjects(
    js: JetStream, entry: StreamBackup, action: Action, patterns: Sequence[str], *, unknown: Sequence[str]
) -> dict[str, int]:
    """Return the subjects at the target, with their messages, that these patterns are for; of `unknown` ones where that
    is not known.
    """
    try:
        for maps in (action.reshape.maps, action.reshape.renames.subjects):
            if maps and patterns:
                patterns = maps.select(patterns, subjects_of(entry.config))
    except PlanRefused:
        patterns = unknown
    if action.reshape.obfuscation is not None:
        patterns = [action.reshape.obfuscation.names.subject(pattern) for pattern in patterns]
    found: dict[str, int] = {}
    for pattern in patterns:
        found |= await js.subjects(action.name, pattern)
    return found


async def _by_cut(js: JetStream, action: Action, there: StreamInfo, cut: Cut) -> _Count:
    """Count the target's messages before and after the cut."""
    state = there.state
    try:
        since = 1 if cut.since is None else await _first_at(js, there, cut.since, behind=False)
        until = state.last_seq if cut.until is None else await _first_at(js, there, cut.until, behind=True) - 1
    except NatsPermissionDenied:  # unknown; at least the difference between the two counts
        return _Count(max(state.messages - action.entry.captured.messages, 1), False)
    before = range(state.first_seq, min(since, state.last_seq + 1))
    after = range(max(until + 1, state.first_seq), state.last_seq + 1)
    outside = len(before) + len(after)
    if not state.deleted or not outside:
        return _Count(outside, True)
    if state.deleted <= MAX_DELETED:
        info = await js.stream(action.name, deleted_details=True)
        return _Count(outside - sum(one in before or one in after for one in info.deleted or ()), True)
    return _Count(max(outside - state.deleted, state.messages - action.entry.captured.messages, 1), False)


async def _first_at(js: JetStream, there: StreamInfo, edge: Edge, *, behind: bool) -> int:
    """Return the first sequence at or after an edge (`behind`: after it) of a stream at the target.

    Assumes that times rise with sequences, except where clocks were set back. Raises NatsPermissionDenied.
    """
    if isinstance(edge, AtSequence):
        return edge.sequence + behind
    time_ns = edge.time_ns + behind
    low, high = there.state.first_seq, there.state.last_seq + 1
    while low < high:
        middle = (low + high) // 2
        message = await js.next_message(there.name, middle)
        if message is None or message.timestamp_ns >= time_ns:
            high = middle
        else:
            low = message.sequence + 1
    return low
