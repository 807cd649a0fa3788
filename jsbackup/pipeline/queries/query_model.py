"""What queries have in common, whichever engine runs them: the names of views, and the answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jsbackup.repository.manifest import ArchiveFormat, StreamBackup

__all__ = ["ALL_STREAMS", "Answer", "view_names"]

ALL_STREAMS = "messages"


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows as Python values, structs as dicts, times in UTC. `more`: these are not all rows."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    more: bool


def view_names(all_streams: Sequence[StreamBackup]) -> dict[str, str | None]:
    """Return the view names of streams; None means all streams."""
    streams = [s for s in all_streams if s.archive_format is not ArchiveFormat.OPAQUE]
    alike = Counter(stream.name.casefold() for stream in streams)
    names: dict[str, str | None] = {} if alike[ALL_STREAMS] else {ALL_STREAMS: None}
    for stream in streams:
        single = alike[stream.name.casefold()] == 1
        names[stream.name if single else f"{stream.name}_{stream.incarnation}"] = stream.name
    return names
