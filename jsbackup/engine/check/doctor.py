"""Checks of a server for `jsbackup doctor`. Nothing is changed there.

A check that fails does not stop the others, and each is limited by the connection's timeout.

**Permissions** that backups and restores need are tested without changing anything.

A permission is tested by publishing an invalid request about a name that does not exist: `{}` if a body is required,
and invalid JSON if none is allowed. The connected server reports a denial before it answers the ping that follows, so
there is no need to wait for an answer: in a cluster no one answers for a missing stream. Server source: 2.10 to 2.15
refuse such a request before they act on it, and an ack of a snapshot or a chunk of a restore has no listener under an
unknown id.

The grants are those of the manual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from jsbackup.config.connection import Connection
from jsbackup.engine.link.concurrency import with_own_threads
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.errors import JsBackupError, NatsError, NatsPermissionDenied, NatsTimeout, UnsupportedError
from jsbackup.model import Check
from jsbackup.planning.configs.features import MEMORY_SNAPSHOTS_SINCE, V2_SINCE, Version, version_text
from jsbackup.protocol.info import AccountInfo, StreamInfo
from jsbackup.protocol.paging import Listing
from jsbackup.protocol.snapshot import SnapshotReceiver
from jsbackup.readable import in_short
from jsbackup.repository.checks.doctor import Purpose, check_clock
from jsbackup.strict_json import read_object
from jsbackup.times import parse_time
from jsbackup.transforms.removal import is_overwritten

__all__ = ["examine_server", "unreachable"]

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

    grants = [
        api("STREAM.NAMES", 0, "streams are found by their list alone", spare=True),
        api("STREAM.LIST", 0, "streams are asked for one by one", spare=True),
        api("STREAM.INFO", 1, "streams cannot be examined"),
        api("CONSUMER.LIST", 1, "consumers that a snapshot leaves out are lost" if purpose.backs_up else _UNPROVED),
        api("STREAM.SNAPSHOT", 1, "no stream can be read" if purpose.backs_up else _UNPROVED),
        own("ACK", ">", ".1.1", "no stream can be read" if purpose.backs_up else _UNPROVED),
    ]
    if purpose.restores:
        grants += [
            api("STREAM.RESTORE", 1, "nothing can be restored"),
            own("RESTORE", "*.*", "", "nothing can be restored"),
            api("STREAM.CREATE", 1, "streams without messages cannot be restored"),
            api("STREAM.UPDATE", 1, "streams cannot be replaced, and retention is not set at the end", spare=True),
            api("STREAM.DELETE", 1, "streams cannot be replaced, nor half-restored ones removed", spare=True),
            api("CONSUMER.CREATE", 2, "consumers that a server does not restore cannot be created", wildcard=">"),
            api("CONSUMER.DELETE", 2, "unwanted consumers stay", spare=True),
        ]
    elif purpose is Purpose.FOLLOW:
        grants.append(api("CONSUMER.CREATE", 2, "streams cannot be followed", wildcard=">"))
        grants.append(api("CONSUMER.INFO", 2, "streams cannot be followed"))
        grants.append(api("CONSUMER.DELETE", 2, "consumers that were made to read stay for minutes", spare=True))
    elif reads_by_message or reads_on:
        without = _ONE_BY_ONE if reads_by_message else _OVERWRITTEN
        grants.append(api("CONSUMER.CREATE", 2, without, spare=True, wildcard=">"))
        grants.append(api("CONSUMER.DELETE", 2, "consumers that were made to read stay for minutes", spare=True))
    if reads_by_message or purpose is Purpose.FOLLOW:
        grants.append(api("STREAM.MSG.GET", 1, "a message that a consumer skips cannot be read"))
        grants.append(Grant("$JS.FC.>", _FLOW_CONTROL, "consumers stop delivering"))
    elif reads_on:
        grants.append(Grant("$JS.FC.>", _FLOW_CONTROL, _OVERWRITTEN, spare=True))
    return tuple(grants)


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


OLDEST, NEWEST = (2, 10), (2, 15)

_NEARLY_FULL = 0.9
_SHOWN = 5

_REACH = "Check --server or --context, and that the server runs."
_NAME_IT = "Correct the server and login options on the command line, in the profile or in the environment."
_TURN_ON = "Enable JetStream for the server and the account, or name its domain with --js-domain."
_GRANT = "Allow the user to publish to this subject; see 'jsbackup help permissions'."
_EXPORT = "The account that has the streams must export where snapshots are sent: see 'jsbackup help accounts'."
_USER_INFO = "$SYS.REQ.USER.INFO"


@with_own_threads
async def examine_server(connection: Connection, purpose: Purpose, clock_ns: Callable[[], int]) -> list[Check]:
    """Run all checks of a server and of the user's account. `clock_ns` returns our time. Raises no JsBackupError."""
    try:
        async with connect_jetstream(connection, "jsbackup doctor") as js:
            return await _examine(js, purpose, clock_ns)
    except JsBackupError as error:
        return unreachable(error)


