"""What `latest` was at a moment: the same rules (`latest.py`), among the backups that had begun by then."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from jsbackup.errors import UsageError
from jsbackup.repository import layout
from jsbackup.repository.documents import Documents
from jsbackup.repository.inventory import Inventory
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.read.latest import Choice, Wanted, choose_latest
from jsbackup.repository.repository import Repository
from jsbackup.times import format_time

__all__ = ["choose_as_of"]


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
