"""Restore one stream of a plan and prove it: for restores and clones (`send_archive.py`).

A stream counts as restored when it was read back and equals what was sent. A complete one is never deleted, even if the
proof fails: publishers and consumers may already use it. Between both steps others may be sent (`execution.py`).

Replacing: servers cannot rename streams, and two streams cannot share subjects. So the new one is first restored beside
    the old one, under another name and without subjects, and proved; only then is the old one deleted and the new one
    restored in its place. If this is interrupted, the old stream or the proved copy exists.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.restore.after_restore import Settled, configure, creatable, settle
from jsbackup.engine.restore.proof import Proof, ProofLevel
from jsbackup.engine.restore.remove_unfinished import make_way, refuse_beside, remove_stream
from jsbackup.engine.restore.run import RestoredConsumer, RestoredStream, RestoreRun
from jsbackup.engine.restore.send_archive import Delivery, Sent, Supply, TransmitLimits
from jsbackup.errors import JsBackupError, NatsPermissionDenied, NatsTimeout, NoLeader, PlanRefused
from jsbackup.model import Fidelity
from jsbackup.planning.archive_choice import lifted, lifted_fields, until_consumers
from jsbackup.planning.forecast import about_destroyed
from jsbackup.planning.interrupted import MARKER, staged_config, with_marker
from jsbackup.planning.model import Action, SendAs, Target
from jsbackup.protocol.dialogue import LEAST_WINDOW_BYTES, window_for
from jsbackup.protocol.info import StreamInfo
from jsbackup.readable import count_are, count_were, format_count
from jsbackup.repository.checks.verify import Problem
from jsbackup.repository.read.segments import state_to_restore
from jsbackup.transforms.removal import Cause, keeps_its_messages

__all__ = ["PLACEMENTS", "StartingPoint", "StreamRestore", "Usable"]

_log = logging.getLogger(__name__)

# How often a cluster may assign a stream to a server that does not answer, and how long an answer is waited for, but
# for the last one. Measured on 2.15.2: three seconds after a server stopped no stream is assigned to it any more; on
# 2.15.3, after one was killed, a third of the streams with three replicas are, for minutes.
PLACEMENTS = 6
_PLACEMENT_SECONDS = 10.0


# Settings that would make a copy beside the replaced stream active, or remove messages or prevent its removal. It has
# no consumers either.
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
class StartingPoint:
    """What is known before the first stream is sent. `label` names the run in the streams that it creates.

    `marking`: streams can have a mark until they are complete; `lost` is what the repository no longer has. `backup` is
    the id of the stored backup, "" in a clone.
    """

    label: str
    target: Target
    marking: bool
    lost: Mapping[str, tuple[Problem, ...]] = field(default_factory=dict)
    backup: str = ""


@dataclass(frozen=True, slots=True)
class Usable:
    """A stream that is complete and can be used, but is not proved. `amiss` are problems so far, `removed` are notes on
    what was removed before; `seconds` is how long it was worked on so far.
    """

    action: Action
    sent: Sent
    settled: Settled
    amiss: tuple[str, ...]
    usable_ns: int
    removed: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def can_wait(self) -> bool:
        """Whether the proof finds later what it would find now."""
        return not self.sent.undecoded and keeps_its_messages(self.action.config, state_to_restore(self.sent.entry))

    def waiting(self) -> Usable:
        """Return it without what the proof of a stream that can wait does not need."""
        return replace(self, sent=replace(self.sent, consumers=()))


class StreamRestore:
    """Restores streams at the target. `placed` counts how often a stream was assigned to a server that does not
    answer. `unproved` are streams that are complete and can be used, but are not proved, and since when.
    """

    def __init__(self, run: RestoreRun, start: StartingPoint) -> None:
        self._run = run
        self._start = start
        self.at_work = ""  # the subject that marks this command as running, if it replaces streams
        self.placed: Counter[str] = Counter()
        self.unproved: dict[str, int] = {}

    async def replace_stream(self, js: JetStream, supply: Supply, action: Action) -> RestoredStream:
        staged, sent = await self._stage(js, supply, action)
        destroyed: list[str] = []
        try:
            await refuse_beside(js, action.name, staged)
            if (live := await js.find_stream(action.name)) is not None:
                destroyed = [*self._since_planned(action, live)]
                destroyed += [finding.reason for finding in about_destroyed(action, live)]
                await make_way(js, live)
        except JsBackupError:
            await remove_stream(self._run.connection, staged)
            raise
        try:
            async with supply.after_staging(self._run.connection, staged, sent) as proved:
                restored = await self._restore_in_place(js, proved, action)
        except JsBackupError as error:
            kept = await _about_kept(js, staged, self._run.settings.proof)
            hint = f"{kept} {error.hint or ''}".strip()
            raise error.with_hint(hint) from error.__cause__
        await js.delete_stream(staged)
        # Masking happened when the copy was made.
        return replace(restored, notes=tuple(dict.fromkeys((*destroyed, *restored.notes, *sent.notes))))

    def _since_planned(self, action: Action, live: StreamInfo) -> Iterator[str]:
        """Yield a note on messages that the stream to be replaced has got since the plan was made. Raises PlanRefused
        if nobody has confirmed that messages may be lost.
        """
        planned = self._start.target.streams.get(action.name)
        count = live.state.last_seq - planned.state.last_seq if planned is not None else 0
        if count > 0:
            if not self._run.options.replace_with_part:
                reason = f"stream {action.name} is not replaced: {count_were(count, 'message')} stored in it meanwhile"
                raise PlanRefused(reason, hint="Stop its publishers, or let them be lost with --replace-with-part.")
            yield f"{count_were(count, 'message')} stored while it was restored, and went with the old stream"

    async def _restore_in_place(self, js: JetStream, supply: Supply, action: Action) -> RestoredStream:
        """Restore after the old stream was deleted: retry at once if the cluster assigns it to a server that does not
        answer.
        """
        for _ in range(1, PLACEMENTS):
            try:
                return await self.restore(js, supply, action)
            except NoLeader as error:
                _log.info("stream %s: %s; once more", action.name, error.message)
        try:
            return await self.restore(js, supply, action)
        except NoLeader as error:
            raise NatsTimeout(error.message, hint=error.hint) from error

    async def _stage(self, js: JetStream, supply: Supply, action: Action) -> tuple[str, Sent]:
        """Make a proved copy beside the stream that it will replace."""
        old = self._start.target.streams.get(action.name)
        config = {key: value for key, value in action.config.items() if key not in _ACTIVE}
        config |= staged_config(action.name, self._run.random(4).hex(), old.created if old else None, self.at_work)
        name = config["name"]
        copy = replace(action, name=name, config=config, replaces=False, consumers=())
        _log.info("stream %s is restored as %s first and verified before the old one is deleted", action.name, name)
        try:
            if copy.wire is SendAs.API:
                await self.create(js, copy)
                return name, Sent(copy.entry, (), copy.wire)
            sent, _ = await self._deliver(js, supply, copy)
            await self._settle(js, copy, sent, everywhere=True)
            _, unproved = await self._prove(js, supply, copy, sent)
            if unproved or sent.incomplete:
                hint = "--verify none replaces it without verification"
                raise PlanRefused(
                    f"stream {action.name} is not replaced, its copy cannot be proved: {unproved or sent.notes[0]}",
                    hint=f"{hint}." if sent.undecoded else f"{hint}; quick compares what the server counts.",
                )
        except BaseException:
            await asyncio.shield(remove_stream(self._run.connection, name))
            raise
        finally:
            self._run.progress.finish(name)
        return name, sent

    def _marked(self, action: Action) -> bool:
        return self._start.marking and not action.config.get("sealed")

    def _waits(self, action: Action) -> bool:
        """Return whether the stream gets its configuration when its consumers exist, and keeps its mark until then."""
        return self._marked(action) and until_consumers(action) != action.config

    async def _deliver(self, js: JetStream, supply: Supply, action: Action) -> tuple[Sent, list[str]]:
        """Send the stream and remove its mark if it `_waits` for nothing; also return problems that came after it was
        complete.
        """
        factor = self._run.settings.passes
        marked = self._marked(action)
        delivery = Delivery(
            js,
            self._run.connection,
            action,
            with_marker(supply.on_the_way(lifted(action)), self._start.label) if marked else action.config,
            lambda byte_count, messages: self._run.progress.start(action.name, factor * byte_count, messages),
            lambda *moved: self._run.progress.advance(action.name, *moved),
            await self._window_bytes(js, action),
            self._limits(js, action),
        )
        sent = await supply.send(delivery)
        # From here on the stream is complete and active, publishers may write to it: whatever the proof says, it stays.
        return sent, await self._configure(js, action) if marked and not self._waits(action) else []

    async def _configure(self, js: JetStream, action: Action) -> list[str]:
        """Bring the final configuration; return problems."""
        if not (reason := await configure(js, action.config)):
            return []
        fields = lifted_fields(action)
        more = f", nor its {' and '.join(fields)} set" if fields else ""
        return [f"its metadata key {MARKER} could not be removed{more}, do so by hand: {reason}"]

    def _limits(self, js: JetStream, action: Action) -> TransmitLimits:
        """Return limits: less patient in a cluster, which may choose a running server at the next attempt, if any."""
        limits = self._run.settings.limits
        if js.link.cluster_name is None or self.placed[action.name] >= PLACEMENTS - 1:
            return limits
        return replace(limits, request_seconds=min(limits.request_seconds, _PLACEMENT_SECONDS))

    async def _window_bytes(self, js: JetStream, action: Action) -> int:
        if 0 < action.entry.captured.bytes <= LEAST_WINDOW_BYTES:  # everything is in flight at once
            return LEAST_WINDOW_BYTES
        return window_for(await js.link.round_trip())

    async def restore(self, js: JetStream, supply: Supply, action: Action) -> RestoredStream:
        if action.wire is SendAs.API:
            return await self.create(js, action)
        return await self.prove(js, supply, await self.send(js, supply, action))

    async def send(self, js: JetStream, supply: Supply, action: Action) -> Usable:
        sent, amiss = await self._deliver(js, supply, action)
        self.unproved[action.name] = self._run.now_ns()
        return await self.make_usable(js, action, sent, amiss=amiss)

    async def make_usable(self, js: JetStream, action: Action, sent: Sent, *, amiss: Sequence[str] = ()) -> Usable:
        """Do what is left after the messages are restored, except for the proof. `amiss` are problems so far."""
        settled = await self._settle(js, action, sent, everywhere=self._waits(action))
        if self._waits(action):
            amiss = (*amiss, *await self._configure(js, action))
        if self._run.settings.verify:
            _log.info("stream %s can be used; it is not verified yet", action.name)
        self.unproved[action.name] = usable_ns = self._run.now_ns()
        return Usable(action, sent, settled, tuple(amiss), usable_ns)

    async def prove(self, js: JetStream, supply: Supply, usable: Usable) -> RestoredStream:
        """Prove it as requested. Raises DigestMismatch and NatsError; then it stays among the `unproved`."""
        action, sent, settled, amiss = usable.action, usable.sent, usable.settled, usable.amiss
        entry, whole = sent.entry, state_to_restore(sent.entry)
        proof, unproved = await self._prove(js, supply, action, sent)
        self.unproved.pop(action.name, None)
        notes = [*_lasting(action), *sent.notes, *amiss, *settled.notes]
        if proof:
            notes += _gone(proof)
        if unproved:
            held = settled.info.state.messages if settled.info else 0
            notes.append(
                f"not verified: the server reports {held:,} of {format_count(whole.messages, 'message')}: {unproved}"
            )
        incomplete = settled.incomplete or sent.incomplete or bool(amiss) or bool(unproved)
        return RestoredStream(
            name=entry.name,
            as_name=action.name,
            messages=proof.messages if proof else whole.messages,
            bytes=whole.bytes if proof is None or proof.bytes is None else proof.bytes,
            digest=proof.digest.hex if proof else entry.digest.hex,
            proof=ProofLevel.NONE if proof is None else proof.level,
            wire=sent.wire,
            consumers=settled.consumers,
            notes=tuple(notes),
            incomplete=incomplete or entry.name in self._start.lost,
            lost=self._start.lost.get(entry.name, ()),
            usable_ns=usable.usable_ns,
            behind=settled.behind,
        )

    async def _settle(self, js: JetStream, action: Action, sent: Sent, *, everywhere: bool) -> Settled:
        last_message = sent.entry.captured.last_seq
        clustered = self._start.target.clustered is not False
        return await settle(
            js, action.name, sent.consumers, last_message=last_message, clustered=clustered, everywhere=everywhere
        )

    async def create(self, js: JetStream, action: Action) -> RestoredStream:
        """Create a stream of a config-only backup by the API, empty."""
        # A sealed stream cannot be created, nor given consumers: it is sealed at the end.
        config = until_consumers(action) if self._waits(action) else action.config
        config = {key: value for key, value in config.items() if key != "sealed"}
        await js.create_stream(config)
        try:
            for planned in action.consumers:
                await js.create_consumer(action.name, creatable(planned.consumer))
            if config != action.config:
                await js.update_stream(action.config)
        except JsBackupError:
            await remove_stream(self._run.connection, action.name)
            raise
        return RestoredStream(
            name=action.entry.name,
            as_name=action.name,
            messages=0,
            bytes=0,
            digest=action.entry.digest.hex,
            proof=ProofLevel.FULL if self._run.settings.verify else ProofLevel.NONE,
            wire=action.wire,
            consumers=tuple(
                RestoredConsumer(p.consumer.name, Fidelity.CONFIG_ONLY, may_come_again=0) for p in action.consumers
            ),
            notes=tuple(_lasting(action)),
            usable_ns=self._run.now_ns(),
        )

    async def _prove(self, js: JetStream, supply: Supply, action: Action, sent: Sent) -> tuple[Proof | None, str]:
        """Return the requested proof, or why there is none."""
        if not self._run.settings.verify:
            return None, ""
        if sent.undecoded:
            return None, sent.undecoded
        try:
            return await supply.prove(
                js,
                action,
                sent,
                advance=lambda byte_count, _messages: self._run.progress.advance(action.name, byte_count, 0),
            )
        except NatsPermissionDenied as error:
            return None, error.message


def _gone(proof: Proof) -> Iterator[str]:
    """Yield what is gone since the stream was restored, and why."""
    for cause, count in sorted(proof.gone.items()):
        already = f"{count_are(count, 'message')} gone already"
        if cause is Cause.DISCARDED:
            since, limits = count_were(proof.discarded.published, "message"), " and ".join(proof.discarded.limits)
            yield f"{already}: {since} published since, and it discards the oldest at {limits}"
        elif count:
            yield f"{already}: {cause}"


async def _about_kept(js: JetStream, staged: str, level: ProofLevel) -> str:
    """Return what happened to the copy of a deleted stream."""
    try:
        if await js.find_stream(staged) is None:
            return f"Its replacement, {staged}, was removed by someone else: restore the stream from a backup."
    except JsBackupError:
        return f"Its replacement should still be there as stream {staged}."
    return f"Its replacement is {'proved and ' if level is ProofLevel.FULL else ''}kept as stream {staged}."


def _lasting(action: Action) -> list[str]:
    """Return the warnings that still apply afterwards."""
    return [warning.reason for warning in action.warnings if warning.rule.lasting]
