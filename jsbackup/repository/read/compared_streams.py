"""Which streams of two backups, or of a backup and a server, are compared. Pure."""

from __future__ import annotations

from collections.abc import Sequence, Set

from jsbackup.config import Glob, is_chosen, nearest
from jsbackup.errors import UsageError
from jsbackup.repository.manifest import Manifest

__all__ = ["ComparedStreams"]


class ComparedStreams:
    """The requested streams that each of the backups selected too. `skipped` are the others, with the reasons."""

    def __init__(self, globs: Sequence[Glob], excluded: Sequence[Glob], manifests: Sequence[Manifest]) -> None:
        self._globs = globs
        self._excluded = excluded
        self._manifests = manifests
        self.skipped: dict[str, str] = {}

    def choose(self, names: Set[str]) -> Set[str]:
        """Return the names to compare, of those on either side. Raises UsageError if a pattern matches none, or none
        can be compared.
        """
        wanted = {name for name in names if is_chosen(name, self._globs, self._excluded)}
        self.skipped = {name: reason for name in wanted if (reason := self._reason(name))}
        for glob in self._globs:
            found = sorted(filter(glob.matches, names))
            if not found:
                raise UsageError(f"no stream on either side matches {glob.pattern}", hint=nearest(glob.pattern, names))
            if all(name in self.skipped for name in found):
                raise UsageError(f"stream {found[0]} cannot be compared: {self.skipped[found[0]]}")
        if self._excluded and names and not wanted:
            raise UsageError("--exclude leaves out all streams, so nothing would be compared", hint="Correct it.")
        return wanted - self.skipped.keys()

    def _reason(self, stream: str) -> str | None:
        for manifest in self._manifests:
            if manifest.selection is not None and not manifest.selection.selects(stream):
                return f"backup {manifest.id} was made without it on purpose"
        return None
