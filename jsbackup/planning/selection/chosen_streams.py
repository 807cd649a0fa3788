"""Choose the streams of a backup that a restore requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jsbackup.config import MAY_MISS, excludes_nothing, is_chosen, nearest
from jsbackup.errors import UsageError
from jsbackup.planning.interrupted.staged import replaced_by
from jsbackup.planning.model import RestoreOptions
from jsbackup.planning.rules import Finding, Rule
from jsbackup.readable import format_count
from jsbackup.repository.manifest import BackupResult, Manifest, StreamBackup
from jsbackup.repository.manifest_json import Needed
from jsbackup.repository.read.losses import HOW_TO_LIST, refuse_unlisted

__all__ = ["about_missing", "choose_streams", "needed_by", "staged_copies"]


def choose_streams(manifest: Manifest, options: RestoreOptions, staged: Sequence[Finding]) -> list[StreamBackup]:
    """Return the requested streams, without `staged` copies.

    Raises:
        UsageError: an option matches none.
        IntegrityError: the same, but the backup has streams that cannot be listed.
    """
    names = [entry.name for entry in manifest.streams]
    for glob in options.streams:
        if not any(map(glob.matches, names)):
            refuse_unlisted(manifest, glob.pattern)
            raise UsageError(
                f"backup {manifest.id} has no stream {glob.pattern}",
                hint=nearest(glob.pattern, names) or "See 'jsbackup show' for the streams it has.",
            )
    there = [*names, *(one.name for one in manifest.skipped)]
    left_out = manifest.selection.exclude if manifest.selection is not None else ()
    missed = [pattern for pattern in excludes_nothing(there, options.exclude) if pattern not in left_out]
    if missed and not manifest.unlisted and not options.allow_nothing:
        raise UsageError(
            f"--exclude {missed[0]}: backup {manifest.id} has no such stream",
            hint=f"{nearest(missed[0], there) or 'Correct it.'} {MAY_MISS}",
        )
    copies = {finding.stream for finding in staged}
    chosen = [
        entry
        for entry in manifest.streams
        if is_chosen(entry.name, options.streams, options.exclude) and entry.name not in copies
    ]
    if (aimless := options.missed_fields([one.name for one in chosen])) and not options.allow_nothing:
        pattern = aimless[0].rpartition(":")[0]
        hint = f"{nearest(pattern, [one.name for one in chosen]) or 'Correct it.'} {MAY_MISS}"
        raise UsageError(f"--set {aimless[0]}: no stream to restore is {pattern}", hint=hint)
    return chosen


def needed_by(options: RestoreOptions) -> Needed:
    """Return the streams that a backup's manifest has to be read for; none if it has to be read whole."""
    if options.exclude or not all(glob.is_literal for glob in options.streams):
        return ()
    return [(glob.pattern,) for glob in options.streams]


def staged_copies(manifest: Manifest, options: RestoreOptions) -> Iterable[Finding]:
    """Yield copies that an interrupted replacement had left when the backup was made. One that is named is restored."""
    names = {entry.name for entry in manifest.streams}
    for entry in manifest.streams:
        original = replaced_by(entry.name, entry.config)
        if original is None or any(glob.is_literal and glob.matches(entry.name) for glob in options.streams):
            continue
        if is_chosen(entry.name, options.streams, options.exclude):
            reason = f"is the copy that an interrupted restore made to replace stream {original}"
            has_original = original in names and manifest.result is BackupResult.COMPLETE
            rule = Rule.STAGED_COPY if has_original else Rule.INCOMPLETE_BACKUP
            hint = f"Restore {original} from another backup, or name the copy (it has no subjects)."
            yield Finding(entry.name, rule, reason, hint)


def about_missing(manifest: Manifest, options: RestoreOptions, staged: Sequence[Finding]) -> Iterable[Finding]:
    """Yield requested streams that are missing: skipped ones, and originals of which only a copy exists."""
    yield from (copy for copy in staged if copy.rule is Rule.INCOMPLETE_BACKUP)
    for skipped in manifest.skipped:
        if is_chosen(skipped.name, options.streams, options.exclude):
            yield Finding(
                skipped.name,
                Rule.INCOMPLETE_BACKUP,
                f"is not in this backup: {skipped.reason}",
                "Restore it from another backup.",
            )
    if not options.streams or not all(glob.is_literal for glob in options.streams):
        for lost in manifest.unlisted:
            others = format_count(lost.count - 1, "other")
            reason = f"{f'it and {others} ' if lost.count > 1 else ''}cannot be listed: {lost.reason}"
            yield Finding(lost.first, Rule.INCOMPLETE_BACKUP, reason, HOW_TO_LIST)
