"""Restore: a plan carried out against a server, stream by stream, and proved.

Order: everything the plan needs is read and checked before the first chunk (`soundness.py`); origins come before their
mirrors; a stream counts as restored when it has been read back and is what the backup holds.

What a failure leaves. A failed transfer may leave a partial, active stream: what this run created is deleted, and only
that. If the process dies, nobody can: so streams that a server could leave half-made carry the metadata key
`jsbackup.restoring` until the transfer has ended, and the next restore takes one that carries it for a leftover. A
stream that is whole is never deleted, even if the proof fails: publishers and consumers may be at work on it.

Replacing. No server can rename a stream, and two cannot share subjects. So the new one is first restored beside the
old one, under a name of its own and without its subjects, and proved; only then is the old one deleted and the new one
restored in its place. Whenever this is interrupted, the old stream or the proved copy is there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jsbackup.config import Connection
from jsbackup.engine.abandon import MARKER, remove_stream, with_marker
from jsbackup.engine.backup import Failure, connect_jetstream
from jsbackup.engine.deliver import deliver
from jsbackup.engine.jetstream import JetStream
from jsbackup.engine.outgoing import archive_of, load_consumers
from jsbackup.engine.plan import plan_restore, staging_prefix
from jsbackup.engine.plan_file import SavedPlan, refuse_if_changed
from jsbackup.engine.planned import Action, PlannedConsumer, RestoreOptions, RestorePlan, Target, Wire
from jsbackup.engine.prove import Expected, Proof, prove_stream
from jsbackup.engine.settle import RestoredConsumer, configure, creatable, letting_go_of_nothing, settle
from jsbackup.engine.soundness import PartialPlan, check_objects, plan_what_is_left, refuse_if_refused
from jsbackup.engine.target import check_allowed, look_at, may_update
from jsbackup.engine.transmit import TransmitLimits
from jsbackup.engine.watch import advisories
from jsbackup.errors import JsBackupError, NatsPermissionDenied, PlanRefused
from jsbackup.model import Fidelity
from jsbackup.progress import Progress
from jsbackup.protocol.restore import DEFAULT_WINDOW_BYTES, RestoreSender, chunk_limit
from jsbackup.repository.archiving import read_stream, state_to_restore
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.objects import Objects
from jsbackup.repository.repository import Repository
from jsbackup.repository.verify import Problem

__all__ = ["MARKER", "RestoreReport", "RestoreSettings", "RestoredConsumer", "RestoredStream", "run_restore"]

_log = logging.getLogger(__name__)

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
    """How to go about it. `window_bytes` may be on the way unacknowledged.

    `partial` restores what is left where objects are lost, which otherwise refuses everything.
    """

    jobs: int = 4
    window_bytes: int = DEFAULT_WINDOW_BYTES
    verify: bool = True
    partial: bool = False
    limits: TransmitLimits = field(default_factory=TransmitLimits)


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
    seconds: float
    wire: Wire
    consumers: tuple[RestoredConsumer, ...] = ()
    notes: tuple[str, ...] = ()
    incomplete: bool = False
    lost: tuple[Problem, ...] = ()


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
        plan = plan_restore(manifest, target, options)
        if saved is not None:
            refuse_if_changed(saved, plan, target)
        refuse_if_refused(plan)
        await check_allowed(js, plan)
        sound = PartialPlan(plan, {}, ())
        if settings.partial:
            sound = await asyncio.to_thread(
                plan_what_is_left,
                repository.objects,
                manifest,
                plan,
                lambda left: plan_restore(left, target, options),
            )
            refuse_if_refused(sound.plan)
        else:
            await asyncio.to_thread(check_objects, repository.objects, manifest, plan)
        marking = await may_update(js)
        progress.expect({action.name: _bytes_to_move(action, settings) for action in sound.plan.actions})
        run = _Run(
            connection, repository.objects, manifest.id, settings, progress, random, now_ns, target, marking, sound.lost
        )
        results, failures = await run.all(sound.plan)
    failures = sorted([*failures, *sound.failures], key=lambda failure: failure.name)
    return RestoreReport(sound.plan, tuple(results), tuple(failures))


class _Run:
    """One restore: what its streams have in common."""

    def __init__(
        self,
        connection: Connection,
        objects: Objects,
        backup: str,
        settings: RestoreSettings,
        progress: Progress,
        random: Callable[[int], bytes],
        now_ns: Callable[[], int],
        target: Target,
        marking: bool,
        lost: Mapping[str, tuple[Problem, ...]],
    ) -> None:
        self.connection = connection
        self.objects = objects
        self.backup = backup
        self.settings = settings
        self.progress = progress
        self.random = random
        self.now_ns = now_ns
        self.target = target
        self.marking = marking
        self.lost = lost

    async def all(self, plan: RestorePlan) -> tuple[list[RestoredStream], list[Failure]]:
        """Stage by stage; a failed stream does not stop the others."""
        results: list[RestoredStream] = []
        failures: list[Failure] = []

        async def one(js: JetStream, action: Action) -> bool:
            try:
                results.append(await self._one(js, action))
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
                        async with connect_jetstream(self.connection) as js:
                            while waiting and (await one(js, waiting.pop()) or js.link.connected):
                                pass
                except JsBackupError as error:
                    unreachable.append(error)

            async with asyncio.TaskGroup() as group:
                for _ in range(min(self.settings.jobs, len(stage))):
                    group.create_task(work())
            failures += [Failure(action.name, unreachable[-1]) for action in waiting]
        return sorted(results, key=lambda r: r.name), sorted(failures, key=lambda f: f.name)

    async def _one(self, js: JetStream, action: Action) -> RestoredStream:
        began = time.monotonic()
        if action.leftover:
            _log.info("stream %s is left over from an interrupted restore: removed", action.name)
            await js.delete_stream(action.name)
        staged: str | None = None
        if action.replaces:
            staged = await self._stage(js, action)
            try:
                await js.delete_stream(action.name)
            except JsBackupError:
                await remove_stream(self.connection, staged)
                raise
        try:
            restored = await self._restore(js, action)
        except JsBackupError as error:
            if staged is not None:
                error.hint = f"What was to replace it is proved and kept as stream {staged}. {error.hint or ''}".strip()
            raise
        if staged is not None:
            await js.delete_stream(staged)
        return replace(restored, seconds=time.monotonic() - began)

    async def _stage(self, js: JetStream, action: Action) -> str:
        """A proved copy of what is to come, beside the stream that it will replace."""
        suffix = self.random(4).hex()
        name = f"{staging_prefix(action.name)}{suffix}"
        config = {key: value for key, value in action.config.items() if key not in _ACTIVE}
        config |= {"name": name, "subjects": [f"jsbackup.staged.{suffix}"], "description": f"replaces {action.name}"}
        copy = replace(action, name=name, config=config, replaces=False, consumers=())
        _log.info("stream %s is restored as %s first, and proved, before the old one goes", action.name, name)
        try:
            restored = await self._restore(js, copy)
            if self.settings.verify and not restored.verified:
                raise PlanRefused(
                    f"stream {action.name} is not replaced, its copy cannot be proved: {restored.notes[-1]}",
                    hint="With --no-verify it is replaced without a proof.",
                )
        except BaseException:
            await asyncio.shield(remove_stream(self.connection, name))
            raise
        finally:
            self.progress.finish(name)
        return name

    async def _restore(self, js: JetStream, action: Action) -> RestoredStream:
        began = time.monotonic()
        entry = action.entry
        if action.wire is Wire.API:
            return await self._create(js, action)
        consumers = await asyncio.to_thread(load_consumers, self.objects, action)
        self.progress.start(action.name, _bytes_to_move(action, self.settings), entry.captured.messages)
        marked = self.marking and not action.config.get("sealed")
        keeping = letting_go_of_nothing(action.config) if marked and consumers else action.config
        config = with_marker(keeping, self.backup) if marked else action.config

        def archive() -> Iterable[bytes]:
            return archive_of(
                self.objects, action, config, consumers, lambda *moved: self.progress.advance(action.name, *moved)
            )

        whole = state_to_restore(entry)
        await deliver(
            js,
            self.connection,
            lambda: RestoreSender(
                config,
                whole,
                max_chunk=chunk_limit(js.link.max_payload_bytes),
                window_size=self.settings.window_bytes,
            ),
            archive,
            self.settings.limits,
        )
        # From here on the stream is whole and alive, publishers may write to it: whatever the proof says, it stays.
        amiss = []
        if marked and (reason := await configure(js, keeping)):
            amiss.append(f"its metadata key {MARKER} could not be removed, remove it by hand: {reason}")
        settled = await settle(
            js,
            action.name,
            consumers,
            last_message=entry.captured.last_seq,
            clustered=self.target.clustered is not False,
        )
        if keeping != action.config and (reason := await configure(js, action.config)):
            amiss.append(f"its retention could not be set from limits to interest, do so by hand: {reason}")
        proof, unproved = await self._prove(js, action, consumers)
        lasting = [warning.reason for warning in action.warnings if warning.rule.lasting]
        notes = [*lasting, *amiss, *settled.notes]
        if proof and proof.gone:
            notes.append(f"{proof.gone} messages are gone already: expired, or taken by consumers at work")
        if unproved:
            held = settled.info.state.messages if settled.info else 0
            notes.append(f"not compared, the server reports {held} of {whole.messages} messages: {unproved}")
        return RestoredStream(
            name=entry.name,
            as_name=action.name,
            messages=proof.messages if proof else whole.messages,
            bytes=whole.bytes,
            digest=proof.digest.hex if proof else entry.digest.hex,
            verified=proof is not None,
            seconds=time.monotonic() - began,
            wire=action.wire,
            consumers=settled.consumers,
            notes=tuple(notes),
            incomplete=settled.incomplete or bool(amiss) or bool(unproved) or entry.name in self.lost,
            lost=self.lost.get(entry.name, ()),
        )

    async def _create(self, js: JetStream, action: Action) -> RestoredStream:
        """A stream of a config-only backup: made by the API, empty."""
        began = time.monotonic()
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
            seconds=time.monotonic() - began,
            wire=action.wire,
            consumers=tuple(RestoredConsumer(p.consumer.name, Fidelity.CONFIG_ONLY) for p in action.consumers),
        )

    async def _prove(
        self, js: JetStream, action: Action, consumers: Sequence[PlannedConsumer]
    ) -> tuple[Proof | None, str]:
        """The proof that was asked for, or why there is none."""
        entry = action.entry
        if not self.settings.verify:
            return None, ""
        if action.wire is Wire.OPAQUE:
            return None, "it was kept as it came, not decoded"
        expected = Expected(
            entry.digest,
            entry.captured.messages,
            state_to_restore(entry).last_seq,
            action.config,
            [planned.consumer for planned in consumers],
            lambda: read_stream(self.objects, entry),
        )
        try:
            proof = await prove_stream(
                js,
                action.name,
                expected,
                now_ns=self.now_ns,
                advance=lambda byte_count, _messages: self.progress.advance(action.name, byte_count, 0),
            )
        except NatsPermissionDenied as error:
            return None, error.message
        return proof, ""


def _bytes_to_move(action: Action, settings: RestoreSettings) -> int:
    """There, and back again to be compared."""
    if action.wire is Wire.API:
        return 0
    if action.wire is Wire.OPAQUE:
        return sum(piece.bytes for piece in action.entry.opaque)
    return action.entry.captured.bytes * (2 if settings.verify else 1)
