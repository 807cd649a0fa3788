"""The server's advisories about snapshots and restores as log lines: hints for whoever watches, never proof."""

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
    """While this is entered, advisories are logged at level INFO. Does nothing where nobody reads that level.

    A user may lack the permission to subscribe to them; that is logged once and costs nothing else.
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
