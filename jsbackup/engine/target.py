"""The target of a restore, looked at before anything is changed: its streams, its version, what the user may do there.

The least that a user needs for a restore is in the README; what a plan needs beyond that is tried here, on names that
cannot be there, so that a missing permission is told at once and by its subject.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from jsbackup.engine.abandon import is_marked
from jsbackup.engine.jetstream import JetStream
from jsbackup.engine.plan import staging_prefix
from jsbackup.engine.planned import Action, RestorePlan, Target, Wire
from jsbackup.engine.rules import Finding, Rule
from jsbackup.errors import ApiError, NatsError, NatsPermissionDenied, NatsTimeout, TransferError
from jsbackup.protocol.responses import ErrCode

__all__ = ["check_allowed", "check_readable", "look_at", "may_update", "not_allowed"]

_NOWHERE = "jsbackup-probe"


async def look_at(js: JetStream, now_ns: int) -> Target:
    """The target as it is now, which is `now_ns`. Raises ApiError where the account has no JetStream."""
    account = await js.account()
    listing = await js.streams()
    streams = dict(listing.entries)
    leftovers = {name for name, stream in streams.items() if is_marked(stream.config)}
    unborn: set[str] = set()
    # A silent stream has its name taken all the same. M: in a cluster a stream that is being restored, or was not to
    # the end, is missing from the list and not found by its name.
    for name in (*listing.missing, *listing.offline):
        if name in listing.missing and await _is_unborn(js, name):
            unborn.add(name)
        elif name not in streams:
            raise NatsError(
                f"stream {name} at the target does not answer", hint="Restore when all streams have a leader."
            )
    version, clustered = await js.serving()
    return Target(
        version,
        clustered,
        streams,
        frozenset(leftovers),
        frozenset(unborn),
        account,
        cluster=js.link.cluster_name or "",
        known_servers=_known_servers(js) if clustered else 0,
        now_ns=now_ns,
        max_payload_bytes=js.link.max_payload_bytes,
    )


def _known_servers(js: JetStream) -> int:
    """How many servers of its cluster ours tells of; 0 if none, or if it runs no JetStream itself."""
    told = js.link.server_info.get("connect_urls")
    return len(told) if js.link.jetstream and isinstance(told, list) else 0


async def _is_unborn(js: JetStream, name: str) -> bool:
    try:
        return await js.find_stream(name) is None
    except NatsTimeout:
        return False


async def check_allowed(js: JetStream, plan: RestorePlan) -> None:
    """Raise NatsPermissionDenied if the user may not send what the plan needs. Nothing is changed."""
    for action in plan.actions:
        async for denied in _denials(js, action):
            raise denied


async def check_readable(js: JetStream, plan: RestorePlan) -> None:
    """Raise NatsPermissionDenied if a copy of a stream could not be read at the target, which replaces it there."""
    for action in plan.actions:
        if action.replaces and (denied := await _try(js, "SNAPSHOT", action.name)) is not None:
            raise denied


async def not_allowed(js: JetStream, plan: RestorePlan) -> list[Finding]:
    """All that the user may not send, as refusals, and as warnings what a restore does without."""
    found = []
    for action in plan.actions:
        async for denied in _denials(js, action):
            hint = denied.hint or "Grant the user this subject."
            found.append(Finding(action.entry.name, Rule.NOT_ALLOWED, denied.message, hint))
        if (denied_proof := await _try(js, "SNAPSHOT", action.name)) is not None:
            reason = f"cannot be read back and compared: {denied_proof.message}"
            hint = "Grant the user this subject, or restore with --no-verify."
            found.append(Finding(action.entry.name, Rule.UNPROVED, reason, hint))
    return found


async def _denials(js: JetStream, action: Action) -> AsyncIterator[NatsPermissionDenied]:
    """What the user may not do of what the action needs."""
    try:
        await js.find_stream(action.name)
    except NatsPermissionDenied as denied:
        yield denied
    if action.replaces or action.leftover:
        try:
            await js.delete_stream(f"{staging_prefix(action.name)}probe")
        except NatsPermissionDenied as denied:
            denied.hint = f"Grant the user this subject, for stream {action.name} that is to be removed too."
            yield denied
    if action.wire is Wire.API:
        verb = "CREATE"
    else:
        verb = "RESTORE"
        if (refused := await _try_chunks(js, action.name)) is not None:
            yield refused
    if (refused := await _try(js, verb, action.name)) is not None:
        yield refused


async def _try(js: JetStream, verb: str, stream: str) -> NatsPermissionDenied | None:
    """Send a request that says nothing, which servers refuse before they look at the stream. None if it may be sent.

    S: 2.10 to 2.15 call it a bad request (RESTORE, SNAPSHOT) or another stream's (CREATE). Nobody's answer is waited
    for: in a cluster a stream that is not there yet has nobody to answer for it.
    """
    subject = js.prefix.subject("STREAM", verb, stream)
    try:
        await js.link.publish(subject, b"{}")
        await js.link.flush()
    except NatsPermissionDenied as denied:
        # nats-py tells it in lower case.
        return NatsPermissionDenied(denied.message.replace(subject.lower(), subject), hint=denied.hint)
    return None


async def _try_chunks(js: JetStream, stream: str) -> NatsPermissionDenied | None:
    try:
        await js.link.request(f"$JS.SNAPSHOT.RESTORE.{stream}.{_NOWHERE}")
    except NatsPermissionDenied as denied:
        return denied
    except TransferError:
        raise
    except NatsError:
        pass  # nobody listens there, which only one hears who may publish
    return None


async def may_update(js: JetStream) -> bool:
    """Whether STREAM.UPDATE is allowed."""
    try:
        await js.update_stream({"name": _NOWHERE, "subjects": [f"{_NOWHERE}.update"]})
    except NatsPermissionDenied:
        return False
    except ApiError as error:
        return error.err_code == ErrCode.STREAM_NOT_FOUND
    return False
