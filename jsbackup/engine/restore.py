"""Restore: a plan carried out against a server, stream by stream, and proved.

Order: everything the plan needs is read and checked before the first chunk; origins come before their mirrors; a
stream counts as restored when it has been read back and is what the backup holds.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from jsbackup.config import Connection
from jsbackup.engine.abandon import MARKER, abandon_restore, is_marked, remove_stream, with_marker
from jsbackup.engine.backup import Failure, connect_jetstream
from jsbackup.engine.features import Version
from jsbackup.engine.jetstream import JetStream
from jsbackup.engine.plan import Action, PlannedConsumer, RestoreOptions, RestorePlan, Target, Wire, plan_restore
from jsbackup.engine.prove import Expected, Proof, prove_stream
from jsbackup.engine.transmit import TransmitLimits, transmit
from jsbackup.engine.watch import advisories
from jsbackup.errors import (
    ApiError,
    IntegrityError,
    JsBackupError,
    NatsError,
    NatsPermissionDenied,
    PlanRefused,
    TargetConflict,
)
from jsbackup.formats.archive import ArchiveV1Writer, ArchiveV2Writer
from jsbackup.formats.s2 import S2Encoder
from jsbackup.model import ArchivedConsumer, ConsumerState, Fidelity, JsonObject, SequencePair, StreamState
from jsbackup.progress import Progress
from jsbackup.protocol.responses import ErrCode
from jsbackup.protocol.restore import DEFAULT_WINDOW_BYTES, RestoreSender, chunk_limit
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.repository.opaque import read_opaque
from jsbackup.repository.pending import load_consumer
from jsbackup.repository.repository import Repository
from jsbackup.repository.segments import SegmentReader
from jsbackup.repository.verify import Level, verify_backup
from jsbackup.stores.base import Store

__all__ = ["MARKER", "RestoreReport", "RestoreSettings", "RestoredConsumer", "RestoredStream", "run_restore"]

_log = logging.getLogger(__name__)

_SETTLE_SECONDS = 120.0  # for consumers to appear and replicas to be current in a cluster
_SETTLE_PAUSE_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class RestoreSettings:
    """How to go about it. `window_bytes` may be on the way unacknowledged."""

    jobs: int = 4
    window_bytes: int = DEFAULT_WINDOW_BYTES
    verify: bool = True
    limits: TransmitLimits = field(default_factory=TransmitLimits)


@dataclass(frozen=True, slots=True)
class RestoredConsumer:
    """A consumer at the target. `note` says what is not as it was ("" if nothing)."""

    name: str
    fidelity: Fidelity
    note: str = ""


@dataclass(frozen=True, slots=True)
class RestoredStream:
    """A stream at the target. `verified` is False only where no proof was asked for or none is possible."""

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


@dataclass(frozen=True, slots=True)
class RestoreReport:
    plan: RestorePlan
    streams: tuple[RestoredStream, ...]
    failures: tuple[Failure, ...]


async def look_at(js: JetStream) -> Target:
    """The target as it is now."""
    listing = await js.streams()
    streams = dict(listing.entries)
    leftovers = {name for name, stream in streams.items() if is_marked(stream.config)}
    # A silent stream has its name taken all the same.
    for name in (*listing.missing, *listing.offline):
        if name not in streams:
            raise NatsError(
                f"stream {name} at the target does not answer", hint="Restore when all streams have a leader."
            )
    version: Version = js.link.server_version
    return Target(version, js.link.cluster_name is not None, streams, frozenset(leftovers))


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
) -> RestoreReport:
    """Plan and carry out. A refused plan raises PlanRefused or TargetConflict, and nothing was changed then."""
    async with connect_jetstream(connection) as js, advisories(js.link):
        await js.account()
        target = await look_at(js)
        plan = plan_restore(manifest, target, options)
        refuse_if_refused(plan)
        await asyncio.to_thread(_check_objects, repository.store, manifest, plan)
        marking = await _may_update(js)
        progress.expect({action.name: _bytes_to_move(action, settings) for action in plan.actions})
        run = _Run(connection, repository.store, manifest.id, settings, progress, random, now_ns, target, marking)
        results, failures = await run.all(plan)
    return RestoreReport(plan, tuple(results), tuple(failures))


def refuse_if_refused(plan: RestorePlan) -> None:
    """Raise what the plan was refused for: TargetConflict if nothing but conflicts stand against it."""
    if not plan.refusals:
        return
    reasons = "; ".join(f"stream {refusal.stream} {refusal.reason}" for refusal in plan.refusals[:10])
    more = len(plan.refusals) - 10
    message = f"nothing was restored: {reasons}" + (f"; and {more} more" if more > 0 else "")
    kind = TargetConflict if all(r.code == TargetConflict.exit_code for r in plan.refusals) else PlanRefused
    raise kind(message, hint="Change the options, or leave these streams out with --exclude.")


def _check_objects(store: Store, manifest: Manifest, plan: RestorePlan) -> None:
    chosen = {action.entry.name for action in plan.actions}
    part = replace(manifest, streams=tuple(s for s in manifest.streams if s.name in chosen))
    for problem in verify_backup(store, part, Level.OBJECTS):
        raise IntegrityError(
            f"nothing was restored: stream {problem.stream}: {problem.problem}",
            hint="See 'jsbackup verify' for all that is lost; streams that are whole can be restored by name.",
        )


async def _may_update(js: JetStream) -> bool:
    """Whether STREAM.UPDATE is allowed, tried on a stream that cannot be there."""
    try:
        await js.update_stream({"name": "jsbackup-is-update-allowed", "subjects": ["jsbackup.is.update.allowed"]})
    except NatsPermissionDenied:
        return False
    except ApiError as error:
        return error.err_code == ErrCode.STREAM_NOT_FOUND
    return False


class _Run:
    """One restore: what its streams have in common."""

    def __init__(
        self,
        connection: Connection,
        store: Store,
        backup: str,
        settings: RestoreSettings,
        progress: Progress,
        random: Callable[[int], bytes],
        now_ns: Callable[[], int],
        target: Target,
        marking: bool,
    ) -> None:
        self.connection = connection
        self.store = store
        self.backup = backup
        self.settings = settings
        self.progress = progress
        self.random = random
        self.now_ns = now_ns
        self.target = target
        self.marking = marking

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
            await js.delete_stream(action.name)
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
        name = f"{action.name[:200]}-jsbackup-{suffix}"
        active = ("mirror", "sources", "republish", "subject_transform", "metadata")
        config = {key: value for key, value in action.config.items() if key not in active}
        config |= {"name": name, "subjects": [f"jsbackup.staged.{suffix}"], "description": f"replaces {action.name}"}
        copy = replace(action, name=name, config=config, replaces=False, consumers=())
        _log.info("stream %s is restored as %s first, and proved, before the old one goes", action.name, name)
        try:
            await self._restore(js, copy)
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
        consumers = await asyncio.to_thread(self._load_consumers, action)
        self.progress.start(action.name, _bytes_to_move(action, self.settings), entry.captured.messages)
        marked = self.marking and not action.config.get("sealed")
        config = with_marker(action.config, self.backup) if marked else action.config
        sender = RestoreSender(
            config,
            _state_to_restore(entry),
            max_chunk=chunk_limit(js.link.max_payload_bytes),
            window_size=self.settings.window_bytes,
        )
        try:
            await transmit(js, sender, lambda: self._archive(action, config, consumers), self.settings.limits)
        except BaseException as error:
            refused = sender.deliver_subject is None and isinstance(error, (ApiError, TargetConflict))
            if not refused and not (isinstance(error, TargetConflict) and _is_name_taken(error)):
                await asyncio.shield(abandon_restore(self.connection, sender))
            raise
        # From here on the stream is whole and alive, publishers may write to it: whatever the proof says, it stays.
        notes: list[str] = []
        if marked:
            notes += await _take_marker_off(js, action.config)
        more, incomplete = await self._settle(js, action)
        notes += more
        proof = await self._prove(js, action, consumers)
        found = _compare_consumers(consumers, proof, entry.state.last_seq) if proof else _as_planned(consumers)
        if proof and proof.gone:
            notes.append(f"{proof.gone} messages are gone already: expired, or taken by consumers at work")
        return RestoredStream(
            name=entry.name,
            as_name=action.name,
            messages=proof.messages if proof else entry.captured.messages,
            bytes=entry.captured.bytes,
            digest=proof.digest.hex if proof else entry.digest.hex,
            verified=proof is not None,
            seconds=time.monotonic() - began,
            wire=action.wire,
            consumers=tuple(found),
            notes=(*action.notes, *notes),
            incomplete=incomplete,
        )

    def _load_consumers(self, action: Action) -> list[PlannedConsumer]:
        whole = []
        backups = {consumer.name: consumer for consumer in action.entry.consumers}
        for planned in action.consumers:
            if planned.pending is not None:
                loaded = load_consumer(self.store, backups[planned.consumer.name])
                planned = replace(planned, consumer=replace(planned.consumer, state=loaded.state), pending=None)
            whole.append(planned)
        return whole

    def _messages(self, entry: StreamBackup) -> Iterator[pa.RecordBatch]:
        reader = SegmentReader(self.store)
        for ref in entry.segments:
            yield from reader.read(ref)

    def _archive(self, action: Action, config: JsonObject, consumers: Sequence[PlannedConsumer]) -> Iterable[bytes]:
        """The archive as the server reads it, in S2 frames. Runs in a worker thread."""
        if action.wire is Wire.OPAQUE:
            yield from read_opaque(self.store, action.entry.opaque)
            return
        archived = [planned.consumer for planned in consumers]
        state = _state_to_restore(action.entry)
        writer: ArchiveV1Writer | ArchiveV2Writer
        if action.wire is Wire.V1:
            writer = ArchiveV1Writer(config, action.entry.created, state, archived)
        else:
            # v2 knows no consumer without a state: one that starts anew has delivered nothing.
            archived = [c if c.state is not None else replace(c, state=ConsumerState()) for c in archived]
            writer = ArchiveV2Writer(state, archived)
        encoder = S2Encoder()
        for piece in writer.begin():
            yield encoder.feed(piece)
        for batch in self._messages(action.entry):
            for piece in writer.write(batch):
                yield encoder.feed(piece)
            self.progress.advance(action.name, batch.nbytes, batch.num_rows)
        for piece in writer.finish():
            yield encoder.feed(piece)
        yield encoder.finish()

    async def _create(self, js: JetStream, action: Action) -> RestoredStream:
        """A stream of a config-only backup: made by the API, empty."""
        began = time.monotonic()
        await js.create_stream(action.config)
        try:
            for planned in action.consumers:
                await js.create_consumer(action.name, _creatable(planned.consumer))
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

    async def _settle(self, js: JetStream, action: Action) -> tuple[list[str], bool]:
        """Wait for consumers and replicas; make consumers that the restore left out. Notes, and whether some lack."""
        wanted = {planned.consumer.name: planned for planned in action.consumers}
        deadline = time.monotonic() + _SETTLE_SECONDS
        missing: set[str] = set(wanted)
        behind = False
        while True:
            info = await js.find_stream(action.name)
            if missing:
                missing = set(wanted) - set((await js.consumers(action.name)).entries)
            behind = info is None or (info.cluster is not None and not info.cluster.ready)
            late = time.monotonic() > deadline or not self.target.clustered
            if (not missing and not behind) or late:
                break
            await asyncio.sleep(_SETTLE_PAUSE_SECONDS)
        notes = []
        incomplete = behind
        if behind:
            notes.append("not all replicas are current yet")
        for name in sorted(missing):
            try:
                await js.create_consumer(action.name, _creatable(wanted[name].consumer))
                notes.append(f"consumer {name} was not restored by the server and was created anew")
            except JsBackupError as error:
                incomplete = True
                notes.append(f"consumer {name} is missing: {error.message}")
        return notes, incomplete

    async def _prove(self, js: JetStream, action: Action, consumers: Sequence[PlannedConsumer]) -> Proof | None:
        entry = action.entry
        if not self.settings.verify or action.wire is Wire.OPAQUE:
            return None
        expected = Expected(
            entry.digest,
            entry.captured.messages,
            _state_to_restore(entry).last_seq,
            {p.consumer.name: p.consumer.state.delivered if p.consumer.state else SequencePair() for p in consumers},
            lambda: self._messages(entry),
        )
        return await prove_stream(
            js,
            action.name,
            expected,
            now_ns=self.now_ns,
            advance=lambda byte_count, _messages: self.progress.advance(action.name, byte_count, 0),
        )


def _bytes_to_move(action: Action, settings: RestoreSettings) -> int:
    """There, and back again to be compared."""
    if action.wire is Wire.API:
        return 0
    return action.entry.captured.bytes * (2 if settings.verify else 1)


def _state_to_restore(entry: StreamBackup) -> StreamState:
    """The state to ask for: as reported, widened to what was captured after the report."""
    captured, state = entry.captured, entry.state
    last_seq = max(state.last_seq, captured.last_seq)
    first_seq = captured.first_seq or last_seq + 1
    if not captured.messages:
        # An empty stream keeps the sequence it goes on with; one never used may have a first_seq of its own.
        first_seq = max(state.first_seq, last_seq + 1) if last_seq or state.first_seq > 1 else state.first_seq
    return replace(
        state, messages=captured.messages, bytes=captured.bytes, first_seq=first_seq, last_seq=last_seq, deleted=0
    )


async def _take_marker_off(js: JetStream, config: JsonObject) -> list[str]:
    """The stream is whole now. Notes what stands against saying so."""
    try:
        await js.update_stream(config)
    except JsBackupError as error:
        return [f"its metadata key {MARKER} could not be removed: {error.message}"]
    return []


def _is_name_taken(error: TargetConflict) -> bool:
    cause = error.__cause__
    return isinstance(cause, ApiError) and cause.err_code in (ErrCode.STREAM_NAME_IN_USE, ErrCode.RESTORE_NAME_IN_USE)


def _creatable(consumer: ArchivedConsumer) -> JsonObject:
    config = dict(consumer.config)
    config.setdefault("name", consumer.name)
    return config


def _as_planned(consumers: Sequence[PlannedConsumer]) -> list[RestoredConsumer]:
    return [RestoredConsumer(p.consumer.name, p.fidelity, p.note) for p in consumers]


def _compare_consumers(consumers: Sequence[PlannedConsumer], proof: Proof, last_seq: int) -> list[RestoredConsumer]:
    """Fidelity as planned, unless what the server now holds is less than that."""
    found = []
    for planned in consumers:
        fidelity, note = planned.fidelity, planned.note
        wanted, now = planned.consumer.state, proof.consumers.get(planned.consumer.name)
        if wanted is not None and now is not None and now.state is not None and fidelity is Fidelity.EXACT:
            lost = set(wanted.pending) - set(now.state.pending)
            if now.state.ack_floor.stream < wanted.ack_floor.stream or (lost and not now.state.pending):
                fidelity, note = Fidelity.FLOOR, "the server took over its ack floor only"
        found.append(RestoredConsumer(planned.consumer.name, fidelity, note))
    return found
