"""Make the manifest of a new backup from stored and failed streams; the caller commits it under its lease."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from jsbackup.failure import Failure
from jsbackup.repository import layout
from jsbackup.repository.manifest import (
    BackupResult,
    CopiedFrom,
    Manifest,
    Selection,
    SkippedStream,
    Source,
    StreamBackup,
)
from jsbackup.repository.repository import Repository
from jsbackup.times import format_time
from jsbackup.tool import TOOL

__all__ = ["NewBackup", "StoredStream", "with_streams"]


@dataclass(frozen=True, slots=True)
class StoredStream:
    """A stored stream, for the manifest, with statistics. `others` counts messages that its configuration does not take
    any more, where that is a default one. `notes` are sentences about its messages.
    """

    stream: StreamBackup
    segments_reused: int = 0
    stored_bytes: int = 0
    seconds: float = 0.0
    incomplete: bool = False  # something is missing or unproved; the warnings say what
    others: int = 0
    notes: tuple[str, ...] = ()

    def with_copied(self, copied: tuple[CopiedFrom, ...]) -> StoredStream:
        """Return the result with how far the stream had copied from its sources."""
        return replace(self, stream=replace(self.stream, copied=copied)) if copied else self


@dataclass(frozen=True, slots=True)
class NewBackup:
    """A backup that is being made of `source` since `begun_ns`; `random` returns that many random bytes."""

    repository: Repository
    source: Source
    begun_ns: int
    clock_ns: Callable[[], int]
    random: Callable[[int], bytes]
    tags: Mapping[str, str]
    selection: Selection | None = None

    def manifest(self, stored: Sequence[StoredStream], failures: Sequence[Failure] = ()) -> Manifest:
        """Return the manifest, after everything was stored."""
        previous = next(reversed(self.repository.backups()), None)
        manifest = Manifest(
            id=layout.backup_id(self.begun_ns, self.random(3), previous),
            created=format_time(self.begun_ns),
            tool=TOOL,
            source=self.source,
            result=BackupResult.COMPLETE,
            tags=dict(self.tags),
            previous=previous,
            selection=self.selection,
            ended=format_time(self.clock_ns()),
            stored_bytes=sum(one.stored_bytes for one in stored),
        )
        return with_streams(manifest, stored, failures)


def with_streams(manifest: Manifest, stored: Sequence[StoredStream], failures: Sequence[Failure]) -> Manifest:
    """Return the manifest with these streams: partial if one failed, or is incomplete."""
    return replace(
        manifest,
        result=BackupResult.PARTIAL if failures or any(one.incomplete for one in stored) else BackupResult.COMPLETE,
        streams=tuple(one.stream for one in stored),
        skipped=tuple(SkippedStream(failure.name, failure.error.message) for failure in failures),
    )
