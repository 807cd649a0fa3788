"""The streams of a backup that a command works on."""

from __future__ import annotations

from collections.abc import Sequence

from jsbackup.config import is_chosen, nearest, parse_glob
from jsbackup.errors import UnsupportedError, UsageError
from jsbackup.pipeline.session.repository_ref import RepositoryRef
from jsbackup.repository.manifest import Manifest, StreamBackup

__all__ = ["ChosenBackup", "choose_streams"]


class ChosenBackup:
    """A backup, and where its repository is."""

    def __init__(self, place: RepositoryRef, manifest: Manifest) -> None:
        self.place = place
        self.manifest = manifest

    def streams(self, patterns: Sequence[str] = ()) -> list[StreamBackup]:
        """Return the streams chosen by names and patterns, without those whose messages cannot be read.

        Raises:
            UsageError: a pattern matches none.
            UnsupportedError: a stream that was given by name has an unknown format.
        """
        chosen = choose_streams(self.manifest, patterns)
        for stream in chosen:
            if stream.unknown_format and stream.name in patterns:
                raise UnsupportedError(stream.unknown_format)
        return [stream for stream in chosen if not stream.unknown_format]

    def left_out(self, patterns: Sequence[str] = ()) -> list[str]:
        """Return why `streams` leaves streams out."""
        chosen = [stream for stream in choose_streams(self.manifest, patterns) if stream.name not in patterns]
        return [stream.unknown_format for stream in chosen if stream.unknown_format]


def choose_streams(manifest: Manifest, patterns: Sequence[str]) -> list[StreamBackup]:
    """Return the streams of a backup that match patterns, all without any. Raises `UsageError` if a pattern matches
    none.
    """
    globs = [parse_glob(pattern) for pattern in patterns]
    for glob in globs:
        if not any(glob.matches(stream.name) for stream in manifest.streams):
            raise UsageError(
                f"backup {manifest.id} has no stream {glob.pattern}",
                hint=nearest(glob.pattern, [stream.name for stream in manifest.streams])
                or f"See 'jsbackup show {manifest.id}' for the streams it has.",
            )
    return [stream for stream in manifest.streams if is_chosen(stream.name, globs, ())]
