"""Tune the heap of the C library: when freed memory is reused, and when it is returned to the system.

By default glibc gives each thread its own heap. Each of them keeps some 30 MiB, or returns memory that the next stream
needs again, page by page. A command has one heap for all threads. Measured, restore of 50 streams of 8 MiB: 2.8 s ->
2.2, 270 MiB -> 210, a tenth of the page faults. Arrow's own allocator, which Parquet's encoders use with any pool,
keeps some 15 MiB more for each stream that is backed up (50 streams: 250 MiB -> 185), and is configured to use that
heap too.

With many streams at once freed memory is fragmented, up to twice as much as is in use. It is only returned if the
process has become large. Measured, 12 streams of random bytes, backed up four at once: 290 MiB -> 250, and 8 % slower;
with compressible streams the process stays smaller.

In programs that use the package heaps and Arrow's allocator are not changed; freed memory is returned now and then.

Other C libraries have no such settings, and are not changed.

Arrow imports numpy, which nothing here uses: a command does without. Measured, `jsbackup show latest`: 0.50 s of a
processor -> 0.37. Spark needs it, and gets it (`pipeline/__init__.py`); in its processes numpy starts no threads for
linear algebra, which wait for work by spinning.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

__all__ = ["give_back", "keep_one_heap", "stay_small"]

# The names for `mallopt` (glibc, malloc/malloc.h), and the values. 32 MiB is the maximum of the last one.
_ARENA_MAX = (-8, 1)
_TRIM_THRESHOLD = (-1, 64 << 20)
_MMAP_THRESHOLD = (-3, 32 << 20)

_WORTH_BYTES = 8 << 20
# Memory is only returned again after the process has grown further, so that one that needs it all is not slowed down.
# Measured, four streams of 80 MB at once: a peak of 245 MiB; with 240 and 32 it was 265, in the same time.
_LARGE_BYTES = 216 << 20
_GROWN_BYTES = 16 << 20

_library = ctypes.CDLL(None)
_is_glibc = hasattr(_library, "gnu_get_libc_version")
_one_heap = False
_least_bytes = _LARGE_BYTES  # size of the process from which memory of the heap is returned


def keep_one_heap() -> None:
    """Use one heap in this process, and no numpy. Call it before it has threads or imports Arrow, which reads the
    environment.
    """
    global _one_heap  # the setting is per process too
    if _is_glibc:
        for number, value in (_ARENA_MAX, _TRIM_THRESHOLD, _MMAP_THRESHOLD):
            _library.mallopt(number, value)
        _one_heap = True
    os.putenv("ARROW_DEFAULT_MEMORY_POOL", "system")
    os.putenv("OPENBLAS_NUM_THREADS", "1")
    sys.modules.setdefault("numpy", None)  # type: ignore[arg-type]  # an import fails, and Arrow takes that for none


def give_back(coded_bytes: int = _WORTH_BYTES) -> None:
    """Return freed memory to the system; with one heap as in `stay_small`.

    Called after a segment of that many bytes; small ones free little, and this would take longer than coding them.
    """
    if _one_heap:
        stay_small()
    elif coded_bytes >= _WORTH_BYTES and _is_glibc:
        _library.malloc_trim(0)


def stay_small() -> None:
    """Return freed memory of the one heap to the system, if the process has become large. Call it every few MiB."""
    global _least_bytes
    if _one_heap and _resident_bytes() > _least_bytes:
        _library.malloc_trim(0)
        _least_bytes = max(_LARGE_BYTES, _resident_bytes() + _GROWN_BYTES)


def _resident_bytes() -> int:
    """Return the resident size of this process; 0 if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
