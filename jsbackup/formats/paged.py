"""A file in memory that takes as much as it holds, and gives it back at once.

Buffers of the usual allocators grow by being copied to twice their size, and what is freed stays with the process: two
to three times the size of a segment, for each stream. Here memory is asked of the system, more than will be needed; it
gives pages when they are written to, and takes them all when the file is forgotten.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["PagedFile"]

# Most segments, if nothing of them compresses. Pages that are not written to cost nothing.
_RESERVED_BYTES = 80 << 20
# What is kept for the next file: a block of a stream has 8 MiB, unless a message is larger.
_KEPT_BYTES = 9 << 20
# Large pages have 2 MiB: for less they would be cleared for nothing.
_LARGE_BYTES = 1 << 20


class PagedFile:
    """Write-only, as Arrow needs it. One that gets larger than what is reserved is copied once in a while."""

    def __init__(self, reserved_bytes: int = _RESERVED_BYTES) -> None:
        self._pages = _reserve(reserved_bytes)
        self._size = 0
        self.closed = False

    def write(self, data: Buffer) -> int:
        view = memoryview(data).cast("B")
        end = self._size + len(view)
        if end > len(self._pages):
            grown = _reserve(max(end, 2 * len(self._pages)))
            grown[: self._size] = memoryview(self._pages)[: self._size]
            self._pages = grown
        if self._size < _LARGE_BYTES <= end:
            self._ask_for_large_pages()
        self._pages[self._size : end] = view
        self._size = end
        return len(view)

    def _ask_for_large_pages(self) -> None:
        """Each page takes the system a moment when it is first written to, and of large ones there are fewer."""
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # some kernels have none
                self._pages.madvise(mmap.MADV_HUGEPAGE)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """It stays readable."""
        self.closed = True

    def start_again(self, size: int) -> None:
        """Forget what was written, for a file of `size` bytes in the same memory: nobody may still hold `content`.

        Pages that were written to once cost nothing any more: a tenth of the time of reading a stream.
        """
        if not size <= len(self._pages) <= max(_KEPT_BYTES, size):
            self._pages = _reserve(size)
        self._size = 0

    def content(self) -> memoryview:
        """What was written; the memory lives as long as this is kept. No more may be written."""
        return memoryview(self._pages)[: self._size]


def _reserve(size: int) -> mmap.mmap:
    return mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
