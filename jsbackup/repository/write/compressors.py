"""The threads that compress the segments of a stream: one, or several where there are cores for them.

The Parquet library writes the row groups of a file one after another. So a segment is compressed in one thread, and
several segments of a stream at once. That is for a stream that is alone: the segments of several streams are compressed
at once anyway. Where the processor's time goes is in `manual/scale.md`.
"""

from __future__ import annotations

import os

from jsbackup.formats.compression import Compression
from jsbackup.repository.background import Aftermath

__all__ = ["Compressors", "compressing_threads", "share_cores", "usable_cores"]

# Measured: with 4 MiB the compressing thread waits for the next batch too often (6 % slower); 9 are no faster.
_AHEAD_BYTES = 6 << 20
# What waits for several threads, in all: a whole segment for each, or only one of them would have work.
_WAITING_BYTES = 64 << 20
_MOST_THREADS = 4
# Two cores are for the server and for what reads from it. A slower compression takes longer than both.
_OTHER_CORES = 2
_QUICK_LEVELS = range(1, 4)

_sharing = False


def share_cores() -> None:
    """Note that this process is one of several that share the cores, such as a worker of Spark: each compresses in one
    thread, and holds no more than that takes.
    """
    global _sharing
    _sharing = True


def usable_cores() -> int:
    """Return how many cores this process may use for itself."""
    if _sharing:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compressing_threads(compression: Compression, segment_bytes: int, cores: int) -> int:
    """Return how many threads compress a stream that is alone, at most."""
    if not compression.level:
        return 1
    free = cores - _OTHER_CORES if compression.level in _QUICK_LEVELS else cores
    return max(1, min(free, _WAITING_BYTES // segment_bytes, _MOST_THREADS))


class Compressors:
    """So many threads, which take the segments of a stream in turn. Each is started when it is needed.

    Exceptions are raised as by an `Aftermath`.
    """

    def __init__(self, threads: int, segment_bytes: int) -> None:
        self._most = threads
        self._segment_bytes = segment_bytes
        self._threads: list[Aftermath] = []
        self._given = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of messages that wait."""
        return sum(thread.held_bytes for thread in self._threads)

    def next(self, *, alone: bool) -> tuple[Aftermath, int]:
        """Return the thread for the next segment, and how many are in turn."""
        count = self._most if alone else 1
        while len(self._threads) < count:
            self._threads.append(Aftermath(0, "compress"))
        thread = self._threads[self._given % count]
        thread.limit_bytes = self._segment_bytes if count > 1 else _AHEAD_BYTES
        self._given += 1
        return thread, count

    def wait(self) -> None:
        """Wait until nothing is left to compress."""
        for thread in self._threads:
            thread.wait()

    def close(self) -> None:
        """Close the threads, see `Aftermath`."""
        for thread in self._threads:
            thread.close()

    def settle(self) -> None:
        """Close, and wait for what is being compressed."""
        self.close()
        for thread in self._threads:
            thread.settle()
