"""Restore streams of a repository into a server: make a plan and execute it (`execution.py`).

Before the first chunk, the objects that the plan needs are looked at, and read where that would be too late afterwards
(`preflight.py`).

A preview looks at the target in the same way, and makes the same plan, with everything that would block it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from jsbackup.config.connection import Connection
from jsbackup.engine.link.concurrency import in_thread, with_own_threads
from jsbackup.engine.link.jetstream import JetStream, advisories, connect_jetstream
from jsbackup.engine.link.source import FindBackup, describe_source, found_for
from jsbackup.engine.restore.after_restore import look_again, wait_for_replicas
from jsbackup.engine.restore.execution import Execution, bytes_to_move
from jsbackup.engine.restore.replacing import count_dropped, count_left_out, refuse_remains, with_left_out
from jsbackup.engine.restore.run import RestoredStream, RestoreRun, RestoreSettings
from jsbackup.engine.restore.sampling import sample_stored
from jsbackup.engine.restore.send_archive import StoredSupply, Supply
from jsbackup.engine.restore.stream_restore import StartingPoint
from jsbackup.engine.restore.target import check_allowed, look_at, may_update, not_allowed, refused_configs
from jsbackup.errors import IncompleteError, IntegrityError, KeyUnavailable, PlanRefused, StoreError
from jsbackup.exit_codes import combined
from jsbackup.failure import FailedProof, Failure
from jsbackup.planning.model import RestoreOptions, RestorePlan, Target
from jsbackup.planning.preflight import (
    LEFT,
    PartialPlan,
    check_before_removal,
    locked_away,
    look_at_objects,
    missing_objects,
    plan_what_is_left,
    refuse_if_locked,
    refuse_if_refused,
    without,
)
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.selection.chosen_streams import Listed
from jsbackup.planning.stored_facts import Planning
from jsbackup.repository.checks.ledger import RestoreNote, record_run
from jsbackup.repository.checks.verify import Checker
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.origin import Origin, origin_of
from jsbackup.repository.repository import Repository
from jsbackup.times import format_time, parse_time
from jsbackup.tool import TOOL

if TYPE_CHECKING:
    from jsbackup.planning.saved_plan import SavedPlan

__all__ = [
    "Prepared",
    "Preview",
    "Prospect",
    "RestoreReport",
    "begin_restore",
    "carry_out_restore",
    "make_sure",
    "prepare_restore",
    "preview_plan",
    "preview_restore",
    "refuse_if_stale",
    "refuse_part",
    "run_restore",
]

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
    refusals = [*plan.refusals, *(found for found in permissions if found.rule.code), *await refused_configs(js, plan)]
    warnings = [*plan.warnings, *(found for found in permissions if not found.rule.code)]
    return Preview(replace(plan, refusals=tuple(refusals), warnings=tuple(warnings)), target)


_log = logging.getLogger(__name__)

_AGAIN = "Make a new plan, and check it."


@dataclass(frozen=True, slots=True)
class RestoreReport:
    plan: RestorePlan
    streams: tuple[RestoredStream, ...]
    failures: tuple[Failure, ...]

    @property
    def code(self) -> int:
        """The exit code: 0 if everything requested is restored, and proved if requested."""
        if self.failures and not self.streams:
            return combined(failure.error.exit_code for failure in self.failures)
        half = any(one.rule in (Rule.LEFTOVER_KEPT, Rule.SILENT) for one in self.plan.skipped)
        if self.failures or self.plan.missing or half or any(stream.incomplete for stream in self.streams):
            return IncompleteError.exit_code
        return 0


@dataclass(frozen=True, slots=True)
class Prospect:
    """A restore that nothing at the target blocks. Objects were not checked."""

    planning: Planning
    plan: RestorePlan
    marking: bool


@dataclass(frozen=True, slots=True)
class Prepared:
    """A restore that may begin: it was checked, nothing changed. `sound` is what the repository has of it, as far as
    known.
    """

    plan: RestorePlan
    target: Target
    sound: PartialPlan
    marking: bool


@with_own_threads
async def run_restore(
    run: RestoreRun, repository: Repository, backup: Manifest | FindBackup, saved: SavedPlan | None = None
) -> RestoreReport:
    """Plan and execute a restore. If the plan is refused, raises PlanRefused or TargetConflict, and nothing was
    changed.

    That includes a plan that differs from the `saved` one, whose options must be given.
    """
    async with connect_jetstream(run.connection) as js, advisories(js.link):
        manifest = await found_for(js, run.connection, backup)
        prepared = await prepare_restore(run, repository, js, manifest, saved=saved)
        return await carry_out_restore(run, repository, js, prepared)


@with_own_threads
async def prepare_restore(
    run: RestoreRun, repository: Repository, js: JetStream, manifest: Manifest, *, saved: SavedPlan | None = None
) -> Prepared:
    """Plan a restore and check what the plan needs (`make_sure`). Raises as `run_restore`; nothing is changed."""
    prospect = await _look_and_plan(run, repository, js, manifest, saved=saved)
    return await refuse_part(js, prospect, await in_thread(make_sure, manifest, prospect, run.settings))


@with_own_threads
async def begin_restore(
    run: RestoreRun, repository: Repository, manifest: Manifest, saved: SavedPlan | None = None
) -> Prospect:
    """Prepare a restore that will be executed elsewhere. Raises as `run_restore`; nothing is changed."""
    async with connect_jetstream(run.connection) as js:
        return await _look_and_plan(run, repository, js, manifest, saved=saved)


async def _look_and_plan(
    run: RestoreRun, repository: Repository, js: JetStream, manifest: Manifest, *, saved: SavedPlan | None
) -> Prospect:
    target = await look_at(js, run.now_ns())
    planning = Planning(repository, target, run.options)
    plan = await in_thread(planning.plan, manifest)
    plan = await count_left_out(js, manifest, plan, target, options=run.options, held=repository.objects)
    if saved is not None:
        from jsbackup.planning.saved_plan import refuse_if_changed

        if run.options.reshape.renumber:  # where consumers begin
            plan = await in_thread(planning.counted, manifest, plan)
        refuse_if_changed(saved, plan, target)
    refuse_if_refused(plan)
    _, marking = await asyncio.gather(check_allowed(js, plan), may_update(js))
    refuse_if_refused(replace(plan, refusals=tuple(await refused_configs(js, plan))))
    return Prospect(planning, plan, marking)


def make_sure(
    manifest: Manifest, prospect: Prospect, settings: RestoreSettings, checker: Checker | None = None
) -> Prepared:
    """Check what the plan needs from the repository; a `checker` reads objects elsewhere.

    Raises as `run_restore`; nothing is changed.
    """
    planning, plan = prospect.planning, prospect.plan
    objects = planning.repository.objects
    refuse_if_locked(objects, plan)
    sound = PartialPlan(plan, manifest, {}, ())
    if settings.partial:
        sound = plan_what_is_left(objects, manifest, plan, planning.plan, checker=checker)
    else:
        look_at_objects(objects, manifest, plan)
        check_before_removal(objects, manifest, plan, marking=prospect.marking, checker=checker)
    try:
        plan = planning.settle(sound.manifest, sound.plan, settings.mask_secret)
    except IntegrityError as error:
        raise error.with_message(f"nothing was restored: {error.message}").with_hint(LEFT) from error.__cause__
    plan = with_left_out(plan, prospect.plan, planning.options)
    plan = count_dropped(plan, planning.target, planning.options)
    plan = without(plan, {failure.name for failure in sound.failures})
    refuse_if_refused(plan)
    return Prepared(plan, planning.target, sound, prospect.marking)


@with_own_threads
async def refuse_part(js: JetStream, prospect: Prospect, prepared: Prepared) -> Prepared:
    """Return what was prepared, unless the rest of a damaged backup would replace a stream that has more of it. Raises
    PlanRefused and NatsError.
    """
    planning = prospect.planning
    objects = planning.repository.objects
    refuse_if_refused(await refuse_remains(js, prepared.sound, planning.target, objects, options=planning.options))
    return prepared


@with_own_threads
async def refuse_if_stale(run: RestoreRun, repository: Repository, js: JetStream, prepared: Prepared) -> None:
    """Raise PlanRefused or TargetConflict if a restore that was prepared a while ago would now do something else."""
    target = await look_at(js, run.now_ns())
    manifest = prepared.sound.manifest
    plan = await in_thread(Planning(repository, target, run.options).plan, manifest)
    plan = await count_left_out(js, manifest, plan, target, options=run.options, held=repository.objects)
    refuse_if_refused(plan)
    now = {action.name: (action.replaces, action.leftover) for action in plan.actions}
    for action in prepared.plan.actions:
        if now.get(action.name) != (action.replaces, action.leftover):
            raise PlanRefused(
                f"stream {action.name} at the target was created or deleted after the plan was made", hint=_AGAIN
            )


@with_own_threads
async def carry_out_restore(
    run: RestoreRun, repository: Repository, js: JetStream, prepared: Prepared
) -> RestoreReport:
    """Execute and prove a prepared restore. `js` is an idle connection of the run."""
    plan, sound, settings = prepared.plan, prepared.sound, run.settings
    run.progress.expect({action.name: bytes_to_move(action, settings) for action in plan.actions})

    @asynccontextmanager
    async def stored() -> AsyncIterator[Supply]:
        yield StoredSupply(repository.objects, settings.mask_secret, settings.proof)

    backup = sound.manifest.id
    start = StartingPoint(backup, prepared.target, prepared.marking, sound.lost, backup)
    origin = origin_of(await describe_source(js, run.connection))
    noted = await in_thread(_note_restore, run, repository, plan, origin)
    results, failures = await Execution(run, stored, start, idle=js).all(plan)
    left = frozenset(one.name for one in failures if not isinstance(one, FailedProof))
    if noted and left:
        await in_thread(partial(_note_restore, run, repository, plan, origin, left=left, instead_of=noted))
    results = await wait_for_replicas(run.connection, results)
    if settings.verify:
        results, failures = await look_again(js, plan, prepared.target, results, failures=failures)
    failures = sorted([*failures, *sound.failures], key=lambda failure: failure.name)
    return RestoreReport(plan, tuple(results), tuple(failures))


def _note_restore(
    run: RestoreRun,
    repository: Repository,
    plan: RestorePlan,
    origin: Origin,
    *,
    left: Set[str] = frozenset(),
    instead_of: str = "",
) -> str:
    """Record which streams of a plan go back to an earlier state than the repository has of them, for the next backup:
    all but those that were `left` as they are. Returns the key of the record, "" if there is none.
    """
    mine = (summary for summary in repository.inventory().summaries if origin_of(summary) == origin)
    newest = max(mine, key=lambda summary: summary.id, default=None)
    if newest is None or (newest.id == plan.backup and not any(action.reshape.drops for action in plan.actions)):
        return ""
    # After the newest backup, also if the clock of this machine is behind that of the one that made it.
    now = format_time(max(run.now_ns(), parse_time(newest.ended or newest.created) + 1))
    streams = tuple(action.name for action in plan.actions if action.name not in left)
    note = RestoreNote(now, now, not left, plan.backup, origin, streams)
    try:
        key = record_run(repository.documents, note, TOOL, run.random)
        if instead_of:
            repository.documents.delete(instead_of)
        return key
    except (KeyUnavailable, StoreError) as error:
        _log.warning(
            "the repository cannot note this restore (%s): the next backup may call messages lost that it took back",
            error.message,
        )
        return ""
