"""Notice that the rows of a table are not of the stream that they would be stored as."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from jsbackup.errors import UsageError

__all__ = ["OneStream", "refuse_other_streams"]

_SHOWN = 80


class OneStream:
    """Watches the column `stream` of the batches of a table in a folder that is named for its stream."""

    def __init__(self, stream: str) -> None:
        self._stream = stream

    def check(self, batch: pa.RecordBatch) -> None:
        """Raise UsageError if rows of a batch, whose column has texts, name other streams."""
        at = batch.schema.get_field_index("stream")
        if at >= 0 and batch.num_rows:
            refuse_other_streams(pc.unique(batch.column(at)).to_pylist(), self._stream, given=False)


def refuse_other_streams(found: Collection[str | None], stream: str, *, given: bool) -> None:
    """Raise UsageError if rows that are to become `stream` name several streams, or another one than their folder.

    `found` are the names in the rows, None of those that have none: these are of `stream`, so they are no mixture with
    rows of it, but with those of another one. With `given`, an option named the stream: then it may be a new name.
    """
    names = {stream if name is None else name for name in found}
    if len(names) > 1:
        named = {name for name in found if name is not None}
        if len(named) == 1:
            (name,) = named
            raise UsageError(
                f"the table has messages of stream {_shown(name)}, and others without a stream, which would be of "
                f"{_shown(stream)}",
                hint="Give all of them the same stream, or split the table.",
            )
        shown = " and ".join(_shown(name) for name in sorted(named)[:2])
        raise UsageError(
            f"the table has messages of several streams, such as {shown}",
            hint="Give each stream a folder of its own.",
        )
    if names - {stream} and not given:
        (name,) = names
        raise UsageError(
            f"the folder of stream {_shown(stream)} has messages of stream {_shown(name)}",
            hint="Rename the folder, or give only this folder, with the name that is meant as --stream.",
        )


def _shown(name: str) -> str:
    return name[:_SHOWN] if name.isprintable() and name else repr(name[:_SHOWN])
