"""Pack work into tasks by its size in raw bytes."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["OPENING_BYTES", "pack", "pack_tasks", "task_bytes"]

OPENING_BYTES = 64 << 10
"""To open, check and decode a segment takes as long as so many bytes of messages."""

# Raw bytes for one task: its fixed cost on Spark is a hundredth of a second, and little is lost with it. Less if the
# total is small, so that all cores are used, and none waits long for the last task of another.
_MOST_BYTES, _LEAST_BYTES = 128 << 20, 8 << 20
_LEAST_TASKS, _TASKS_FOR_EACH_CORE = 16, 3


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


def pack_tasks(sizes: Sequence[int], cores: int = 0) -> list[slice]:
    """Group adjacent sizes (raw bytes), as much as one task should do. `cores` are those that do it, 0 if unknown."""
    return pack(sizes, task_bytes(sum(sizes), cores))


def task_bytes(total: int, cores: int = 0) -> int:
    """Return how many raw bytes one task should process, given the total."""
    tasks = max(_LEAST_TASKS, _TASKS_FOR_EACH_CORE * cores)
    return max(_LEAST_BYTES, min(_MOST_BYTES, total // tasks))
