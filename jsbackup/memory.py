"""The heap of the C library: what is freed is kept for whoever asks next, or given back to the system.

Left to itself glibc gives each thread a heap of its own. Each of them keeps some 30 MiB, or gives back what the next
stream takes again, page by page. A command has one for all. Measured, restore of 50 streams of 8 MiB: 2.8 s -> 2.2, 270
MiB -> 210, a tenth of the page faults. Arrow's own allocator, which Parquet's encoders use whatever pool they are
given, keeps some 15 MiB more for each stream that is backed up (50 streams: 250 MiB -> 185), and is told to use that
heap too.

What many streams at once have freed lies in pieces between what is in use, up to twice as much as that. It is given
back where the process has become large, and not otherwise. Measured, 12 streams of random bytes, backed up four at
once: 290 MiB -> 250, and 8 % slower; streams that can be compressed stay below.

Other programs that use the library have heaps and Arrow's allocator as they are; the heaps are tidied now and then.

Other C libraries have nothing of the kind, and are left alone.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

__all__ = ["give_back", "keep_one_heap", "stay_small"]

# What `mallopt` calls them (glibc, malloc/malloc.h), and the values. 32 MiB is the most that it takes for the last one.
_ARENA_MAX = (-8, 1)
_TRIM_THRESHOLD = (-1, 64 << 20)
_MMAP_THRESHOLD = (-3, 32 << 20)

_WORTH_BYTES = 8 << 20
# Who has grown again is looked at again, and no one else, so that one who needs all that is not slowed down. Measured,
# four streams of 80 MB at once: a peak of 245 MiB, where 240 and 32 had 265, in the same time.
_LARGE_BYTES = 216 << 20
_GROWN_BYTES = 16 << 20

_library = ctypes.CDLL(None)
_is_glibc = hasattr(_library, "gnu_get_libc_version")
_one_heap = False
_least_bytes = _LARGE_BYTES  # of a process to look at the one heap of


def keep_one_heap() -> None:
    """For this process, before it has threads and before it imports Arrow, which reads the environment."""
    global _one_heap  # as the heap is
    if _is_glibc:
        for number, value in (_ARENA_MAX, _TRIM_THRESHOLD, _MMAP_THRESHOLD):
            _library.mallopt(number, value)
        _one_heap = True
    os.putenv("ARROW_DEFAULT_MEMORY_POOL", "system")


def give_back(coded_bytes: int = _WORTH_BYTES) -> None:
    """Return to the system what was freed, unless there is one heap: then as `stay_small`.

    After a segment of so many bytes; small ones leave little, and looking for it takes longer than to code them.
    """
    if _one_heap:
        stay_small()
    elif coded_bytes >= _WORTH_BYTES and _is_glibc:
        _library.malloc_trim(0)


def stay_small() -> None:
    """Return to the system what was freed of the one heap, if the process has become large. After each few MiB."""
    global _least_bytes
    if _one_heap and _resident_bytes() > _least_bytes:
        _library.malloc_trim(0)
        _least_bytes = max(_LARGE_BYTES, _resident_bytes() + _GROWN_BYTES)


def _resident_bytes() -> int:
    """Of this process, as the system counts it; 0 where it does not tell."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
