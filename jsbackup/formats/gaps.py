"""A digest of which sequences are missing between the first and the last message of a segment.

The server lists a stream's deleted sequences; a segment has those of its messages. Whether both have the same messages
is decided by comparing the runs of missing sequences, not their number: if one message reappears (a stream restored in
place, a server's disk put back) and another is deleted, the count stays the same.

The digest is the first 128 bits, in hex, of SHA-256 over each run's first and last sequence, as unsigned 64 bit
integers, little endian. If nothing is missing it is "".
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence

__all__ = ["GapDigest", "digest_of_missing"]

_HEX_DIGITS = 32
_RUN = struct.Struct("<QQ")
# How many sequences are checked together: most messages have no gaps near them.
_STEP = 256


class GapDigest:
    """Computes the digest for messages in order."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._any = False
        self._last = 0

    def update(self, sequences: Sequence[int]) -> None:
        """Add the sequences of the next messages, in rising order."""
        if not len(sequences):
            return
        before = self._last or sequences[0] - 1
        runs = bytearray()
        for start in range(0, len(sequences), _STEP):
            stop = min(start + _STEP, len(sequences))
            if sequences[stop - 1] - before == stop - start:
                before = sequences[stop - 1]
                continue
            for sequence in sequences[start:stop]:
                if sequence != before + 1:
                    runs += _RUN.pack(before + 1, sequence - 1)
                before = sequence
        self._last = before
        if runs:
            self._any = True
            self._sha256.update(runs)

    @property
    def hex(self) -> str:
        """The digest for a manifest."""
        return self._sha256.hexdigest()[:_HEX_DIGITS] if self._any else ""


def digest_of_missing(missing: Iterable[int]) -> str:
    """Return the digest if exactly these sequences are missing, in rising order."""
    runs = bytearray()
    first = last = 0
    for sequence in missing:
        if sequence != last + 1 or not last:
            if last:
                runs += _RUN.pack(first, last)
            first = sequence
        last = sequence
    if not last:
        return ""
    runs += _RUN.pack(first, last)
    return hashlib.sha256(runs).hexdigest()[:_HEX_DIGITS]
