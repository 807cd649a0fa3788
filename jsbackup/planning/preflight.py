"""Checks before a restore sends anything: its plan is not refused, and the objects that it needs are there.

A restore reads each object once. So before anything is changed its objects are only looked at (`verify.py`). Each is
checked against its SHA-256 when it is read, before any of it is sent. If that fails, the incomplete stream is removed.

That must not cost what the target had before. So all objects of some streams are read twice, first here
(`check_before_removal`):

    a leftover of an interrupted restore, which is removed before its stream is sent
    a stream that is replaced: of several, all are replaced or none
    a stream that cannot be marked as incomplete, and that the server shows before it is complete

With `--partial` everything is read here first, because a plan without what is lost has to
know all of that. If objects are lost, a restore is refused, or planned again without them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from jsbackup.errors import IntegrityError, KeyUnavailable, PlanRefused, TargetConflict
from jsbackup.failure import Failure
from jsbackup.planning.model import Action, RestorePlan, SendAs
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.selection.subset import segments_within
from jsbackup.readable import alike, format_count, of_streams, without_name
from jsbackup.repository.checks.verify import Checker, Level, Problem, find_absent, verify_backup
from jsbackup.repository.crypto.access import NEEDS_IDENTITY
from jsbackup.repository.manifest import Manifest, StreamBackup, total_of
from jsbackup.repository.objects import Objects
from jsbackup.repository.pages.segment_list import parts_of
from jsbackup.repository.read.losses import find_lost, salvage
from jsbackup.transforms.cut import Cut

__all__ = [
    "LEFT",
    "PartialPlan",
    "check_before_removal",
    "locked_away",
    "look_at_objects",
    "missing_objects",
    "plan_what_is_left",
    "refuse_if_locked",
    "refuse_if_refused",
    "without",
]


# --- readable keys ---
#
# Check once, before anything is sent, whether the given keys open what a plan needs.

_REASON = "the messages of this backup are encrypted, and no key that reads them was given"


def locked_away(objects: Objects, plan: RestorePlan) -> list[Finding]:
    """Return a refusal if the plan needs objects that are encrypted, and no key that reads them was given."""
    if objects.sealing.reads or not any(_needs_objects(action) for action in plan.actions):
        return []
    return [Finding("", Rule.KEY_MISSING, _REASON, NEEDS_IDENTITY)]


def refuse_if_locked(objects: Objects, plan: RestorePlan) -> None:
    """Raise KeyUnavailable in that case."""
    for found in locked_away(objects, plan):
        raise KeyUnavailable(f"nothing was restored: {found.reason}", hint=found.hint)


def _needs_objects(action: Action) -> bool:
    pending = any(planned.pending is not None for planned in action.consumers)
    return pending or bool(parts_of(action.entry.segments) or action.entry.opaque)


LEFT = (
    "See 'jsbackup verify' for all that is lost. Streams that are whole can be restored by name; "
    "--partial restores what is left of the others, too."
)
"""What to do about lost objects."""

_MOST_REASONS = 4  # reasons in one message


def refuse_if_refused(plan: RestorePlan, done: str = "restored", preview: str = "jsbackup plan") -> None:
    """Raise the plan's refusals: TargetConflict if there are only conflicts, else PlanRefused.

    `done` is what was not done, `preview` the command that shows all refusals.
    """
    if not plan.refusals:
        return
    groups = alike(
        (one, one.stream, _of_any(one), (one.rule, without_name(one.stream, one.hint))) for one in plan.refusals
    )
    shown, hidden = groups[:_MOST_REASONS], groups[_MOST_REASONS:]
    more = sum(len({_of_any(one) for one in group}) for group in hidden)
    reasons = [*map(_sentence, shown), *([f"and {format_count(more, 'more reason')}"] if more > 0 else [])]
    message = f"nothing was {done}: {'; '.join(reasons)}"
    kind = TargetConflict if all(r.code == TargetConflict.exit_code for r in plan.refusals) else PlanRefused
    see, hints = f"See '{preview}' for all of it.", dict[str, list[str]]()
    for group in shown:
        if hint := _hint(group):
            hints.setdefault(hint, []).extend(found.stream for found in group if found.stream)
    if len(hints) < 2:
        raise kind(message, hint=" ".join((*hints, see)))
    # One line for each, with its streams: texts of archives begin no line of their own.
    lines = [of_streams(list(dict.fromkeys(names)), " ".join(hint.split())) for hint, names in hints.items()]
    raise kind(message, hint="\n".join((*lines, see)))


def _of_any(found: Finding) -> tuple[str, str]:
    """Return reason and hint without the stream's name."""
    return without_name(found.stream, found.reason), without_name(found.stream, found.hint)


