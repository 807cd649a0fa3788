"""Check once, before anything is sent, whether the given keys open what a plan needs."""

from __future__ import annotations

from collections.abc import Iterator

from jsbackup.errors import KeyUnavailable, ObjectNotFound
from jsbackup.planning.model import RestorePlan
from jsbackup.planning.rules import Finding, Rule
from jsbackup.repository.crypto.access import NEEDS_IDENTITY
from jsbackup.repository.objects import Objects
from jsbackup.repository.pages.segment_list import parts_of

__all__ = ["locked_away", "refuse_if_locked"]

_REASON = "the messages of this backup are encrypted, and no key that reads them was given"


def locked_away(objects: Objects, plan: RestorePlan) -> list[Finding]:
    """Return a refusal if the plan needs objects that are encrypted for another key. Raises StoreError.

    One object is enough: a repository has one recipient, so a key opens everything or nothing. Only its head is read;
    missing and damaged objects are found when objects are checked.
    """
    for key in _needed(plan):
        try:
            opens = objects.can_open(key)
        except ObjectNotFound:
            continue
        return [] if opens else [Finding("", Rule.KEY_MISSING, _REASON, NEEDS_IDENTITY)]
    return []


def refuse_if_locked(objects: Objects, plan: RestorePlan) -> None:
    """Raise KeyUnavailable in that case; also StoreError."""
    for found in locked_away(objects, plan):
        raise KeyUnavailable(f"nothing was restored: {found.reason}", hint=found.hint)


def _needed(plan: RestorePlan) -> Iterator[str]:
    """Yield the keys of objects that would be read; of long lists only those of the pages on top."""
    for action in plan.actions:
        entry = action.entry
        yield from (part.key for part in parts_of(entry.segments))
        yield from (piece.key for piece in entry.opaque)
        yield from (planned.pending.key for planned in action.consumers if planned.pending is not None)
