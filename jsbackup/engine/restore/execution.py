"""Execute a plan, stage by stage, with streams of a stage in parallel: for restores and clones.

Origins come before their mirrors. A stream that fails does not stop the others.

Leftovers: a failed transfer may leave a partial, active stream, which is deleted if this run created it. A killed
    process cannot do that: so streams have the metadata key `jsbackup.restoring` until the transfer has ended, and the
    next run recognizes leftovers by it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial

from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.engine.link.workers import run_workers
from jsbackup.engine.restore.at_work import at_work, refuse_others
from jsbackup.engine.restore.remove_unfinished import remove_copies, remove_leftover
from jsbackup.engine.restore.restored_stream import RestoredStream
from jsbackup.engine.restore.run import RestoreRun, RestoreSettings
from jsbackup.engine.restore.stream_restore import PLACEMENTS, StartingPoint, StreamRestore
from jsbackup.engine.restore.stream_sources import Origin, Supply
from jsbackup.errors import JsBackupError, NoLeader
from jsbackup.failure import Failure
from jsbackup.planning.model import Action, RestorePlan, SendAs

__all__ = ["Execution", "bytes_to_move"]

_log = logging.getLogger(__name__)


class Execution:
    """One restore or clone, with `run.settings.jobs` workers.

    `idle` is an unused connection to the target, which saves making one.
    """

    def __init__(self, run: RestoreRun, origin: Origin, start: StartingPoint, idle: JetStream | None = None) -> None:
        self._run = run
        self._origin = origin
        self._streams = StreamRestore(run, start)
        self._idle = [] if idle is None else [idle]

    async def all(self, plan: RestorePlan) -> tuple[list[RestoredStream], list[Failure]]:
        """Restore all streams, stage by stage; a failed stream does not stop the others."""
        async with AsyncExitStack() as stack:
            if any(action.replaces for stage in plan.stages for action in stage):
                self._streams.at_work = await stack.enter_async_context(at_work(self._run.connection))
            return await self._in_stages(plan)

    async def _in_stages(self, plan: RestorePlan) -> tuple[list[RestoredStream], list[Failure]]:
        results: list[RestoredStream] = []
        failures: list[Failure] = []

        async def attempt(js: JetStream, supply: Supply, action: Action, waiting: list[Action]) -> bool:
            began = time.monotonic()
            try:
                restored = await self._restore_stream(js, supply, action)
                results.append(replace(restored, seconds=time.monotonic() - began))
            except NoLeader as error:
                self._streams.placed[action.name] += 1
                if self._streams.placed[action.name] < PLACEMENTS:
                    _log.info("stream %s: %s; trying again after the others", action.name, error.message)
                    waiting.insert(0, action)
                    return True
                _log.warning("stream %s failed: %s", action.name, error.message)
                failures.append(Failure(action.name, error))
                return False
            except JsBackupError as error:
                _log.warning("stream %s failed: %s", action.name, error.message)
                failures.append(Failure(action.name, error))
                return False
            finally:
                self._run.progress.finish(action.name)
            return True

        for stage in plan.stages:
            waiting = list(reversed(stage))

            async def do_next(ends: tuple[JetStream, Supply], waiting: list[Action] = waiting) -> bool:
                js, supply = ends
                if not waiting:
                    return False
                return await attempt(js, supply, waiting.pop(), waiting) or (js.link.connected and supply.connected)

            count = min(self._run.settings.jobs, len(stage))
            unreachable = await run_workers(count, self._ends, partial(bool, waiting), do_next)
            if unreachable is not None:
                failures += [Failure(action.name, unreachable) for action in waiting]
        return sorted(results, key=lambda r: r.name), sorted(failures, key=lambda f: f.name)

    @asynccontextmanager
    async def _ends(self) -> AsyncIterator[tuple[JetStream, Supply]]:
        """The target and the source of a worker."""
        async with self._connected() as js, self._origin() as supply:
            yield js, supply

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[JetStream]:
        """Yield a connection for one worker: the idle one, or a new one."""
        if self._idle and self._idle[0].link.connected:
            js = self._idle.pop()
            try:
                yield js
            finally:
                self._idle.append(js)
            return
        async with connect_jetstream(self._run.connection) as js:
            yield js

    async def _restore_stream(self, js: JetStream, supply: Supply, action: Action) -> RestoredStream:
        await refuse_others(js, action.name, action.copies)
        removed = await remove_leftover(js, supply, action) if action.leftover else ()
        removed += await remove_copies(js, [copy for copy in action.copies if not copy.needed])
        restored = await (self._streams.replace_stream if action.replaces else self._streams.restore)(
            js, supply, action
        )
        spare = [copy for copy in action.copies if copy.needed and copy.messages <= restored.messages]
        removed += await remove_copies(js, [] if restored.incomplete else spare)
        kept = [copy for copy in action.copies if copy.needed and (restored.incomplete or copy not in spare)]
        why = "because it may have more messages"
        staying = [f"the copy {copy.name} of an interrupted replace is kept, {why}" for copy in kept]
        return replace(restored, notes=(*removed, *staying, *restored.notes))


def bytes_to_move(action: Action, settings: RestoreSettings) -> int:
    """Return the bytes to send, plus those to read back for the proof."""
    if action.wire is SendAs.API:
        return 0
    if action.wire is SendAs.OPAQUE:
        return sum(piece.bytes for piece in action.entry.opaque)
    return action.entry.captured.bytes * settings.passes
