"""Which JetStream a connection leads to, as backups have it (`repository/origin.py`)."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace

from jsbackup.config import Connection
from jsbackup.engine.jetstream import JetStream, connect_jetstream
from jsbackup.repository.manifest import Manifest, Source

__all__ = ["FindBackup", "describe_source", "found_for", "named_source", "read_source"]

FindBackup = Callable[[Source], Manifest]
"""Finds the backup that is meant for the source that is connected to. It reads the store: for a worker thread."""

_PUBLIC_KEY = re.compile(r"A[A-Z2-7]{55}")


async def describe_source(js: JetStream, connection: Connection) -> Source:
    """Where streams come from, by what the server said. Raises NatsError if the connection breaks."""
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


async def named_source(js: JetStream, connection: Connection) -> Source:
    """The same, with the name that an operator gave the account, where it has one and the user may ask for it."""
    source = await describe_source(js, connection)
    if not _PUBLIC_KEY.fullmatch(source.account):
        return source
    return replace(source, account_name=await js.link.account_name())


async def read_source(connection: Connection) -> Source:
    """Connect, and describe what is there. Raises NatsError."""
    async with connect_jetstream(connection) as js:
        return await describe_source(js, connection)


async def found_for(js: JetStream, connection: Connection, backup: Manifest | FindBackup) -> Manifest:
    """The backup, looked for if it is not known yet. Raises NatsError, and what the search does."""
    if isinstance(backup, Manifest):
        return backup
    return await asyncio.to_thread(backup, await describe_source(js, connection))


def _mark(login: str) -> str:
    """What tells one login from another, and nobody who it is."""
    return hashlib.sha256(f"jsbackup login\0{login}".encode()).hexdigest()[:8]
