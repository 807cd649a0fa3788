"""What queries have in common: the names of views, the answer, and what is refused before an engine starts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from jsbackup.config import nearest
from jsbackup.errors import UsageError
from jsbackup.repository.manifest import ArchiveFormat, StreamBackup

if TYPE_CHECKING:
    from jsbackup.exchange.exporting import PayloadCounts

__all__ = ["ALL_STREAMS", "QUERY_HINT", "Answer", "check_beginning", "no_view", "note_of_hidden", "view_names"]

ALL_STREAMS = "messages"
QUERY_HINT: Final = "Write one SELECT over the streams of the backup; it may begin with WITH."

_QUERIES: Final = frozenset(("FROM", "SELECT", "TABLE", "VALUES", "WITH"))
_MOST_SHOWN: Final = 20  # views in a hint
# What stands before the first word: blanks, brackets and comments.
_BEGINNING: Final = re.compile(r"(?:[\s(;]|--[^\n]*(?:\n|$)|/\*.*?\*/)*(?P<word>\w*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows as Python values, structs as dicts, times in UTC. `more`: these are not all rows. `note`: for the user.
    `payloads` are the inferred schemas of payloads, by view; `without` says why views have no payloads as columns.
    Of a given schema, `payload_samples` says how samples of views fit, and `doubts` that it is probably another one.
    """

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    more: bool
    note: str = ""
    payloads: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    payload_samples: Mapping[str, PayloadCounts] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()


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


def no_view(name: str, streams: Sequence[StreamBackup]) -> UsageError:
    """Return the error for a query that names a view which does not exist, with the view that was probably meant."""
    alike = [stream for stream in streams if stream.name.casefold() == name.casefold()]
    if any(stream.archive_format is ArchiveFormat.OPAQUE for stream in alike):
        return UsageError(
            f"the messages of stream {alike[0].name} cannot be queried: they are stored as the server sent them",
            hint=f"Restore it: jsbackup restore BACKUP {alike[0].name}.",
        )
    views = view_names(streams)
    shown = [view for view, stream in views.items() if stream is not None]
    if alike:
        named = ", ".join(view for view, stream in views.items() if stream in [one.name for one in alike])
        return UsageError(f"the names of {len(alike)} streams are {name[:200]} in SQL", hint=f"Their views: {named}.")
    hint = nearest(name, list(views)) or (
        f"Its views: {', '.join(shown[:_MOST_SHOWN])}." if 0 < len(shown) <= _MOST_SHOWN else QUERY_HINT
    )
    return UsageError(f"the backup has no stream {name[:200]}", hint=hint)


def note_of_hidden(streams: Sequence[StreamBackup], sql: str) -> str:
    """Return a note for a query of `messages` where a stream has this name; otherwise nothing."""
    if None in view_names(streams).values() or not re.search(rf"\b{ALL_STREAMS}\b", sql, re.IGNORECASE):
        return ""
    return f"{ALL_STREAMS} is the stream of this name: there is no view of all streams"
