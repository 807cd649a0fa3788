"""A throwaway server that stays after it was filled: its address, its user, and a context of the nats CLI.

The context is a file in the server's folder. The nats CLI takes the path of such a file for the name of a context, so
no context of the user is touched, and it goes with the folder.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path

from jsbackup.engine.check.drill_server import DrillServers
from jsbackup.engine.link.threads import with_own_threads
from jsbackup.errors import JsBackupError

__all__ = ["KeptServer", "keep_server", "stay"]

_CONTEXT = "context.json"
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class KeptServer:
    """A running server. `context` is the file for the nats CLI, below `folder`, which the caller removes."""

    servers: DrillServers
    folder: Path

    @property
    def url(self) -> str:
        """Where it listens, without the login."""
        return self.servers.connection.url

    @property
    def user(self) -> str:
        return self.servers.login.user

    @property
    def password(self) -> str:
        return self.servers.login.password.reveal()

    @property
    def context(self) -> Path:
        return self.folder / _CONTEXT


def keep_server(servers: DrillServers, folder: Path) -> KeptServer:
    """Write the context of a server that was filled. Raises JsBackupError if that fails."""
    kept = KeptServer(servers, folder)
    document = {
        "description": "throwaway server of jsbackup",
        "url": kept.url,
        "user": kept.user,
        "password": kept.password,
    }
    try:
        with os.fdopen(os.open(kept.context, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise JsBackupError(f"cannot write {kept.context}: {(error.strerror or str(error)).lower()}") from error
    return kept


@with_own_threads
async def stay(kept: KeptServer, stopping: asyncio.Event) -> None:
    """Wait until `stopping` is set. Raises JsBackupError if the server ends before."""
    while not stopping.is_set():
        kept.servers.refuse_ended()
        try:
            await asyncio.wait_for(stopping.wait(), _LOOK_SECONDS)
        except TimeoutError:
            continue
