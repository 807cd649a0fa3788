"""A stream with only its newest segments, for what would take too much time or memory for all of them."""

from __future__ import annotations

from dataclasses import replace

from jsbackup.look.message_filter import ALL_MESSAGES
from jsbackup.look.segments import refs_within
from jsbackup.repository.manifest import SegmentRef, StreamBackup

__all__ = ["newest_part"]

_MOST_MESSAGES, _MOST_BYTES = 100_000, 64 << 20


def newest_part(stream: StreamBackup) -> StreamBackup:
    """Return the stream with as many of its newest segments as have 100,000 messages or 64 MiB raw, at least one.

    Raises as iteration over `StreamBackup.segments`.
    """
    kept: list[SegmentRef] = []
    messages = size = 0
    for ref in refs_within(stream.segments, ALL_MESSAGES, newest_first=True):
        messages, size = messages + ref.messages, size + ref.bytes
        if kept and (messages > _MOST_MESSAGES or size > _MOST_BYTES):
            break
        kept.append(ref)
    return replace(stream, segments=tuple(reversed(kept)))
