"""The progress of following streams, and a log line for each backup."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from jsbackup.failure import Failure
from jsbackup.repository.manifest import BackupResult, Manifest

__all__ = ["FollowReport"]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class FollowReport:
    """The result so far.

    `behind_seconds` is the longest time that published messages were in no backup while server and store answered, but
    for streams that could not be read: `partial` backups name them. The first backup counts from its beginning.
    `troubles` counts how often they did not, and `trouble` is the present problem. `failures` are the streams that the
    newest backup lacks, or has as they were. It was committed at `committed_ns`, and has everything published until
    `up_to_ns`. `lost_readers` are sentences about key files of readers that are missing or damaged.
    """

    backups: int = 0
    newest: Manifest | None = None
    messages: int = 0
    stored_bytes: int = 0
    behind_seconds: float = 0.0
    partial: int = 0
    troubles: int = 0
    trouble: str = ""
    failures: tuple[Failure, ...] = ()
    committed_ns: int = 0
    up_to_ns: int = 0
    lost_readers: tuple[str, ...] = ()

    def add(
        self,
        manifest: Manifest,
        failures: tuple[Failure, ...],
        messages: int,
        stored_bytes: int,
        *,
        behind_seconds: float,
    ) -> None:
        """Add a backup with `messages` new messages, which waited up to `behind_seconds` for it."""
        self.backups += 1
        self.partial += manifest.result is BackupResult.PARTIAL
        self.newest = manifest
        self.failures = failures
        self.messages += messages
        self.stored_bytes += stored_bytes
        self.behind_seconds = max(self.behind_seconds, behind_seconds)
        fields = {
            "backup": manifest.id,
            "result": str(manifest.result),
            "messages": messages,
            "stored_bytes": stored_bytes,
            "behind_seconds": round(behind_seconds, 3),
        }
        _log.info(
            "backup %s: %d new messages, %d bytes stored, at most %.1f s behind",
            manifest.id,
            messages,
            stored_bytes,
            behind_seconds,
            extra={"fields": fields},
        )
