"""What queries have in common: the names of views, the answer, and what is refused before an engine starts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from jsbackup.errors import UsageError
from jsbackup.repository.manifest import ArchiveFormat, StreamBackup

__all__ = ["ALL_STREAMS", "QUERY_HINT", "Answer", "check_beginning", "view_names"]

ALL_STREAMS = "messages"
QUERY_HINT: Final = "Write one SELECT over the streams of the backup; it may begin with WITH."

_QUERIES: Final = frozenset(("FROM", "SELECT", "TABLE", "VALUES", "WITH"))
# What stands before the first word: blanks, brackets and comments.
_BEGINNING: Final = re.compile(r"(?:[\s(;]|--[^\n]*(?:\n|$)|/\*.*?\*/)*(?P<word>\w*)", re.DOTALL)


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


def check_beginning(sql: str) -> None:
    """Raise UsageError if a statement does not even begin as a query. Needs no Spark, which takes long to start."""
    found = _BEGINNING.match(sql)
    word = found["word"] if found is not None else ""
    if word.upper() not in _QUERIES:
        shown = f"begins with {word[:40]}" if word else "has no word at its beginning"
        raise UsageError(f"only plain queries are run, and this one {shown}", hint=QUERY_HINT)
