"""Conflicts between several restores that will be executed one after another.

Pure, like `plan.py`. Conflicts with the target are in each plan; this finds conflicts between the plans in one account:
the same stream twice, overlapping subjects, common limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from jsbackup.planning.configs.limits import against_limits
from jsbackup.planning.copies.mirrors import against_origins
from jsbackup.planning.model import Action, RestorePlan, Target
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.same_jetstream import JetStreamPlace
from jsbackup.planning.subjects import SubjectIndex

__all__ = ["PlannedPart", "against_each_other"]


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """One of the restores: its plan, and the target as it was before all of them, with its place.

    `name` is how messages call it; without one they count the restores.
    """

    plan: RestorePlan
    target: Target
    place: JetStreamPlace
    name: str = ""


def against_each_other(parts: Sequence[PlannedPart]) -> list[tuple[Finding, ...]]:
    """Return for each restore the conflicts with those before it. Messages count them from 1."""
    findings: list[tuple[Finding, ...]] = []
    for at, part in enumerate(parts):
        before = {
            other.name or f"restore {number}": other.plan
            for number, other in enumerate(parts[:at], start=1)
            if other.place.same(part.place)
        }
        findings.append(tuple(_against(part, before)) if before else ())
    return findings


def _against(part: PlannedPart, before: dict[str, RestorePlan]) -> Iterator[Finding]:
    unknown = (
        " It is not known whether the accounts differ; allow the users to publish to $SYS.REQ.USER.INFO to find out."
        if part.place.account is None
        else ""
    )
    others = [(restore, action) for restore, plan in before.items() for action in plan.actions]
    subjects = SubjectIndex()
    named: dict[str, set[int]] = {}
    for at, (_, other) in enumerate(others):
        subjects.add(other.config.get("subjects") or [])
        named.setdefault(other.name, set()).add(at)
    for action in part.plan.actions:
        name = action.entry.name
        pairs = dict(subjects.overlaps(action.config.get("subjects") or []))
        for at in sorted(pairs.keys() | named.get(action.name, set())):
            restore, other = others[at]
            if other.name == action.name:
                reason = f"would become stream {action.name}, which {restore} restores too"
                hint = f"Leave one of them out with --exclude, or rename it with --rename.{unknown}"
                yield Finding(name, Rule.SAME_STREAM, reason, hint)
            else:
                ours, theirs = pairs[at]
                reason = f"its subject {ours} overlaps with {theirs} of stream {other.name} of {restore}"
                hint = f"Leave one of them out with --exclude, or map its subjects with --map-subject.{unknown}"
                yield Finding(name, Rule.SUBJECT_OVERLAP_IN_PLAN, reason, hint)
    names = {action.name for action in part.plan.actions}
    earlier = [other for _, other in others if other.name not in names]
    # What a restore meets alone is among its own refusals.
    known = {(one.stream, one.rule) for group in (part.plan.actions, earlier) for one in _of_all(group, part.target)}
    for one in _of_all([*earlier, *part.plan.actions], part.target):
        if (one.stream, one.rule) not in known:
            yield one


def _of_all(actions: Sequence[Action], target: Target) -> Iterator[Finding]:
    """Yield refusals for the actions together."""
    return chain(against_limits(actions, target), against_origins(actions, target))