def _sentence(group: Sequence[Finding]) -> str:
    """Return a reason after its streams; of several reasons the first one, as an example."""
    first = group[0]
    names = [name for name in dict.fromkeys(found.stream for found in group) if name]
    if all(found.reason == first.reason for found in group):
        return of_streams(names, first.reason)
    if len(names) > 1:
        return of_streams(names, f"for example {first.sentence}", example=True)
    return f"{first.sentence} (and {format_count(len(group) - 1, 'more reason')})"


def _hint(group: Sequence[Finding]) -> str:
    return group[0].hint if len({found.hint for found in group}) == 1 else without_name(group[0].stream, group[0].hint)


def look_at_objects(objects: Objects, manifest: Manifest, plan: RestorePlan) -> None:
    """Raise IntegrityError if `missing_objects` finds any; raises as that."""
    _refuse_lost(missing_objects(objects, manifest, plan))


def check_before_removal(
    objects: Objects, manifest: Manifest, plan: RestorePlan, *, marking: bool, checker: Checker | None = None
) -> None:
    """Raise IntegrityError if any object is missing, damaged or unreadable that is read too late otherwise: after
    something at the target was removed. Also StoreError.

    `marking`: streams can be marked while they are incomplete. A `checker` reads objects elsewhere.
    """
    late = {
        action.entry.name
        for action in plan.actions
        if action.leftover or action.replaces or not _shows_that_it_is_half(action, marking)
    }
    if late:
        chosen = _chosen(manifest, _only(plan, late))
        _refuse_lost(verify_backup(objects, chosen, Level.OBJECTS, checker=checker))


def _shows_that_it_is_half(action: Action, marking: bool) -> bool:
    """Return whether a stream that is sent has a mark, or does not exist, until it is complete."""
    return action.wire in (SendAs.API, SendAs.V1) or (marking and not action.config.get("sealed"))


def _refuse_lost(problems: Iterable[Problem]) -> None:
    for problem in problems:
        raise IntegrityError(f"nothing was restored: stream {problem.stream}: {problem.problem}", hint=LEFT)


def missing_objects(objects: Objects, manifest: Manifest, plan: RestorePlan) -> list[Problem]:
    """Return objects that are missing, or are not those that were stored as far as can be seen without reading them.

    Raises as `find_absent`.
    """
    return list(find_absent(objects, _chosen(manifest, plan)))


@dataclass(frozen=True, slots=True)
class PartialPlan:
    """`plan` does without what is `lost`, by stream; `failures` are streams of which nothing can be restored.

    `manifest` is the backup without the lost objects.
    """

    plan: RestorePlan
    manifest: Manifest
    lost: Mapping[str, tuple[Problem, ...]]
    failures: tuple[Failure, ...]


def plan_what_is_left(
    objects: Objects,
    manifest: Manifest,
    plan: RestorePlan,
    replan: Callable[[Manifest], RestorePlan],
    *,
    checker: Checker | None = None,
) -> PartialPlan:
    """Return the plan for the rest of the streams that `plan` restores; `replan` makes one for another manifest.

    Raises as `find_lost`.
    """
    left = salvage(manifest, find_lost(objects, _chosen(manifest, plan), checker))
    if left.lost or left.beyond:
        plan = replan(left.manifest)
    failures = [Failure(name, _beyond(problem)) for name, problem in left.beyond.items()]
    return PartialPlan(without(plan, left.beyond), left.manifest, left.lost, tuple(failures))


def without(plan: RestorePlan, names: Collection[str]) -> RestorePlan:
    """Return the plan without these streams."""
    stages = (tuple(action for action in stage if action.entry.name not in names) for stage in plan.stages)
    return replace(plan, stages=tuple(filter(None, stages)))


def _only(plan: RestorePlan, names: Collection[str]) -> RestorePlan:
    return without(plan, {action.entry.name for action in plan.actions} - set(names))


def _beyond(problem: Problem) -> IntegrityError:
    return IntegrityError(
        f"no part of it can be restored: {problem.problem}", hint="Restore it from another backup, or another copy."
    )


def _chosen(manifest: Manifest, plan: RestorePlan) -> Manifest:
    """Return the part of a backup that the plan needs."""
    cuts = {action.entry.name: action.reshape.cut for action in plan.actions}
    streams = (_within(stream, cuts[stream.name]) for stream in manifest.streams if stream.name in cuts)
    return replace(manifest, streams=tuple(streams))


def _within(stream: StreamBackup, cut: Cut) -> StreamBackup:
    """Return the stream with only the segments that a cut may keep something of."""
    segments = segments_within(stream, cut)
    if len(segments) == len(stream.segments):
        return stream
    total = total_of(segments)
    captured = replace(
        stream.captured,
        messages=total.messages,
        bytes=total.bytes,
        first_seq=total.first_seq,
        last_seq=total.last_seq,
    )
    return replace(stream, segments=segments, captured=captured, digest=total.digest)
