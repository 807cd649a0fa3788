"""Which streams a restore of all accounts takes from each: those that are named, of the accounts that have them. Pure.

An account that has none of them is left out. What no account has is mistyped.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from jsbackup.config import excludes_nothing, nearest
from jsbackup.errors import UsageError
from jsbackup.planning.model import RestoreOptions
from jsbackup.repository.manifest import Manifest

__all__ = ["check_named", "names_of", "options_for"]


def options_for(manifest: Manifest, options: RestoreOptions, all_names: Collection[str]) -> RestoreOptions | None:
    """Return the options for an account with this backup: without names and patterns of which it has no stream. None if
    it has none of the streams that are named. `all_names` are the streams of all accounts.

    A backup whose streams cannot all be listed may have them: its options stay.
    """
    if manifest.unlisted:
        return options
    names = names_of(manifest)
    streams = tuple(glob for glob in options.streams if any(map(glob.matches, names)))
    if options.streams and not streams:
        return None
    mistyped = excludes_nothing(all_names, options.exclude)
    missed = excludes_nothing(names, options.exclude)
    exclude = tuple(glob for glob in options.exclude if glob.pattern not in missed or glob.pattern in mistyped)
    return replace(options, streams=streams, exclude=exclude)


def check_named(manifests: Sequence[Manifest], options: RestoreOptions) -> None:
    """Raise UsageError if no account has a stream that is named. `manifests` are the backups of all accounts."""
    if any(manifest.unlisted for manifest in manifests):
        return
    names = sorted({name for manifest in manifests for name in names_of(manifest)})
    for glob in options.streams:
        if not any(map(glob.matches, names)):
            raise UsageError(
                f"no account has a stream {glob.pattern} in its latest backup",
                hint=nearest(glob.pattern, names) or "'jsbackup list' shows the backups of each account.",
            )


def names_of(manifest: Manifest) -> list[str]:
    """Return the streams of a backup, with those that it lacks."""
    return [*(one.name for one in manifest.streams), *(one.name for one in manifest.skipped)]
