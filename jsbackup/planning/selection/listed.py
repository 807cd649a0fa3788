"""The streams of a plan whose lists of segments can be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from jsbackup.config import is_chosen
from jsbackup.errors import JsBackupError
from jsbackup.planning.model import RestoreOptions
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.read.losses import broken_lists, refuse_broken

__all__ = ["Listed"]


@dataclass(frozen=True, slots=True)
class Listed:
    """A backup and the options to plan with. `broken` streams were taken out of both."""

    manifest: Manifest
    options: RestoreOptions
    broken: Mapping[str, JsBackupError] = field(default_factory=dict)

    def without_broken_lists(self) -> Listed:
        """Return the rest, itself if all lists can be read. Raises the error of a broken one if nothing is left to
        plan.
        """
        asked = [s for s in self.manifest.streams if is_chosen(s.name, self.options.streams, self.options.exclude)]
        broken = broken_lists(asked)
        if not broken:
            return self
        refuse_broken(broken, of=len(asked))
        streams = tuple(stream for stream in self.manifest.streams if stream.name not in broken)
        named = [glob for glob in self.options.streams if any(glob.matches(stream.name) for stream in streams)]
        return Listed(
            replace(self.manifest, streams=streams), replace(self.options, streams=tuple(named)), dict(broken)
        )
