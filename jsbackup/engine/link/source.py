"""The source that a connection leads to, as in backups (`repository/origin.py`)."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from jsbackup.config.connection import Connection
from jsbackup.engine.link.concurrency import in_thread, with_own_threads
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.errors import NatsError, UsageError
from jsbackup.protocol.info import StreamInfo
from jsbackup.repository.manifest import Manifest, Source
from jsbackup.repository.origin import named_cluster
from jsbackup.repository.read.sources import Connected, Life

if TYPE_CHECKING:
    from jsbackup.planning.same_jetstream import JetStreamPlace

__all__ = [
    "FindBackup",
    "KnownAccount",
    "check_account",
    "describe_source",
    "found_for",
    "jetstream_place",
    "lives_of",
    "named_source",
    "read_source",
]

FindBackup = Callable[[Source], Manifest]
"""Finds the backup for the connected source. It reads the store, so call it in a worker thread."""

_log = logging.getLogger(__name__)

_PUBLIC_KEY = re.compile(r"A[A-Z2-7]{55}")


async def describe_source(js: JetStream, connection: Connection) -> Source:
    """Return the source, as the server reports it. Raises NatsError if the connection breaks."""
    link = js.link
    account = await link.account()
    return Source(
        server_version=".".join(map(str, link.server_version)),
        cluster=link.cluster_name or link.server_name or "",
        account=account or "",
        domain=connection.js_domain or link.domain,
        context=connection.context,
        api_prefix=connection.js_api_prefix,
        login=None if account else _mark(link.login_text),
    )


@dataclass(frozen=True, slots=True)
class KnownAccount:
    """An account that is known from elsewhere: its public key or name, and the operator's name for it ("" for none).

    `proved`: its login cannot be one of another account.
    """

    account: str
    name: str = ""
    proved: bool = False


async def named_source(js: JetStream, connection: Connection, known: KnownAccount | None = None) -> Source:
    """Return the source, with the operator's name for the account, if there is one and the user may request it.

    Raises UsageError if the account is not the `known` one, or may be another one.
    """
    source = await describe_source(js, connection)
    if known is not None:
        await check_account(js, known)
        return replace(source, account=known.account, account_name=known.name or None, login=None)
    if not _PUBLIC_KEY.fullmatch(source.account):
        return source
    return replace(source, account_name=await js.link.account_name())


async def check_account(js: JetStream, known: KnownAccount) -> None:
    """Raise UsageError if the connection is not one of the account, or may be one of another."""
    account = await js.link.account()
    if account is None and not known.proved:
        raise UsageError(
            f"the server does not say of which account the user is that is logged in for account {known.account}",
            hint="Grant the user $SYS.REQ.USER.INFO: servers before 2.12 say it only if asked.",
        )
    if account is not None and account != known.account:
        raise UsageError(
            f"the user that was given for account {known.account} is one of account {account}",
            hint="Correct its login.",
        )


@with_own_threads
async def jetstream_place(js: JetStream) -> JetStreamPlace:
    """Return the place behind a connection. Raises NatsError."""
    from jsbackup.planning.same_jetstream import JetStreamPlace  # backups do not need it

    facts = js.link.server_info
    addresses = facts.get("connect_urls")
    return JetStreamPlace(
        account=await js.link.account(),
        api_prefix=js.prefix.text,
        server_id=facts.get("server_id"),
        cluster=js.link.cluster_name,
        domain=js.link.domain,
        addresses=frozenset(map(str, addresses) if isinstance(addresses, list) else ()),
    )


@with_own_threads
async def read_source(connection: Connection) -> Source:
    """Connect, and return the source. Raises NatsError."""
    async with connect_jetstream(connection) as js:
        return await _connected(js, connection)


def lives_of(streams: Iterable[StreamInfo]) -> dict[str, Life]:
    """Return what distinguishes these streams from others of their names."""
    return {
        stream.name: Life(stream.created, stream.state.first_ns if stream.state.messages else 0) for stream in streams
    }


async def _connected(js: JetStream, connection: Connection) -> Source:
    """Return the source; with its streams, if the server is unnamed."""
    source = await describe_source(js, connection)
    if named_cluster(source.cluster):
        return source
    try:
        listing = await js.streams()
    except NatsError as error:
        _log.info("the server's streams cannot be listed: %s", error.message)
        return source
    facts = {field_.name: getattr(source, field_.name) for field_ in fields(source)}
    return Connected(**facts, lives=lives_of(listing.entries.values()))


async def found_for(js: JetStream, connection: Connection, backup: Manifest | FindBackup) -> Manifest:
    """Return the backup; calls `backup` to find it, if needed. Raises NatsError, and the errors of that search."""
    if isinstance(backup, Manifest):
        return backup
    return await in_thread(backup, await _connected(js, connection))


def _mark(login: str) -> str:
    """Return a text that distinguishes logins without revealing them."""
    return hashlib.sha256(f"jsbackup login\0{login}".encode()).hexdigest()[:8]
