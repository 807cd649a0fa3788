"""Forget: take backups out of a repository. `plan_…` decides and changes nothing; `remove_decided` deletes.

Only manifests are deleted. Objects that no other manifest names are then unused, and `prune` removes them later; in
this order a repository stays valid. Manifests are deleted one by one, oldest first, after a catalog without them was
written. If it is killed, some backups are gone, the others are complete, and the same command does the rest:

- before the catalog: nothing has happened;
- between the catalog and a deletion: the backup is no longer in the catalog, but its manifest is listed, so it still
  exists for everyone (`inventory.py`), and the next catalog covers it again;
- after a deletion: the backup is gone, and the objects that only it named are unused.

In doubt nothing is deleted: neither a backup whose manifest a policy cannot read (it can still be removed by its id),
nor one that is held when its turn comes, nor a sound one in favour of one that is known to be damaged, or that lacks an
object (`damage.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial

from jsbackup.errors import JsBackupError, ObjectLocked, StoreError, UsageError
from jsbackup.readable import format_count
from jsbackup.repository import layout
from jsbackup.repository.catalog import contradicted, list_catalogs
from jsbackup.repository.inventory import UnreadableBackup, find_missing, newest_catalog, settle_catalog, write_catalog
from jsbackup.repository.keep.damage import LostObjects, absent_objects, find_damaged
from jsbackup.repository.keep.holds import Hold, find_hold, held_backups, is_held
from jsbackup.repository.keep.retention import Decisions, KeptBackup, Policy, RemovedBackup, apply_policy
from jsbackup.repository.read.sources import Grouping
from jsbackup.repository.repository import Repository

__all__ = ["LOCKED_REASON", "ForgetPlan", "plan_by_ids", "plan_by_policy", "remove_decided"]

_log = logging.getLogger(__name__)

LOCKED_REASON = "locked by the store, for now"


@dataclass(frozen=True, slots=True)
class ForgetPlan:
    """What `remove_decided` will do. `unreadable` backups are kept; `warnings` are about catalogs that could not be
    used. `damaged` are the ids of backups that take no other's place, in order. Neither names backups that the policy
    does not apply to: their own profile tells of them.
    """

    decisions: Decisions
    unreadable: tuple[UnreadableBackup, ...] = ()
    warnings: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()


def plan_by_policy(
    repository: Repository, policy: Policy, grouping: Grouping, *, now_ns: int, profile: str = ""
) -> ForgetPlan:
    """Decide which backups a policy removes. `now_ns` is Unix time; `profile` is the profile that the policy belongs
    to.

    Raises:
        UsageError: the policy is empty, or keeps only tags that no backup has.
        IntegrityError, UnsupportedError: it cannot be read which objects were found damaged.
        KeyUnavailable: nothing can be read without a key that was not given.
        StoreError: the store does not answer.
    """
    inventory = repository.inventory()
    missed = [rule for rule in policy.tags if not any(map(rule.matches, inventory.summaries))]
    if missed and inventory.summaries and replace(policy, tags=()).is_empty and len(missed) == len(policy.tags):
        raise UsageError(
            f"no backup has the tag {missed[0]}, so the policy would keep nothing",
            hint="See 'jsbackup list' for the tags there are.",
        )
    notes = [f"--keep-tag {rule}: no backup has this tag" for rule in missed]
    held = held_backups(repository)
    damaged = find_damaged(repository, frozenset(summary.id for summary in inventory.summaries))
    if not repository.documents.signs:
        witnessed = list_catalogs(repository.documents).witnessed
        manifests = {entry.id: entry.sha256 for entry in inventory.entries if entry.id in witnessed}
        damaged |= contradicted(repository.documents, manifests)
    decide = partial(apply_policy, policy, inventory, held, now_ns=now_ns, grouping=grouping, profile=profile)
    decisions, damaged = _decide_surely(absent_objects(repository), decide, damaged)
    others = {decision.backup for decision in decisions.kept if decision.of_others}
    unreadable = tuple(decision for decision in inventory.unreadable if decision.id not in others)
    if others and not any(summary.profile == profile for summary in inventory.summaries):
        notes.append(f"no backup was made for profile {profile}: what others were made for, its policy does not remove")
    return ForgetPlan(decisions, unreadable, (*inventory.warnings, *notes), tuple(sorted(damaged - others)))


def _decide_surely(
    absent_objects: LostObjects, decide: Callable[..., Decisions], damaged: frozenset[str]
) -> tuple[Decisions, frozenset[str]]:
    """Decide so that no backup is removed in favour of one that lacks an object. Also returns the damaged backups.

    Nothing is looked for where nothing is removed.
    """
    looked_at = frozenset[str]()
    while True:
        decisions = decide(damaged=damaged)
        groups = {decision.group for decision in decisions.removed}
        displacing = {decision.backup for decision in decisions.kept if decision.displaces and decision.group in groups}
        absent = absent_objects.backups_with(displacing - damaged - looked_at)
        if not absent:
            return decisions, damaged
        looked_at, damaged = looked_at | displacing, damaged | absent


def plan_by_ids(repository: Repository, backups: Collection[str]) -> ForgetPlan:
    """Plan to remove exactly these backups (ids). One whose manifest is lost is removed from the catalog.

    Raises:
        UsageError: one of them does not exist.
        JsBackupError: one of them is held.
    """
    catalog, warnings = newest_catalog(repository.documents)
    ids = sorted({*repository.backups(), *(entry.id for entry in (catalog.entries if catalog else ()))})
    named = set(backups)
    if not named <= set(ids):  # a lost backup that only its successor names can be given up, too
        ids = sorted({*ids, *(gap.backup for gap in find_missing(repository.documents))})
    for backup in sorted(named.difference(ids)):
        raise UsageError(f"no backup {backup}", hint="See `jsbackup list` for those there are.")
    for backup in sorted(named & held_backups(repository)):
        raise _is_held(backup, find_hold(repository, backup))
    return ForgetPlan(
        Decisions(
            kept=tuple(KeptBackup(backup, "", ("not named",)) for backup in ids if backup not in named),
            removed=tuple(RemovedBackup(backup, "", "named") for backup in ids if backup in named),
        ),
        warnings=warnings,
    )


def _is_held(backup: str, hold: Hold | None) -> JsBackupError:
    since = f" since {hold.created}" if hold and hold.created else ""
    reason = f": {hold.reason}" if hold and hold.reason else ""
    return JsBackupError(
        f"backup {backup} is held{since}{reason}",
        hint=f"Nothing was removed. If it is no longer needed: 'jsbackup hold --release {backup}'.",
    )


def remove_decided(repository: Repository, decisions: Decisions) -> Decisions:
    """Delete the backups to be removed. Returns what was done.

    A backup may have been held meanwhile, and a store with object lock keeps (`LOCKED_REASON`) objects until their lock
    ends.

    Raises:
        IntegrityError: a backup that is not among them was removed or replaced; nothing was deleted.
        KeyUnavailable: documents are signed or encrypted, and the needed keys were not given; nothing was deleted.
        UnsupportedError: the newest catalog needs a newer tool; nothing was deleted.
        StoreError: the store fails; the hint says how far it went, and so does its fact `removed`.
    """
    if not decisions.removed:
        return decisions
    # In a signed repository, a catalog without them proves that they were forgotten, not lost.
    generation = write_catalog(repository.documents, without=[decision.backup for decision in decisions.removed])
    kept, removed_backups = list(decisions.kept), list[RemovedBackup]()
    for decision in sorted(decisions.removed, key=lambda decision: decision.backup):
        try:
            if is_held(repository, decision.backup):
                kept.append(KeptBackup(decision.backup, decision.group, ("held",)))
                continue
            repository.documents.delete(layout.manifest_key(decision.backup))
        except ObjectLocked:
            kept.append(KeptBackup(decision.backup, decision.group, (LOCKED_REASON,)))
            continue
        except StoreError as error:
            removed = format_count(len(decisions.removed), "backup")
            done = f"{len(removed_backups)} of {removed} removed; run it again to remove the others."
            raise error.with_more_hint(done).with_facts(removed=len(removed_backups)) from error.__cause__
        _log.info("removed backup %s: %s", decision.backup, decision.reason)
        removed_backups.append(decision)
    try:
        settle_catalog(repository.documents, generation, [decision.backup for decision in removed_backups])
    except JsBackupError as error:  # the backups are gone, and there is hardly ever anything to do
        _log.warning("the catalog of backups could not be read again: %s", error.message)
    return Decisions(tuple(sorted(kept, key=lambda decision: decision.backup)), tuple(removed_backups))
