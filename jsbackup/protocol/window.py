"""How many bytes of a transfer may be on their way unacknowledged, whichever way they go: what hides a round trip.

That is what both ends may have to hold, so it is no more than the link is worth.
"""

from __future__ import annotations

__all__ = ["LEAST_WINDOW_BYTES", "window_for"]

# Measured, loopback: what restores need. Backups are no faster with twice as much.
LEAST_WINDOW_BYTES = 4 << 20
_MOST_WINDOW_BYTES = 16 << 20
_LINK_BYTES_PER_SECOND = 420e6


def window_for(round_trip_seconds: float) -> int:
    """The window for a link: what hides a round trip even where it is fast, so 4 MiB up to 10 ms, 16 MiB from 40 ms."""
    return min(max(LEAST_WINDOW_BYTES, int(round_trip_seconds * _LINK_BYTES_PER_SECOND)), _MOST_WINDOW_BYTES)
