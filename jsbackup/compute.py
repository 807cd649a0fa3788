"""`pyarrow.compute`, imported on first use.

Importing it creates its functions, which takes 40 ms, and few commands need any.

Also arrays of Python values, made of buffers: `pyarrow.array` and `pyarrow.scalar` import pandas where it is installed,
which takes longer than finding one message. A scalar is an element of such an array.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from importlib import import_module
from itertools import accumulate
from typing import Any

import pyarrow as pa

__all__ = ["binary_array", "int64_array"]


def int64_array(values: Sequence[int]) -> pa.Array:
    """Return the numbers as an Arrow array."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(array("q", values))])


def binary_array(values: Sequence[bytes]) -> pa.Array:
    """Return the bytes as an Arrow array. They may have 2 GiB in all."""
    offsets = array("i", accumulate(map(len, values), initial=0))
    return pa.Array.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    )


def __getattr__(name: str) -> Any:
    return getattr(import_module("pyarrow.compute"), name)