def unreachable(error: JsBackupError) -> list[Check]:
    """Return the checks of a server to which there is no connection, because of `error`."""
    names = ("jetstream", "limits", "permission", "replies", "streams", "server-clock")
    skipped = [Check.not_tried(name, "there is no connection to a server", _AFTER_THAT) for name in names]
    fix = _REACH if isinstance(error, NatsError) else _NAME_IT
    return [Check.failed("server", error, fix), *skipped]


async def _examine(js: JetStream, purpose: Purpose, clock_ns: Callable[[], int]) -> list[Check]:
    account = await _account(js)
    server, version = await _server(js, known=isinstance(account, AccountInfo))
    if isinstance(account, Check):
        jetstream, limits = account, Check.not_tried("limits", "JetStream does not report them", _AFTER_THAT)
        listing: Listing[StreamInfo] | Check = Check.not_tried("streams", "JetStream cannot be asked", _AFTER_THAT)
    else:
        jetstream, limits, listing = _jetstream(account), _limits(account), await _listing(js)
    streams = dict(listing.entries) if isinstance(listing, Listing) else {}
    in_memory = any(stream.config.get("storage") == "memory" for stream in streams.values())
    by_message = in_memory and version < MEMORY_SNAPSHOTS_SINCE
    on = version >= V2_SINCE and any(is_overwritten(stream.config) for stream in streams.values())
    grants = grants_for(js.prefix.text, purpose, reads_by_message=by_message, reads_on=on)
    return [
        server,
        jetstream,
        limits,
        *await check_permissions(js, grants),
        await _replies(js, [stream for stream in streams.values() if stream.config.get("storage") == "file"], purpose),
        *([listing] if isinstance(listing, Check) else _streams(listing)),
        await _clock(js, streams, clock_ns),
    ]


async def _server(js: JetStream, *, known: bool) -> tuple[Check, Version]:
    """Check the server. Also returns the release of its JetStream, as far as it is `known`."""
    link = js.link
    version: Version = link.server_version[:2]
    sentence = f"nats-server {link.server_version_text} at {link.server}"
    try:
        sentence += f", {await link.rtt() * 1000:.1f} ms away"
        name = await link.account()
        sentence += f", account {name}" if name else ""
        serving = (await js.serving())[0][:2] if known else version
    except NatsError as error:
        return Check.failed("server", error, _REACH), version
    if serving != version:
        sentence += f"; its JetStream is that of {version_text(serving)}"
    if serving < OLDEST:
        old = f"{sentence}: jsbackup supports servers from {version_text(OLDEST)} on"
        return Check.problem("server", old, "Upgrade the server.", code=UnsupportedError.exit_code), serving
    if serving > NEWEST:
        new = f"{sentence}: newer than {version_text(NEWEST)}, the newest that this jsbackup was tested with"
        return Check.warning("server", new, "Look for a newer jsbackup, and try a restore."), serving
    return Check.fine("server", sentence), serving


async def _account(js: JetStream) -> AccountInfo | Check:
    try:
        return await js.account()
    except NatsPermissionDenied as error:
        return Check.failed("jetstream", error, _GRANT)
    except JsBackupError as error:
        return Check.failed("jetstream", error, _TURN_ON)


def _jetstream(account: AccountInfo) -> Check:
    domain = f", domain {account.domain}" if account.domain else ""
    used = account.usage
    return Check.fine("jetstream", f"on{domain}; streams: {used.streams}, consumers: {used.consumers}")


def _limits(account: AccountInfo) -> Check:
    """Check how much of its limits the account, or each of its tiers, has used."""
    shown, full = [], False
    for name, tier in (account.tiers or {"": account.usage}).items():
        limits = tier.limits
        for what, used, limit in (
            ("bytes in files", tier.storage, limits.max_storage),
            ("bytes in memory", tier.memory, limits.max_memory),
            ("streams", tier.streams, limits.max_streams),
            ("consumers", tier.consumers, limits.max_consumers),
        ):
            if limit > 0:
                shown.append(f"{name} {used} of {limit} {what}".strip())
                full |= used > limit * _NEARLY_FULL
    if full:
        fix = "Raise the limit before a restore needs the room."
        return Check.warning("limits", f"nearly exhausted: {', '.join(shown)}", fix)
    return Check.fine("limits", ", ".join(shown) or "none")


