"""A part of a backup or a restore, in a worker process of a larger run (`pipeline/` starts it).

A part may have been begun by another process that was lost. Then a backup stores what is missing. For a restore the
target shows how far the other process came: half-restored streams are removed, and complete ones are proved. A stream
that was being replaced is left to the user.

Functions here are synchronous, and run their own event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from jsbackup.engine.backup.backup import Chosen, back_up_streams
from jsbackup.engine.backup.run import BackupRun
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.link.threads import with_own_threads
from jsbackup.engine.restore.execution import Execution, Unproved
from jsbackup.engine.restore.restored_stream import RestoredStream
from jsbackup.engine.restore.run import RestoreRun
from jsbackup.engine.restore.stream_restore import StartingPoint
from jsbackup.engine.restore.stream_sources import StoredSupply, Supply
from jsbackup.errors import TransferError
from jsbackup.failure import Failure
from jsbackup.planning.interrupted import is_marked, staging_prefix
from jsbackup.planning.model import Action, RestorePlan, SendAs
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.new_backup import StoredStream
from jsbackup.repository.write.receipts import Receipts
from jsbackup.times import format_time
from jsbackup.tool import TOOL

__all__ = ["RestorePart", "RestoredPart", "StoredPart", "back_up_part", "complete", "restore_part"]

T = TypeVar("T")

# Server source: a server gives up a restore after 5 s without a chunk. If its stream is deleted before that, the data
# that it still reads creates the stream again (`remove_unfinished.py`).
_GIVEN_UP_SECONDS = 6.0


def complete(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, even in a notebook, where this thread already runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(asyncio.run, work).result()


@dataclass(frozen=True, slots=True)
class StoredPart:
    """Streams that were stored, and those that failed. `receipts` list segments that a manifest will name."""

    results: tuple[StoredStream, ...]
    failures: tuple[Failure, ...]
    receipts: tuple[str, ...]


def back_up_part(run: BackupRun, chosen: Chosen, run_id: str) -> StoredPart:
    """Store these streams, one after another. `run_id` has 16 hex digits for receipts, new each time.

    Errors of a stream or the server are among the failures.
    """
    receipts = Receipts(run.repository.documents, run_id, format_time(run.clock_ns()), TOOL)
    if not run.options.config_only:
        receipts.read_earlier()
    alone = replace(run, options=replace(run.options, jobs=1))
    results, failures = asyncio.run(back_up_streams(alone, chosen, receipts))
    return StoredPart(tuple(results), tuple(failures), () if failures else receipts.keys)


@dataclass(frozen=True, slots=True)
class RestorePart:
    """Streams that may be restored in parallel, and the common starting point."""

    start: StartingPoint
    actions: tuple[Action, ...] = ()


@dataclass(frozen=True, slots=True)
class RestoredPart:
    """Streams that were restored, and those that failed; and the ids and folders of objects that were found damaged."""

    results: tuple[RestoredStream, ...]
    failures: tuple[Failure, ...]
    damaged: Mapping[bytes, str] = field(default_factory=dict)


def restore_part(run: RestoreRun, repository: Repository, part: RestorePart, *, again: bool) -> RestoredPart:
    """Restore these streams, one after another, and prove them.

    `again`: another process may have begun; then a stream created since the plan was made is from it.
    """

    @asynccontextmanager
    async def stored() -> AsyncIterator[Supply]:
        yield StoredSupply(repository.objects, run.settings.mask_secret, run.settings.proof)

    alone = replace(run, settings=replace(run.settings, jobs=1))
    execution = (_Repeated if again else Execution)(alone, stored, part.start)
    work = with_own_threads(execution.all)(RestorePlan(part.start.label, (part.actions,)))
    results, failures = asyncio.run(work)
    return RestoredPart(tuple(results), tuple(failures), dict(repository.objects.found_damaged))


class _Repeated(Execution):
    """Continues after another process was lost."""

    async def all(self, plan: RestorePlan) -> tuple[list[RestoredStream], list[Failure]]:
        await asyncio.sleep(_GIVEN_UP_SECONDS)
        return await super().all(plan)

    async def _begin(self, js: JetStream, supply: Supply, action: Action) -> RestoredStream | Unproved:
        if action.replaces:
            raise TransferError(
                f"the process that was to replace stream {action.name} was lost",
                retry=False,
                hint=f"Look at it, and at streams named {staging_prefix(action.name)}…, of which one may be a proved "
                "copy of what was to come; then restore it again.",
            )
        if action.wire is SendAs.API:
            return await self._streams.create(js, action)  # creating it again has no effect
        found = await js.find_stream(action.name)
        if found is None or is_marked(found.config):
            return await super()._begin(js, supply, replace(action, leftover=found is not None))
        assert isinstance(supply, StoredSupply)
        sent, action = await supply.sent_before(action), replace(action, copies=())
        return await self._end(js, supply, await self._streams.make_usable(js, action, sent), ())
