"""Find the backup that a text means, once it is known which source the command is connected to."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from jsbackup.errors import UsageError
from jsbackup.repository import layout
from jsbackup.repository.document import Documents
from jsbackup.repository.inventory import Inventory
from jsbackup.repository.manifest import Manifest, Source
from jsbackup.repository.manifest_json import Needed
from jsbackup.repository.origin import origin_of
from jsbackup.repository.read.latest import Choice, Wanted, about_named, choose_latest
from jsbackup.repository.repository import Repository
from jsbackup.times import format_time

__all__ = ["BackupSearch", "choose_as_of"]


@dataclass(slots=True)
class BackupSearch:
    """Finds the backup that `text` means: an id, the start of one, or `latest`, which depends on what is `wanted`.

    `choice` is the result. A named backup that is `known` is not looked up again. A manifest is read `in_part` if so
    asked, and for the streams that are `needed`, if there are any (`manifest_json.py`). A search may be called from a
    worker thread, with the connected source, or without.
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


# --- as of ---
#
# What `latest` was at a moment: the same rules (`latest.py`), among the backups that had begun by then.


def choose_as_of(repository: Repository, moment_ns: int, wanted: Wanted) -> Choice:
    """Return the newest suitable backup that began at this Unix time or before, to the second.

    Raises:
        UsageError: there is none, or several sources are possible.
        FormatError, UnsupportedError, KeyUnavailable, IntegrityError, StoreError: as `choose_latest`.
    """
    earlier = _Earlier(repository, moment_ns)
    if not earlier.backups() and (later := repository.backups()):
        raise UsageError(
            f"no backup was made at {format_time(moment_ns)} or before", hint=f"The first one is {later[0]}."
        )
    return choose_latest(earlier, wanted)


class _Earlier:
    """A repository without its later backups."""

    def __init__(self, repository: Repository, moment_ns: int) -> None:
        self._repository = repository
        self._moment_ns = moment_ns

    @property
    def documents(self) -> Documents:
        return self._repository.documents

    def backups(self) -> list[str]:
        return [backup for backup in self._repository.backups() if self._has(backup)]

    def inventory(self) -> Inventory:
        found = self._repository.inventory()
        return replace(
            found,
            entries=tuple(one for one in found.entries if self._has(one.id)),
            unreadable=tuple(one for one in found.unreadable if self._has(one.id)),
            gaps=tuple(one for one in found.gaps if self._has(one.backup)),
        )

    def manifest(self, backup: str, *, in_part: bool = False, names: Collection[str] | None = None) -> Manifest:
        return self._repository.manifest(backup, in_part=in_part, names=names)

    def _has(self, backup: str) -> bool:
        return layout.begun_by(backup, self._moment_ns)
