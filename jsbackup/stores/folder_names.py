"""The names in a folder, sorted, in little memory: a folder of a large stream may have a million.

Up to some ten thousand names are a list. More are sorted in runs, which are kept compressed and merged while they are
read. Measured, a million names of segments: 55 MiB instead of 182, and 4.3 s of processor instead of 2.5.
"""

from __future__ import annotations

import heapq
import os
import zlib
from collections.abc import Iterable, Iterator
from itertools import islice

__all__ = ["sorted_names"]

_RUN_NAMES = 1 << 16
_BLOCK_NAMES = 512  # decompressed at once, of each run
_LEVEL = 1


def sorted_names(names: Iterable[str]) -> Iterable[str]:
    """Return the names, which have no NUL, in their order. May be iterated once."""
    names = iter(names)
    first = sorted(islice(names, _RUN_NAMES))
    if len(first) < _RUN_NAMES:
        return first
    runs = [_compressed(first)]
    del first
    while run := sorted(islice(names, _RUN_NAMES)):
        runs.append(_compressed(run))
    return heapq.merge(*map(_decompressed, runs))


def _compressed(names: list[str]) -> list[bytes]:
    blocks = (names[start : start + _BLOCK_NAMES] for start in range(0, len(names), _BLOCK_NAMES))
    return [zlib.compress(os.fsencode("\0".join(block)), _LEVEL) for block in blocks]


def _decompressed(blocks: list[bytes]) -> Iterator[str]:
    for at, block in enumerate(blocks):
        blocks[at] = b""
        yield from os.fsdecode(zlib.decompress(block)).split("\0")
