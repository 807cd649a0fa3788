"""Restore streams of a repository into a server: make a plan and execute it (`execution.py`).

Before the first chunk, the objects that the plan needs are looked at, and read where that would be too late afterwards
(`preflight.py`).

A preview looks at the target in the same way, and makes the same plan, with everything that would block it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from jsbackup.config.connection import Connection
from jsbackup.engine.link.concurrency import in_thread, with_own_threads
from jsbackup.engine.link.jetstream import JetStream, advisories, connect_jetstream
from jsbackup.engine.link.source import FindBackup, describe_source, found_for
from jsbackup.engine.restore.after_restore import look_again, wait_for_replicas
from jsbackup.engine.restore.execution import Execution, bytes_to_move
from jsbackup.engine.restore.replacing import count_left_out, refuse_remains
from jsbackup.engine.restore.run import RestoredStream, RestoreRun, RestoreSettings
from jsbackup.engine.restore.send_archive import StoredSupply, Supply
from jsbackup.engine.restore.stream_restore import StartingPoint
from jsbackup.engine.restore.target import look_at, may_update, not_allowed, refused_configs
from jsbackup.errors import IncompleteError, IntegrityError, KeyUnavailable, PlanRefused, StoreError
from jsbackup.exit_codes import combined
from jsbackup.failure import FailedProof, Failure
from jsbackup.planning.model import RestoreOptions, RestorePlan, Target
from jsbackup.planning.plan import Decision
from jsbackup.planning.preflight import (
    LEFT,
    beyond_repair,
    damaged_objects,
    locked_away,
    missing_objects,
    needed,
    refuse_if_refused,
)
from jsbackup.planning.rules import Rule
from jsbackup.planning.stored_facts import counted, first_decision
from jsbackup.repository.checks.ledger import RestoreNote, record_run
from jsbackup.repository.checks.verify import Checker, Problem
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.origin import Origin, origin_of
from jsbackup.repository.read.losses import find_lost, salvage
from jsbackup.repository.repository import Repository
from jsbackup.times import format_time, parse_time
from jsbackup.tool import TOOL

if TYPE_CHECKING:
    from jsbackup.planning.saved_plan import SavedPlan

__all__ = [
    "Prepared",
    "RestoreReport",
    "begin_restore",
    "carry_out_restore",
    "make_sure",
    "prepare_restore",
    "preview_restore",
    "refuse_if_stale",
    "refuse_part",
    "run_restore",
]


@with_own_threads
async def preview_restore(
    connection: Connection,
    repository: Repository,
    backup: Manifest | FindBackup,
    options: RestoreOptions,
    *,
    now_ns: Callable[[], int],
) -> Decision:
    """Plan a restore. Everything that blocks it is among the refusals, including missing permissions and lost objects.

    Objects are looked up, but only read where a cut goes through, to count what filters keep, and to test masks. Raises
    UsageError, NatsError and StoreError.
    """
    objects = repository.objects
    async with connect_jetstream(connection) as js:
        manifest = await found_for(js, connection, backup)
        target = replace(await look_at(js, now_ns()), round_trip_seconds=await js.link.rtt())
        decision = await _decide(js, repository, manifest, options, target=target)
        decision = await in_thread(counted, objects, decision)
        decision = await not_allowed(js, decision, proofs=True)
        decision = await refused_configs(js, decision, await may_update(js))
    lost = await in_thread(missing_objects, objects, decision)
    return decision.finding([*lost, *await in_thread(locked_away, objects, decision.plan)])


async def _decide(
    js: JetStream, repository: Repository, manifest: Manifest, options: RestoreOptions, *, target: Target
) -> Decision:
    """Decide as far as it is known without reading all messages of the backup."""
    decision = await in_thread(first_decision, repository.objects, manifest, target, options)
    return await count_left_out(js, decision, repository.objects)


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
        half = any(skip.rule in (Rule.LEFTOVER_KEPT, Rule.SILENT) for skip in self.plan.skipped)
        if self.failures or self.plan.missing or half or any(stream.incomplete for stream in self.streams):
            return IncompleteError.exit_code
        return 0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A restore that nothing at the target blocks; after `make_sure` it may begin. Nothing was changed.

    `lost` is what the repository no longer has of it, `failures` are streams of which nothing can be restored.
    """

    decision: Decision
    marking: bool
    lost: Mapping[str, tuple[Problem, ...]] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()

    @property
    def plan(self) -> RestorePlan:
        return self.decision.plan

    @property
    def target(self) -> Target:
        return self.decision.target


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
    """Plan a restore and check what the plan needs (`make_sure`). Raises the errors of `run_restore`; nothing is
    changed.
    """
    prepared = await _begin(run, repository, js, manifest, saved=saved)
    prepared = await in_thread(make_sure, repository, prepared, run.settings)
    return await refuse_part(js, repository, prepared)


