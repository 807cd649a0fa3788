"""The permissions that backups and restores need, and how to test them without changing anything.

A permission is tested by publishing an invalid request about a name that does not exist: `{}` if a body is required,
and invalid JSON if none is allowed. The connected server reports a denial before it answers the ping that follows, so
there is no need to wait for an answer: in a cluster no one answers for a missing stream. Server source: 2.10 to 2.15
refuse such a request before they act on it, and an ack of a snapshot or a chunk of a restore has no listener under an
unknown id.

The grants are those of the manual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jsbackup.engine.link.jetstream import JetStream
from jsbackup.errors import JsBackupError, NatsPermissionDenied
from jsbackup.model import Check
from jsbackup.repository.checks.doctor import Purpose

__all__ = ["Grant", "check_permissions", "grants_for"]

_NOBODY = "jsbackup-doctor"
_AFTER_THAT = "See the lines above first."
_NO_REQUEST = b"!"
_EMPTY_REQUEST = b"{}"
# Server source: `!` would log a warning on servers from 2.12 on.
_WANT_A_BODY = (
    "STREAM.SNAPSHOT",
    "STREAM.RESTORE",
    "STREAM.CREATE",
    "STREAM.UPDATE",
    "STREAM.MSG.GET",
    "CONSUMER.CREATE",
)


@dataclass(frozen=True, slots=True)
class Grant:
    """A subject to publish to. `without` says what fails if it is denied; `spare`: the rest works without it.

    `subject` and `payload` are used to test it.
    """

    grant: str
    subject: str
    without: str
    spare: bool = False
    payload: bytes = _NO_REQUEST


def grants_for(
    prefix: str, purpose: Purpose, *, reads_by_message: bool = False, reads_on: bool = False
) -> tuple[Grant, ...]:
    """Return all grants that are needed below the API's `prefix`.

    `reads_by_message`: some streams have no snapshots; `reads_on`: snapshots may lack overwritten messages.
    """

    def api(verb: str, tokens: int, without: str, *, spare: bool = False, wildcard: str = "") -> Grant:
        grant = ".".join([prefix, verb, *([wildcard] if wildcard else ["*"] * tokens)])
        payload = _EMPTY_REQUEST if verb in _WANT_A_BODY else _NO_REQUEST
        return Grant(grant, ".".join([prefix, verb, *[_NOBODY] * tokens]), without, spare, payload)

    def own(kind: str, pattern: str, tokens: str, without: str) -> Grant:
        return Grant(f"$JS.SNAPSHOT.{kind}.{pattern}", f"$JS.SNAPSHOT.{kind}.{_NOBODY}.{_NOBODY}{tokens}", without)

    found = [
        api("STREAM.NAMES", 0, "streams are found by their list alone", spare=True),
        api("STREAM.LIST", 0, "streams are asked for one by one", spare=True),
        api("STREAM.INFO", 1, "streams cannot be examined"),
        api("CONSUMER.LIST", 1, "consumers that a snapshot leaves out are lost" if purpose.backs_up else _UNPROVED),
        api("STREAM.SNAPSHOT", 1, "no stream can be read" if purpose.backs_up else _UNPROVED),
        own("ACK", ">", ".1.1", "no stream can be read" if purpose.backs_up else _UNPROVED),
    ]
    if purpose.restores:
        found += [
            api("STREAM.RESTORE", 1, "nothing can be restored"),
            own("RESTORE", "*.*", "", "nothing can be restored"),
            api("STREAM.CREATE", 1, "streams without messages cannot be restored"),
            api("STREAM.UPDATE", 1, "streams cannot be replaced, and retention is not set at the end", spare=True),
            api("STREAM.DELETE", 1, "streams cannot be replaced, nor half-restored ones removed", spare=True),
            api("CONSUMER.CREATE", 2, "consumers that a server does not restore cannot be created", wildcard=">"),
            api("CONSUMER.DELETE", 2, "unwanted consumers stay", spare=True),
        ]
    elif purpose is Purpose.FOLLOW:
        found.append(api("CONSUMER.CREATE", 2, "streams cannot be followed", wildcard=">"))
        found.append(api("CONSUMER.INFO", 2, "streams cannot be followed"))
        found.append(api("CONSUMER.DELETE", 2, "consumers that were made to read stay for minutes", spare=True))
    elif reads_by_message or reads_on:
        without = _ONE_BY_ONE if reads_by_message else _OVERWRITTEN
        found.append(api("CONSUMER.CREATE", 2, without, spare=True, wildcard=">"))
        found.append(api("CONSUMER.DELETE", 2, "consumers that were made to read stay for minutes", spare=True))
    if reads_by_message or purpose is Purpose.FOLLOW:
        found.append(api("STREAM.MSG.GET", 1, "a message that a consumer skips cannot be read"))
        found.append(Grant("$JS.FC.>", _FLOW_CONTROL, "consumers stop delivering"))
    elif reads_on:
        found.append(Grant("$JS.FC.>", _FLOW_CONTROL, _OVERWRITTEN, spare=True))
    return tuple(found)


_UNPROVED = "what was restored cannot be read back and proved"
_ONE_BY_ONE = "streams kept in memory are read one message at a time"
_OVERWRITTEN = "backups of buckets lack keys that are written to while they are read, and end with exit code 3"
_FLOW_CONTROL = f"$JS.FC.{_NOBODY}.{_NOBODY}.1"


async def check_permissions(js: JetStream, grants: Sequence[Grant]) -> list[Check]:
    """Test each grant, while the server answers.

    If neither the names nor the list of streams are granted, that is a problem for both.
    """
    tried: dict[str, JsBackupError | None] = {}
    for grant in grants:
        tried[grant.grant] = await _try(js, grant)
        if not isinstance(tried[grant.grant], NatsPermissionDenied | None):
            break
    denied = {name for name, error in tried.items() if error is not None}
    listing = {js.prefix.subject("STREAM", "NAMES"), js.prefix.subject("STREAM", "LIST")}
    return [
        _check(grant, tried[grant.grant], blind=grant.grant in listing <= denied)
        if grant.grant in tried
        else Check.not_tried("permission", "the server stopped answering", _AFTER_THAT, about=grant.grant)
        for grant in grants
    ]


async def _try(js: JetStream, grant: Grant) -> JsBackupError | None:
    try:
        return await js.link.denial(grant.subject, grant.payload)
    except JsBackupError as error:
        return error


def _check(grant: Grant, error: JsBackupError | None, *, blind: bool) -> Check:
    if error is None:
        return Check.fine("permission", "publishing is allowed", about=grant.grant)
    if not isinstance(error, NatsPermissionDenied):
        return Check.failed("permission", error, "Try again.", about=grant.grant)
    fix = f"Allow the user to publish to {grant.grant}."
    if grant.spare and not blind:
        return Check.warning("permission", f"denied: {grant.without}", fix, about=grant.grant)
    without = "streams cannot be found" if blind else grant.without
    return Check.problem("permission", f"denied: {without}", fix, code=error.exit_code, about=grant.grant)
