"""A digest of which sequences are missing between the first and the last message of a segment.

The server lists the sequences that a stream has deleted; a segment holds those of its messages. Whether both tell of
the same messages is decided by comparing the runs of missing sequences, not how many there are: a message that came
back (a stream restored in place, a server's disk put back) and another one that went leave the count as it was.

The digest is the first 128 bits, in hex, of SHA-256 over each run's first and last sequence, as unsigned 64 bit
integers, little endian. Where nothing is missing it is "".
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence

__all__ = ["GapDigest", "digest_of_missing"]

_HEX_DIGITS = 32
_RUN = struct.Struct("<QQ")
# Sequences that are looked at together: most messages lie among many without a gap.
_STEP = 256


class GapDigest:
    """The digest for messages that come in order."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._any = False
        self._last = 0

    def update(self, sequences: Sequence[int]) -> None:
        """The next messages have these sequences, in rising order."""
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
        """As a manifest has it."""
        return self._sha256.hexdigest()[:_HEX_DIGITS] if self._any else ""


def digest_of_missing(missing: Iterable[int]) -> str:
    """The digest where exactly these sequences are missing, in rising order."""
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
