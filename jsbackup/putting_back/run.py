"""Put something back: connect, find the backup, plan, and write unless something is refused."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from jsbackup.config import Connection
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.engine.link.source import FindBackup, found_for
from jsbackup.engine.link.threads import in_thread, with_own_threads
from jsbackup.errors import IncompleteError
from jsbackup.putting_back.chosen import ChosenMessages
from jsbackup.putting_back.elsewhere import find_around, with_other_backup
from jsbackup.putting_back.model import PutBackOptions, PutBackPlan, PutBackReport
from jsbackup.putting_back.object_writing import write_object
from jsbackup.putting_back.plan import make_plan
from jsbackup.putting_back.publishing import WritingRun, write_messages
from jsbackup.putting_back.target import keeps_one
from jsbackup.putting_back.turn import write_in_turn
from jsbackup.repository.crypto.keys import needed
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.repository import Repository

__all__ = ["PutBackRun", "run_put_back"]


@dataclass(slots=True)
class PutBackRun:
    """A run of `put-back`. `plan` is set once it is made, and `progress` says what was written since.

    `around`: if the backup does not know any more what keys were at the moment, another one around it may be taken.
    """

    connection: Connection
    options: PutBackOptions
    dry_run: bool = False
    around: bool = False
    plan: PutBackPlan | None = None
    progress: WritingRun = field(default_factory=WritingRun)


@with_own_threads
async def run_put_back(run: PutBackRun, repository: Repository, backup: Manifest | FindBackup) -> PutBackReport:
    """Plan, and write what is planned; nothing if `dry_run` is set or the plan is refused, which the report then has.

    Raises:
        UsageError, JsBackupError, IncompleteError, PlanRefused: as `make_plan`; nothing was written.
        KeyUnavailable: the repository is encrypted, and no key that reads it was given; nothing was written.
        IntegrityError, KeyUnavailable, StoreError: the backup cannot be read. The message says what was written.
        NatsError: the server does not answer, or with an error. Likewise.
        TargetConflict: another command puts messages back into the stream; nothing was written. Or the stream has no
            room any more; likewise.
    """
    run.options.check()
    if repository.descriptor.recipient is not None:
        needed(repository.secret)
    async with connect_jetstream(run.connection) as js:
        manifest = await found_for(js, run.connection, backup)
        objects = repository.objects
        plan = run.plan = await _plan(js, repository, run, manifest)
        if run.dry_run or plan.refusal() is not None or not plan.writes:
            return PutBackReport(plan)
        if plan.file is not None:
            return await write_object(js, objects, plan, run.progress)
        chosen = ChosenMessages(objects, plan.manifest, plan.entry, plan.options)
        if keeps_one(plan.target):
            return await write_messages(js, chosen, plan, run.progress)
        return await write_in_turn(js, chosen, plan, run.progress)


async def _plan(js: JetStream, repository: Repository, run: PutBackRun, manifest: Manifest) -> PutBackPlan:
    """Return the plan, by another backup where this one cannot say what keys were. Raises as `make_plan`."""
    plan, problem = None, None
    try:
        plan = await make_plan(
            js, repository.objects, manifest, run.options, now_ns=time.time_ns(), watcher=run.progress.watcher
        )
    except IncompleteError as error:
        problem = error
    if run.around and (plan is None or plan.incomplete):
        around = await in_thread(lambda: find_around(repository, manifest, run.options))
        if around is not None:
            found = await make_plan(js, repository.objects, around.manifest, around.options, now_ns=time.time_ns())
            return replace(found, notes=(*around.notes, *found.notes))
    if problem is not None:
        told = problem
        raise await in_thread(lambda: with_other_backup(told, repository, manifest, run.options)) from None
    assert plan is not None
    return plan
