"""Checks before a restore sends anything: its plan is not refused, and the objects that it needs are there.

A restore reads each object once. So before anything is changed its objects are only looked at (`verify.py`). Each is
checked against its SHA-256 when it is read, before any of it is sent. If that fails, the incomplete stream is removed.

That must not cost what the target had before. So all objects of some streams are read twice, first here
(`damaged_objects`):

    a leftover of an interrupted restore, which is removed before its stream is sent
    a stream that is replaced: of several, all are replaced or none
    a stream that cannot be marked as incomplete, and that the server shows before it is complete

With `--partial` everything is read here first, because a plan without what is lost has to
know all of that. If objects are lost, a restore is refused, or planned again without them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from jsbackup.errors import (
    IntegrityError,
    KeyUnavailable,
    NatsPermissionDenied,
    PlanRefused,
    TargetConflict,
)
from jsbackup.planning.model import Action, RestorePlan, SendAs
from jsbackup.planning.plan import Decision
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.selection.subset import segments_within
from jsbackup.readable import alike, format_count, of_streams, without_name
from jsbackup.repository.checks.verify import Checker, Level, Problem, find_absent, verify_backup
from jsbackup.repository.crypto.access import NEEDS_IDENTITY
from jsbackup.repository.manifest import Manifest, StreamBackup, total_of
from jsbackup.repository.objects import Objects
from jsbackup.repository.pages.segment_list import parts_of
from jsbackup.transforms.cut import Cut

__all__ = [
    "LEFT",
    "LOST",
    "beyond_repair",
    "damaged_objects",
    "locked_away",
    "missing_objects",
    "needed",
    "refuse_if_refused",
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


def _needs_objects(action: Action) -> bool:
    pending = any(planned.pending is not None for planned in action.consumers)
    return pending or bool(parts_of(action.entry.segments) or action.entry.opaque)


LOST = "Restore what is left with --partial, or the stream from another backup."
"""What to do about a stream with lost objects."""

LEFT = (
    "See 'jsbackup verify' for all that is lost. Streams that are whole can be restored by name; "
    "--partial restores what is left of the others, too."
)
"""What to do about lost objects."""

_MOST_REASONS = 4  # reasons in one message


_ERRORS = {kind.exit_code: kind for kind in (TargetConflict, IntegrityError, KeyUnavailable, NatsPermissionDenied)}


def refuse_if_refused(plan: RestorePlan, done: str = "restored", preview: str = "jsbackup plan") -> None:
    """Raise the plan's refusals, as the error with its exit code.

    `done` is what was not done, `preview` the command that shows all refusals.
    """
    if not plan.refusals:
        return
    groups = alike(
        (refusal, refusal.stream, _of_any(refusal), (refusal.rule, without_name(refusal.stream, refusal.hint)))
        for refusal in plan.refusals
    )
    shown, hidden = groups[:_MOST_REASONS], groups[_MOST_REASONS:]
    more = sum(len({_of_any(finding) for finding in group}) for group in hidden)
    reasons = [*map(_sentence, shown), *([f"and {format_count(more, 'more reason')}"] if more > 0 else [])]
    message = f"nothing was {done}: {'; '.join(reasons)}"
    kind = _ERRORS.get(plan.code, PlanRefused)
    see, hints = f"See '{preview}' for all of it.", dict[str, list[str]]()
    for group in shown:
        if hint := _hint(group):
            hints.setdefault(hint, []).extend(finding.stream for finding in group if finding.stream)
    if len(hints) < 2:
        raise kind(message, hint=" ".join((*hints, see)))
    # One line for each, with its streams: texts of archives begin no line of their own.
    lines = [of_streams(list(dict.fromkeys(names)), " ".join(hint.split())) for hint, names in hints.items()]
    raise kind(message, hint="\n".join((*lines, see)))


def _of_any(finding: Finding) -> tuple[str, str]:
    """Return reason and hint without the stream's name."""
    return without_name(finding.stream, finding.reason), without_name(finding.stream, finding.hint)


def _sentence(group: Sequence[Finding]) -> str:
    """Return a reason after its streams; of several reasons the first one, as an example."""
    first = group[0]
    names = [name for name in dict.fromkeys(finding.stream for finding in group) if name]
    if all(finding.reason == first.reason for finding in group):
        return of_streams(names, first.reason)
    if len(names) > 1:
        return of_streams(names, f"for example {first.sentence}", example=True)
    return f"{first.sentence} (and {format_count(len(group) - 1, 'more reason')})"


def _hint(group: Sequence[Finding]) -> str:
    return (
        group[0].hint if len({finding.hint for finding in group}) == 1 else without_name(group[0].stream, group[0].hint)
    )


def missing_objects(objects: Objects, decision: Decision) -> list[Finding]:
    """Return refusals because of objects that are missing, or are not those that were stored as far as can be seen
    without reading them.

    Raises KeyUnavailable and StoreError.
    """
    return _lost(find_absent(objects, needed(decision)))


def damaged_objects(
    objects: Objects, decision: Decision, *, marking: bool, checker: Checker | None = None
) -> list[Finding]:
    """Return refusals because of objects that are missing, damaged or unreadable and that are read too late otherwise:
    after something at the target was removed. Raises StoreError.

    `marking`: streams can be marked while they are incomplete. A `checker` reads objects elsewhere.
    """
    late = {
        action.entry.name
        for action in decision.plan.actions
        if action.leftover or action.replaces or not _shows_that_it_is_half(action, marking)
    }
    chosen = needed(decision, late)
    return _lost(verify_backup(objects, chosen, Level.OBJECTS, checker=checker)) if late else []


def _shows_that_it_is_half(action: Action, marking: bool) -> bool:
    """Return whether a stream that is sent has a mark, or does not exist, until it is complete."""
    return action.wire in (SendAs.API, SendAs.V1) or (marking and not action.config.get("sealed"))


def _lost(problems: Iterable[Problem]) -> list[Finding]:
    return [Finding(problem.stream, Rule.OBJECT_LOST, problem.problem, LOST) for problem in problems]


def beyond_repair(problem: Problem) -> IntegrityError:
    """Return the error for a stream of which nothing can be restored."""
    return IntegrityError(
        f"no part of it can be restored: {problem.problem}", hint="Restore it from another backup, or another copy."
    )


def needed(decision: Decision, names: Collection[str] | None = None) -> Manifest:
    """Return the part of a backup that the plan needs; of all its streams, or of those with these names."""
    manifest, actions = decision.shapes.manifest, decision.plan.actions
    cuts = {action.entry.name: action.reshape.cut for action in actions if names is None or action.entry.name in names}
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
