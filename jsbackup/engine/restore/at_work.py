"""Concurrent replacements of one stream: the command that needs a copy (`planning/interrupted.py`) announces it.

A copy names a subject to which its command subscribes until it ends. No answers are needed: without a subscriber, the
server reports that at once. If it cannot be found out (no permission to publish, a distant server that does not
answer), the command counts as running: its copy and the stream that it replaces are left alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from jsbackup.config import Connection
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.errors import NatsNoResponders, NatsPermissionDenied, NatsTimeout, TargetConflict
from jsbackup.planning.interrupted import (
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
    """Yield a subject that marks this command as running until it exits. Raises NatsError."""
    async with connect_jetstream(connection) as js:
        subject = f"{js.link.new_inbox()}.{AT_WORK}"
        async with js.link.subscribe(subject):
            await js.link.flush()
            yield subject


async def refuse_others(js: JetStream, name: str, copies: Sequence[StagedCopy]) -> None:
    """Raise TargetConflict if a running command needs one of these copies of stream `name`."""
    for copy in copies:
        if await _is_at_work(js, copy.needed_by):
            raise TargetConflict(f"stream {name} is being replaced by another command ({copy.name})", hint=_LATER)


async def refuse_beside(js: JetStream, name: str, staged: str) -> None:
    """Check before stream `name` is deleted: raise TargetConflict if its copy `staged` is gone, or another command
    replaces it too.

    Each command makes its copy first, so of two at the same time both see the other.
    """
    try:
        names = set((await js.stream_names(ALL_COPIES)).entries)
    except NatsPermissionDenied:
        names = {staged} if await js.find_stream(staged) is not None else set()
    if staged not in names:
        raise TargetConflict(
            f"stream {name} is not replaced: its copy {staged} was removed meanwhile",
            hint="Find out who removed it, and run the command again.",
        )
    for other in sorted(names - {staged}):
        there = await js.find_stream(other)
        if there is None or replaced_by(other, there.config) != name:
            continue
        if await _is_at_work(js, needed_by(there.config)):
            raise TargetConflict(f"stream {name} is being replaced by another command ({other})", hint=_LATER)


async def _is_at_work(js: JetStream, subject: str) -> bool:
    """Return whether someone subscribes to it, or it is unknown. Copies of older versions and killed commands
    have "".
    """
    if not subject:
        return False
    try:
        await js.link.request(subject, timeout=js.timeout_seconds)
    except NatsNoResponders:
        return False
    except (NatsTimeout, NatsPermissionDenied):
        pass
    return True
