"""Consumers of a `follow` that was killed: the next one of the same repository removes them.

The server removes a consumer by itself when nobody has listened to it for a while, but a `follow` that is started again
at once would make as many beside those of its predecessor, and streams limit their number. Whether one is left over
the server tells: nobody listens to what it delivers. That of a living `follow` has a listener from before it is made;
and one whose connection was lost is of no use to anybody, because every connection makes its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.read.consume import owner_of
from jsbackup.errors import FormatError, NatsError
from jsbackup.protocol.info import ConsumerInfo

__all__ = ["left_readers", "remove_left_readers"]

_log = logging.getLogger(__name__)

# A server at the other end of a gateway hears of a listener a moment after the consumer was made.
_YOUNG_SECONDS = 2.0


def left_readers(consumers: Iterable[ConsumerInfo], owner: str) -> list[str]:
    """The names of those among `consumers` that belong to `owner` and are left over."""
    return [
        info.name
        for info in consumers
        if owner_of(info.config) == owner
        and not info.push_bound
        and info.now_ns - info.created_ns > _YOUNG_SECONDS * 1e9
    ]


async def remove_left_readers(js: JetStream, stream: str, owner: str, consumers: Iterable[ConsumerInfo] | None) -> None:
    """Remove what is left over of `owner`, a repository's id. `consumers` are asked for if that is None.

    What cannot be removed goes by itself: nothing is raised.
    """
    try:
        if consumers is None:
            consumers = (await js.consumers(stream)).entries.values()
        for name in left_readers(consumers, owner):
            await js.delete_consumer(stream, name)
            _log.info("stream %s: removed consumer %s of a follow that was killed", stream, name)
    except (NatsError, FormatError) as error:
        _log.debug("stream %s: %s", stream, error.message)
