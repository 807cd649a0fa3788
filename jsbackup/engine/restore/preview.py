"""Preview a restore: the same look at the target, the same plan, and everything that would block it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from jsbackup.config import Connection
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.engine.link.source import FindBackup, found_for
from jsbackup.engine.link.threads import in_thread, with_own_threads
from jsbackup.engine.restore.replacing import count_dropped, count_left_out
from jsbackup.engine.restore.sampling import sample_stored
from jsbackup.engine.restore.target import look_at, not_allowed
from jsbackup.errors import IntegrityError
from jsbackup.planning.model import RestoreOptions, RestorePlan, Target
from jsbackup.planning.preflight import locked_away, missing_objects
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.selection.chosen_streams import Listed
from jsbackup.planning.stored_facts import Planning
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.repository import Repository

__all__ = ["Preview", "preview_plan", "preview_restore"]

_LOST = "Restore what is left with --partial, or the stream from another backup."


@dataclass(frozen=True, slots=True)
class Preview:
    """A plan, refused or not, and the target that it was made for."""

    plan: RestorePlan
    target: Target


@with_own_threads
async def preview_restore(
    connection: Connection,
    repository: Repository,
    backup: Manifest | FindBackup,
    options: RestoreOptions,
    *,
    now_ns: Callable[[], int],
) -> Preview:
    """Plan a restore. Everything that blocks it is among the refusals, including missing permissions and lost objects.

    Objects are looked up, but only read where a cut goes through, to count what filters keep, and to test masks. Raises
    UsageError, NatsError and StoreError.
    """
    async with connect_jetstream(connection) as js:
        listed = Listed(await found_for(js, connection, backup), options)

        def make(target: Target) -> RestorePlan:
            nonlocal listed
            try:
                return _plan(repository, listed, target)
            except IntegrityError:
                listed = listed.without_broken_lists()
                return _plan(repository, listed, target)

        preview = await preview_plan(js, make, now_ns)
        manifest, options = listed.manifest, listed.options
        counted = await count_left_out(
            js, manifest, preview.plan, preview.target, options=options, held=repository.objects
        )
        preview = replace(preview, plan=count_dropped(counted, preview.target, options))
    plan = preview.plan
    lost = [
        Finding(problem.stream, Rule.OBJECT_LOST, problem.problem, _LOST)
        for problem in await in_thread(missing_objects, repository.objects, manifest, plan)
    ]
    lost += [Finding(name, Rule.OBJECT_LOST, error.message, _LOST) for name, error in listed.broken.items()]
    locked = await in_thread(locked_away, repository.objects, plan)
    return replace(preview, plan=replace(plan, refusals=(*plan.refusals, *locked, *lost)))


def _plan(repository: Repository, listed: Listed, target: Target) -> RestorePlan:
    planning = Planning(repository, target, listed.options)
    plan = planning.counted(listed.manifest, planning.plan(listed.manifest))
    return sample_stored(repository.objects, listed.manifest, plan, listed.options)


async def preview_plan(js: JetStream, make: Callable[[Target], RestorePlan], now_ns: Callable[[], int]) -> Preview:
    """Return the plan that `make` makes for the present target, with the user's missing permissions. Raises
    NatsError.
    """
    target = await look_at(js, now_ns())
    target = replace(target, round_trip_seconds=await js.link.rtt())
    plan = await in_thread(make, target)
    permissions = await not_allowed(js, [action for action in plan.actions if action.name not in target.silent])
    refusals = [*plan.refusals, *(found for found in permissions if found.rule.code)]
    warnings = [*plan.warnings, *(found for found in permissions if not found.rule.code)]
    return Preview(replace(plan, refusals=tuple(refusals), warnings=tuple(warnings)), target)