@with_own_threads
async def begin_restore(
    run: RestoreRun, repository: Repository, manifest: Manifest, saved: SavedPlan | None = None
) -> Prepared:
    """Prepare a restore that will be executed elsewhere: objects are not checked yet (`make_sure`).

    Raises the errors of `run_restore`; nothing is changed.
    """
    async with connect_jetstream(run.connection) as js:
        return await _begin(run, repository, js, manifest, saved=saved)


async def _begin(
    run: RestoreRun, repository: Repository, js: JetStream, manifest: Manifest, *, saved: SavedPlan | None
) -> Prepared:
    decision = await _decide(js, repository, manifest, run.options, target=await look_at(js, run.now_ns()))
    if saved is not None:
        from jsbackup.planning.saved_plan import refuse_if_changed

        if run.options.reshape.renumber:  # where consumers begin
            decision = await in_thread(counted, repository.objects, decision)
        refuse_if_changed(saved, decision.plan, decision.target)
    refuse_if_refused(decision.plan)
    decision, marking = await asyncio.gather(not_allowed(js, decision, proofs=False), may_update(js))
    refuse_if_refused(decision.plan)
    decision = await refused_configs(js, decision, marking)
    refuse_if_refused(decision.plan)
    return Prepared(decision, marking)


def make_sure(
    repository: Repository, prepared: Prepared, settings: RestoreSettings, checker: Checker | None = None
) -> Prepared:
    """Check what the plan needs from the repository; a `checker` reads objects elsewhere.

    Raises the errors of `run_restore`; nothing is changed.
    """
    decision, objects = prepared.decision, repository.objects
    refuse_if_refused(decision.finding(locked_away(objects, decision.plan)).plan)
    if settings.partial:
        shapes, facts = decision.shapes, decision.facts
        left = salvage(shapes.manifest, find_lost(objects, needed(decision), checker))
        if left.lost or left.beyond:
            decision = first_decision(objects, left.manifest, shapes.target, shapes.options, left_out=facts.left_out)
            decision = decision.knowing(replace(decision.facts, beyond=frozenset(left.beyond)))
        failures = tuple(Failure(name, beyond_repair(problem)) for name, problem in left.beyond.items())
        prepared = replace(prepared, lost=left.lost, failures=failures)
    else:
        refuse_if_refused(decision.finding(missing_objects(objects, decision)).plan)
        late = damaged_objects(objects, decision, marking=prepared.marking, checker=checker)
        refuse_if_refused(decision.finding(late).plan)
    try:
        decision = counted(objects, decision, settings.mask_secret)
    except IntegrityError as error:
        raise error.with_message(f"nothing was restored: {error.message}").with_hint(LEFT) from error.__cause__
    refuse_if_refused(decision.plan)
    return replace(prepared, decision=decision)


@with_own_threads
async def refuse_part(js: JetStream, repository: Repository, prepared: Prepared) -> Prepared:
    """Return what was prepared, unless the rest of a damaged backup would replace a stream that has more of it. Raises
    PlanRefused and NatsError.
    """
    decision = await refuse_remains(js, prepared.decision, prepared.lost, repository.objects)
    refuse_if_refused(decision.plan)
    return prepared


@with_own_threads
async def refuse_if_stale(run: RestoreRun, repository: Repository, js: JetStream, prepared: Prepared) -> None:
    """Raise PlanRefused or TargetConflict if a restore that was prepared a while ago would now do something else."""
    manifest = prepared.decision.shapes.manifest
    decision = await _decide(js, repository, manifest, run.options, target=await look_at(js, run.now_ns()))
    refuse_if_refused(decision.plan)
    now = {action.name: (action.replaces, action.leftover) for action in decision.plan.actions}
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
    plan, settings = prepared.plan, run.settings
    run.progress.expect({action.name: bytes_to_move(action, settings) for action in plan.actions})

    @asynccontextmanager
    async def stored() -> AsyncIterator[Supply]:
        yield StoredSupply(repository.objects, settings.mask_secret, settings.proof)

    start = StartingPoint(plan.backup, prepared.target, prepared.marking, prepared.lost, plan.backup)
    origin = origin_of(await describe_source(js, run.connection))
    noted = await in_thread(_note_restore, run, repository, plan, origin)
    results, failures = await Execution(run, stored, start, idle=js).all(plan)
    left = frozenset(failure.name for failure in failures if not isinstance(failure, FailedProof))
    if noted and left:
        await in_thread(partial(_note_restore, run, repository, plan, origin, left=left, instead_of=noted))
    results = await wait_for_replicas(run.connection, results)
    if settings.verify:
        results, failures = await look_again(js, plan, prepared.target, results, failures=failures)
    failures = sorted([*failures, *prepared.failures], key=lambda failure: failure.name)
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
