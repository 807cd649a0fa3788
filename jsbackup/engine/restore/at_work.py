"""Replaces of one stream at the same time: who needs a copy (`planning/interrupted/staged.py`) says so.

A copy names a subject to which the command that made it subscribes until it ends. Nobody has to answer there: where
nobody subscribes, the server says so at once. Where that cannot be known (no permission to publish to it, a server far
away that says nothing), the command counts as at work: its copy stays, and what it replaces is left alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from jsbackup.config import Connection
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.errors import NatsNoResponders, NatsPermissionDenied, NatsTimeout, TargetConflict
from jsbackup.planning.interrupted.staged import (
    ALL_COPIES,
    AT_WORK,
    StagedCopy,
    needed_by,
    replaced_by,
)

__all__ = ["at_work", "refuse_beside", "refuse_others"]

_LATER = "Run this again when that command has ended."


@asynccontextmanager
async def at_work(connection: Connection) -> AsyncIterator[str]:
    """The subject that says that this command is at work, as long as it is entered. Raises NatsError."""
    async with connect_jetstream(connection) as js:
        subject = f"{js.link.new_inbox()}.{AT_WORK}"
        async with js.link.subscribe(subject):
            await js.link.flush()
            yield subject


async def refuse_others(js: JetStream, name: str, copies: Sequence[StagedCopy]) -> None:
    """Raise TargetConflict if a command that needs one of these copies of stream `name` is at work."""
    for copy in copies:
        if await _is_at_work(js, copy.needed_by):
            raise TargetConflict(f"stream {name} is being replaced by another command ({copy.name})", hint=_LATER)


async def refuse_beside(js: JetStream, name: str, staged: str) -> None:
    """Before stream `name` is deleted: raise TargetConflict if its copy `staged` is gone, or another command replaces
    it too. Of two that look at the same time both see the other, since each has made its copy before."""
    try:
        names = set((await js.stream_names(ALL_COPIES)).entries)
    except NatsPermissionDenied:
        names = {staged} if await js.find_stream(staged) is not None else set()
    if staged not in names:
        raise TargetConflict(
            f"stream {name} is not replaced: its copy {staged} was removed meanwhile",
            hint="See who did, and run again.",
        )
    for other in sorted(names - {staged}):
        there = await js.find_stream(other)
        if there is None or replaced_by(other, there.config) != name:
            continue
        if await _is_at_work(js, needed_by(there.config)):
            raise TargetConflict(f"stream {name} is being replaced by another command ({other})", hint=_LATER)


async def _is_at_work(js: JetStream, subject: str) -> bool:
    """Whether somebody subscribes to it, or nobody can tell. "" is what older versions and killed commands have."""
    if not subject:
        return False
    try:
        await js.link.request(subject, timeout=js.timeout_seconds)
    except NatsNoResponders:
        return False
    except (NatsTimeout, NatsPermissionDenied):
        pass
    return True
