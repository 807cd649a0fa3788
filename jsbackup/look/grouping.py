"""Rows of the same subject taken together, by Arrow's kernels.

`Table.group_by` would do the same, but it imports pandas where that is installed: 70 MiB and half a second.
"""

from __future__ import annotations

import pyarrow as pa

from jsbackup import compute as pc

__all__ = ["Groups", "joined_column"]


class Groups:
    """The rows that have the same value in a column, of at least one row. Results have an element for each such value,
    all in the same order.
    """

    def __init__(self, column: pa.Array) -> None:
        self._keys = column.dictionary_encode().indices
        self._order = pc.sort_indices(self._keys)  # stable: rows of a group stay in order
        keys = self._keys.take(self._order)
        differs = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1))
        inner = pc.indices_nonzero(differs).cast(pa.int64())
        self._ends = pa.concat_arrays([inner, pc.int64_array([len(keys) - 1])])
        self._starts = pa.concat_arrays([pc.int64_array([0]), pc.add(inner, pc.int64_array([1])[0])])

    @property
    def first_rows(self) -> pa.Array:
        """The number of each first row."""
        return self._order.take(self._starts)

    @property
    def last_rows(self) -> pa.Array:
        """The number of each last row."""
        return self._order.take(self._ends)

    def sums(self, values: pa.Array) -> pa.Array:
        """The sums of int64 values."""
        upto = pc.cumulative_sum(values.take(self._order)).take(self._ends)
        before = pa.concat_arrays([pc.int64_array([0]), upto.slice(0, len(upto) - 1)])
        return pc.subtract(upto, before)

    def least(self, values: pa.Array) -> pa.Array:
        """The lowest int64 values."""
        return self._by(values).take(self._starts)

    def most(self, values: pa.Array) -> pa.Array:
        """The highest int64 values."""
        return self._by(values).take(self._ends)

    def _by(self, values: pa.Array) -> pa.Array:
        """Return the values, sorted within each group."""
        rows = pa.RecordBatch.from_arrays([self._keys, values], ["key", "value"])
        return values.take(pc.sort_indices(rows, sort_keys=[("key", "ascending"), ("value", "ascending")]))


def joined_column(table: pa.Table, name: str) -> pa.Array:
    """Return a column of a table of at least one row as one array. Raises ValueError if it has more than 2 GiB."""
    column = table.column(name).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        (column,) = column.chunks
    return column
