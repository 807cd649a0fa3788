"""How files become a part of a stream's table: by an object that names them, whose writing is the commit.

Each export into a table has a number, and its commit is create-only: of two exports at the same time one is refused.
The commit also says how far the table goes (`table_state.py`), so the two cannot disagree.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from jsbackup.errors import ObjectExists, TargetConflict, UsageError
from jsbackup.pipeline.tables.table_state import TableState
from jsbackup.pipeline.tables.writing import TableFormat, WrittenFile
from jsbackup.stores.base import Store

__all__ = ["ANY_RANGE", "FileRange", "TableLog", "kind_of_table", "put_commit", "range_of", "refuse_other_format"]

# What only tables of a format have in their folder.
_MARKS = (
    (TableFormat.PARQUET, "one of plain Parquet files", re.compile("_jsbackup/")),
    (TableFormat.DELTA, "a Delta table", re.compile("_delta_log/")),
    (
        TableFormat.ICEBERG,
        "an Iceberg table",
        re.compile(r"metadata/.*\.metadata\.json(\.gz)?|metadata/version-hint\.text"),
    ),
)

_NAME = re.compile(r"(\d{20})-(\d{20})[-.]")


class FileRange(NamedTuple):
    """The messages that were looked at for a file, by sequences, the rows that came of it, and its key in the store; ""
    if it is not in the folder of the table.
    """

    first_seq: int
    last_seq: int
    rows: int
    key: str = ""


ANY_RANGE = FileRange(1, (1 << 63) - 1, 0)
"""That of a file of which nothing is known: it may be of any messages."""


def range_of(path: str, rows: int, key: str) -> FileRange | None:
    """Return the range of a file that an export has named; None for another name."""
    found = _NAME.match(path.rpartition("/")[2])
    return None if found is None else FileRange(int(found[1]), int(found[2]), rows, key)


class TableLog(Protocol):
    """The log of a table that an export writes or extends.

    Tasks write to the folder `staging`, names that end with `ending`; `joint` is between the folder of a partition and
    a name. `state` is None if there is no table yet. `partitions` are the folders of its partitions.
    """

    @property
    def state(self) -> TableState | None: ...

    @property
    def partitions(self) -> Collection[str]: ...

    @property
    def staging(self) -> str: ...

    @property
    def ending(self) -> str: ...

    @property
    def joint(self) -> str: ...

    def ranges(self) -> list[FileRange]:
        """Return the ranges of all files of the table. Raises StoreError and FormatError."""

    def finish(self) -> None:
        """Complete what an interrupted export has committed. Raises StoreError."""

    def commit(self, files: Sequence[WrittenFile], state: TableState, payloads: Sequence[pa.Field] = ()) -> None:
        """Make the written files a part of the table. `payloads` are the columns that payloads have become.

        Raises:
            TargetConflict: another export has extended it meanwhile; these files are not a part of it.
            StoreError: it is not known whether they are.
            FormatError: they cannot be.
        """


def put_commit(store: Store, key: str, data: bytes, name: str) -> None:
    """Put the commit of a table called `name`, whose content is unique. Raises TargetConflict and StoreError."""
    try:
        store.put(key, data)
    except ObjectExists:
        if store.get(key) != data:
            raise TargetConflict(
                f"something else has changed the table of stream {name} meanwhile",
                hint="Run the command again: it adds what is still missing.",
            ) from None


def kind_of_table(path: str) -> str | None:
    """Return in words of what table a file is that only tables of a format have; None for another file. `path` is that
    below the folder of the table.
    """
    return next((what for _, what, mark in _MARKS if mark.match(path)), None)


def refuse_other_format(name: str, kind: TableFormat, path: str) -> None:
    """Raise UsageError if a file of a table called `name` is of a table of another format than `kind`. `path` is that
    below the folder of the table.
    """
    for other, what, mark in _MARKS:
        if other is not kind and mark.match(path):
            raise UsageError(f"the table of stream {name} is {what}", hint=f"Append to it with --format {other}.")
