"""Types of the compiled kernel. `_kernels_py.py` is its readable twin: same names, same types, same errors.

Every function takes whole buffers (anything with a contiguous byte buffer, not changed meanwhile), never reads or
writes past an end, and raises `FormatError`, which names the byte or row, for bytes that break the rules of their
format. `ValueError` is a mistake of the caller: an offset outside the buffer, a key that has not 32 bytes. Integers are
little endian. Bulk work is done without the GIL. The twin's docstrings say the rest.
"""

from collections.abc import Sequence

from typing_extensions import Buffer

from jsbackup.formats.batch import Columns
from jsbackup.formats.mask_rules import MaskedRows, MaskRule, ShapedColumn

def s2_decode_block(block: Buffer, max_size: int) -> bytes:
    """The content of an S2 or Snappy block, of at most `max_size` bytes, which is checked before they are allocated."""

def decode_entries(buffer: Buffer, offset: int, max_bytes: int) -> tuple[Columns, int]:
    """Archive-v2 message entries from `offset` on, at least one if it is complete, and the next offset.

    Stops at an incomplete entry, at one with sequence 0, and once the entries taken come to `max_bytes`.
    """

def encode_entries(columns: Columns) -> tuple[bytes, bytes]:
    """The canonical archive-v2 encoding of all messages, and the end of each in it (packed int64)."""

def sum_digest(encoded: Buffer, ends: Buffer, total: bytes) -> bytes:
    """`total` plus the HighwayHash-256 of each encoded message, modulo 2^256; 32-byte integers."""

def decode_records(
    block: Buffer, key: bytes, offset: int, max_bytes: int, first_seq: int, after_seq: int, deleted: Buffer
) -> tuple[Columns, bytes, int, int]:
    """Archive-v1 records of a whole message block from `offset` on.

    Gives the living messages, the sequences that tombstones name (packed uint64, as met), the next offset and the
    highest sequence met. `deleted` holds sorted packed uint64. Every checksum is verified.
    """

def encode_records(columns: Columns, row: int, key: bytes, max_bytes: int) -> tuple[bytes, int]:
    """Archive-v1 records from `row` on while they fit in `max_bytes`, at least one, and the next row."""

def skip_index_subjects(buffer: Buffer, offset: int, count: int, version: int) -> tuple[int, int]:
    """The offset behind up to `count` subject entries of an `index.db` of this version, and how many are left."""

def extremes(values: Buffer) -> tuple[int, int]:
    """The least and the greatest of packed int64, of which there is one at least."""

def first_fall(values: Buffer, after: int) -> int:
    """The index of the first of packed int64 that is not above the one before it, or `after`; -1 if all rise."""

def use_sha256_instructions(wanted: bool) -> bool:
    """Whether the processor's instructions compute SHA-256 from now on, as they do where it has them. For the tests."""

def use_lanes(wanted: bool) -> bool:
    """Whether AVX2 computes HighwayHash from now on, as it does where the processor has it. Both ways for the tests."""

class HighwayHash:
    """HighwayHash with a 32-byte key. A digest does not end it: more data may follow."""

    def __init__(self, key: bytes) -> None: ...
    def update(self, data: Buffer) -> None: ...
    def digest64(self) -> bytes:
        """8 bytes, as nats-server stores it."""

    def digest256(self) -> bytes:
        """32 bytes: four lanes, little endian."""

class Masker:
    """Rules for what to mask, and the secret for hashes. `max_values` and `max_bytes` limit a message."""

    def __init__(
        self, rules: Sequence[MaskRule], secret: bytes, max_values: int = ..., max_bytes: int = ...
    ) -> None: ...
    def mask(self, columns: Columns, sets: Sequence[Sequence[int]], rows: Buffer, apart: bool) -> MaskedRows:
        """Mask headers and payloads of a batch: row n by the rules `sets[rows[n]]` (packed int32; -1: by none)."""

    def reason(self, numbers: Sequence[int], headers: bytes | None, data: bytes) -> str:
        """Why a message cannot be masked by these rules; "" if it can."""

class SubjectMatcher:
    """Patterns of subjects."""

    def __init__(self, patterns: Sequence[bytes]) -> None: ...
    def first(self, columns: Columns) -> bytes:
        """For each row the first pattern that matches its subject, or -1 (packed int32)."""

    def sets(self, columns: Columns) -> tuple[bytes, tuple[tuple[int, ...], ...]]:
        """For each row the number of its set (packed int32), and the sets: numbers of the patterns that match."""

class SubjectMapper:
    """Stages of maps: patterns, and what they are mapped to (tokens, and numbers of wildcards from 1)."""

    def __init__(self, stages: Sequence[Sequence[tuple[bytes, Sequence[bytes | int]]]]) -> None: ...
    def map(self, columns: Columns) -> ShapedColumn | None:
        """The subjects after all stages; None if none changes."""
