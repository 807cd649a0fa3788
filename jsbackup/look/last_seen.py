"""Which of the other backups last had something that the named one does not have any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from jsbackup.look.all_backups import PREVIEW_BYTES, FoundMessage, Series, Sighting, read_series, search_series
from jsbackup.look.message_filter import MessageFilter
from jsbackup.look.segments import refs_within
from jsbackup.repository.manifest import ArchiveFormat, Manifest
from jsbackup.repository.origin import origin_of
from jsbackup.repository.repository import Repository

__all__ = ["last_seen"]

# What is searched for a hint: as many of the newest backups as have so many segments.
_MOST_SEGMENTS, _MOST_BYTES = 400, 64 << 20
_MOST = 64


def last_seen(
    repository: Repository,
    manifest: Manifest,
    stream: str,
    *,
    wanted: MessageFilter,
    counts: Callable[[FoundMessage], bool],
    start_bytes: int = PREVIEW_BYTES,
) -> FoundMessage | None:
    """Return the newest wanted message that counts, of this stream in backups of the same origin. Of many or large
    backups only the newest are searched, so None does not mean that there is none.

    Raises as `read_series` and `search_series`.
    """
    origin = origin_of(manifest.source)
    every, _ = read_series(repository, lambda one: origin_of(one.source) == origin, lambda name: name == stream)
    trimmed = [replace(one, sightings=_searchable(one, wanted)) for one in every]
    found, _ = search_series(repository, trimmed, wanted, most=_MOST, start_bytes=start_bytes)
    return next((one for one in sorted(found, key=lambda one: -one.timestamp_ns) if counts(one)), None)


def _searchable(series: Series, wanted: MessageFilter) -> list[Sighting]:
    """Return the newest backups that are quickly searched."""
    seen: set[str] = set()
    size = 0
    kept: Sequence[Sighting] = series.sightings
    for row in reversed(range(len(series.sightings))):
        entry = series.sightings[row].entry
        if entry is None or entry.archive_format in (ArchiveFormat.CONFIG, ArchiveFormat.OPAQUE):
            continue
        for ref in refs_within(entry.segments, wanted):
            if ref.key not in seen:
                seen.add(ref.key)
                size += ref.size
        if len(seen) > _MOST_SEGMENTS or size > _MOST_BYTES:
            kept = series.sightings[row + 1 :]
            break
    return list(kept)
