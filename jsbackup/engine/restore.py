"""Restore: a plan carried out against a server (`execution.py`) from what a repository holds.

Everything the plan needs is read and checked before the first chunk (`soundness.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from jsbackup.config import Connection
from jsbackup.engine.abandon import MARKER
from jsbackup.engine.backup import Failure, connect_jetstream
from jsbackup.engine.execution import Execution, RestoredStream, RestoreSettings, bytes_to_move
from jsbackup.engine.plan_file import SavedPlan, refuse_if_changed
from jsbackup.engine.planned import RestoreOptions, RestorePlan
from jsbackup.engine.planning import Planning
from jsbackup.engine.settle import RestoredConsumer
from jsbackup.engine.soundness import PartialPlan, check_objects, plan_what_is_left, refuse_if_refused, without
from jsbackup.engine.supply import StoredSupply, Supply
from jsbackup.engine.target import check_allowed, look_at, may_update
from jsbackup.engine.watch import advisories
from jsbackup.progress import Progress
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.repository import Repository

__all__ = ["MARKER", "RestoreReport", "RestoreSettings", "RestoredConsumer", "RestoredStream", "run_restore"]


@dataclass(frozen=True, slots=True)
class RestoreReport:
    plan: RestorePlan
    streams: tuple[RestoredStream, ...]
    failures: tuple[Failure, ...]


async def run_restore(
    connection: Connection,
    repository: Repository,
    manifest: Manifest,
    options: RestoreOptions,
    settings: RestoreSettings,
    progress: Progress,
    *,
    random: Callable[[int], bytes],
    now_ns: Callable[[], int] = time.time_ns,
    saved: SavedPlan | None = None,
) -> RestoreReport:
    """Plan and carry out. A refused plan raises PlanRefused or TargetConflict, and nothing was changed then.

    So does one that is no longer the plan that was `saved`, whose options are to be given.
    """
    async with connect_jetstream(connection) as js, advisories(js.link):
        target = await look_at(js, now_ns())
        planning = Planning(repository, target, options)
        plan = await asyncio.to_thread(planning.plan, manifest)
        if saved is not None:
            refuse_if_changed(saved, plan, target)
        refuse_if_refused(plan)
        await check_allowed(js, plan)
        sound = PartialPlan(plan, manifest, {}, ())
        if settings.partial:
            sound = await asyncio.to_thread(
                plan_what_is_left,
                repository.objects,
                manifest,
                plan,
                planning.plan,
            )
        else:
            await asyncio.to_thread(check_objects, repository.objects, manifest, plan)
        plan = await asyncio.to_thread(planning.settle, sound.manifest, sound.plan, settings.mask_secret)
        plan = without(plan, {failure.name for failure in sound.failures})
        refuse_if_refused(plan)
        marking = await may_update(js)
        progress.expect({action.name: bytes_to_move(action, settings) for action in plan.actions})

        @asynccontextmanager
        async def stored() -> AsyncIterator[Supply]:
            yield StoredSupply(repository.objects, settings.mask_secret)

        run = Execution(
            connection, stored, manifest.id, settings, progress, random, now_ns, target, marking, sound.lost
        )
        results, failures = await run.all(plan)
    failures = sorted([*failures, *sound.failures], key=lambda failure: failure.name)
    return RestoreReport(plan, tuple(results), tuple(failures))
