"""Examine the target of a restore before anything is changed: its streams, its version, the user's permissions.

The manual lists the permissions that a restore needs; what a plan needs is tested here, with names that cannot exist,
so that a missing permission is reported at once, with its subject.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from functools import partial
from itertools import chain

from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.link.workers import gather_some
from jsbackup.errors import ApiError, NatsPermissionDenied, NatsTimeout
from jsbackup.planning.archive_choice import ageless
from jsbackup.planning.interrupted.marker import is_marked
from jsbackup.planning.interrupted.staged import staging_prefix
from jsbackup.planning.model import Action, RestorePlan, SendAs, Target
from jsbackup.planning.rules import Finding, Rule
from jsbackup.protocol.responses import lacks_stream

__all__ = ["check_allowed", "check_snapshot_allowed", "look_at", "may_update", "not_allowed"]

_log = logging.getLogger(__name__)

_NOWHERE = "jsbackup-probe"
# So that a thousand streams take seconds over a slow link, not minutes.
_AT_ONCE = 32


async def look_at(js: JetStream, now_ns: int) -> Target:
    """Return the present state of the target, at `now_ns`, or the time by its own clock if it has a stream. Raises
    ApiError if the account has no JetStream.
    """
    account, listing = await asyncio.gather(js.account(), js.streams())
    streams = dict(listing.entries)
    now_ns = max((stream.now_ns for stream in streams.values()), default=now_ns)
    leftovers = {name for name, stream in streams.items() if is_marked(stream.config)}
    # A silent stream still occupies its name. Measured: in a cluster a stream that is being restored, or was not
    # restored completely, is missing from the list and not found by its name.
    found = await asyncio.gather(*(_is_unborn(js, name) for name in listing.missing))
    unborn = {name for name, is_unborn in zip(listing.missing, found, strict=True) if is_unborn}
    silent = {*listing.missing, *listing.offline} - unborn - streams.keys()
    if silent:
        _log.warning("streams at the target do not answer: %s", ", ".join(sorted(silent)))
    version, clustered = await js.serving()
    return Target(
        version,
        clustered,
        streams,
        frozenset(leftovers),
        frozenset(silent),
        frozenset(unborn),
        account,
        cluster=js.link.cluster_name or "",
        known_servers=_known_servers(js) if clustered else 0,
        now_ns=now_ns,
        max_payload_bytes=js.link.max_payload_bytes,
    )


def _known_servers(js: JetStream) -> int:
    """Return how many servers of its cluster ours reports; 0 if none, or if it runs no JetStream itself."""
    urls = js.link.server_info.get("connect_urls")
    return len(urls) if js.link.jetstream and isinstance(urls, list) else 0


async def _is_unborn(js: JetStream, name: str) -> bool:
    try:
        return await js.find_stream(name) is None
    except NatsTimeout:
        return False


async def check_allowed(js: JetStream, plan: RestorePlan) -> None:
    """Raise NatsPermissionDenied if the user may not send what the plan needs. Nothing is changed."""
    for denied in chain.from_iterable(await gather_some(_AT_ONCE, partial(_denials, js), plan.actions)):
        raise denied


async def check_snapshot_allowed(js: JetStream, plan: RestorePlan) -> None:
    """Raise NatsPermissionDenied if the user could not read the copy that will replace a stream at the target."""
    replacing = [action for action in plan.actions if action.replaces]
    for denied in await gather_some(_AT_ONCE, partial(_denied, js, "SNAPSHOT"), replacing):
        if denied is not None:
            raise denied


async def not_allowed(js: JetStream, actions: Sequence[Action]) -> list[Finding]:
    """Return all missing permissions: as refusals, or as warnings if a restore works without.

    Raises NatsTimeout for a stream's name that does not answer.
    """
    return list(chain.from_iterable(await gather_some(_AT_ONCE, partial(_findings, js), actions)))


async def _findings(js: JetStream, action: Action) -> list[Finding]:
    name, found = action.entry.name, []
    for denied in await _denials(js, action):
        hint = denied.hint or "Allow the user to publish to this subject."
        found.append(Finding(name, Rule.NOT_ALLOWED, denied.message, hint))
    if (denied_proof := await _denied(js, "SNAPSHOT", action)) is not None:
        reason = f"cannot be read back and compared: {denied_proof.message}"
        hint = "Allow the user to publish to this subject, or restore with --verify quick or none."
        found.append(Finding(name, Rule.UNPROVED, reason, hint))
    return found


async def _denials(js: JetStream, action: Action) -> list[NatsPermissionDenied]:
    """Return the denials of what the action needs."""
    probes = [_denial_of(js.find_stream(action.name))]
    if action.replaces or action.leftover:
        probes.append(_denied_removal(js, action.name))
    if action.wire is SendAs.API:
        probes.append(_denied(js, "CREATE", action))
    else:
        if ageless(action.config, action.wire) != action.config:
            probes.append(_denied(js, "UPDATE", action))
        probes.append(js.link.denial(f"$JS.SNAPSHOT.RESTORE.{action.name}.{_NOWHERE}", b""))
        probes.append(_denied(js, "RESTORE", action))
    return [denied for denied in await asyncio.gather(*probes) if denied is not None]


async def _denied_removal(js: JetStream, name: str) -> NatsPermissionDenied | None:
    denied = await _denial_of(js.delete_stream(f"{staging_prefix(name)}probe"))
    hint = f"Allow the user to publish to this subject, and to that of stream {name}, which is removed too."
    return denied and denied.with_hint(hint)


async def _denial_of(asking: Awaitable[object]) -> NatsPermissionDenied | None:
    try:
        await asking
    except NatsPermissionDenied as denied:
        return denied
    return None


async def _denied(js: JetStream, verb: str, action: Action) -> NatsPermissionDenied | None:
    """Send an empty request, which servers refuse before they look at the stream. Returns None if it is allowed.

    Server source: 2.10 to 2.15 call it a bad request (RESTORE, SNAPSHOT) or that of another stream (CREATE). Does not
    wait for an answer: in a cluster no one answers for a stream that does not exist yet.
    """
    return await js.link.denial(js.prefix.subject("STREAM", verb, action.name), b"{}")


async def may_update(js: JetStream) -> bool:
    """Return whether STREAM.UPDATE is allowed."""
    try:
        await js.update_stream({"name": _NOWHERE, "subjects": [f"{_NOWHERE}.update"]})
    except NatsPermissionDenied:
        return False
    except ApiError as error:
        return lacks_stream(error)
    return False
