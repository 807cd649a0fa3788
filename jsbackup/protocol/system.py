"""Requests of the system account, and the answers of servers to them.

Each server answers for itself: `{"server": {name, id, cluster, domain, …}, "data": {…}}`, or `error` in place of
`data`; STATSZ has `statsz`. (nats-server, `server/events.go` and `server/monitor.go`, 2.10 to 2.15.)

    $SYS.REQ.SERVER.PING.STATSZ            how many servers there are (`active_servers`)
    $SYS.REQ.SERVER.PING.JSZ               accounts with JetStream, as far as a server has them; one account's streams
    $SYS.REQ.ACCOUNT.<account>.INFO        an account that the server has loaded, with its JWT
    $SYS.REQ.CLAIMS.LIST                   the keys of all accounts in the server's resolver, if it keeps them in files
    $SYS.REQ.ACCOUNT.<account>.CLAIMS.LOOKUP    the JWT of one of them, bare; empty if there is none

Accounts of an operator are known by their public keys and have a name besides; others by their names alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jsbackup.errors import FormatError
from jsbackup.model import JsonObject
from jsbackup.readable import one_line
from jsbackup.strict_json import Fields, read_object, write_json

__all__ = [
    "CLAIMS_LIST",
    "JSZ",
    "PAGE",
    "STATSZ",
    "AccountDetail",
    "MetaGroup",
    "ServerAnswer",
    "account_details",
    "account_info_subject",
    "active_servers",
    "claims_lookup_subject",
    "decode_answer",
    "jsz_accounts",
    "jsz_streams",
    "listed_accounts",
    "meta_group",
]

STATSZ = "$SYS.REQ.SERVER.PING.STATSZ"
JSZ = "$SYS.REQ.SERVER.PING.JSZ"
CLAIMS_LIST = "$SYS.REQ.CLAIMS.LIST"
PAGE = 1024  # Server source: the default limit of JSZ


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """`error` is the server's text, "" if it has answered. `domain` is the JetStream domain, "" for none."""

    server: str
    name: str
    domain: str
    data: Fields
    error: str = ""


@dataclass(frozen=True, slots=True)
class AccountDetail:
    """An account as one server knows it. `account` is its key or name, `name` the operator's name, or the same.

    `streams` are as the JetStream API describes them, if they were asked for.
    """

    account: str
    name: str
    bytes: int
    streams: tuple[JsonObject, ...] = ()


@dataclass(frozen=True, slots=True)
class MetaGroup:
    """The servers of a cluster with JetStream, as one of them knows them: how many, and names, as far as it knows."""

    size: int
    names: tuple[str, ...]


def account_info_subject(account: str) -> str:
    return f"$SYS.REQ.ACCOUNT.{account}.INFO"


def claims_lookup_subject(account: str) -> str:
    return f"$SYS.REQ.ACCOUNT.{account}.CLAIMS.LOOKUP"


def jsz_accounts(offset: int) -> bytes:
    """Return a request for accounts, `PAGE` at most, ordered by key."""
    return write_json({"accounts": True, "offset": offset, "limit": PAGE}, "request")


def jsz_streams(account: str) -> bytes:
    """Return a request for the streams of an account."""
    return write_json({"account": account, "streams": True, "config": True}, "request")


def decode_answer(payload: bytes, what: str) -> ServerAnswer:
    """Return what a server answers. Raises FormatError."""
    answered = Fields(read_object(payload, what), what)
    server = answered.fields("server")
    error = answered.optional("error")
    if isinstance(answered.value.get("data"), list):  # of CLAIMS.LIST
        data: Fields | None = answered
    else:
        data = answered.optional("data") or answered.optional("statsz")
    if error is None and data is None:
        raise FormatError(f"{what} has no data")
    return ServerAnswer(
        server=one_line(server.text("id")),
        name=one_line(server.text("name", "")) or one_line(server.text("id")),
        domain=server.text("domain", ""),
        data=data or Fields({}, what),
        error="" if error is None else one_line(error.text("description", "")) or "an error without a text",
    )


def active_servers(answer: ServerAnswer) -> int:
    """Return how many servers there are, by an answer to STATSZ; 1 if it does not say."""
    return answer.data.number("active_servers", default=1, high=100_000)


def meta_group(answer: ServerAnswer) -> MetaGroup | None:
    """Return the meta group, by an answer to JSZ; None for a single server, or one without JetStream."""
    meta = answer.data.optional("meta_cluster")
    if meta is None:
        return None
    replicas = [replica.text("name", "") for replica in meta.each("replicas")]
    names = [one_line(name) for name in (meta.text("leader", ""), *replicas)]
    return MetaGroup(
        size=meta.number("cluster_size", default=0, high=100_000),
        # Server source: a peer that was not heard of since the start is "Server name unknown at this time (peerID: …)".
        names=tuple(name for name in names if name and " " not in name),
    )


def account_details(answer: ServerAnswer) -> Iterator[AccountDetail]:
    """Yield the accounts in an answer to JSZ; none if JetStream is off there. Raises FormatError."""
    for detail in answer.data.each("account_details"):
        account = detail.text("id", "") or detail.text("name")
        streams = tuple(map(_stream, detail.each("stream_detail")))
        stored = detail.number("memory", default=0) + detail.number("storage", default=0)
        yield AccountDetail(account, detail.text("name", "") or account, stored, streams)


def listed_accounts(answer: ServerAnswer) -> list[str]:
    """Return the keys in an answer to CLAIMS.LIST."""
    return [key for key in answer.data.array("data") if isinstance(key, str)]


def _stream(detail: Fields) -> JsonObject:
    """Return a stream of JSZ as an answer of STREAM.INFO, as far as both have it."""
    return {
        "config": detail.value.get("config") or {"name": detail.text("name")},
        "created": detail.text("created", ""),
        "state": detail.value.get("state") or {},
    }
