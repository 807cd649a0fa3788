"""Requested streams that a backup lacks and another backup has, as warnings of a plan."""

from __future__ import annotations

from dataclasses import replace

from jsbackup.planning.model import RestorePlan
from jsbackup.planning.rules import Finding, Rule
from jsbackup.repository.read.latest import Choice
from jsbackup.shell import quoted_command

__all__ = ["with_elsewhere"]


def with_elsewhere(plan: RestorePlan, choice: Choice) -> RestorePlan:
    """Return the plan with warnings about requested streams that only another backup has."""
    if not choice.elsewhere:
        return plan
    known = {one.stream for one in choice.elsewhere}
    left = (one for one in plan.warnings if one.rule is not Rule.INCOMPLETE_BACKUP or one.stream not in known)
    found = (
        Finding(
            one.stream,
            Rule.IN_ANOTHER_BACKUP,
            f"is not in backup {plan.backup}, but in {one.backup}, made {one.created[:19]}Z",
            f"Restore it from there: {quoted_command('restore', one.backup, one.stream)}.",
        )
        for one in choice.elsewhere
    )
    return replace(plan, warnings=(*left, *found))
