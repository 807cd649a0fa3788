"""What the next backup says of a followed stream, from its entry in the last one and from what the server says now.

All streams at rest are described alike, so that manifests list none of them (`captures.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from jsbackup.engine.follow.consumers_since import consumers_since
from jsbackup.engine.follow.look import Look
from jsbackup.engine.read.increment import AT_REST
from jsbackup.planning.interrupted.staged import about_leftover
from jsbackup.protocol.info import StreamInfo, stored_config
from jsbackup.repository.manifest import (
    ArchiveFormat,
    Captured,
    ConsumerBackup,
    ReadAs,
    Reading,
    SegmentRef,
    StreamBackup,
    total_of,
)
from jsbackup.repository.write.new_backup import StoredStream
from jsbackup.times import format_time

__all__ = ["FOLLOWED", "as_before", "as_described", "followed_on"]

FOLLOWED = Reading(ReadAs.INCREMENT, "it is followed")


def as_before(entry: StreamBackup, look: Look, now: str) -> StoredStream:
    """Return the stream with the same messages as before; `now` (RFC 3339) is when that was known."""
    config, state = stored_config(look.info.config), look.info.state
    consumers, warnings = _consumers_of(entry, look, look.info)
    kept = not entry.archive_format.has_messages
    stream = replace(
        entry,
        config=entry.config if config == entry.config else config,
        state=entry.state if state == entry.state else state,
        consumers=consumers,
        warnings=warnings,
        captured=entry.captured.again(_begun(look.at_ns), now),
        archive_format=entry.archive_format if kept else ArchiveFormat.MESSAGES,
        read=entry.read if kept else AT_REST,
    )
    return StoredStream(stream, len(entry.segments), 0, incomplete=bool(warnings))


def as_described(entry: StreamBackup, look: Look, now: str) -> StoredStream | None:
    """Return the same for an entry that says just what `look.info` does; None if consumers or warnings have to be
    compared. That is all that is done for most of thousands of streams.
    """
    inventory = look.consumers
    some = inventory is not None and (inventory.entries or inventory.missing or inventory.offline)
    if some or look.silent or entry.consumers or entry.warnings or entry.read is not AT_REST:
        return None
    again = entry.captured_again(_begun(look.at_ns), now, entry.archive_format, entry.read)
    return StoredStream(again, len(entry.segments))


def followed_on(
    entry: StreamBackup, look: Look, info: StreamInfo, *, segments: Sequence[SegmentRef], ended: str
) -> StreamBackup:
    """Return the stream with all its segments, read up to `info` at the time `ended` (RFC 3339)."""
    consumers, warnings = _consumers_of(entry, look, info)
    totals = total_of(segments)
    return StreamBackup(
        name=entry.name,
        incarnation=entry.incarnation,
        config=stored_config(info.config),
        created=info.created,
        state=info.state,
        captured=Captured.of(totals, _begun(look.at_ns), ended),
        archive_format=ArchiveFormat.MESSAGES,
        digest=totals.digest,
        segments=segments,
        consumers=consumers,
        warnings=warnings,
        read=FOLLOWED,
        life=entry.life,
    )


_begun = lru_cache(maxsize=4)(format_time)  # all streams of a list were asked for at one time


def _consumers_of(
    entry: StreamBackup, look: Look, info: StreamInfo
) -> tuple[tuple[ConsumerBackup, ...], tuple[str, ...]]:
    """Return the consumers as they are now, and warnings about stream and consumers."""
    leftover = about_leftover(info.config)
    if look.silent:
        return entry.consumers, (*leftover, "its consumers did not answer in time, and are as they were before")
    if look.consumers is None:
        return (), leftover
    lost = sorted({*look.consumers.missing, *look.consumers.offline})
    warnings = (f"consumer {name} did not answer; its positions are not known" for name in lost)
    return consumers_since(entry.consumers, look.consumers, info), (*leftover, *warnings)
