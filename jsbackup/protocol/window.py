"""How many bytes of a transfer may be unacknowledged, in either direction, to hide the round trip.

Both ends may have to hold that much, so it is not more than the link needs. The chunks of a snapshot are acknowledged
in `engine/read/snapshot_transfer.py`, those of a restore are counted in `restore.py`.
"""

from __future__ import annotations

__all__ = ["LEAST_WINDOW_BYTES", "window_for"]

# Measured, loopback: what restores need. Backups are not faster with twice as much.
LEAST_WINDOW_BYTES = 4 << 20
_MOST_WINDOW_BYTES = 16 << 20
_LINK_BYTES_PER_SECOND = 420e6


def window_for(round_trip_seconds: float) -> int:
    """Return the window for a link, enough to hide the round trip of a fast one: 4 MiB up to 10 ms, 16 MiB from
    40 ms.
    """
    return min(max(LEAST_WINDOW_BYTES, int(round_trip_seconds * _LINK_BYTES_PER_SECOND)), _MOST_WINDOW_BYTES)
