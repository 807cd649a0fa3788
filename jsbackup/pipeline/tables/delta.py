"""Make the log of a Delta table for existing files.

The log is that of https://github.com/delta-io/delta/blob/master/PROTOCOL.md in its first version. The `deltalake`
package writes it to a temporary folder; the caller stores it.

Readers skip files by the statistics in the log. They are complete, or only the number of rows: delta-rs takes a column
whose bounds are missing beside those of others for one without values, and finds none of its rows.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa

from jsbackup.errors import FormatError, UnsupportedError
from jsbackup.pipeline.tables.bounds import FileBounds

__all__ = ["LOG_KEY", "TableFile", "first_log", "require_deltalake"]

LOG_KEY = "_delta_log/00000000000000000000.json"

# Longer subjects would make a log of many files large.
_MAX_SUBJECT_BYTES = 512

_MILLISECOND_NS = 10**6
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class TableFile:
    """A Parquet file beside the log. `bounds` are those of its rows, None if there are none."""

    name: str
    size: int
    rows: int
    bounds: FileBounds | None


def require_deltalake() -> None:
    """Raise UnsupportedError if it is not installed."""
    if find_spec("deltalake") is None:
        raise UnsupportedError(
            "Delta tables take the package deltalake, which is not installed",
            hint="Install it with `pip install 'jsbackup[delta]'`.",
        )


def first_log(
    name: str, schema: pa.Schema, files: Sequence[TableFile], *, constants: Mapping[str, str], now_ms: int
) -> bytes:
    """Return the log of the first version of a table called `name`. `constants` are columns with one value.

    Raises FormatError if these files cannot be one.
    """
    from deltalake import Schema
    from deltalake.exceptions import DeltaError
    from deltalake.transaction import AddAction, create_table_with_add_actions

    # All files or none: bounds that one file lacks would be missing beside those of others.
    with_bounds = all(_is_text(file.bounds) for file in files)
    actions = [
        AddAction(
            file.name,
            file.size,
            {},
            now_ms,
            True,
            json.dumps(_statistics(file, schema, constants if with_bounds else None), ensure_ascii=False),
        )
        for file in files
    ]
    with tempfile.TemporaryDirectory(prefix="jsbackup-delta-") as folder:
        try:
            create_table_with_add_actions(folder, Schema.from_arrow(schema), actions, name=name)
        except DeltaError as error:
            raise FormatError(f"no Delta table can be made of stream {name}: {error}") from error
        lines = (Path(folder) / LOG_KEY).read_bytes().splitlines(keepends=True)
    # Without the commit info, which names the temporary folder.
    return b"".join(line for line in lines if "commitInfo" not in json.loads(line))


def _is_text(bounds: FileBounds | None) -> bool:
    """Return whether the bounds can be written as JSON, in which subjects are text."""
    if bounds is None:
        return True
    try:
        return all(subject.decode() is not None and len(subject) <= _MAX_SUBJECT_BYTES for subject in bounds.subject)
    except UnicodeDecodeError:
        return False


def _statistics(file: TableFile, schema: pa.Schema, constants: Mapping[str, str] | None) -> dict[str, object]:
    """Return the statistics of a file; only the number of its rows without `constants`."""
    bounds = file.bounds
    if bounds is None or constants is None:
        return {"numRecords": file.rows}
    least, most = (
        dict(constants)
        | {
            "sequence": bounds.sequence[end],
            "timestamp_ns": bounds.timestamp_ns[end],
            "time": _milliseconds(bounds.timestamp_ns[end], up=bool(end)),
            "subject": bounds.subject[end].decode(),
        }
        for end in (0, 1)
    )
    nulls = dict.fromkeys(schema.names, 0) | {"headers": bounds.no_headers}
    return {"numRecords": file.rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _milliseconds(timestamp_ns: int, *, up: bool) -> str:
    """Return a time in whole milliseconds, as the protocol has bounds of times: rounded so that it stays a bound."""
    count = -(-timestamp_ns // _MILLISECOND_NS) if up else timestamp_ns // _MILLISECOND_NS
    return (_EPOCH + timedelta(milliseconds=count)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
