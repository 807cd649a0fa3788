"""Find the backup that a text means, once it is known which source the command is connected to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from jsbackup.repository import layout
from jsbackup.repository.manifest import Manifest, Source
from jsbackup.repository.origin import origin_of
from jsbackup.repository.read.latest import Choice, Wanted, about_named
from jsbackup.repository.read.needed import Needed

if TYPE_CHECKING:
    from jsbackup.repository.repository import Repository

__all__ = ["BackupSearch"]


@dataclass(slots=True)
class BackupSearch:
    """Finds the backup that `text` means: an id, the start of one, or `latest`, which depends on what is `wanted`.

    `choice` is the result. A named backup that is `known` is not looked up again. A manifest is read `in_part` if so
    asked, and for the streams that are `needed`, if there are any (`needed.py`). A search may be called from a worker
    thread, with the connected source, or without.
    """

    repository: Repository
    text: str
    wanted: Wanted = field(default_factory=Wanted)
    known: Choice | None = None
    in_part: bool = False
    needed: Needed = ()

    def __call__(self, source: Source | None = None) -> Manifest:
        """Find the backup. Raises the errors of `Repository.choose`."""
        if self.is_latest:
            wanted = replace(self.wanted, origin=None if source is None else origin_of(source))
            self.known = self.repository.choose(self.text, wanted, source, in_part=self.in_part, needed=self.needed)
        else:
            known = self.known or self.repository.choose(self.text, in_part=self.in_part, needed=self.needed)
            manifest = known.manifest
            self.known = Choice(manifest, () if source is None else tuple(about_named(manifest, source)))
        return self.known.manifest

    @property
    def is_latest(self) -> bool:
        return self.text == layout.LATEST

    @property
    def choice(self) -> Choice:
        """The backup that was found, and what was found out about others."""
        assert self.known is not None
        return self.known
