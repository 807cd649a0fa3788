"""Examine the target of a restore before anything is changed: its streams, its version, the user's permissions.

The manual lists the permissions that a restore needs; what a plan needs is tested here, with names that cannot exist,
so that a missing permission is reported at once, with its subject.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial
from itertools import chain

from jsbackup.engine.link.concurrency import gather_some
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.errors import ApiError, NatsError, NatsPermissionDenied, NatsTimeout
from jsbackup.model import JsonObject
from jsbackup.planning.archive_choice import lifted_fields
from jsbackup.planning.configs.stream_config import questions_about
from jsbackup.planning.interrupted import is_marked, staging_prefix
from jsbackup.planning.model import Action, SendAs, Target
from jsbackup.planning.plan import Decision
from jsbackup.planning.rules import Finding, Rule
from jsbackup.protocol import api
from jsbackup.protocol.responses import ErrCode
from jsbackup.shell import shell_word

__all__ = ["look_at", "may_update", "not_allowed", "refused_configs"]

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
    are_unborn = await asyncio.gather(*(_is_unborn(js, name) for name in listing.missing))
    unborn = {name for name, is_unborn in zip(listing.missing, are_unborn, strict=True) if is_unborn}
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


async def not_allowed(js: JetStream, decision: Decision, *, proofs: bool) -> Decision:
    """Return the decision with all missing permissions: as refusals; or, with `proofs`, as warnings that streams cannot
    be proved. Nothing is changed.

    Raises NatsTimeout for a stream's name that does not answer.
    """
    actions = [action for action in decision.plan.actions if action.name not in decision.target.silent]
    look = partial(_findings, js, proofs=proofs, live=decision.facts.live)
    return decision.finding(chain.from_iterable(await gather_some(_AT_ONCE, look, actions)))


async def _findings(js: JetStream, action: Action, *, proofs: bool, live: bool) -> list[Finding]:
    name, denials = action.entry.name, await _denials(js, action)
    proving = proofs or (live and action.replaces)
    unproved = await _denied(js, "SNAPSHOT", action) if proving else None
    if unproved is not None and live and action.replaces:  # the copy that replaces the stream is read
        denials.append(unproved)
        unproved = None
    hint = "Allow the user to publish to this subject."
    findings = [Finding(name, Rule.NOT_ALLOWED, denied.message, denied.hint or hint) for denied in denials]
    if unproved is not None:
        reason = f"cannot be read back and compared: {unproved.message}"
        hint = "Allow the user to publish to this subject, or restore with --verify quick or none."
        findings.append(Finding(name, Rule.UNPROVED, reason, hint))
    return findings


async def _denials(js: JetStream, action: Action) -> list[NatsPermissionDenied]:
    """Return the denials of what the action needs."""
    probes = [_denial_of(js.find_stream(action.name))]
    if action.replaces or action.leftover:
        probes.append(_denied_removal(js, action.name))
    if action.wire is SendAs.API:
        probes.append(_denied(js, "CREATE", action))
    else:
        if {"max_age", "max_consumers", "subjects"} & {*lifted_fields(action)}:
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


async def refused_configs(js: JetStream, decision: Decision, may_ask: bool) -> Decision:
    """Return the decision, with a refusal for each stream whose configuration the target's servers do not accept.
    Nothing is changed. `may_ask`: what `may_update` has returned.

    Server source: 2.10 to 2.15 check the configuration in a STREAM.UPDATE as they check that of a restore
    (`checkStreamCfg`, also against limits of their configuration file), and only then compare its name with that in the
    subject. Here the two differ: a request that passes the check is refused for that, and cannot change a stream.

    Streams that the plan refuses are not asked about. Where the request is not allowed or not answered, nothing is
    known: servers then refuse the restore of that stream. A stream that would be deleted before that is not replaced by
    one with another configuration.
    """
    plan = decision.plan
    refused = {finding.stream for finding in plan.refusals}
    actions = [action for action in plan.actions if action.entry.name not in refused and action.name != _NOWHERE]
    if not may_ask:
        hint = f"Allow the user to publish to {js.prefix.subject('STREAM', 'UPDATE', '*')}, or restore it beside that."
        unknown = "would replace a stream, and the target cannot be asked about its changed configuration"
        changed = [action.entry.name for action in actions if action.replaces and action.changes]
        return decision.finding(Finding(name, Rule.NOT_ALLOWED, unknown, hint) for name in changed)
    findings = await gather_some(_AT_ONCE, partial(_refused_config, js), actions)
    return decision.finding([finding for finding in findings if finding is not None])


async def _refused_config(js: JetStream, action: Action) -> Finding | None:
    try:
        for config in questions_about(action.config):
            await _ask_without_effect(js, config)
    except ApiError as error:
        if error.code == 400 or error.err_code == ErrCode.INVALID_CONFIG:
            reason = f"the target refuses its configuration: {error.message.partition(': ')[2]}"
            hint = f"Change it with --set, or leave the stream out with --exclude {shell_word(action.entry.name)}."
            return Finding(action.entry.name, Rule.SERVER_REFUSES, reason, hint)
    except NatsError as error:
        _log.debug("the configuration of stream %s could not be checked: %s", action.name, error.message)
    return None


async def _ask_without_effect(js: JetStream, config: JsonObject) -> None:
    """Ask to update a stream with this configuration, on the subject of another name. Raises ApiError if the
    configuration is not accepted, and NatsError.
    """
    request = api.stream_update(js.prefix, config)
    try:
        await js.ask(replace(request, subject=js.prefix.subject("STREAM", "UPDATE", _NOWHERE)))
    except ApiError as error:
        if error.err_code != ErrCode.STREAM_MISMATCH:
            raise


async def may_update(js: JetStream) -> bool:
    """Return whether STREAM.UPDATE is allowed."""
    try:
        await _ask_without_effect(js, {"name": f"{_NOWHERE}-other", "max_bytes": 1})  # an account may require one
    except (NatsPermissionDenied, ApiError):
        return False
    return True
