"""Two digests of messages, both over the canonical archive-v2 encoding, so one encoding pass is enough.

**Segment digest**: SHA-256 over the encodings of a run of messages, back to back. It names content: equal messages have
    equal digests for any server and any version of the Parquet library.

**Stream digest**: the sum modulo 2^256 of HighwayHash-256 over each message's encoding, keyed with the 32 bytes
`jsbackup stream digest, version1`; hash and sum are 32-byte little-endian integers, written as the hex of these bytes.
It can be summed over segments and tasks, does not depend on where segments are cut, and messages can be subtracted. The
digest of no messages is 64 zeros. It is a fingerprint; against an attacker only SHA-256 and signatures help.

Canonical encoding of a message: uvarint subject length, zigzag varint timestamp in ns, uvarint sequence, uvarint header
size, uvarint payload size, subject, header block, payload; every varint as short as possible. A message without headers
and one with an empty header block encode alike, as they do for the server. **Raw bytes** are bytes of this encoding, in
manifests and everywhere else.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from jsbackup.errors import FormatError
from jsbackup.formats import kernels
from jsbackup.formats.batch import columns_from_batch

__all__ = [
    "Digester",
    "EncodedRows",
    "GapDigest",
    "MessageBatch",
    "StreamDigest",
    "StreamDigester",
    "digest_of_missing",
    "digest_rows",
    "encode_rows",
]


# --- gaps ---
#
# A digest of which sequences are missing between the first and the last message of a segment.
#
# The server lists a stream's deleted sequences; a segment has those of its messages. Whether both have the same
# messages is decided by comparing the runs of missing sequences, not their number: if one message reappears (a stream
# restored in place, a server's disk put back) and another is deleted, the count stays the same.
#
# The digest is the first 128 bits, in hex, of SHA-256 over each run's first and last sequence, as unsigned 64 bit
# integers, little endian. If nothing is missing it is "".

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


MessageBatch: TypeAlias = pa.RecordBatch
"""`BATCH_SCHEMA` or `BINARY_SUBJECT_SCHEMA`; a name for layers that do not import Arrow."""

_SIZE = 32
_MODULUS = 1 << 256


@dataclass(frozen=True, slots=True)
class StreamDigest:
    """A stream digest as a value, which supports addition and subtraction."""

    total: bytes = bytes(_SIZE)

    @classmethod
    def from_hex(cls, text: str) -> StreamDigest:
        """Parse 64 lower-case hex digits. Raises `FormatError` for anything else."""
        if len(text) != 2 * _SIZE or not set(text) <= set("0123456789abcdef"):
            raise FormatError(f"not a stream digest: {text[:80]!r}")
        return cls(bytes.fromhex(text))

    @property
    def hex(self) -> str:
        return self.total.hex()

    def __add__(self, other: StreamDigest) -> StreamDigest:
        return self._from_int(self._int() + other._int())

    def __sub__(self, other: StreamDigest) -> StreamDigest:
        return self._from_int(self._int() - other._int())

    def _int(self) -> int:
        return int.from_bytes(self.total, "little")

    @classmethod
    def _from_int(cls, value: int) -> StreamDigest:
        return cls((value % _MODULUS).to_bytes(_SIZE, "little"))


class EncodedRows(NamedTuple):
    """Messages in canonical encoding, with the end of each."""

    encoded: bytes
    ends: memoryview[int]

    @property
    def size(self) -> int:
        return len(self.encoded)


def encode_rows(batch: MessageBatch) -> EncodedRows:
    """Encode a batch. Raises `FormatError` if sequences do not rise from at least 1, or a message is too large."""
    encoded, ends = kernels.encode_entries(columns_from_batch(batch))
    return EncodedRows(encoded, memoryview(ends).cast("q"))


def digest_rows(rows: EncodedRows) -> StreamDigest:
    """Return the stream digest of these messages."""
    return StreamDigest(kernels.sum_digest(rows.encoded, rows.ends, bytes(_SIZE)))


class StreamDigester:
    """The stream digest of the messages fed so far, with their number and raw bytes."""

    def __init__(self) -> None:
        self._total = bytes(_SIZE)
        self.messages = 0
        self.raw_bytes = 0

    def update(self, batch: MessageBatch) -> None:
        self.update_rows(encode_rows(batch))

    def update_rows(self, rows: EncodedRows) -> None:
        self._total = kernels.sum_digest(rows.encoded, rows.ends, self._total)
        self.messages += len(rows.ends)
        self.raw_bytes += rows.size

    @property
    def stream_digest(self) -> StreamDigest:
        return StreamDigest(self._total)


class Digester(StreamDigester):
    """Both digests of the messages fed so far. SHA-256 takes most of the time."""

    def __init__(self) -> None:
        super().__init__()
        self._sha256 = hashlib.sha256()

    def update_rows(self, rows: EncodedRows) -> None:
        self._sha256.update(rows.encoded)
        super().update_rows(rows)

    @property
    def segment_digest(self) -> str:
        """SHA-256 in hex."""
        return self._sha256.hexdigest()