async def _listing(js: JetStream) -> Listing[StreamInfo] | Check:
    try:
        return await js.streams()
    except NatsPermissionDenied as error:
        return Check.failed("streams", error, _GRANT)
    except JsBackupError as error:
        return Check.failed("streams", error, _TURN_ON)


def _streams(listing: Listing[StreamInfo]) -> Iterator[Check]:
    """Yield a problem for each kind of stream that cannot be read now."""
    silent = {*listing.missing, *listing.offline}
    answering = {name: stream for name, stream in listing.entries.items() if name not in silent}
    leaderless = [name for name, info in answering.items() if info.cluster is not None and not info.cluster.leader]
    behind = [
        name
        for name, info in answering.items()
        if name not in leaderless and info.cluster is not None and not info.cluster.ready
    ]
    damaged = [name for name, info in answering.items() if info.lost]
    bring_back = "Bring the servers of their replicas back; 'nats stream cluster' can choose others."
    if silent:
        yield Check.problem("streams", f"do not answer: {_some(silent)}", bring_back, code=NatsError.exit_code)
    if leaderless:
        yield Check.problem("streams", f"have no leader: {_some(leaderless)}", bring_back, code=NatsError.exit_code)
    if damaged:
        fix = "Restore them from a backup that was made before."
        yield Check.warning("streams", f"have lost messages on the server's disk: {_some(damaged)}", fix)
    if behind:
        fix = "Wait until they have caught up, and look after servers that are down."
        yield Check.warning("streams", f"have replicas that are behind or offline: {_some(behind)}", fix)
    if not silent and not leaderless and not damaged and not behind:
        count = len(answering)
        yield Check.fine("streams", f"{count} {'stream answers' if count == 1 else 'streams answer'}")


def _some(names: set[str] | Sequence[str]) -> str:
    return in_short(sorted(names), most=_SHOWN)


async def _replies(js: JetStream, streams: Sequence[StreamInfo], purpose: Purpose) -> Check:
    """Check that deliveries of snapshots and restores can be received. Where the API is imported, only a snapshot that
    arrives tells that; it is begun for the smallest of the `streams`.
    """
    inbox = js.link.new_inbox()
    below = f"{js.link.connection.inbox_prefix}.>"
    fix = f"Allow the user to subscribe to {below}, or name another prefix with --inbox-prefix."
    try:
        async with js.link.subscribe(inbox) as subscription:
            await js.link.flush()
            subscription.next_nowait()
            if streams and js.link.connection.js_api_prefix is not None and purpose.backs_up:
                smallest = min(streams, key=lambda stream: stream.state.bytes)
                request = SnapshotReceiver(smallest.name, inbox, window_size=None).request(js.prefix)
                await js.link.request(request.subject, request.payload, js.timeout_seconds)
                await subscription.next(js.timeout_seconds)
    except NatsTimeout as error:
        return Check.failed("replies", error, _EXPORT, about=below)
    except JsBackupError as error:
        return replace(Check.failed("replies", error, fix, about=below), fix=fix)
    return Check.fine("replies", "subscribing is allowed", about=below)


async def _clock(js: JetStream, streams: Iterable[str], clock_ns: Callable[[], int]) -> Check:
    """Check the server's clock by its answer about a stream, or, if there is none, about the user."""
    for ask in (*(partial(_time_by_stream, js, name) for name in islice(streams, 1)), partial(_time_by_user, js)):
        before = clock_ns()
        try:
            server_ns = await ask()
        except (JsBackupError, LookupError, TypeError):
            continue
        after = clock_ns()
        if server_ns:
            ahead, unsure = (server_ns - (before + after) / 2) / 1e9, (after - before) / 2e9
            return check_clock("server-clock", "the server", ahead, unsure)
    fix = f"Allow the user to publish to {_USER_INFO}, or run doctor again when there is a stream."
    return Check.not_tried("server-clock", "the server does not report its time", fix)


async def _time_by_stream(js: JetStream, stream: str) -> int:
    return (await js.stream(stream)).now_ns


async def _time_by_user(js: JetStream) -> int:
    answer = read_object((await js.link.request(_USER_INFO)).data, "answer")
    return parse_time(answer["server"]["time"])
