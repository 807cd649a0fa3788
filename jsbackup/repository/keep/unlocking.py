"""Remove the leases of commands that are gone, for `jsbackup unlock`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from jsbackup.errors import JsBackupError, ObjectLocked, ObjectNotFound, UsageError
from jsbackup.repository.keep.holder_process import is_gone
from jsbackup.repository.keep.seen_leases import LeaseText, SeenLease, list_leases, read_lease, remove_lease
from jsbackup.stores.base import Store, late_seconds_of

__all__ = ["LeaseOutcome", "unlock_leases"]


@dataclass(frozen=True, slots=True)
class LeaseOutcome:
    """A lease, and whether it was removed.

    `text` is None if it cannot be read: `problem` says why, unless it was renewed or released at this moment.
    `process_gone`: it was held on this machine, by a process that has ended. `locked` says why it could not be removed.
    """

    seen: SeenLease
    live: bool
    text: LeaseText | None = None
    process_gone: bool = False
    removed: bool = False
    problem: str | None = None
    locked: str | None = None

    @property
    def damaged(self) -> bool:
        """Whether it is a damaged one that stays because nobody asked to remove it."""
        return self.problem is not None and not self.removed and self.locked is None


def unlock_leases(store: Store, wanted: Collection[str], now_seconds: float, *, force: bool) -> list[LeaseOutcome]:
    """Remove leases that have expired, or whose process is gone; with `force` active ones too. Returns all leases.

    `wanted` are the ids of those that may be removed, all if it is empty. `now_seconds` is the store's time. A process
    that is gone may still have a request on its way to a store that is late.

    Raises:
        UsageError: there is no such lease.
        StoreError: the store does not answer.
    """
    found = list_leases(store)
    if unknown := sorted(set(wanted) - {seen.key.id for seen in found}):
        raise UsageError(f"no lease {unknown[0]}", hint="See 'jsbackup unlock' for those there are.")
    outcomes = []
    for seen in found:
        outcome = _looked_at(store, seen, now_seconds)
        is_over = not outcome.live or (outcome.process_gone and late_seconds_of(store) == 0)
        if (not wanted or seen.key.id in wanted) and (force or is_over):
            try:
                remove_lease(store, seen)
                outcome = replace(outcome, removed=True)
            except ObjectLocked as error:
                outcome = replace(outcome, locked=error.message)
        outcomes.append(outcome)
    return outcomes


def _looked_at(store: Store, seen: SeenLease, now_seconds: float) -> LeaseOutcome:
    live = seen.is_live(now_seconds)
    try:
        text = read_lease(store, seen)
    except ObjectNotFound:  # renewed or released at this moment
        return LeaseOutcome(seen, live)
    except JsBackupError as error:
        return LeaseOutcome(seen, live, problem=error.message)
    return LeaseOutcome(seen, live, text, text.process is not None and is_gone(text.process))
