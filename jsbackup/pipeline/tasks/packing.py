"""Pack work into tasks by its size in raw bytes."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["pack", "pack_tasks", "task_bytes"]

# Raw bytes for one task: its fixed cost on Spark is a hundredth of a second, and little is lost with it. Less if the
# total is small, so that all cores are used.
_MOST_BYTES, _LEAST_BYTES = 128 << 20, 8 << 20
_SPREAD = 16


def pack(sizes: Sequence[int], limit: int) -> list[slice]:
    """Group adjacent sizes, up to `limit` each; larger ones are separate."""
    slices: list[slice] = []
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and total + size > limit:
            slices.append(slice(start, index))
            start, total = index, 0
        total += size
    if start < len(sizes):
        slices.append(slice(start, len(sizes)))
    return slices


def pack_tasks(sizes: Sequence[int]) -> list[slice]:
    """Group adjacent sizes (raw bytes), as much as one task should do."""
    return pack(sizes, task_bytes(sum(sizes)))


def task_bytes(total: int) -> int:
    """Return how many raw bytes one task should process, given the total."""
    return max(_LEAST_BYTES, min(_MOST_BYTES, total // _SPREAD))
