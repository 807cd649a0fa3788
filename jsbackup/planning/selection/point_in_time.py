"""Whether a backup can meet `--until`.

A backup has everything of a stream up to the beginning of its capture. Later messages may be in it or not, so a later
time cannot be met, nor a time before its first message, if there were earlier ones. An import has everything up to its
last message.
"""

from __future__ import annotations

from collections.abc import Iterator

from jsbackup.planning.rules import Finding, Rule
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.repository.pages.segment_list import parts_of
from jsbackup.repository.read.segments import state_to_restore
from jsbackup.times import format_time, parse_time
from jsbackup.transforms.cut import AtSequence, Cut

__all__ = ["against_cut", "is_imported"]

_OTHER = "Choose another backup; 'jsbackup list' shows them."


def against_cut(entry: StreamBackup, cut: Cut, *, imported: bool) -> Iterator[Finding]:
    """Yield what blocks this cut of a stream, if anything."""
    until = cut.until
    if until is None or not entry.archive_format.has_messages:
        return
    if isinstance(until, AtSequence):
        last = state_to_restore(entry).last_seq
        if until.sequence > last:
            reason = f"ends at sequence {last} in this backup; {until.sequence} is later"
            yield Finding(entry.name, Rule.UNTIL_AFTER_BACKUP, reason, _OTHER)
        return
    known_ns = _last_ns(entry) if imported else parse_time(entry.captured.begun, "captured")
    if until.time_ns > known_ns:
        what = "is known from an import up to its last message" if imported else "was read for this backup"
        reason = f"{what}, at {format_time(known_ns)}: messages up to {until} may be missing"
        yield Finding(entry.name, Rule.UNTIL_AFTER_BACKUP, reason, _OTHER)
        return
    first_ns = min((part.min_ns for part in parts_of(entry.segments)), default=0)
    earlier = entry.captured.first_seq > max(1, entry.config.get("first_seq") or 0)
    if entry.segments and first_ns > until.time_ns and earlier:
        reason = f"begins at {format_time(first_ns)} in this backup, and its state at {until} is no longer in it"
        yield Finding(entry.name, Rule.UNTIL_BEFORE_FIRST, reason, _OTHER)


def _last_ns(entry: StreamBackup) -> int:
    return max((part.max_ns for part in parts_of(entry.segments)), default=entry.state.last_ns)


def is_imported(manifest: Manifest) -> bool:
    """Return whether the backup was imported from files, so that its time says nothing about its streams."""
    return manifest.source.imported is not None
