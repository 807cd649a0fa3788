"""Make the log of a Delta table for existing files.

The log is that of https://github.com/delta-io/delta/blob/master/PROTOCOL.md in its first version. The `deltalake`
package writes it to a temporary folder; the caller stores it.

Readers skip files by the statistics in the log. They are complete, or only the number of rows: delta-rs takes a column
whose bounds are missing beside those of others for one without values, and finds none of its rows.

How far a table goes is in its log, too: what it is made of (`TableSource`) in a property, the position in transaction
identifiers, which each commit replaces. Both survive checkpoints, and what other programs write.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from jsbackup.errors import FormatError, UnsupportedError
from jsbackup.pipeline.tables.bounds import FileBounds
from jsbackup.pipeline.tables.table_log import ANY_RANGE, FileRange, range_of
from jsbackup.pipeline.tables.table_state import TablePosition, TableSource, TableState
from jsbackup.stores.base import is_key
from jsbackup.strict_json import read_object, write_json
from jsbackup.tool import TOOL

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import CommitProperties

__all__ = [
    "LOG_FOLDER",
    "LOG_KEY",
    "KnownLog",
    "TableFile",
    "first_log",
    "known_log",
    "next_log",
    "ranges_of",
    "require_deltalake",
]

LOG_FOLDER = "_delta_log"
LOG_KEY = f"{LOG_FOLDER}/00000000000000000000.json"

_PROPERTY = "jsbackup.export"
_TRANSACTION = "jsbackup.export."  # and a field of `TablePosition`

# Longer subjects would make a log of many files large.
_MAX_SUBJECT_BYTES = 512

# Around all subjects that are text, for files with subjects that cannot be written.
_WIDEST = ("", "\U0010ffff")

# What a writer that only adds files need not care about.
_WRITER_VERSIONS = (2, 7)  # 7 names its features
_FEATURES = frozenset({"appendOnly", "deletionVectors", "invariants", "v2Checkpoint", "vacuumProtocolCheck"})

_MILLISECOND_NS = 10**6
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class TableFile:
    """A Parquet file below the folder of the log. `bounds` are those of its rows, None if there are none; `partition`
    is the value of its partition.
    """

    name: str
    size: int
    rows: int
    bounds: FileBounds | None
    partition: str = ""

    @property
    def path(self) -> str:
        """The name as logs have it, a URI; `AddAction` makes it of the name itself."""
        return self.name.replace("%", "%25")


@dataclass(frozen=True, slots=True)
class KnownLog:
    """A log that was read: its files by name, its last version, and the state of its table, None if it has none.

    `with_bounds` says whether files of the table have statistics, so that more files need them.
    """

    files: Mapping[str, bytes]
    version: int
    state: TableState | None
    with_bounds: bool


def require_deltalake() -> None:
    """Raise UnsupportedError if it is not installed."""
    if find_spec("deltalake") is None:
        raise UnsupportedError(
            "Delta tables take the package deltalake, which is not installed",
            hint="Install it with `pip install 'jsbackup[delta]'`.",
        )


def first_log(
    name: str,
    schema: pa.Schema,
    files: Sequence[TableFile],
    *,
    constants: Mapping[str, str],
    now_ms: int,
    state: TableState,
    partition: str,
) -> bytes:
    """Return the log of the first version of a table called `name`. `constants` are columns with one value; `partition`
    is the column that has one value in each file, "" without one.

    Raises FormatError if these files cannot be one.
    """
    from deltalake import Schema
    from deltalake.transaction import AddAction, create_table_with_add_actions

    # All files or none: bounds that one file lacks would be missing beside those of others.
    with_bounds = partition == "subject" or all(_is_text(file.bounds) for file in files)
    with_bounds = with_bounds and not state.source.payloads  # whose bounds are not known
    actions = []
    for file in files:
        stats = _stats(file, schema, constants if with_bounds else None, partition)
        values: dict[str, str | None] = {partition: file.partition} if partition else {}
        actions.append(AddAction(file.name, file.size, values, now_ms, True, stats))
    with _folder_of({}) as folder, _delta_errors(name):
        create_table_with_add_actions(
            str(folder),
            Schema.from_arrow(schema),
            actions,
            partition_by=[partition] if partition else None,
            name=name,
            commit_properties=_commit(state.position),
        )
        lines = [json.loads(line) for line in (folder / LOG_KEY).read_bytes().splitlines()]
    for line in lines:
        if "metaData" in line:  # deltalake reads properties of others, but does not write them
            line["metaData"]["configuration"] = {_PROPERTY: write_json(state.source.to_json(), "a table").decode()}
    # Without the commit info, which names the temporary folder.
    return _lines([line for line in lines if "commitInfo" not in line])


def known_log(name: str, files: Mapping[str, bytes]) -> KnownLog:
    """Read the log of a table called `name`, of which these are the files, by their names in its folder.

    Raises:
        FormatError: it is damaged.
        UnsupportedError: its table has features that are not known here.
    """
    from deltalake import DeltaTable

    with _folder_of(files) as folder, _delta_errors(name):
        table = DeltaTable(folder)
        _check_protocol(name, table)
        columns = list(table.metadata().partition_columns)
        added = pa.table(table.get_add_actions(flatten=True))
        bounded = "min.sequence" in added.column_names and added["min.sequence"].null_count < added.num_rows
        text = table.metadata().configuration.get(_PROPERTY)
        position = {field: table.transaction_version(f"{_TRANSACTION}{field}") for field in TablePosition().to_json()}
        version = table.version()
        may_bound = bounded or not added.num_rows or set(pc.unique(added["num_records"]).to_pylist()) == {0}
    if text is None:
        return KnownLog(files, version, None, may_bound)
    what = f"the log of the table of stream {name}"
    source = TableSource.from_json(read_object(text, what), what)
    if columns != ([source.partition] if source.partition else []):
        raise UnsupportedError(
            f"the Delta table of stream {name} was partitioned in another way since it was made",
            hint="Export to another folder.",
        )
    return KnownLog(files, version, TableState(source, TablePosition.from_json(position, what)), may_bound)


def ranges_of(name: str, known: KnownLog, folder_key: str) -> list[FileRange]:
    """Return the ranges of the files in the log of a table called `name`; those that others have joined by their rows,
    or as if they may be of any messages. `folder_key` is the folder of the table in its store. Raises as `known_log`.
    """
    from deltalake import DeltaTable

    with _folder_of(known.files) as folder, _delta_errors(name):
        added = pa.table(DeltaTable(folder).get_add_actions(flatten=True))
    nothing = pa.nulls(added.num_rows)
    columns = ("path", "num_records", "min.sequence", "max.sequence")
    found = (added[one] if one in added.column_names else nothing for one in columns)
    ranges = []
    for path, rows, first, last in zip(*(one.to_pylist() for one in found), strict=True):
        first, last = ANY_RANGE[:2] if first is None or last is None else (first, last)
        rows = ANY_RANGE.rows if rows is None else rows
        plain = unquote(path)  # a URI, relative unless the file is elsewhere
        key = f"{folder_key}/{plain}"
        key = key if is_key(key) else ""
        ranges.append(range_of(plain, rows, key) or FileRange(first, last, rows, key))
    return ranges


def next_log(
    known: KnownLog,
    files: Sequence[TableFile],
    *,
    constants: Mapping[str, str],
    now_ms: int,
    state: TableState,
    schema: pa.Schema,
    partition: str,
) -> bytes:
    """Return the log of the version after the one that is known, with more files. Arguments as in `first_log`."""
    commit = {
        "timestamp": now_ms,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": json.dumps([partition] if partition else [])},
        "isBlindAppend": True,
        "engineInfo": TOOL,
        "userMetadata": json.dumps({"backup": constants["backup"]}),
    }
    with_bounds = known.with_bounds and not state.source.payloads
    actions: list[dict[str, Any]] = [{"commitInfo": commit}]
    actions += [
        {
            "add": {
                "path": file.path,
                "partitionValues": {partition: file.partition} if partition else {},
                "size": file.size,
                "modificationTime": now_ms,
                "dataChange": True,
                "stats": _stats(file, schema, constants if with_bounds else None, partition),
            }
        }
        for file in files
    ]
    actions += [
        {"txn": {"appId": f"{_TRANSACTION}{name}", "version": value, "lastUpdated": now_ms}}
        for name, value in state.position.to_json().items()
    ]
    return _lines(actions)


def _stats(file: TableFile, schema: pa.Schema, constants: Mapping[str, str] | None, partition: str) -> str:
    return json.dumps(_statistics(file, schema, constants, partition), ensure_ascii=False)


def _commit(position: TablePosition) -> CommitProperties:
    from deltalake.transaction import CommitProperties, Transaction

    return CommitProperties(
        app_transactions=[Transaction(f"{_TRANSACTION}{name}", value) for name, value in position.to_json().items()]
    )


def _check_protocol(name: str, table: DeltaTable) -> None:
    """Raise UnsupportedError if more than adding files would be due to an export that extends the table."""
    protocol = table.protocol()
    unknown = sorted(set(protocol.writer_features or ()) - _FEATURES)
    if protocol.min_writer_version not in _WRITER_VERSIONS or unknown:
        what = f"the feature {unknown[0]}" if unknown else f"version {protocol.min_writer_version} for writers"
        raise UnsupportedError(
            f"the Delta table of stream {name} has {what}, which is not known here",
            hint="Export to another folder.",
        )


@contextmanager
def _folder_of(files: Mapping[str, bytes]) -> Iterator[Path]:
    """Make a temporary folder of a table with this log."""
    with tempfile.TemporaryDirectory(prefix="jsbackup-delta-") as name:
        folder = Path(name)
        if files:
            (folder / LOG_FOLDER).mkdir()
        for file, content in files.items():
            (folder / LOG_FOLDER / file).write_bytes(content)
        yield folder


@contextmanager
def _delta_errors(name: str) -> Iterator[None]:
    from deltalake.exceptions import DeltaError, DeltaProtocolError

    try:
        yield
    except DeltaProtocolError as error:
        raise UnsupportedError(f"the Delta table of stream {name} cannot be extended: {_said(error)}") from error
    except DeltaError as error:
        raise FormatError(f"the files of stream {name} are no Delta table: {_said(error)}") from error


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _lines(actions: Sequence[Mapping[str, Any]]) -> bytes:
    return b"".join(
        json.dumps(action, ensure_ascii=False, separators=(",", ":")).encode() + b"\n" for action in actions
    )


def _is_text(bounds: FileBounds | None) -> bool:
    """Return whether the bounds can be written as JSON, in which subjects are text."""
    if bounds is None:
        return True
    try:
        return all(subject.decode() is not None and len(subject) <= _MAX_SUBJECT_BYTES for subject in bounds.subject)
    except UnicodeDecodeError:
        return False


def _statistics(
    file: TableFile, schema: pa.Schema, constants: Mapping[str, str] | None, partition: str
) -> dict[str, object]:
    """Return the statistics of a file, of all columns but `partition`; without `constants` only the number of rows."""
    bounds = file.bounds
    if bounds is None or constants is None:
        return {"numRecords": file.rows}
    subjects = [one.decode() for one in bounds.subject] if _is_text(bounds) else _WIDEST
    least, most = (
        dict(constants)
        | {
            "sequence": bounds.sequence[end],
            "timestamp_ns": bounds.timestamp_ns[end],
            "time": _milliseconds(bounds.timestamp_ns[end], up=bool(end)),
            "subject": subjects[end],
        }
        for end in (0, 1)
    )
    nulls = dict.fromkeys(schema.names, 0) | {"headers": bounds.no_headers}
    for values in (least, most, nulls):
        values.pop(partition, None)
    return {"numRecords": file.rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _milliseconds(timestamp_ns: int, *, up: bool) -> str:
    """Return a time in whole milliseconds, as the protocol has bounds of times: rounded so that it stays a bound."""
    count = -(-timestamp_ns // _MILLISECOND_NS) if up else timestamp_ns // _MILLISECOND_NS
    return (_EPOCH + timedelta(milliseconds=count)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
