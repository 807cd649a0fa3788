"""A file in memory that only takes as much as it holds, and returns it to the system at once.

Usual buffers grow by copying to twice their size, and freed memory stays with the process: two to three times the size
of a segment, for each stream. This one reserves more memory from the system than needed; the system provides pages when
they are written, and takes all of them back when the file is dropped.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["PagedFile"]

# More than most segments, even if nothing can be compressed. Unwritten pages cost nothing.
_RESERVED_BYTES = 80 << 20
# How much is kept for the next file: a block of a stream has 8 MiB, unless a message is larger.
_KEPT_BYTES = 9 << 20
# Large pages have 2 MiB: for less data, clearing them would be wasted.
_LARGE_BYTES = 1 << 20


class PagedFile:
    """Write-only, as Arrow needs it. Beyond the reserved size it is sometimes copied to grow."""

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
        """The first write to each page takes time, and there are fewer large ones."""
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # not supported by some kernels
                self._pages.madvise(mmap.MADV_HUGEPAGE)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""

    def close(self) -> None:
        """Mark as closed. The content stays readable."""
        self.closed = True

    def start_again(self, size: int) -> None:
        """Begin a new file of `size` bytes in the same memory. No `content` of the old one may be in use.

        Pages that were written before are cheap: this saves a tenth of the time of reading a stream.
        """
        if not size <= len(self._pages) <= max(_KEPT_BYTES, size):
            self._pages = _reserve(size)
        self._size = 0

    def content(self) -> memoryview:
        """Return the written bytes; the memory lives as long as this view. Do not write any more."""
        return memoryview(self._pages)[: self._size]


def _reserve(size: int) -> mmap.mmap:
    return mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
