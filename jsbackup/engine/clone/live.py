"""A supply that reads another server while it sends (`stream_clone.py`), and repeats that if the source fails.

To replace a stream, a copy is first made and proved beside it. The replacement is then made from that copy, not from
the source, which may have other messages by then.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from jsbackup.config import Connection
from jsbackup.engine.clone.live_newest import look_for_newest
from jsbackup.engine.clone.live_source import CloneSource, Replan
from jsbackup.engine.clone.proof import prove_copy
from jsbackup.engine.clone.stream_clone import LiveSent, Passage, Read
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.engine.read.snapshot_acks import CaptureLimits
from jsbackup.engine.read.snapshot_attempts import REPEATABLE, SnapshotAttempts
from jsbackup.engine.read.snapshot_transfer import Advance
from jsbackup.engine.restore.attempts import PAUSE_SECONDS, did_not_begin
from jsbackup.engine.restore.proof import Proof
from jsbackup.engine.restore.stream_sources import Delivery, Sent, Supply
from jsbackup.errors import NatsPermissionDenied, PlanRefused, TargetConflict, UnsupportedError
from jsbackup.model import JsonObject, StreamState
from jsbackup.planning.model import Action, SendAs
from jsbackup.repository.manifest import ArchiveFormat
from jsbackup.repository.read.archiving import state_to_restore

__all__ = ["LiveSupply"]

# Settings that would prevent late deletions, or would remove such messages before they are accounted for.
_NOT_YET = frozenset({"deny_delete", "discard_new_per_subject", "max_msgs_per_subject"})


class LiveSupply:
    """Streams of the server behind `js`; or only one, `staged`, a proved copy at the target that is already reshaped.

    `secret` is the key for hashing values.
    """

    def __init__(
        self,
        js: JetStream,
        replan: Replan,
        limits: CaptureLimits,
        secret: bytes = b"",
        *,
        staged: CloneSource | None = None,
    ) -> None:
        self._js = js
        self._replan = replan
        self._limits = limits
        self._secret = secret
        self._staged = staged

    @property
    def connected(self) -> bool:
        return self._js.link.connected

    @property
    def proves_later(self) -> bool:
        return False  # what the source loses meanwhile cannot be compared

    def on_the_way(self, config: JsonObject) -> JsonObject:
        return {key: value for key, value in config.items() if key not in _NOT_YET}

    async def has_last(self, action: Action, state: StreamState) -> bool:
        if action.reshape.renumber:  # which message of the source that is, is not known
            return not state.messages
        try:
            last = await self._js.message(action.entry.name, state.last_seq)
        except NatsPermissionDenied:
            last = None
        return not state.messages or (last is not None and last.timestamp_ns == state.last_ns)

    def _source(self, action: Action) -> CloneSource:
        if self._staged is not None:
            return self._staged
        return CloneSource(self._js, action.entry.name, self._replan, reshape=action.reshape, secret=self._secret)

    async def _looked_at(self, action: Action) -> CloneSource:
        """Return the source with what its reshaping keeps, if that has to be found out before."""
        source = self._source(action)
        newest = await look_for_newest(self._js, source.name, source.reshape)
        if newest is None:
            return source
        return replace(source, reshape=replace(source.reshape, chosen=newest.chosen), newest=newest)

    async def send(self, delivery: Delivery) -> Sent:
        """Send the stream. Begins again if the source fails."""
        attempts = SnapshotAttempts(self._js, delivery.action.name, self._limits)
        by_messages = delivery.action.entry.archive_format is ArchiveFormat.MESSAGES and self._staged is None
        read: Read = Passage.read_messages if by_messages else Passage.read_snapshot
        while True:
            passage = Passage(await self._looked_at(delivery.action), delivery, attempts.limits)
            try:
                return await passage.run(read)
            except UnsupportedError as error:
                if not passage.source_failed or read is not Passage.read_snapshot:
                    raise
                if delivery.action.entry.config.get("storage") == "memory":
                    read = Passage.read_messages
                else:
                    as_it_comes = self._as_it_comes(delivery.action, error)
                    if _is_fitted(delivery.action):
                        read = Passage.read_messages
                    else:
                        read = Passage.read_as_it_comes
                        delivery = replace(delivery, action=as_it_comes)
            except (*REPEATABLE, TargetConflict) as error:
                if passage.source_failed:
                    await attempts.next(error)
                elif passage.sender is not None and did_not_begin(error, passage.sender, attempts.number):
                    await attempts.repeat(error, PAUSE_SECONDS)
                else:
                    raise

    def _as_it_comes(self, action: Action, unsupported: UnsupportedError) -> Action:
        """Return the action for a snapshot that cannot be decoded. Raises PlanRefused if it cannot be passed on."""
        plan = self._replan(replace(action.entry, archive_format=ArchiveFormat.OPAQUE), SendAs.AUTO)
        reason, hint = "cannot be proved undecoded, so it does not replace a stream", ""
        if plan.refusals:
            reason, hint = plan.refusals[0].reason, plan.refusals[0].hint
        elif [one.name for one in plan.actions] == [action.name]:
            return replace(action, wire=SendAs.OPAQUE)
        raise PlanRefused(f"stream {action.entry.name}: {unsupported.message}: {reason}", hint=hint or None)

    async def prove(self, js: JetStream, action: Action, sent: Sent, *, advance: Advance) -> tuple[Proof | None, str]:
        assert isinstance(sent, LiveSent)
        return await prove_copy(
            js,
            sent.source,
            action,
            sent.ledger,
            last_seq=state_to_restore(sent.entry).last_seq,
            numbers=sent.numbers,
            consumers=sent.consumers,
            advance=advance,
        )

    @asynccontextmanager
    async def after_staging(self, connection: Connection, staged: str, sent: Sent) -> AsyncIterator[Supply]:
        assert isinstance(sent, LiveSent)
        # Not the connection used for the restore: deliveries on that one wait while the target is slow.
        async with connect_jetstream(connection) as js:
            copy = CloneSource(js, staged, self._replan, sent.known)
            yield LiveSupply(js, self._replan, self._limits, staged=copy)


def _is_fitted(action: Action) -> bool:
    """Return whether it is a copy that is cut at its end before its origins were read, or whose marks are changed.

    As it comes, it would be ahead of them.
    """
    return bool(action.reshape.drops or action.reshape.marks or action.reshape.renumber)
