"""Check once, before anything is sent, whether the given keys open what a plan needs."""

from __future__ import annotations

from jsbackup.errors import KeyUnavailable
from jsbackup.planning.model import Action, RestorePlan
from jsbackup.planning.rules import Finding, Rule
from jsbackup.repository.crypto.access import NEEDS_IDENTITY
from jsbackup.repository.objects import Objects
from jsbackup.repository.pages.segment_list import parts_of

__all__ = ["locked_away", "refuse_if_locked"]

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
