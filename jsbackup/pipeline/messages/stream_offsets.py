"""How far a streaming query has read a repository: its offset, as Spark stores it in the checkpoint.

    {"version": 1, "repository": "00ff…", "origin": "C1/SHOP", "backup": "20261121T014500Z-1a2b3c",
     "streams": {"ORDERS": {"1a2b3c4d": {"sequence": 4711, "backup": "20261121T014500Z-1a2b3c"}}}}

`backup` is the newest one that was looked at. Of each incarnation of a stream, by its name, `sequence` is the last one
delivered, and `backup` the newest one of which everything was delivered. The ids of backups sort by time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from jsbackup.errors import FormatError
from jsbackup.repository import layout

__all__ = ["ReadPosition", "StreamKey", "StreamOffsets"]

_VERSION = 1

StreamKey: TypeAlias = tuple[str, str]
"""The name and the incarnation of a stream."""


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """The last `sequence` delivered, 0 if none, and the newest `backup` of which all was delivered, "" if none."""

    sequence: int = 0
    backup: str = ""


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """An offset. `repository` is the repository's id. `origin` and `backup` are "" while there was no backup."""

    repository: str
    origin: str = ""
    backup: str = ""
    streams: Mapping[StreamKey, ReadPosition] = field(default_factory=dict)

    def position(self, key: StreamKey) -> ReadPosition:
        return self.streams.get(key, ReadPosition())

    def without_replaced(self, late_ns: int) -> StreamOffsets:
        """Return the offset without incarnations that another one of the name has replaced: no backup that is still to
        be read has them, if none is committed later than `late_ns` after it began.
        """
        newest: dict[str, str] = {}
        for (name, _), position in self.streams.items():
            newest[name] = max(newest.get(name, ""), position.backup)
        kept = {
            key: position
            for key, position in self.streams.items()
            if not position.backup or layout.begun_ns(position.backup) >= layout.begun_ns(newest[key[0]]) - late_ns
        }
        return replace(self, streams=kept)

    def to_json(self) -> dict[str, Any]:
        """Return the offset as Spark takes it, always in the same order: Spark compares the texts."""
        streams: dict[str, dict[str, Any]] = {}
        for (name, incarnation), position in sorted(self.streams.items()):
            entry = {"sequence": position.sequence, "backup": position.backup}
            streams.setdefault(name, {})[incarnation] = entry
        return {
            "version": _VERSION,
            "repository": self.repository,
            "origin": self.origin,
            "backup": self.backup,
            "streams": streams,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamOffsets:
        """Decode the result of `to_json`. Raises FormatError for another one."""
        try:
            if value["version"] != _VERSION:
                raise FormatError(f"the checkpoint is of another version of jsbackup: {json.dumps(value)[:80]}")
            streams = {
                (name, incarnation): ReadPosition(int(entry["sequence"]), str(entry["backup"]))
                for name, incarnations in value["streams"].items()
                for incarnation, entry in incarnations.items()
            }
            return cls(str(value["repository"]), str(value["origin"]), str(value["backup"]), streams)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"the checkpoint is not one of the data source jsbackup: {error!r}") from error
