"""Plans for a repository: the pure plan, with facts from messages and other backups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from jsbackup.errors import IntegrityError, KeyUnavailable, PlanRefused
from jsbackup.planning.copies.copy_positions import look_at_copies
from jsbackup.planning.model import Action, Outlived, RestoreOptions, RestorePlan, Target
from jsbackup.planning.plan import plan_restore
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.selection.count_subset import estimate, reshaped_messages, survey
from jsbackup.planning.selection.limited import LimitedStreams, Lived
from jsbackup.planning.selection.newest_pass import with_newest
from jsbackup.planning.selection.point_in_time import find_nearest, naming_nearest
from jsbackup.planning.selection.subset import KeptStream, kept_by_bounds
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.repository.repository import Repository
from jsbackup.transforms.cut import Cut

__all__ = ["Planning"]

_NAMING = (Rule.UNTIL_AFTER_BACKUP, Rule.UNTIL_BEFORE_FIRST)


@dataclass(frozen=True, slots=True)
class Planning:
    """What the plans of one restore share. The methods read the store: call them in a worker thread."""

    repository: Repository
    target: Target
    options: RestoreOptions
    _outlived: dict[Lived, Outlived] = field(default_factory=dict, init=False)

    def plan(self, manifest: Manifest) -> RestorePlan:
        """Return the plan; its cuts are exact if their segments can be read. Raises as `plan_restore`, and
        StoreError.
        """
        plan = plan_restore(manifest, self.target, self.options)
        facts = look_at_copies(self.repository.objects, manifest, plan)
        if facts.sources:
            plan = plan_restore(manifest, self.target, self.options, copies=facts)
        if any(action.reshape.cut for action in plan.actions):
            plan = self._knowing(manifest, plan, self._estimate)
            plan = replace(plan, refusals=tuple(self._named(manifest, finding) for finding in plan.refusals))
        else:
            plan = self._knowing(manifest, plan, None)
        return replace(plan, refusals=(*plan.refusals, *self._against_unwanted(manifest, plan)))

    def counted(self, manifest: Manifest, plan: RestorePlan) -> RestorePlan:
        """Return the plan with exact numbers of what filters keep, which takes a pass over these streams; `plan` itself
        if there are none. What masks do is not looked at. Raises StoreError.
        """
        if not any(action.reshape.drops_by_filters or action.reshape.renumber for action in plan.actions):
            return plan
        return self._knowing(manifest, plan, self._count)

    def settle(self, manifest: Manifest, plan: RestorePlan, secret: bytes) -> RestorePlan:
        """Return the plan after all kept messages were transformed; `plan` itself if it has only exact cuts.

        Raises as `survey`: nothing has been sent yet.
        """

        def surveyed(entry: StreamBackup, action: Action) -> KeptStream:
            return survey(self.repository.objects, entry, action.reshape, secret)

        if all(action.counted and not replace(action.reshape, cut=Cut()) for action in plan.actions):
            return plan
        return self._knowing(manifest, plan, surveyed)

    def _against_unwanted(self, manifest: Manifest, plan: RestorePlan) -> Iterator[Finding]:
        """Refuse messages with headers that the target does not support: all messages of such streams are read."""
        entries = {entry.name: entry for entry in manifest.streams}
        for action in plan.actions:
            asked = action.reshape
            if not asked.unwanted:
                continue
            objects, entry = self.repository.objects, entries[action.entry.name]
            try:
                look = replace(with_newest(objects, entry, asked.keeping), unwanted=asked.unwanted)
                for _ in reshaped_messages(objects, entry, look, b""):
                    pass
            except PlanRefused as found:
                yield Finding(action.entry.name, Rule.STREAM_FEATURE, found.message, found.hint or "")
            except (IntegrityError, KeyUnavailable):
                pass  # as in `_estimate`

    def _knowing(
        self, manifest: Manifest, plan: RestorePlan, look: Callable[[StreamBackup, Action], KeptStream | None] | None
    ) -> RestorePlan:
        """Plan again with what `look` finds out about each stream's backup, and with what decides about limits."""
        entries = {entry.name: entry for entry in manifest.streams}
        kept: dict[str, KeptStream] = {}
        if look is not None:
            found = {one.entry.name: look(entries[one.entry.name], one) for one in plan.actions if one.reshape}
            kept = {name: one for name, one in found.items() if one is not None}
            plan = plan_restore(manifest, self.target, self.options, kept, copies=plan.copies)
        limits = LimitedStreams(self.repository.objects, self.target, self.options)
        if expired := limits.expired(plan, entries):
            kept |= expired
            plan = plan_restore(manifest, self.target, self.options, kept, copies=plan.copies)
        if outlived := limits.outlived(plan, entries, self._outlived):
            reshapes = {action.entry.name: action.reshape for action in plan.actions}
            for name, one in outlived.items():
                known = kept.get(name) or kept_by_bounds(entries[name], reshapes[name])
                kept[name] = replace(known, outlived=one)
            plan = plan_restore(manifest, self.target, self.options, kept, copies=plan.copies)
        return replace(plan, refusals=(*plan.refusals, *limits.against_subject_limits(plan, entries)))

    def _estimate(self, entry: StreamBackup, action: Action) -> KeptStream | None:
        try:
            return estimate(self.repository.objects, entry, action.reshape)
        except (IntegrityError, KeyUnavailable):
            return None  # lost objects and missing keys are reported when objects are checked

    def _count(self, entry: StreamBackup, action: Action) -> KeptStream | None:
        asked = action.reshape
        if not (asked.drops_by_filters or asked.renumber):
            return self._estimate(entry, action)
        try:
            kept = survey(self.repository.objects, entry, replace(asked.keeping, renumber=asked.renumber), b"")
        except (IntegrityError, KeyUnavailable):
            return None  # as in `_estimate`
        return replace(kept, exact=not asked.masks_drop, counted=not asked.masks)

    def _named(self, manifest: Manifest, finding: Finding) -> Finding:
        if finding.rule not in _NAMING:
            return finding
        summaries, cut = self.repository.inventory().summaries, self.options.reshape.cut
        nearest = find_nearest(manifest, finding.stream, cut, summaries, manifest_of=self.repository.manifest)
        return naming_nearest(finding, nearest)
