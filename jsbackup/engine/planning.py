"""Plans of what a repository holds: the pure plan, with what only messages and other backups tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from jsbackup.engine.copy_look import look_at_copies
from jsbackup.engine.cutting import find_nearest, naming_nearest
from jsbackup.engine.kept import Kept
from jsbackup.engine.plan import plan_restore
from jsbackup.engine.planned import Action, RestoreOptions, RestorePlan, Target
from jsbackup.engine.rules import Finding, Rule
from jsbackup.engine.survey import estimate, survey
from jsbackup.errors import IntegrityError, KeyUnavailable
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.repository.repository import Repository

__all__ = ["Planning"]

_NAMING = (Rule.UNTIL_AFTER_BACKUP, Rule.UNTIL_BEFORE_FIRST)


@dataclass(frozen=True, slots=True)
class Planning:
    """What the plans of one restore have in common. The methods read the store: they are meant for a worker thread."""

    repository: Repository
    target: Target
    options: RestoreOptions

    def plan(self, manifest: Manifest) -> RestorePlan:
        """The plan, cuts of it exact where their segments can be read. Raises as `plan_restore`, and StoreError."""
        plan = plan_restore(manifest, self.target, self.options)
        facts = look_at_copies(self.repository.objects, manifest, plan)
        if facts.sources:
            plan = plan_restore(manifest, self.target, self.options, copies=facts)
        if not any(action.reshape.cut for action in plan.actions):
            return plan
        plan = self._knowing(manifest, plan, self._estimate)
        return replace(plan, refusals=tuple(self._named(manifest, finding) for finding in plan.refusals))

    def settle(self, manifest: Manifest, plan: RestorePlan, secret: bytes) -> RestorePlan:
        """The plan when every message that is kept has been through its transforms; `plan` if there are none.

        Raises as `survey`: nothing has been sent yet.
        """

        def surveyed(entry: StreamBackup, action: Action) -> Kept:
            return survey(self.repository.objects, entry, action.reshape, secret)

        return self._knowing(manifest, plan, surveyed) if any(action.reshape for action in plan.actions) else plan

    def _knowing(
        self, manifest: Manifest, plan: RestorePlan, look: Callable[[StreamBackup, Action], Kept | None]
    ) -> RestorePlan:
        """The plan that comes of what `look` finds of each stream's backup."""
        entries = {entry.name: entry for entry in manifest.streams}
        found = {
            action.entry.name: look(entries[action.entry.name], action) for action in plan.actions if action.reshape
        }
        kept = {name: one for name, one in found.items() if one is not None}
        return plan_restore(manifest, self.target, self.options, kept, plan.copies)

    def _estimate(self, entry: StreamBackup, action: Action) -> Kept | None:
        try:
            return estimate(self.repository.objects, entry, action.reshape)
        except (IntegrityError, KeyUnavailable):
            return None  # what is lost, or needs another key, is told where objects are looked at

    def _named(self, manifest: Manifest, finding: Finding) -> Finding:
        if finding.rule not in _NAMING:
            return finding
        entry = next(entry for entry in manifest.streams if entry.name == finding.stream)
        summaries = self.repository.inventory().summaries
        return naming_nearest(
            finding, find_nearest(entry, self.options.reshape.cut, summaries, self.repository.manifest)
        )
