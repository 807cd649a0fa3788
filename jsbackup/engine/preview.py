"""What a restore would do, without doing it: the same look at the target, the same plan, and what would stop it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from jsbackup.config import Connection
from jsbackup.engine.backup import connect_jetstream
from jsbackup.engine.plan import plan_restore
from jsbackup.engine.planned import Refusal, RestoreOptions, RestorePlan, Target
from jsbackup.engine.soundness import missing_objects
from jsbackup.engine.target import check_allowed, look_at
from jsbackup.errors import IntegrityError, NatsPermissionDenied
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.repository import Repository

__all__ = ["Preview", "preview_restore"]


@dataclass(frozen=True, slots=True)
class Preview:
    """A plan, refused or not, and the target that it was made for."""

    plan: RestorePlan
    target: Target


async def preview_restore(
    connection: Connection,
    repository: Repository,
    manifest: Manifest,
    options: RestoreOptions,
    *,
    now_ns: Callable[[], int],
) -> Preview:
    """Plan a restore. What stands against it is among the refusals, missing permissions and lost objects too.

    Objects are looked up, not read. Raises UsageError, NatsError and StoreError.
    """
    async with connect_jetstream(connection) as js:
        target = await look_at(js, now_ns())
        plan = plan_restore(manifest, target, options)
        refusals = list(plan.refusals)
        try:
            await check_allowed(js, plan)
        except NatsPermissionDenied as denied:
            refusals.append(Refusal("", denied.exit_code, f"{denied.message}; {denied.hint or 'ask for it'}"))
    refusals += [
        Refusal(problem.stream, IntegrityError.exit_code, f"{problem.problem}; restore with --partial, or another one")
        for problem in await asyncio.to_thread(missing_objects, repository.objects, manifest, plan)
    ]
    return Preview(replace(plan, refusals=tuple(refusals)), target)
