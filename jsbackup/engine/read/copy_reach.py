"""How far the streams of a server have copied from each of their origins, as the server reports it.

The stored messages of a stream have marks that show it (`transforms/copy_positions.py`), unless they were deleted or
acknowledged since. From 2.15 on STREAM.INFO has the sequence. Before, it is known if origin and copy are quiet: then a
copy without a lag has seen everything that the origin has.
"""

from __future__ import annotations

from jsbackup.engine.link.jetstream import JetStream
from jsbackup.errors import NatsError
from jsbackup.planning.copies.copy_facts import key_of_info, sources_of
from jsbackup.protocol.info import SourceInfo, StreamInfo
from jsbackup.repository.manifest import CopiedFrom
from jsbackup.transforms.copy_positions import is_external, source_key

__all__ = ["ask_copied", "reach_of"]

# Heartbeats come every second, so a copy that is quiet together with its origin has heard from it since.
_QUIET_NS = 3_000_000_000
_HEARD_NS = 30_000_000_000
# How far the clocks of two servers may be apart. What a copy heard before the last message of its origin says nothing
# about that: it may have lost the connection since.
_APART_NS = 2_000_000_000


def reach_of(info: StreamInfo, origins: dict[str, StreamInfo]) -> tuple[CopiedFrom, ...]:
    """Return how far it had copied from each source for which that is known.

    `origins` are those in the same account, described before it.
    """
    said = {key_of_info(source): source for source in info.sources}
    found = []
    for source in sources_of(info.config):
        key = source_key(source)
        status = said.get(key)
        if status is None:
            continue
        sequence = status.seq
        origin = None if is_external(source) else origins.get(source["name"])
        if not sequence and origin is not None and _stands_still(status, origin, info.now_ns):
            sequence = origin.state.last_seq
        if sequence:
            found.append(CopiedFrom(*key, sequence))
    return tuple(found)


def _stands_still(status: SourceInfo, origin: StreamInfo, now_ns: int) -> bool:
    quiet = origin.now_ns - origin.state.last_ns > _QUIET_NS
    heard = 0 <= status.active_ns < _HEARD_NS and now_ns - status.active_ns - origin.state.last_ns > _APART_NS
    return quiet and heard and not status.lag and status.error is None


async def ask_copied(js: JetStream, info: StreamInfo) -> tuple[CopiedFrom, ...]:
    """Return the same for a stream as it is now; empty if the server does not report it."""
    sources = sources_of(info.config)
    if not sources:
        return ()
    try:
        names = {source["name"] for source in sources if not is_external(source)}
        asked = {name: await js.find_stream(name) for name in names}
        now = await js.find_stream(info.name)
    except NatsError:
        return ()
    return () if now is None else reach_of(now, {name: one for name, one in asked.items() if one is not None})
