"""Whether a backup can meet `--until`, and which others come closest if it cannot.

A backup has everything of a stream up to the beginning of its capture. Later messages may be in it or not, so a later
time cannot be met, nor a time before its first message, if there were earlier ones. An import has everything up to its
last message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from jsbackup.errors import JsBackupError
from jsbackup.planning.rules import Finding, Rule
from jsbackup.repository.manifest import BackupSummary, Manifest, StreamBackup, summary_of
from jsbackup.repository.origin import origin_of
from jsbackup.repository.pages.segment_list import parts_of
from jsbackup.repository.read.segments import state_to_restore
from jsbackup.times import format_time, parse_time
from jsbackup.transforms.cut import AtSequence, AtTime, Cut

__all__ = ["Nearest", "against_cut", "find_nearest", "is_imported"]

_OTHER = "Choose another backup; 'jsbackup list' shows them."
_LOOKED_AT = 50  # backups on either side; further ones are not near


def against_cut(entry: StreamBackup, cut: Cut, *, imported: bool) -> list[Finding]:
    """Return what blocks this cut of a stream, if anything."""
    finding = _against(entry, cut, imported)
    return [] if finding is None else [finding]


def _against(entry: StreamBackup, cut: Cut, imported: bool) -> Finding | None:
    until = cut.until
    if until is None or not entry.archive_format.has_messages:
        return None
    if isinstance(until, AtSequence):
        last = state_to_restore(entry).last_seq
        if until.sequence <= last:
            return None
        reason = f"ends at sequence {last} in this backup; {until.sequence} is later"
        return Finding(entry.name, Rule.UNTIL_AFTER_BACKUP, reason, _OTHER)
    known_ns = _last_ns(entry) if imported else parse_time(entry.captured.begun, "captured")
    if until.time_ns > known_ns:
        what = "is known from an import up to its last message" if imported else "was read for this backup"
        reason = f"{what}, at {format_time(known_ns)}: messages up to {until} may be missing"
        return Finding(entry.name, Rule.UNTIL_AFTER_BACKUP, reason, _OTHER)
    first_ns = min((part.min_ns for part in parts_of(entry.segments)), default=0)
    earlier = entry.captured.first_seq > max(1, entry.config.get("first_seq") or 0)
    if entry.segments and first_ns > until.time_ns and earlier:
        reason = f"begins at {format_time(first_ns)} in this backup, and its state at {until} is no longer in it"
        return Finding(entry.name, Rule.UNTIL_BEFORE_FIRST, reason, _OTHER)
    return None


def _last_ns(entry: StreamBackup) -> int:
    return max((part.max_ns for part in parts_of(entry.segments)), default=entry.state.last_ns)


@dataclass(frozen=True, slots=True)
class Nearest:
    """The newest backup before the edge, and the oldest one after it that meets it; None if there is none."""

    before: BackupSummary | None
    after: BackupSummary | None

    @property
    def hint(self) -> str:
        """A sentence that names them."""
        said = [
            None if self.before is None else f"{self.before.id} of {self.before.created} ends before it",
            None if self.after is None else f"{self.after.id} of {self.after.created} has it",
        ]
        if known := [text for text in said if text is not None]:
            return f"The nearest {'backups' if len(known) > 1 else 'backup'}: {', '.join(known)}."
        return "No other backup of this stream is closer."


def find_nearest(
    manifest: Manifest,
    stream: str,
    cut: Cut,
    backups: Iterable[BackupSummary],
    *,
    manifest_of: Callable[[str], Manifest],
) -> Nearest:
    """Return the backups nearest to the end of a cut that this backup cannot meet for a stream.

    Only backups of the same origin: another account may have a stream of the same name. Unreadable ones are skipped.
    """
    entry = next(entry for entry in manifest.streams if entry.name == stream)
    asked = summary_of(manifest)
    related = (one for one in backups if (origin_of(one), one.imported) == (origin_of(asked), asked.imported))
    ordered = sorted(related, key=lambda one: one.created)
    edge_ns = cut.until.time_ns if isinstance(cut.until, AtTime) else parse_time(entry.captured.begun, "captured")
    at = sum(parse_time(one.created, "created") < edge_ns for one in ordered)

    def against(summary: BackupSummary) -> Finding | Literal["unknown"] | None:
        if summary.transformed is not None:  # its messages were changed
            return "unknown"
        try:
            found = manifest_of(summary.id)
        except JsBackupError:
            return "unknown"
        other = next((one for one in found.streams if one.name == stream), None)
        if other is None or not other.archive_format.has_messages:
            return "unknown"
        return _against(other, cut, is_imported(found))

    before: BackupSummary | None = None
    after: BackupSummary | None = None
    for one in ordered[at : at + _LOOKED_AT]:
        found = against(one)
        if found is None:
            after = one
            break
        before = one if _ends_early(found) else before
    for one in reversed(ordered[max(0, at - _LOOKED_AT) : at] if before is None else ()):
        found = against(one)
        if found is None:  # begun before, and captured later
            after = one
        elif _ends_early(found):
            return Nearest(one, after)
    return Nearest(before, after)


def _ends_early(found: Finding | Literal["unknown"]) -> bool:
    return isinstance(found, Finding) and found.rule is Rule.UNTIL_AFTER_BACKUP


def is_imported(manifest: Manifest) -> bool:
    """Return whether the backup was imported from files, so that its time says nothing about its streams."""
    return "imported" in manifest.source.extra
