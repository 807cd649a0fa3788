"""Do long work in waves: some thousands of segments at a time, so that memory does not grow with their number.

`transform` reshapes segments so (`jobs/transform_streams.py`), and whatever joins short ones joins them
(`jobs/joining.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from jsbackup.progress import NullProgress, Progress

__all__ = ["as_one", "waves"]

T = TypeVar("T")

# Segments of a wave. Each takes some KB: its reference, what a task gets of it, what the task returns.
_MOST_SEGMENTS = 8192


def waves(work: Iterable[T], segments: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield the work in lists, in order. `segments` says how many a piece of it concerns. Each list is emptied when the
    next one is asked for.
    """
    wave: list[T] = []
    count = 0
    for piece in work:
        wave.append(piece)
        count += segments(piece)
        if count >= _MOST_SEGMENTS:
            yield wave
            wave.clear()
            count = 0
    if wave:
        yield wave


@contextmanager
def as_one(progress: Progress | None, total_bytes: int) -> Iterator[Progress | None]:
    """Yield a watcher for each of the waves, which passes on to `progress` that one work of `total_bytes` is done."""
    if progress is None or isinstance(progress, NullProgress):
        yield progress
        return
    whole = _Whole(progress, total_bytes)
    try:
        yield whole
    finally:
        whole.close()


class _Whole:
    def __init__(self, progress: Progress, total_bytes: int) -> None:
        self._progress = progress
        self._total_bytes = total_bytes
        self._names: dict[str, None] = {}
        self.expect, self.advance, self.pause = progress.expect, progress.advance, progress.pause

    def start(self, name: str, _total_bytes: int, total_messages: int) -> None:
        if name not in self._names:
            self._names[name] = None
            self._progress.start(name, self._total_bytes, total_messages)

    def finish(self, name: str) -> None:
        """Another wave may come."""

    def close(self) -> None:
        for name in self._names:
            self._progress.finish(name)
