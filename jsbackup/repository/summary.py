"""What a backup comes to, without its streams: what `list` shows, what retention decides by, what a catalog keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jsbackup.repository.manifest import Manifest, Result

__all__ = ["BackupSummary", "summary_of"]


@dataclass(frozen=True, slots=True)
class BackupSummary:
    """One backup. `created` is RFC 3339, `bytes` are those of the messages (see `manifest.py`)."""

    id: str
    created: str
    result: Result
    streams: int
    messages: int
    bytes: int
    tags: Mapping[str, str] = field(default_factory=dict)


def summary_of(manifest: Manifest) -> BackupSummary:
    return BackupSummary(
        id=manifest.id,
        created=manifest.created,
        result=manifest.result,
        streams=len(manifest.streams),
        messages=sum(stream.captured.messages for stream in manifest.streams),
        bytes=sum(stream.captured.bytes for stream in manifest.streams),
        tags=dict(manifest.tags),
    )
