"""Answers to queries that the manifest knows, without reading a message: how many there are, the first and last
sequence, and the first and last time, of a stream or of all.

    SELECT count(*), min(sequence), max(time) AS newest FROM ORDERS

Other statements are for another engine. Columns have the names that Spark gives them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from jsbackup.pipeline.queries.query_model import Answer, note_of_hidden, view_names
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.repository.pages.segment_list import parts_of

__all__ = ["answer_by_manifest"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_STATEMENT: Final = re.compile(
    r"\s*SELECT\s+(.+?)\s+FROM\s+(\w+|`[^`]+`|\"[^\"]+\")\s*;?\s*", re.IGNORECASE | re.DOTALL
)
_COLUMN: Final = re.compile(
    r"\s*(?:(count)\s*\(\s*(\*|1|sequence)\s*\)|(min|max)\s*\(\s*(sequence|timestamp_ns|time)\s*\))"
    r"(?:\s+(?:AS\s+)?(?!from\b)([a-z_]\w*))?\s*",
    re.IGNORECASE | re.ASCII,
)


def answer_by_manifest(manifest: Manifest, sql: str) -> Answer | None:
    """Return the answer; None if the manifest does not know it.
    Reads no page of segments.
    """
    statement = _STATEMENT.fullmatch(sql)
    if statement is None:
        return None
    columns = [_COLUMN.fullmatch(text) for text in statement[1].split(",")]
    wanted = statement[2].strip('`"').casefold()
    views = {name.casefold(): stream for name, stream in view_names(manifest.streams).items()}
    if wanted not in views or None in columns:
        return None
    only = views[wanted]
    streams = [s for s in manifest.streams if not s.unknown_format and only in (None, s.name)]
    names, row = [], []
    for column in columns:
        assert column is not None, "looked at above"
        count, counted, extreme, of, name = column.groups()
        if count:
            names.append(name or f"count({'1' if counted == '*' else counted.lower()})")
            row.append(sum(stream.captured.messages for stream in streams))
        else:
            names.append(name or f"{extreme.lower()}({of.lower()})")
            row.append(_extreme(streams, extreme.lower() == "min", of.lower()))
    return Answer(tuple(names), [tuple(row)], False, note_of_hidden(manifest.streams, sql))


def _extreme(all_streams: Sequence[StreamBackup], is_least: bool, of: str) -> Any:
    """Return the least or greatest sequence or time; None without messages."""
    streams = [stream for stream in all_streams if stream.captured.messages]
    if not streams:
        return None
    if of == "sequence":
        if is_least:
            return min(stream.captured.first_seq for stream in streams)
        return max(stream.captured.last_seq for stream in streams)
    parts = [part for stream in streams for part in parts_of(stream.segments)]
    nanoseconds = min(part.min_ns for part in parts) if is_least else max(part.max_ns for part in parts)
    return nanoseconds if of == "timestamp_ns" else _EPOCH + timedelta(microseconds=nanoseconds // 1000)
