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
from jsbackup.engine.execution import Execution, RestoredStream, RestoreSettings, bytes_to_move
from jsbackup.engine.failure import Failure
from jsbackup.engine.jetstream import JetStream, connect_jetstream
from jsbackup.engine.plan_file import SavedPlan, refuse_if_changed
from jsbackup.engine.planned import RestoreOptions, RestorePlan, Target
from jsbackup.engine.planning import Planning
from jsbackup.engine.readable import refuse_if_locked
from jsbackup.engine.replacing import count_left_out, refuse_remains, with_left_out
from jsbackup.engine.settle import RestoredConsumer
from jsbackup.engine.settled_copies import look_again
from jsbackup.engine.soundness import PartialPlan, check_objects, plan_what_is_left, refuse_if_refused, without
from jsbackup.engine.source import FindBackup, found_for
from jsbackup.engine.supply import StoredSupply, Supply
from jsbackup.engine.target import check_allowed, look_at, may_update
from jsbackup.engine.watch import advisories
from jsbackup.errors import PlanRefused
from jsbackup.progress import Progress
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.repository import Repository
from jsbackup.repository.verify import Checker

__all__ = [
    "MARKER",
    "Prepared",
    "Prospect",
    "RestoreReport",
    "RestoreSettings",
    "RestoredConsumer",
    "RestoredStream",
    "begin_restore",
    "carry_out",
    "make_sure",
    "prepare_restore",
    "refuse_if_stale",
    "run_restore",
]

_AGAIN = "Plan again, and look at it."


@dataclass(frozen=True, slots=True)
class RestoreReport:
    plan: RestorePlan
    streams: tuple[RestoredStream, ...]
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class Prospect:
    """A restore that nothing at the target stands against. Objects were not looked at."""

    planning: Planning
    plan: RestorePlan
    marking: bool


@dataclass(frozen=True, slots=True)
class Prepared:
    """A restore that may begin: all was checked, nothing was changed. `sound` is what the repository has of it."""

    plan: RestorePlan
    target: Target
    sound: PartialPlan
    marking: bool


async def run_restore(
    connection: Connection,
    repository: Repository,
    backup: Manifest | FindBackup,
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
        manifest = await found_for(js, connection, backup)
        prepared = await prepare_restore(js, repository, manifest, options, settings, now_ns, saved)
        return await carry_out(js, connection, repository, prepared, settings, progress, random, now_ns)


async def prepare_restore(
    js: JetStream,
    repository: Repository,
    manifest: Manifest,
    options: RestoreOptions,
    settings: RestoreSettings,
    now_ns: Callable[[], int],
    saved: SavedPlan | None = None,
) -> Prepared:
    """Plan, and check everything that the plan needs. Raises as `run_restore`; nothing is changed."""
    prospect = await _look_and_plan(js, repository, manifest, options, now_ns, saved)
    return await asyncio.to_thread(make_sure, manifest, prospect, settings)


async def begin_restore(
    connection: Connection,
    repository: Repository,
    manifest: Manifest,
    options: RestoreOptions,
    *,
    now_ns: Callable[[], int] = time.time_ns,
    saved: SavedPlan | None = None,
) -> Prospect:
    """The restore that is going to be carried out elsewhere. Raises as `run_restore`; nothing is changed."""
    async with connect_jetstream(connection) as js:
        return await _look_and_plan(js, repository, manifest, options, now_ns, saved)


async def _look_and_plan(
    js: JetStream,
    repository: Repository,
    manifest: Manifest,
    options: RestoreOptions,
    now_ns: Callable[[], int],
    saved: SavedPlan | None,
) -> Prospect:
    target = await look_at(js, now_ns())
    planning = Planning(repository, target, options)
    plan = await asyncio.to_thread(planning.plan, manifest)
    plan = await count_left_out(js, manifest, plan, target, options)
    if saved is not None:
        refuse_if_changed(saved, plan, target)
    refuse_if_refused(plan)
    _, marking = await asyncio.gather(check_allowed(js, plan), may_update(js))
    return Prospect(planning, plan, marking)


def make_sure(
    manifest: Manifest, prospect: Prospect, settings: RestoreSettings, checker: Checker | None = None
) -> Prepared:
    """Check what the plan needs of the repository; with a `checker` objects are read elsewhere.

    Raises as `run_restore`; nothing is changed.
    """
    planning, plan = prospect.planning, prospect.plan
    objects = planning.repository.objects
    refuse_if_locked(objects, plan)
    sound = PartialPlan(plan, manifest, {}, ())
    if settings.partial:
        sound = plan_what_is_left(objects, manifest, plan, planning.plan, checker)
        refuse_if_refused(refuse_remains(sound.plan, planning.target, sound.lost, planning.options))
    else:
        check_objects(objects, manifest, plan, checker)
    plan = planning.settle(sound.manifest, sound.plan, settings.mask_secret)
    plan = with_left_out(plan, prospect.plan, planning.options)
    plan = without(plan, {failure.name for failure in sound.failures})
    refuse_if_refused(plan)
    return Prepared(plan, planning.target, sound, prospect.marking)


async def refuse_if_stale(
    js: JetStream, repository: Repository, options: RestoreOptions, prepared: Prepared, now_ns: Callable[[], int]
) -> None:
    """Raise PlanRefused or TargetConflict if what was prepared some time ago would now do something else."""
    target = await look_at(js, now_ns())
    manifest = prepared.sound.manifest
    plan = await asyncio.to_thread(Planning(repository, target, options).plan, manifest)
    plan = await count_left_out(js, manifest, plan, target, options)
    refuse_if_refused(plan)
    now = {action.name: (action.replaces, action.leftover) for action in plan.actions}
    for action in prepared.plan.actions:
        if now.get(action.name) != (action.replaces, action.leftover):
            raise PlanRefused(f"stream {action.name} at the target has come or gone since all was planned", hint=_AGAIN)


async def carry_out(
    js: JetStream,
    connection: Connection,
    repository: Repository,
    prepared: Prepared,
    settings: RestoreSettings,
    progress: Progress,
    random: Callable[[int], bytes],
    now_ns: Callable[[], int],
) -> RestoreReport:
    """Restore what was prepared, and prove it. `js` is on the same `connection`, and idle."""
    plan, sound = prepared.plan, prepared.sound
    progress.expect({action.name: bytes_to_move(action, settings) for action in plan.actions})

    @asynccontextmanager
    async def stored() -> AsyncIterator[Supply]:
        yield StoredSupply(repository.objects, settings.mask_secret)

    run = Execution(
        connection,
        stored,
        sound.manifest.id,
        settings,
        progress,
        random,
        now_ns,
        prepared.target,
        prepared.marking,
        sound.lost,
        idle=js,
    )
    results, failures = await run.all(plan)
    if settings.verify:
        results, failures = await look_again(js, plan, prepared.target, results, failures)
    failures = sorted([*failures, *sound.failures], key=lambda failure: failure.name)
    return RestoreReport(plan, tuple(results), tuple(failures))
