"""When a stream appeared, changed and disappeared, by the manifests alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from jsbackup.look.all_backups import Series
from jsbackup.repository.manifest import ArchiveFormat, StreamBackup

__all__ = ["ChangeKind", "StreamChange", "changes_of"]


class ChangeKind(StrEnum):
    CAME = "came"
    CHANGED = "changed"  # its messages
    CONFIG = "config"  # only its configuration
    REPLACED = "replaced"  # another stream has its name
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class StreamChange:
    """The first backup that has a stream in a new state, and what it has. Zeros if the stream is gone."""

    origin: str
    backup: str
    created: str
    change: ChangeKind
    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0


def changes_of(series: Series) -> Iterator[StreamChange]:
    """Yield the changes from backup to backup, oldest first. Reads nothing."""
    before: StreamBackup | None = None
    for sighting in series.sightings:
        entry = sighting.entry
        kind = _kind(before, entry)
        before = entry
        if kind is None:
            continue
        change = StreamChange(series.origin, sighting.backup, sighting.created, kind)
        if entry is not None:
            had = entry.captured
            numbers = (had.messages, had.bytes, had.first_seq, had.last_seq)
            change = StreamChange(series.origin, sighting.backup, sighting.created, kind, *numbers)
        yield change


def _kind(before: StreamBackup | None, entry: StreamBackup | None) -> ChangeKind | None:
    if entry is None or before is None:
        return None if entry is before else ChangeKind.GONE if entry is None else ChangeKind.CAME
    if entry.incarnation != before.incarnation:
        return ChangeKind.REPLACED
    # A backup of configurations alone says nothing about messages.
    known = ArchiveFormat.CONFIG not in (entry.archive_format, before.archive_format)
    if known and (entry.digest, entry.opaque) != (before.digest, before.opaque):
        return ChangeKind.CHANGED
    return ChangeKind.CONFIG if entry.config != before.config else None
