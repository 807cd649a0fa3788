"""How far a repository has been read: the offset of a streaming query, as Spark stores it in the checkpoint.

    {"version": 1, "repository": "00ff…", "origin": "C1/SHOP", "backup": "20261121T014500Z-1a2b3c",
     "taken": ["20261120T014500Z-000001", "20261121T014500Z-1a2b3c"], "before": "", "older": 0,
     "streams": [["ORDERS", "1a2b3c4d", "", 4711, 1795225502000000000]]}

`taken` are the backups of which all was delivered: the newest `MOST_TAKEN`. Those up to `before`, of which there were
`older` in the repository, count as taken, too. `backup` is the newest of which something was delivered: the last of
`taken`, or one that was read in part. Of each life of a stream, by name, incarnation and `life`, there is the last
sequence that was delivered, and when (Unix time in nanoseconds) the last backup of which all was delivered had read it.
The ids of backups sort by time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from jsbackup.errors import FormatError

__all__ = ["MOST_TAKEN", "ReadPosition", "StreamKey", "StreamOffsets"]

_VERSION = 1
# Ids in an offset: 13 KB. Spark keeps a hundred offsets.
MOST_TAKEN = 500
# For how long the position in a stream is kept after another one got its name: a backup may take so long.
_LATE_NS = 48 * 3600 * 10**9


class StreamKey(NamedTuple):
    """A life of a stream: within it, a sequence is one message (`StreamBackup.life`)."""

    name: str
    incarnation: str
    life: str = ""


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """The last `sequence` delivered, and when the last backup of which all was delivered had read the stream: in
    nanoseconds since the Unix epoch. 0 if none.
    """

    sequence: int = 0
    read_ns: int = 0


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """An offset. `repository` is the repository's id. `origin` and `backup` are "" while there was no backup."""

    repository: str
    origin: str = ""
    backup: str = ""
    taken: tuple[str, ...] = ()
    before: str = ""
    older: int = 0
    streams: Mapping[StreamKey, ReadPosition] = field(default_factory=dict)

    def knows(self, backup: str) -> bool:
        """Return whether all of a backup was delivered."""
        return backup <= self.before or backup in self.taken

    def without_replaced(self) -> StreamOffsets:
        """Return the offset without the positions in lives that another one of the name has replaced long ago."""
        newest: dict[str, int] = {}
        for key, position in self.streams.items():
            newest[key.name] = max(newest.get(key.name, 0), position.read_ns)
        kept = {
            key: position
            for key, position in self.streams.items()
            if not position.read_ns or position.read_ns >= newest[key.name] - _LATE_NS
        }
        return replace(self, streams=kept)

    def to_json(self) -> dict[str, Any]:
        """Return the offset as Spark takes it, always in the same order: Spark compares the texts."""
        return {
            "version": _VERSION,
            "repository": self.repository,
            "origin": self.origin,
            "backup": self.backup,
            "taken": list(self.taken),
            "before": self.before,
            "older": self.older,
            "streams": [[*key, position.sequence, position.read_ns] for key, position in sorted(self.streams.items())],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamOffsets:
        """Decode the result of `to_json`. Raises FormatError for another one."""
        try:
            if value["version"] != _VERSION:
                raise FormatError(f"the checkpoint is of another version of jsbackup: {json.dumps(value)[:80]}")
            streams = {
                StreamKey(str(name), str(incarnation), str(life)): ReadPosition(int(sequence), int(read_ns))
                for name, incarnation, life, sequence, read_ns in value["streams"]
            }
            return cls(
                str(value["repository"]),
                str(value["origin"]),
                str(value["backup"]),
                tuple(map(str, value["taken"])),
                str(value["before"]),
                int(value["older"]),
                streams,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"the checkpoint is not one of the data source jsbackup: {error!r}") from error
