"""Choose the streams of a backup that a restore requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from jsbackup.config import MAY_MISS, excludes_nothing, is_chosen, nearest
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.planning.interrupted import replaced_by
from jsbackup.planning.model import Action, RestoreOptions, RestorePlan
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.selection.subset import KeptStream
from jsbackup.readable import format_count
from jsbackup.repository.manifest import BackupResult, Manifest, StreamBackup
from jsbackup.repository.manifest_json import Needed
from jsbackup.repository.read.latest import Choice
from jsbackup.repository.read.losses import HOW_TO_LIST, broken_lists, refuse_broken, refuse_unlisted
from jsbackup.shell import quoted_command
from jsbackup.transforms.filters.filters import Filters

__all__ = [
    "about_missed",
    "about_missing",
    "against_missed",
    "choose_streams",
    "needed_by",
    "staged_copies",
    "with_cause",
    "with_elsewhere",
    "without_broken_lists",
]


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
    present = [*names, *(stream.name for stream in manifest.skipped)]
    left_out = manifest.selection.exclude if manifest.selection is not None else ()
    missed = [pattern for pattern in excludes_nothing(present, options.exclude) if pattern not in left_out]
    if missed and not manifest.unlisted and not options.allow_nothing:
        raise UsageError(
            f"--exclude {missed[0]}: backup {manifest.id} has no such stream",
            hint=f"{nearest(missed[0], present) or 'Correct it.'} {MAY_MISS}",
        )
    copies = {finding.stream for finding in staged}
    chosen = [
        entry
        for entry in manifest.streams
        if is_chosen(entry.name, options.streams, options.exclude) and entry.name not in copies
    ]
    if (aimless := options.missed_fields([stream.name for stream in chosen])) and not options.allow_nothing:
        pattern = aimless[0].rpartition(":")[0]
        hint = f"{nearest(pattern, [stream.name for stream in chosen]) or 'Correct it.'} {MAY_MISS}"
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


# --- broken lists ---


def without_broken_lists(
    manifest: Manifest, options: RestoreOptions
) -> tuple[Manifest, RestoreOptions, Mapping[str, JsBackupError]]:
    """Return a backup and options without the streams whose lists of segments cannot be read, and these with their
    errors. Raises the error of one if nothing else is left to plan.
    """
    asked = [entry for entry in manifest.streams if is_chosen(entry.name, options.streams, options.exclude)]
    broken = broken_lists(asked)
    refuse_broken(broken, of=len(asked))
    streams = tuple(entry for entry in manifest.streams if entry.name not in broken)
    named = tuple(glob for glob in options.streams if any(glob.matches(entry.name) for entry in streams))
    return replace(manifest, streams=streams), replace(options, streams=named), broken


# --- missed ---
#
# Filters that have found nothing: a misspelt one keeps, or leaves out, nothing, and what it was to leave out would be
# copied. So that is refused, unless the user confirms it.
#
# A condition on headers or payloads is known to miss when all messages were read. It counts for all streams of a
# restore together: one that is for some of them is none for the others.


def about_missed(
    kept: Mapping[str, KeptStream], actions: Sequence[Action], options: RestoreOptions
) -> Iterator[Finding]:
    """Yield refusals for conditions that no message of a plan meets, if all messages were read."""
    if options.allow_nothing:
        return
    known = [kept.get(action.entry.name) for action in actions if action.reshape.filters and action.had]
    counts = [choice.matched for choice in known if choice is not None and choice.matched is not None]
    if len(counts) == len(known):
        yield from against_missed(options.reshape.filters, sum(counts, Counter()))


def against_missed(filters: Filters, matched: Mapping[str, int]) -> Iterator[Finding]:
    """Yield refusals for conditions without any message in these counts, if there were messages to judge."""
    for option, rule in filters.by_content:
        if matched.get(option) and not matched.get(f"{option} {rule}"):
            reason = f"{option} {rule}: no message that the other options leave meets it, so it would keep nothing"
            yield Finding("", Rule.FILTER_MISSED, reason, f"Correct it, or leave it out. {MAY_MISS}")


def with_cause(refusals: Iterable[Finding], missed: Sequence[Finding], actions: Sequence[Action]) -> list[Finding]:
    """Return all refusals; without those that nothing is kept, if a condition that no message meets is the cause."""
    caused = bool(missed) and not any(action.entry.captured.messages for action in actions)
    return [*(refusal for refusal in refusals if not (caused and refusal.rule is Rule.KEEPS_NOTHING)), *missed]


# --- elsewhere ---
#
# Requested streams that a backup lacks and another backup has, as warnings of a plan.


def with_elsewhere(plan: RestorePlan, choice: Choice) -> RestorePlan:
    """Return the plan with warnings about requested streams that only another backup has."""
    if not choice.elsewhere:
        return plan
    known = {other.stream for other in choice.elsewhere}
    left = (
        warning
        for warning in plan.warnings
        if warning.rule is not Rule.INCOMPLETE_BACKUP or warning.stream not in known
    )
    warnings = (
        Finding(
            other.stream,
            Rule.IN_ANOTHER_BACKUP,
            f"is not in backup {plan.backup}, but in {other.backup}, made {other.created[:19]}Z",
            f"Restore it from there: {quoted_command('restore', other.backup, other.stream)}.",
        )
        for other in choice.elsewhere
    )
    return replace(plan, warnings=(*left, *warnings))
