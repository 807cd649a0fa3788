"""A plan carried out, stream by stream, and proved: the same for a restore and a clone (`supply.py`).

Origins come before their mirrors. A stream counts as restored when it has been read back and is what was sent.

What a failure leaves. A failed transfer may leave a partial, active stream: what this run created is deleted, and only
that. If the process dies, nobody can: so streams that a server could leave half-made carry the metadata key
`jsbackup.restoring` until the transfer has ended, and the next run takes one that carries it for a leftover. A
stream that is whole is never deleted, even if the proof fails: publishers and consumers may be at work on it.

Replacing. No server can rename a stream, and two cannot share subjects. So the new one is first restored beside the
old one, under a name of its own and without its subjects, and proved; only then is the old one deleted and the new one
restored in its place. Whenever this is interrupted, the old stream or the proved copy is there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from jsbackup.config import Connection
from jsbackup.engine.abandon import MARKER, is_marked, remove_stream, with_marker
from jsbackup.engine.failure import Failure
from jsbackup.engine.jetstream import JetStream, connect_jetstream
from jsbackup.engine.plan import staging_prefix
from jsbackup.engine.planned import Action, RestorePlan, Target, Wire
from jsbackup.engine.prove import Proof
from jsbackup.engine.settle import RestoredConsumer, Settled, configure, creatable, letting_go_of_nothing, settle
from jsbackup.engine.supply import Delivery, Origin, Sent, Supply, Transfer
from jsbackup.engine.transmit import TransmitLimits
from jsbackup.errors import JsBackupError, NatsPermissionDenied, NatsTimeout, NoLeader, PlanRefused, TargetConflict
from jsbackup.model import Fidelity, JsonObject
from jsbackup.progress import Progress
from jsbackup.protocol.window import LEAST_WINDOW_BYTES, window_for
from jsbackup.repository.archiving import state_to_restore
from jsbackup.repository.verify import Problem

__all__ = ["Copying", "Execution", "RestoreSettings", "RestoredStream", "bytes_to_move"]

_log = logging.getLogger(__name__)

# How often a cluster may give a stream to a server that does not answer, and how long the first one is waited for.
# Measured on 2.15.2: three seconds after a server stopped no stream is given to it any more.
_PLACEMENTS = 3
_FIRST_PLACEMENT_SECONDS = 10.0

# What would make a copy beside the stream that it replaces do something, or let go of messages; and what would keep
# it from being removed. It has no consumers either.
_ACTIVE = frozenset(
    {
        "allow_msg_schedules",
        "allow_msg_ttl",
        "max_age",
        "metadata",
        "mirror",
        "mirror_direct",
        "republish",
        "retention",
        "sealed",
        "sources",
        "subject_delete_marker_ttl",
        "subject_transform",
    }
)


@dataclass(frozen=True, slots=True)
class RestoreSettings:
    """How to go about it. `window_bytes` may be on the way unacknowledged; None is what suits the link.

    `partial` restores what is left where objects are lost, which otherwise refuses everything. `mask_secret` is what
    values are hashed with.
    """

    jobs: int = 4
    window_bytes: int | None = None
    verify: bool = True
    partial: bool = False
    limits: TransmitLimits = field(default_factory=TransmitLimits)
    mask_secret: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Copying:
    """What a stream that copies from others did when it was there. `waiting` are origins that it has not heard of."""

    settled: bool
    new_messages: int
    waiting: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RestoredStream:
    """A stream at the target. `verified` is False only where no proof was asked for or none is possible.

    `lost` is what the repository no longer has of it; numbers and proof are those of the rest.
    """

    name: str
    as_name: str
    messages: int
    bytes: int
    digest: str
    verified: bool
    wire: Wire
    seconds: float = 0.0
    consumers: tuple[RestoredConsumer, ...] = ()
    notes: tuple[str, ...] = ()
    incomplete: bool = False
    lost: tuple[Problem, ...] = ()
    copying: Copying | None = None


class Execution:
    """One restore or clone: what its streams have in common. `label` names it in the streams that it makes.

    `idle` is a connection to the target that has nothing else to do: one less has to be made.
    """

    def __init__(
        self,
        connection: Connection,
        origin: Origin,
        label: str,
        settings: RestoreSettings,
        progress: Progress,
        random: Callable[[int], bytes],
        now_ns: Callable[[], int],
        target: Target,
        marking: bool,
        lost: Mapping[str, tuple[Problem, ...]],
        idle: JetStream | None = None,
    ) -> None:
        self.connection = connection
        self.origin = origin
        self.label = label
        self.settings = settings
        self.progress = progress
        self.random = random
        self.now_ns = now_ns
        self.target = target
        self.marking = marking
        self.lost = lost
        self._idle = [] if idle is None else [idle]
        self._placed: Counter[str] = Counter()  # how often streams were given to servers that do not answer

    async def all(self, plan: RestorePlan) -> tuple[list[RestoredStream], list[Failure]]:
        """Stage by stage; a failed stream does not stop the others."""
        results: list[RestoredStream] = []
        failures: list[Failure] = []

        async def one(js: JetStream, supply: Supply, action: Action, waiting: list[Action]) -> bool:
            began = time.monotonic()
            try:
                restored = await self._one(js, supply, action)
                results.append(replace(restored, seconds=time.monotonic() - began))
            except NoLeader as error:
                self._placed[action.name] += 1
                if self._placed[action.name] < _PLACEMENTS:
                    _log.info("stream %s: %s; tried again after the others", action.name, error.message)
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
                self.progress.finish(action.name)
            return True

        for stage in plan.stages:
            waiting = list(reversed(stage))
            unreachable: list[JsBackupError] = []

            async def work(waiting: list[Action] = waiting, unreachable: list[JsBackupError] = unreachable) -> None:
                """Until nothing waits, or no connection can be had: then the others do what is left, or nobody can."""
                try:
                    while waiting:
                        async with self._connected() as js, self.origin() as supply:
                            while waiting:
                                if await one(js, supply, waiting.pop(), waiting):
                                    continue
                                if not (js.link.connected and supply.connected):
                                    break
                except JsBackupError as error:
                    unreachable.append(error)

            async with asyncio.TaskGroup() as group:
                for _ in range(min(self.settings.jobs, len(stage))):
                    group.create_task(work())
            failures += [Failure(action.name, unreachable[-1]) for action in waiting]
        return sorted(results, key=lambda r: r.name), sorted(failures, key=lambda f: f.name)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[JetStream]:
        """A connection for one worker: the one that is there, or one of its own."""
        if self._idle and self._idle[0].link.connected:
            js = self._idle.pop()
            try:
                yield js
            finally:
                self._idle.append(js)
            return
        async with connect_jetstream(self.connection) as js:
            yield js

    async def _one(self, js: JetStream, supply: Supply, action: Action) -> RestoredStream:
        removed = await self._remove_leftover(js, supply, action) if action.leftover else ()
        restored = await (self._replace if action.replaces else self._restore)(js, supply, action)
        return replace(restored, notes=(*removed, *restored.notes))

    async def _remove_leftover(self, js: JetStream, supply: Supply, action: Action) -> tuple[str, ...]:
        """Remove it, and say so. Raises TargetConflict if it is more than that by now."""
        there = await js.find_stream(action.name)
        if there is None:  # a name that a restore in a cluster has taken
            await js.delete_stream(action.name)
            return ()
        if not is_marked(there.config):
            raise TargetConflict(
                f"stream {action.name} at the target has come since all was planned",
                hint="Look at it; --if-exists says what to do with it.",
            )
        if not (action.forced or await supply.has_last(action, there.state)):
            raise TargetConflict(
                f"stream {action.name} is left over from an interrupted restore, and has messages that came since",
                hint="Look at it. With --if-exists replace it is removed with all that it has.",
            )
        await js.delete_stream(action.name)
        count = there.state.messages
        note = f"removed a leftover of {count:,} {'message' if count == 1 else 'messages'} of an interrupted restore"
        _log.info("stream %s: %s", action.name, note)
        return (note,)

    async def _replace(self, js: JetStream, supply: Supply, action: Action) -> RestoredStream:
        staged, sent = await self._stage(js, supply, action)
        try:
            await js.delete_stream(action.name)
        except JsBackupError:
            await remove_stream(self.connection, staged)
            raise
        try:
            async with supply.after_staging(self.connection, staged, sent) as proved:
                restored = await self._restore_in_place(js, proved, action)
        except JsBackupError as error:
            error.hint = f"What was to replace it is proved and kept as stream {staged}. {error.hint or ''}".strip()
            raise
        await js.delete_stream(staged)
        # What was masked was masked on the way to the copy.
        return replace(restored, notes=tuple(dict.fromkeys((*restored.notes, *sent.notes))))

    async def _restore_in_place(self, js: JetStream, supply: Supply, action: Action) -> RestoredStream:
        """Where the old stream is gone: at once again, if the cluster gives it to a server that does not answer."""
        for _ in range(1, _PLACEMENTS):
            try:
                return await self._restore(js, supply, action)
            except NoLeader as error:
                _log.info("stream %s: %s; once more", action.name, error.message)
        try:
            return await self._restore(js, supply, action)
        except NoLeader as error:
            raise NatsTimeout(error.message, hint=error.hint) from error

    async def _stage(self, js: JetStream, supply: Supply, action: Action) -> tuple[str, Sent]:
        """A proved copy of what is to come, beside the stream that it will replace."""
        suffix = self.random(4).hex()
        name = f"{staging_prefix(action.name)}{suffix}"
        config = {key: value for key, value in action.config.items() if key not in _ACTIVE}
        config |= {"name": name, "subjects": [f"jsbackup.staged.{suffix}"], "description": f"replaces {action.name}"}
        copy = replace(action, name=name, config=config, replaces=False, consumers=())
        _log.info("stream %s is restored as %s first, and proved, before the old one goes", action.name, name)
        try:
            if copy.wire is Wire.API:
                await self._create(js, copy)
                return name, Sent(copy.entry, (), copy.wire)
            sent, _ = await self._deliver(js, supply, copy, copy.config)
            await self._settle(js, copy, sent)
            _, unproved = await self._prove(js, supply, copy, sent)
            if unproved or sent.incomplete:
                raise PlanRefused(
                    f"stream {action.name} is not replaced, its copy cannot be proved: {unproved or sent.notes[0]}",
                    hint="With --no-verify it is replaced without a proof.",
                )
        except BaseException:
            await asyncio.shield(remove_stream(self.connection, name))
            raise
        finally:
            self.progress.finish(name)
        return name, sent

    def _marked(self, action: Action) -> bool:
        return self.marking and not action.config.get("sealed")

    def _final(self, action: Action) -> JsonObject:
        """The configuration that the stream has until its consumers are there."""
        return letting_go_of_nothing(action.config) if self._marked(action) and action.consumers else action.config

    async def _deliver(
        self, js: JetStream, supply: Supply, action: Action, keeping: JsonObject
    ) -> tuple[Sent, list[str]]:
        """Send the stream and take the mark from it; with what went wrong after all of it was there."""
        factor = 2 if self.settings.verify else 1
        marked = self._marked(action)
        delivery = Delivery(
            js,
            Transfer(self.connection, await self._window_bytes(js, action), self._limits(js, action)),
            action,
            with_marker(supply.on_the_way(keeping), self.label) if marked else action.config,
            lambda byte_count, messages: self.progress.start(action.name, factor * byte_count, messages),
            lambda *moved: self.progress.advance(action.name, *moved),
        )
        sent = await supply.send(delivery)
        # From here on the stream is whole and alive, publishers may write to it: whatever the proof says, it stays.
        if marked and (reason := await configure(js, keeping)):
            return sent, [f"its metadata key {MARKER} could not be removed, remove it by hand: {reason}"]
        return sent, []

    def _limits(self, js: JetStream, action: Action) -> TransmitLimits:
        """Less patient at the first attempt in a cluster: with another one the servers that live may be known."""
        limits = self.settings.limits
        if js.link.cluster_name is None or self._placed[action.name]:
            return limits
        return replace(limits, request_seconds=min(limits.request_seconds, _FIRST_PLACEMENT_SECONDS))

    async def _window_bytes(self, js: JetStream, action: Action) -> int:
        if self.settings.window_bytes is not None:
            return self.settings.window_bytes
        if 0 < action.entry.captured.bytes <= LEAST_WINDOW_BYTES:  # all of it is on its way at once
            return LEAST_WINDOW_BYTES
        return window_for(await js.link.round_trip())

    async def _restore(self, js: JetStream, supply: Supply, action: Action) -> RestoredStream:
        if action.wire is Wire.API:
            return await self._create(js, action)
        sent, amiss = await self._deliver(js, supply, action, self._final(action))
        return await self._finish(js, supply, action, sent, amiss)

    async def _finish(
        self, js: JetStream, supply: Supply, action: Action, sent: Sent, amiss: list[str]
    ) -> RestoredStream:
        """See to all that is left to do when the messages are there, and prove them. `amiss` is what went wrong."""
        entry, whole, keeping = sent.entry, state_to_restore(sent.entry), self._final(action)
        settled = await self._settle(js, action, sent)
        if keeping != action.config and (reason := await configure(js, action.config)):
            amiss.append(f"its retention could not be set from limits to interest, do so by hand: {reason}")
        proof, unproved = await self._prove(js, supply, action, sent)
        notes = [*_lasting(action), *sent.notes, *amiss, *settled.notes]
        if proof and proof.gone:
            notes.append(f"{proof.gone} messages are gone already: expired, or taken by consumers at work")
        if unproved:
            held = settled.info.state.messages if settled.info else 0
            notes.append(f"not compared, the server reports {held} of {whole.messages} messages: {unproved}")
        incomplete = settled.incomplete or sent.incomplete or bool(amiss) or bool(unproved)
        return RestoredStream(
            name=entry.name,
            as_name=action.name,
            messages=proof.messages if proof else whole.messages,
            bytes=whole.bytes,
            digest=proof.digest.hex if proof else entry.digest.hex,
            verified=proof is not None,
            wire=sent.wire,
            consumers=settled.consumers,
            notes=tuple(notes),
            incomplete=incomplete or entry.name in self.lost,
            lost=self.lost.get(entry.name, ()),
        )

    async def _settle(self, js: JetStream, action: Action, sent: Sent) -> Settled:
        last_message = sent.entry.captured.last_seq
        clustered = self.target.clustered is not False
        return await settle(js, action.name, sent.consumers, last_message=last_message, clustered=clustered)

    async def _create(self, js: JetStream, action: Action) -> RestoredStream:
        """A stream of a config-only backup: made by the API, empty."""
        # A sealed stream cannot be created, nor given consumers: it is sealed at the end.
        await js.create_stream({key: value for key, value in action.config.items() if key != "sealed"})
        try:
            for planned in action.consumers:
                await js.create_consumer(action.name, creatable(planned.consumer))
            if action.config.get("sealed"):
                await js.update_stream(action.config)
        except JsBackupError:
            await remove_stream(self.connection, action.name)
            raise
        return RestoredStream(
            name=action.entry.name,
            as_name=action.name,
            messages=0,
            bytes=0,
            digest=action.entry.digest.hex,
            verified=True,
            wire=action.wire,
            consumers=tuple(
                RestoredConsumer(p.consumer.name, Fidelity.CONFIG_ONLY, may_come_again=0) for p in action.consumers
            ),
            notes=tuple(_lasting(action)),
        )

    async def _prove(self, js: JetStream, supply: Supply, action: Action, sent: Sent) -> tuple[Proof | None, str]:
        """The proof that was asked for, or why there is none."""
        if not self.settings.verify:
            return None, ""
        if sent.undecoded:
            return None, sent.undecoded
        try:
            return await supply.prove(
                js,
                action,
                sent,
                self.now_ns,
                lambda byte_count, _messages: self.progress.advance(action.name, byte_count, 0),
            )
        except NatsPermissionDenied as error:
            return None, error.message


def _lasting(action: Action) -> list[str]:
    """Warnings that hold when it is done."""
    return [warning.reason for warning in action.warnings if warning.rule.lasting]


def bytes_to_move(action: Action, settings: RestoreSettings) -> int:
    """There, and back again to be compared."""
    if action.wire is Wire.API:
        return 0
    if action.wire is Wire.OPAQUE:
        return sum(piece.bytes for piece in action.entry.opaque)
    return action.entry.captured.bytes * (2 if settings.verify else 1)
