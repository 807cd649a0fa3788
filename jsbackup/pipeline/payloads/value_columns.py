"""Columns of Arrow that grow by one value at a time, structs and lists as columns of their parts.

So a payload becomes no objects of Python but its values. What was appended of one that turns out to be damaged is cut
off again.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

__all__ = ["ListColumn", "MapColumn", "StructColumn", "ValueColumn", "column_of"]


class ValueColumn:
    """Values of a type without parts. Dates are days, times microseconds since the Unix epoch."""

    __slots__ = ("kind", "values", "width")

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind
        self.values: list[Any] = []
        self.width = 1  # how many values a null takes, in this column and those of its parts

    def null(self) -> None:
        """Append a null."""
        self.values.append(None)

    def cut(self, count: int) -> None:
        """Keep the first `count` values, also if an appending was not finished."""
        del self.values[count:]

    def array(self) -> pa.Array:
        return pa.array(self.values, self.kind)


class StructColumn(ValueColumn):
    """Structs: `values` are True or None, to be appended behind the values of all `fields`."""

    __slots__ = ("fields",)

    def __init__(self, kind: pa.StructType) -> None:
        super().__init__(kind)
        self.fields = [column_of(field.type) for field in kind]
        self.width = 1 + sum(field.width for field in self.fields)

    def null(self) -> None:
        for field in self.fields:
            field.null()
        self.values.append(None)

    def cut(self, count: int) -> None:
        for field in self.fields:
            field.cut(count)
        del self.values[count:]

    def array(self) -> pa.Array:
        mask = pa.array([value is None for value in self.values], pa.bool_()) if None in self.values else None
        return pa.StructArray.from_arrays([field.array() for field in self.fields], fields=list(self.kind), mask=mask)


class ListColumn(ValueColumn):
    """Lists: `values` are where each begins in `items`, to be appended before its items; or None."""

    __slots__ = ("items",)

    def __init__(self, kind: pa.ListType | pa.MapType, item: pa.DataType) -> None:
        super().__init__(kind)
        self.items = column_of(item)

    def begin(self) -> None:
        """Begin a list, of the items that are appended from here on."""
        self.values.append(len(self.items.values))

    def cut(self, count: int) -> None:
        start = next((value for value in self.values[count:] if value is not None), None)
        if start is not None:
            self._cut_items(start)
        del self.values[count:]

    def _cut_items(self, count: int) -> None:
        self.items.cut(count)

    def _offsets(self) -> pa.Array:
        """Return where lists begin and the last one ends; null for a list that is null."""
        return pa.array([*self.values, len(self.items.values)], pa.int32())

    def array(self) -> pa.Array:
        return pa.ListArray.from_arrays(self._offsets(), self.items.array())


class MapColumn(ListColumn):
    """Maps: as lists of their values, with the keys in a column beside."""

    __slots__ = ("keys",)

    def __init__(self, kind: pa.MapType) -> None:
        super().__init__(kind, kind.item_type)
        self.keys = column_of(kind.key_type)

    def _cut_items(self, count: int) -> None:
        self.keys.cut(count)
        self.items.cut(count)

    def array(self) -> pa.Array:
        return pa.MapArray.from_arrays(self._offsets(), self.keys.array(), self.items.array())


def column_of(kind: pa.DataType) -> ValueColumn:
    """Return an empty column of a type."""
    if isinstance(kind, pa.StructType):
        return StructColumn(kind)
    if isinstance(kind, pa.MapType):
        return MapColumn(kind)
    if isinstance(kind, pa.ListType):
        return ListColumn(kind, kind.value_type)
    return ValueColumn(kind)
