"""The order in which streams are read: a stream is read after those that copy from it.

A copy is captured whole before the capture of its origin begins, so that an origin in a backup always has what its
copies have. Otherwise a copy that is read last would be ahead: after a restore its server waits for messages that the
origin lost (`transforms/copy_positions.py`). Unrelated streams are read in parallel, the largest first; the size of a
copy includes the origins that wait for it.

If streams copy in a circle, one of them is read before its copies.

`reach_of` says how far the streams of a server have copied from each of their origins, as the server reports it.

The stored messages of a stream have marks that show it (`transforms/copy_positions.py`), unless they were deleted or
acknowledged since. From 2.15 on STREAM.INFO has the sequence. Before, it is known if origin and copy are quiet: then a
copy without a lag has seen everything that the origin has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from jsbackup.engine.link.jetstream import JetStream
from jsbackup.errors import NatsError
from jsbackup.planning.copies.copy_facts import key_of_info, sources_of
from jsbackup.planning.copies.creation_order import origin_names, upstreams_of
from jsbackup.protocol.info import SourceInfo, StreamInfo
from jsbackup.repository.manifest import CopiedFrom
from jsbackup.transforms.copy_positions import is_external, source_key

__all__ = ["CaptureOrder", "ask_copied", "copies_first", "order_of", "reach_of", "with_relatives"]


@dataclass(frozen=True, slots=True)
class ReadingOrder:
    """`after` has for each stream those that are read before it. `stages` are the streams in such an order: those of
    one stage do not wait for each other.

    `weights` are the bytes of a stream and of those that wait for it, one after another. `broken` are origins that are
    read before some of their copies.
    """

    after: Mapping[str, frozenset[str]]
    stages: tuple[tuple[str, ...], ...]
    weights: Mapping[str, int]
    broken: Mapping[str, frozenset[str]]


def order_of(streams: Sequence[StreamInfo]) -> ReadingOrder:
    """Return the order for these streams. Copies in another account or domain are unknown and do not count."""
    names = {info.name for info in streams}
    origins = {info.name: (origin_names(info.config) & names) - {info.name} for info in streams}
    after: dict[str, set[str]] = {name: set() for name in names}
    for copy, its in origins.items():
        for origin in its:
            after[origin].add(copy)
    sizes = {info.name: info.state.bytes for info in streams}
    broken: dict[str, frozenset[str]] = {}
    left = {name: set(copies) for name, copies in after.items()}
    stages: list[tuple[str, ...]] = []
    while left:
        ready = [name for name, copies in left.items() if not copies & left.keys()]
        if not ready:
            # In a circle, or behind one. Choose the stream of a circle that has the least data.
            at = min(_in_circles(left), key=lambda name: (sizes[name], name))
            broken[at] = frozenset(left[at] & left.keys())
            after[at] -= broken[at]
            ready = [at]
        stages.append(tuple(sorted(ready)))
        for name in ready:
            del left[name]
    weights: dict[str, int] = {}
    for stage in reversed(stages):
        for name in stage:
            behind = [weights[origin] for origin in origins[name] if name in after[origin]]
            weights[name] = sizes[name] + max(behind, default=0)
    ranked = tuple(tuple(sorted(stage, key=lambda name: (-weights[name], name))) for stage in stages)
    return ReadingOrder({name: frozenset(copies) for name, copies in after.items()}, ranked, weights, broken)


def with_relatives(streams: Sequence[StreamInfo]) -> set[str]:
    """Return the streams that copy from another one, of any account, and those that one of them copies from."""
    copies = [info for info in streams if upstreams_of(info.config)]
    return {info.name for info in copies}.union(*(origin_names(info.config) for info in copies))


def _in_circles(left: Mapping[str, set[str]]) -> Collection[str]:
    """Return the streams that copy from themselves through others."""

    def reaches(start: str) -> bool:
        waiting, visited = [*left[start] & left.keys()], set()
        while waiting:
            at = waiting.pop()
            if at == start:
                return True
            if at not in visited:
                visited.add(at)
                waiting += left[at] & left.keys()
        return False

    return [name for name in left if reaches(name)]


def copies_first(streams: Sequence[StreamInfo]) -> list[list[StreamInfo]]:
    """Return the streams in stages: all copies of a stream are in earlier ones."""
    infos = {info.name: info for info in streams}
    return [[infos[name] for name in stage] for stage in order_of(streams).stages]


class CaptureOrder:
    """Distributes streams to several workers of one event loop, each when its copies are done."""

    def __init__(self, streams: Sequence[StreamInfo]) -> None:
        reading = order_of(streams)
        self._waiting = sorted(streams, key=lambda info: (-reading.weights[info.name], info.name))
        self._after = {name: set(copies) for name, copies in reading.after.items()}
        self._changed = asyncio.Condition()

    @property
    def waiting(self) -> Sequence[StreamInfo]:
        """Streams that no worker has taken."""
        return self._waiting

    async def take(self) -> StreamInfo | None:
        """Return the next stream, waiting until one may be read; None if none is left."""
        async with self._changed:
            while self._waiting:
                for info in self._waiting:
                    if not self._after[info.name]:
                        self._waiting.remove(info)
                        return info
                await self._changed.wait()
            return None

    async def done(self, name: str) -> None:
        """Note that the stream has been read, or will not be."""
        async with self._changed:
            for copies in self._after.values():
                copies.discard(name)
            self._changed.notify_all()


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
    copied = []
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
            copied.append(CopiedFrom(*key, sequence))
    return tuple(copied)


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
    return () if now is None else reach_of(now, {name: origin for name, origin in asked.items() if origin is not None})
