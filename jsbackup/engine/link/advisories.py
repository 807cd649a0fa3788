"""The server's advisories about snapshots and restores as log lines: only for information."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from jsbackup.engine.link.link import Link
from jsbackup.engine.link.subscription import Subscription
from jsbackup.errors import NatsError
from jsbackup.protocol.advisories import advisory_subjects, decode_advisory

__all__ = ["advisories"]

_log = logging.getLogger(__name__)


@asynccontextmanager
async def advisories(link: Link) -> AsyncIterator[None]:
    """Log advisories at level INFO until this exits. Does nothing if that level is not enabled.

    If the user may not subscribe to them, that is logged once and has no other effect.
    """
    if not _log.isEnabledFor(logging.INFO):
        yield
        return
    async with AsyncExitStack() as stack:
        tasks = []
        troubles: set[str] = set()
        for subject in advisory_subjects():
            subscription = await stack.enter_async_context(link.subscribe(subject))
            tasks.append(asyncio.create_task(_tell(subscription, troubles)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _tell(subscription: Subscription, troubles: set[str]) -> None:
    with suppress(asyncio.CancelledError):
        try:
            async for message in subscription:
                advisory = decode_advisory(message.data)
                if advisory is not None:
                    _log.info("%s", advisory.line)
        except NatsError as error:
            if not troubles:
                _log.info("no server advisories: %s", error.message)
            troubles.add(error.message)
