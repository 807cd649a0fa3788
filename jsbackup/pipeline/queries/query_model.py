"""What queries on all engines have in common: the views of streams, and the answer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from jsbackup.config import nearest
from jsbackup.errors import UsageError
from jsbackup.repository.manifest import StreamBackup

__all__ = ["ALL_STREAMS", "Answer", "names_in", "no_view", "note_of_hidden", "view_names"]

ALL_STREAMS = "messages"

_MOST_SHOWN: Final = 20  # views in a hint
_NAME: Final = re.compile(r'"(?P<double>(?:[^"]|"")+)"|`(?P<back>(?:[^`]|``)+)`|(?P<plain>\w+)')


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows as Python values. `more`: these are not all rows. `saved`: how many are in a file, in place of `rows`.
    `table` has them in place of `rows`, as a `pyarrow.Table`.
    """

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    more: bool = False
    saved: int | None = None
    table: Any = None


class _Stream(Protocol):
    """A stream of one backup or of several."""

    @property
    def name(self) -> str: ...

    @property
    def incarnation(self) -> str: ...


def view_names(streams: Sequence[_Stream]) -> dict[str, str | None]:
    """Return the view names of streams; None means all streams."""
    alike = Counter(stream.name.casefold() for stream in streams)
    names: dict[str, str | None] = {} if alike[ALL_STREAMS] else {ALL_STREAMS: None}
    for stream in streams:
        single = alike[stream.name.casefold()] == 1
        names[stream.name if single else f"{stream.name}_{stream.incarnation}"] = stream.name
    return names


def names_in(sql: str) -> frozenset[str]:
    """Return all words of a statement that may be names, without case."""
    words = set()
    for match in _NAME.finditer(sql):
        name = match["plain"] or (match["double"] or "").replace('""', '"') or match["back"].replace("``", "`")
        words.add(name.casefold())
    # Within quotes there may be statements, too.
    return frozenset(words | {word.casefold() for word in re.findall(r"\w+", sql)})


def no_view(name: str, streams: Sequence[_Stream]) -> UsageError:
    """Return the error for a query that names a view which does not exist, with the view that was probably meant."""
    alike = [stream for stream in streams if stream.name.casefold() == name.casefold()]
    if any(isinstance(stream, StreamBackup) and stream.unknown_format for stream in alike):
        return UsageError(
            f"the messages of stream {alike[0].name} cannot be queried: they are stored as the server sent them",
            hint=f"Restore it: jsbackup restore BACKUP {alike[0].name}.",
        )
    views = view_names(streams)
    shown = [view for view, stream in views.items() if stream is not None]
    if alike:
        named = ", ".join(view for view, stream in views.items() if stream in [stream.name for stream in alike])
        return UsageError(f"the names of {len(alike)} streams are {name[:200]} in SQL", hint=f"Their views: {named}.")
    few = f"Its views: {', '.join(shown)}." if 0 < len(shown) <= _MOST_SHOWN else None
    return UsageError(f"there is no stream {name[:200]}", hint=nearest(name, list(views)) or few)


def note_of_hidden(streams: Sequence[_Stream], sql: str) -> str:
    """Return a note for a query of `messages` where a stream has this name; otherwise nothing."""
    if None in view_names(streams).values() or ALL_STREAMS not in names_in(sql):
        return ""
    return f"{ALL_STREAMS} is the stream of this name: there is no view of all streams"
