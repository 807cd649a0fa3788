"""Read a manifest for the streams that a command needs: of a long list of streams only the pages that have them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Protocol, TypeAlias

from jsbackup.repository.manifest import Manifest

__all__ = ["Needed", "read_needed"]

Needed: TypeAlias = Sequence[Collection[str]]
"""Streams, each by the names that it may have. None of them: all streams are needed."""


class _Reader(Protocol):
    """A repository."""

    def manifest(self, backup: str, *, in_part: bool = ..., names: Collection[str] | None = ...) -> Manifest: ...


def read_needed(repository: _Reader, backup: str, needed: Needed, *, in_part: bool) -> Manifest:
    """Return the manifest of a backup with the needed streams, those they copy from, and perhaps others.

    If one of them is not there, all streams are read: who reports that names others that may be meant. Raises as
    `Repository.manifest`.
    """
    if not needed:
        return repository.manifest(backup, in_part=in_part)
    manifest = repository.manifest(backup, in_part=in_part, names=frozenset(chain.from_iterable(needed)))
    there = {stream.name for stream in manifest.streams}
    if manifest.unread and any(there.isdisjoint(names) for names in needed):
        return repository.manifest(backup, in_part=in_part)
    return manifest
