"""Consumers left by a killed `follow`: the next one of the same repository removes them.

The server removes a consumer without a listener after a while, but a `follow` that is restarted at once would double
their number, which streams limit. The server shows which ones are left over: they have no listener. A running `follow`
listens before it creates its consumer; and a consumer whose connection was lost is useless, because every connection
creates its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.read.reader_consumer import owner_of
from jsbackup.errors import FormatError, NatsError
from jsbackup.protocol.info import ConsumerInfo

__all__ = ["left_readers", "remove_left_readers"]

_log = logging.getLogger(__name__)

# A server at the other end of a gateway learns of a listener a moment after the consumer was created.
_YOUNG_SECONDS = 2.0


def left_readers(consumers: Iterable[ConsumerInfo], owner: str) -> list[str]:
    """Return the names of `consumers` that belong to `owner` and are left over."""
    return [
        info.name
        for info in consumers
        if owner_of(info.config) == owner
        and not info.push_bound
        and info.now_ns - info.created_ns > _YOUNG_SECONDS * 1e9
    ]


async def remove_left_readers(js: JetStream, stream: str, owner: str, consumers: Iterable[ConsumerInfo] | None) -> None:
    """Remove the left consumers of `owner`, a repository's id. They are requested if `consumers` is None.

    Nothing is raised: consumers that cannot be removed expire.
    """
    try:
        if consumers is None:
            consumers = (await js.consumers(stream)).entries.values()
        for name in left_readers(consumers, owner):
            await js.delete_consumer(stream, name)
            _log.info("stream %s: removed consumer %s of a follow that was killed", stream, name)
    except (NatsError, FormatError) as error:
        _log.debug("stream %s: %s", stream, error.message)
