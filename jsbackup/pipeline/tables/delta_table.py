"""A Delta table, committed by `deltalake`, in a folder or in S3.

The state is in the metadata of each commit; and a transaction identifier counts commits, so of two exports at once one
is refused. Other programs may clean metadata of commits up after a month, so an export leaves the state in a property
of the table, too, when it ends.

Readers skip files by statistics. They are complete, or only the number of rows: delta-rs takes a column whose bounds
are missing beside those of others for one without values, and finds none of its rows.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jsbackup.errors import FormatError, StoreError, UnsupportedError, UsageError
from jsbackup.pipeline.session.repository_ref import RepositoryRef
from jsbackup.pipeline.tables.parquet_table import changed_meanwhile
from jsbackup.pipeline.tables.table_state import TableState
from jsbackup.pipeline.tables.target import location_of, refuse_others
from jsbackup.pipeline.tables.writing import DAY, TABLE_SCHEMA, WrittenFile
from jsbackup.repository.layout import encode_name
from jsbackup.stores.s3_client import s3_access

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

__all__ = ["DeltaLakeTable", "require_deltalake", "storage_options"]

_STATE = "jsbackup.export"
_MOST_COMMITS = 10_000  # that are looked through for the state: those of others since
_MAX_SUBJECT_BYTES = 512  # longer ones would make a log of many files large
_WIDEST = ("", "\U0010ffff")  # around all subjects that are text, for files with subjects that cannot be written
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def require_deltalake() -> None:
    """Raise UnsupportedError if it is not installed."""
    if find_spec("deltalake") is None:
        raise UnsupportedError(
            "Delta tables take the package deltalake, which is not installed",
            hint="Install it with `pip install 'jsbackup[delta]'`.",
        )


def storage_options(place: RepositoryRef) -> dict[str, str]:
    """Return what `deltalake` takes to reach a place."""
    if not place.location.startswith("s3://"):
        return {}
    s3, options = place.s3, {f"aws_{name}": value for name, value in s3_access(place.s3).items()}
    others = {
        "aws_allow_http": "true" if (s3.endpoint or "").startswith("http:") else None,
        "aws_virtual_hosted_style_request": None if s3.endpoint and s3.path_style is not False else "true",
        "aws_server_side_encryption": s3.sse,
        "aws_sse_kms_key_id": s3.sse_kms_key,
    }
    return options | {name: value for name, value in others.items() if value}


class DeltaLakeTable:
    """The table of the stream called `name` at a place. `token` is random, in hex.

    Raises:
        UsageError: something else has made what is there.
        FormatError, UnsupportedError: it is damaged, or has features that are not known here.
        StoreError: it cannot be read.
    """

    joint = "/"

    def __init__(self, place: RepositoryRef, name: str, token: str) -> None:
        self.place, self.name = place, name
        # delta-rs decodes names of folders, here and there.
        self.folder, self.ending = encode_name(name).replace("%", "~"), f"-{token}.parquet"
        self.state: TableState | None = None
        self._uri = f"{location_of(place)}/{self.folder}"
        if "%" in self._uri:
            raise UsageError("deltalake finds no tables below a name with %", hint="Name another folder.")
        self._kept = 0  # commits that the property tells of
        self._table = self._opened()
        if self._table is None:
            refuse_others(place.store(), self.folder, name, re.compile(r"(day=[^/]*/)?[^/]*-[0-9a-f]{8}\.parquet"))
            return
        with self._errors():
            commits = self._table.transaction_version(_STATE)
            text = self._table.metadata().configuration.get(_STATE)
            what = f"the state of the table of stream {name}"
            known = None if text is None else TableState.from_json(text, what)
            self._kept = 0 if known is None else known.commits
            if commits is not None and (known is None or known.commits != commits):
                texts = (commit.get(_STATE) for commit in self._table.history(_MOST_COMMITS))
                known = next((TableState.from_json(text, what) for text in texts if isinstance(text, str)), None)
        if known is None or known.commits != commits:
            raise UsageError(
                f"the Delta table of stream {name} does not say which backups it has: something else has made it, or "
                "removed that",
                hint="Export to another folder.",
            )
        self.state = known

    def commit(self, files: Sequence[WrittenFile], state: TableState, backup: str) -> None:
        from deltalake import CommitProperties, Schema, Transaction
        from deltalake.transaction import AddAction, create_table_with_add_actions

        by_day, now_ms = bool(state.source.partition), time.time_ns() // 10**6
        schema = Schema.from_arrow(TABLE_SCHEMA.append(pa.field(DAY, pa.date32())) if by_day else TABLE_SCHEMA)
        actions: list[AddAction] = []
        for file in files:
            partition: dict[str, str | None] = {DAY: file.day} if by_day else {}
            stats = json.dumps(_stats(file, backup))
            actions.append(AddAction(file.path(), file.bytes, partition, now_ms, True, stats))
        properties: CommitProperties = CommitProperties(
            custom_metadata={_STATE: state.to_json(), "jsbackup.backup": backup},
            app_transactions=[Transaction(_STATE, state.commits)],
        )
        with self._errors():
            if self._table is None:
                create_table_with_add_actions(
                    self._uri,
                    schema,
                    actions,
                    partition_by=[DAY] if by_day else None,
                    name=self.name,
                    storage_options=storage_options(self.place),
                    commit_properties=properties,
                )
                self._table = self._opened()
            else:
                self._table.update_incremental()
                if self._table.transaction_version(_STATE) != state.commits - 1:
                    raise changed_meanwhile(self.name)
                self._table.create_write_transaction(
                    [*actions], "append", schema, [DAY] if by_day else None, commit_properties=properties
                )
        self.state = state

    def finish(self) -> None:
        if self._table is None or self.state is None or self._kept == self.state.commits:
            return
        with self._errors():
            table = self._opened()
            assert table is not None, "it was committed"
            table.alter.set_table_properties({_STATE: self.state.to_json()}, raise_if_not_exists=False)
        self._kept = self.state.commits

    def _opened(self) -> DeltaTable | None:
        from deltalake import DeltaTable

        with self._errors():
            options = storage_options(self.place)
            return (
                DeltaTable(self._uri, storage_options=options) if DeltaTable.is_deltatable(self._uri, options) else None
            )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, TableNotFoundError

        try:
            yield
        except (CommitFailedError, FileExistsError) as error:
            raise changed_meanwhile(self.name) from error
        except DeltaProtocolError as error:
            raise UnsupportedError(f"the Delta table of stream {self.name}: {_said(error)}") from error
        except TableNotFoundError as error:
            raise FormatError(f"the Delta table of stream {self.name}: {_said(error)}") from error
        except (DeltaError, OSError) as error:
            if "already exists" in str(error):
                raise changed_meanwhile(self.name) from error
            raise StoreError(f"the Delta table of stream {self.name}: {_said(error)}") from error


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _stats(file: WrittenFile, backup: str) -> dict[str, object]:
    """Return the statistics of a file, which may have several incarnations."""
    bounds = file.bounds
    if bounds is None:
        return {"numRecords": file.rows}
    try:
        subjects = [subject.decode() for subject in bounds.subject]
    except UnicodeDecodeError:
        return {"numRecords": file.rows}
    if any(len(subject) > _MAX_SUBJECT_BYTES for subject in subjects):
        subjects = list(_WIDEST)
    least, most = (
        {
            "backup": backup,
            "sequence": bounds.sequence[end],
            "timestamp_ns": bounds.timestamp_ns[end],
            "time": _milliseconds(bounds.timestamp_ns[end], up=bool(end)),
            "subject": subjects[end],
            "stream": _WIDEST[end],
            "incarnation": _WIDEST[end],
        }
        for end in (0, 1)
    )
    nulls: dict[str, Any] = dict.fromkeys(TABLE_SCHEMA.names, 0) | {"headers": bounds.no_headers}
    return {"numRecords": file.rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _milliseconds(timestamp_ns: int, *, up: bool) -> str:
    """Return a time in whole milliseconds, as the protocol has bounds of times: rounded so that it stays a bound."""
    count = -(-timestamp_ns // 10**6) if up else timestamp_ns // 10**6
    return (_EPOCH + timedelta(milliseconds=count)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
