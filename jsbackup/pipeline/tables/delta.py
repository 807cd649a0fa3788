"""Make the log of a Delta table for existing files.

The log is that of https://github.com/delta-io/delta/blob/master/PROTOCOL.md in its first version. The `deltalake`
package writes it to a temporary folder; the caller stores it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa

from jsbackup.errors import FormatError, UnsupportedError

__all__ = ["LOG_KEY", "TableFile", "first_log", "require_deltalake"]

LOG_KEY = "_delta_log/00000000000000000000.json"


@dataclass(frozen=True, slots=True)
class TableFile:
    """A Parquet file beside the log. `least` and `most` are bounds of columns, by their names."""

    name: str
    size: int
    rows: int
    least: dict[str, int]
    most: dict[str, int]


def require_deltalake() -> None:
    """Raise UnsupportedError if it is not installed."""
    if find_spec("deltalake") is None:
        raise UnsupportedError(
            "Delta tables take the package deltalake, which is not installed",
            hint="Install it with `pip install 'jsbackup[delta]'`.",
        )


def first_log(name: str, schema: pa.Schema, files: Sequence[TableFile], now_ms: int) -> bytes:
    """Return the log of the first version of a table called `name`. Raises FormatError if these files cannot be one."""
    from deltalake import Schema
    from deltalake.exceptions import DeltaError
    from deltalake.transaction import AddAction, create_table_with_add_actions

    actions = [
        AddAction(
            file.name,
            file.size,
            {},
            now_ms,
            True,
            json.dumps({"numRecords": file.rows, "minValues": file.least, "maxValues": file.most, "nullCount": {}}),
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
