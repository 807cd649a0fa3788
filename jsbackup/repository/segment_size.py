"""How many bytes of messages a segment takes: the usual size, and which sizes a repository may have instead.

Bytes are raw: those of the messages in the encoding that digests are made of. A larger single message makes a segment
by itself.

The limits have reasons. A segment is in memory as a whole while it is stored and while it is read, and no object may
have more than 256 MiB; older versions read no larger ones either. Below 4 KiB the object, its requests and its entry in
each manifest cost more than the messages.
"""

from __future__ import annotations

__all__ = ["MAX_SEGMENT_BYTES", "MIN_SEGMENT_BYTES", "SEGMENT_BYTES", "fitting_bytes", "is_segment_size"]

# Large enough that the latency of a request does not matter and a terabyte has thirty thousand objects; small enough
# that one fits into memory, and that a rewrite or a damaged object costs little. Measured: 64 MiB are no faster,
# neither to store nor to restore, and take 32 MiB more at the peak if nothing can be compressed.
SEGMENT_BYTES = 32 << 20

MIN_SEGMENT_BYTES = 4 << 10
MAX_SEGMENT_BYTES = 256 << 20

# What Parquet and encryption may add to messages that cannot be compressed: at most 128 row groups with up to 20 KB
# each in the footer, and 16 bytes to 64 KiB. So an object stays below the limit of 256 MiB.
_AROUND_BYTES = 4 << 20


def is_segment_size(size: int) -> bool:
    """Return whether a repository may have segments of so many raw bytes."""
    return MIN_SEGMENT_BYTES <= size <= MAX_SEGMENT_BYTES


def fitting_bytes(size: int) -> int:
    """Return where to cut for segments of `size` raw bytes, so that each makes an object of at most
    `MAX_SEGMENT_BYTES`.
    """
    return min(size, MAX_SEGMENT_BYTES - _AROUND_BYTES)
