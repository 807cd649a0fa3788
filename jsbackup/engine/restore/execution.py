"""Execute a plan, stage by stage, with streams of a stage in parallel: for restores and clones.

Origins come before their mirrors. A stream that fails does not stop the others.

Order: sending goes before proving, so that all streams can be used as early as without a proof. A stream that is sent
    waits with its proof until no other has to be sent, in any stage; then the workers prove what waits. Not all can
    wait: `Usable.can_wait`, `Supply.proves_later`. One that replaces another cannot either, because until its proof
    the server has two copies.

Masks: streams that masks are for go before the others of a stage. If one of them is refused, as a mistyped mask is, no
    other is begun, so that the command can be repeated.

Leftovers: a failed transfer may leave a partial, active stream, which is deleted if this run created it. A killed
    process cannot do that: so streams have the metadata key `jsbackup.restoring` until the transfer has ended, and the
    next run recognizes leftovers by it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from jsbackup.engine.link.concurrency import run_workers
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.engine.restore.remove_unfinished import at_work, refuse_others, remove_copies, remove_leftover
from jsbackup.engine.restore.run import RestoredStream, RestoreRun, RestoreSettings
from jsbackup.engine.restore.send_archive import Origin, Supply
from jsbackup.engine.restore.stream_restore import PLACEMENTS, StartingPoint, StreamRestore, Usable
from jsbackup.errors import DigestMismatch, JsBackupError, NoLeader, PlanRefused
from jsbackup.failure import FailedProof, Failure
from jsbackup.planning.model import Action, RestorePlan, SendAs
from jsbackup.planning.selection.masking import are_for
from jsbackup.readable import count_are, in_short
from jsbackup.shell import quoted_command

__all__ = ["Execution", "bytes_to_move"]

_log = logging.getLogger(__name__)

_NAMED = 100  # streams in a warning; nothing else names them


class Execution:
    """One restore or clone, with `run.settings.jobs` workers.

    `idle` is an unused connection to the target, which saves making one.
    """

    def __init__(self, run: RestoreRun, origin: Origin, start: StartingPoint, idle: JetStream | None = None) -> None:
        self._run = run
        self._origin = origin
        self._backup = start.backup
        self._streams = StreamRestore(run, start)
        self._idle = [] if idle is None else [idle]
        self._results: list[RestoredStream] = []
        self._failures: list[Failure] = []
        self._sending = 0
        self._masked: set[str] = set()  # the streams begun so far that masks are for
        self._waiting: deque[Usable] = deque()

    async def all(self, plan: RestorePlan) -> tuple[list[RestoredStream], list[Failure]]:
        """Restore all streams, stage by stage; a failed stream does not stop the others."""
        async with AsyncExitStack() as stack:
            if any(action.replaces for stage in plan.stages for action in stage):
                self._streams.at_work = await stack.enter_async_context(at_work(self._run.connection))
            return await self._in_stages(plan)

    async def _in_stages(self, plan: RestorePlan) -> tuple[list[RestoredStream], list[Failure]]:
        stages = [part for stage in plan.stages for part in _masked_first(stage) if part]
        try:
            for number, stage in enumerate(stages, 1):
                begun = self._after_masks(stage)
                await self._stage(list(reversed(begun)), last=number == len(stages))
        except asyncio.CancelledError:
            self._name_unproved(plan)
            raise
        return sorted(self._results, key=lambda r: r.name), sorted(self._failures, key=lambda f: f.name)

    def _after_masks(self, stage: Sequence[Action]) -> Sequence[Action]:
        """Return the streams to begin: none if masks were refused, which the others then fail with."""
        failed = (failure for failure in self._failures if failure.name in self._masked)
        refused = next((failure for failure in failed if isinstance(failure.error, PlanRefused)), None)
        if refused is None:
            self._masked |= {action.name for action in stage if _is_masked(action)}
            return stage
        text = f"it was not begun, because stream {refused.name} was refused"
        self._failures += [Failure(action.name, PlanRefused(text, hint=refused.error.hint)) for action in stage]
        return ()

    def _name_unproved(self, plan: RestorePlan) -> None:
        """Warn of the streams that can be used, but are not proved: they wait, or are being proved."""
        unproved = self._streams.unproved
        if not unproved:
            return
        names = sorted(unproved)
        comparable = any(self._is_comparable(action) for action in plan.actions if action.name in unproved)
        _log.warning(
            "%s restored and can be used, but not verified: %s%s",
            count_are(len(names), "stream"),
            in_short(names, most=_NAMED),
            f"; {self._diff} compares {'it' if len(names) == 1 else 'them'} with the backup" if comparable else "",
        )

    async def _stage(self, waiting: list[Action], *, last: bool) -> None:
        """Restore the streams of one stage, from the end; in the last one, then prove those of all stages that wait."""
        proofs: deque[Usable] = self._waiting if last else deque()

        async def do_next(ends: tuple[JetStream, Supply]) -> bool:
            js, supply = ends
            if waiting:
                done = await self._send(js, supply, waiting)
                if last and not waiting and not self._sending and proofs:
                    left = count_are(len(self._streams.unproved), "stream")
                    _log.info("everything is sent; %s still to be verified", left)
            elif proofs:
                done = await self._prove(js, supply, proofs.popleft())
            else:
                return False
            return done or (js.link.connected and supply.connected)

        count = min(self._run.settings.jobs, len(waiting) + len(proofs))
        unreachable = await run_workers(count, self._ends, lambda: bool(waiting or proofs), do_next)
        if unreachable is not None:
            self._failures += [Failure(action.name, unreachable) for action in waiting]
            for proof in proofs:
                self._fail(proof.action, unreachable)

    async def _send(self, js: JetStream, supply: Supply, waiting: list[Action]) -> bool:
        """Restore the next stream, and prove it unless that can wait. Returns whether nothing failed."""
        action = waiting.pop()
        began = time.monotonic()
        self._sending += 1
        try:
            done = await self._begin(js, supply, action)
            seconds = time.monotonic() - began
            if isinstance(done, Usable):
                self._waiting.append(replace(done.waiting(), seconds=seconds))
            else:
                self._results.append(replace(done, seconds=seconds))
        except NoLeader as error:
            self._streams.placed[action.name] += 1
            if self._streams.placed[action.name] >= PLACEMENTS:
                return self._failed(action, error)
            _log.info("stream %s: %s; trying again after the others", action.name, error.message)
            waiting.insert(0, action)
        except JsBackupError as error:
            return self._failed(action, error)
        finally:
            self._sending -= 1
            if action.name not in self._streams.unproved:
                self._run.progress.finish(action.name)
        return True

    async def _prove(self, js: JetStream, supply: Supply, stream: Usable) -> bool:
        """Prove a stream that was sent before. Returns whether nothing failed."""
        began = time.monotonic()
        try:
            proved = await self._streams.prove(js, supply, stream)
            proved = await self._tidy(js, stream.action, proved, stream.removed)
            self._results.append(replace(proved, seconds=stream.seconds + time.monotonic() - began))
        except JsBackupError as error:
            return self._failed(stream.action, error)
        finally:
            self._run.progress.finish(stream.action.name)
        return True

    def _failed(self, action: Action, error: JsBackupError) -> bool:
        failure = self._fail(action, error)
        _log.warning("stream %s failed: %s", failure.name, failure.error.message)
        return False

    def _fail(self, action: Action, error: JsBackupError) -> Failure:
        """Add a failure, which says if the stream can be used although it is not proved."""
        usable_ns = self._streams.unproved.pop(action.name, 0)
        failure = Failure(action.name, error)
        if usable_ns:
            if not isinstance(error, DigestMismatch):
                error = error.with_message(f"restored and could be used, but was not verified: {error.message}")
                if self._is_comparable(action):
                    error = error.with_more_hint(f"Later, {self._diff} compares it with the backup.")
            failure = FailedProof(action.name, error, usable_ns)
        self._failures.append(failure)
        return failure

    def _is_comparable(self, action: Action) -> bool:
        """Return whether a stream that is proved is equal to that of the backup, under the same name."""
        same = action.name == action.entry.name and not action.alters
        return bool(self._backup) and same and not action.reshape.drops

    @property
    def _diff(self) -> str:
        return quoted_command("diff", self._backup, "live")

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

    async def _begin(self, js: JetStream, supply: Supply, action: Action) -> RestoredStream | Usable:
        """Restore a stream, and prove it unless that can wait."""
        await refuse_others(js, action.name, action.copies)
        removed = await remove_leftover(js, supply, action) if action.leftover else ()
        removed += await remove_copies(js, [copy for copy in action.copies if not copy.needed])
        if action.replaces:
            restored = await self._streams.replace_stream(js, supply, action)
        elif action.wire is SendAs.API:
            restored = await self._streams.create(js, action)
        else:
            return await self._end(js, supply, await self._streams.send(js, supply, action), removed)
        return await self._tidy(js, action, restored, removed)

    async def _end(
        self, js: JetStream, supply: Supply, usable: Usable, removed: tuple[str, ...]
    ) -> RestoredStream | Usable:
        if supply.proves_later and usable.can_wait:
            return replace(usable, removed=removed)
        return await self._tidy(js, usable.action, await self._streams.prove(js, supply, usable), removed)

    async def _tidy(
        self, js: JetStream, action: Action, restored: RestoredStream, removed: tuple[str, ...]
    ) -> RestoredStream:
        """Remove copies of interrupted replacements that are not needed any more."""
        spare = [copy for copy in action.copies if copy.needed and copy.messages <= restored.messages]
        removed += await remove_copies(js, [] if restored.incomplete else spare)
        kept = [copy for copy in action.copies if copy.needed and (restored.incomplete or copy not in spare)]
        why = "because it may have more messages"
        staying = [f"the copy {copy.name} of an interrupted replace is kept, {why}" for copy in kept]
        return replace(restored, notes=(*removed, *staying, *restored.notes))


def _masked_first(stage: Sequence[Action]) -> tuple[list[Action], list[Action]]:
    """Return the streams that masks are for, and the others, which wait: after a mistyped mask none of them is left."""
    return list(filter(_is_masked, stage)), [action for action in stage if not _is_masked(action)]


def _is_masked(action: Action) -> bool:
    return are_for(action.reshape.masks.masks, action.entry.config)


def bytes_to_move(action: Action, settings: RestoreSettings) -> int:
    """Return the bytes to send, plus those to read back for the proof."""
    if action.wire is SendAs.API:
        return 0
    if action.wire is SendAs.OPAQUE:
        return sum(piece.bytes for piece in action.entry.opaque)
    return action.entry.captured.bytes * settings.passes
