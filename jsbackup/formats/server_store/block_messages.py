"""The messages of a region of a block: all whose checksum proves them.

A checksum covers no lengths: those of subject and headers can be damaged without failing it. In a compressed block the
checksum of the compressed bytes proves them. Else a message is doubtful if its headers do not end where a header block
ends (an empty line, the first one), although they contain such an end. Servers write no headers of no bytes. The length
of a subject is only proved by the subject itself: it has to be one that the stream had.
"""

from __future__ import annotations

from array import array
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.errors import FormatError
from jsbackup.formats import kernels
from jsbackup.formats.batch import batch_from_columns
from jsbackup.formats.server_store.records import Hole, Walk, walk

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["RegionMessages", "misplaced_headers", "read_region"]

_BATCH_BYTES = 4 << 20
_HEADERS_BEGIN, _HEADERS_END = b"NATS/1.0", b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class RegionMessages:
    """`tombstones` are the sequences that are deleted. `last_seq` is the last one that was used, deleted or not."""

    batches: tuple[pa.RecordBatch, ...]
    tombstones: array[int]
    runs: tuple[tuple[int, int], ...]
    holes: tuple[Hole, ...]
    last_seq: int


def read_region(region: bytes, key: bytes, after_seq: int) -> RegionMessages:
    """Return the messages with sequences above `after_seq`, and what lies between. `key` is that of the block."""
    with suppress(FormatError):
        decoded = _decoded(region, key, after_seq, Walk(((0, len(region)),), (), 0))
        if not any(map(_may_lack_headers, decoded.batches)):
            return decoded
    return _decoded(region, key, after_seq, walk(region, key, after_seq))


def _decoded(region: bytes, key: bytes, after_seq: int, walked: Walk) -> RegionMessages:
    batches: list[pa.RecordBatch] = []
    tombstones = array("Q")
    last = after_seq
    for start, stop in walked.runs:
        run, at = memoryview(region)[start:stop], 0
        while at < len(run):
            columns, buried, at, last = kernels.decode_records(run, key, at, _BATCH_BYTES, 0, last, b"")
            tombstones.frombytes(buried)
            if columns.count:
                batches.append(batch_from_columns(columns))
    return RegionMessages(tuple(batches), tombstones, walked.runs, walked.holes, last)


def _may_lack_headers(batch: pa.RecordBatch) -> bool:
    """Return whether a payload begins like headers, where none are: only the record tells whether there were some."""
    headers = batch.column("headers")
    if not headers.null_count:
        return False
    begins = pc.starts_with(batch.column("data"), _HEADERS_BEGIN)
    return bool(pc.any(pc.and_(begins, headers.is_null())).as_py())


def misplaced_headers(batch: pa.RecordBatch) -> list[int]:
    """Return the sequences of messages whose headers do not end where a header block does, but somewhere else."""
    headers = batch.column("headers")
    if headers.null_count == len(headers):
        return []
    ends = pc.and_(pc.ends_with(headers, _HEADERS_END), pc.equal(pc.count_substring(headers, _HEADERS_END), 1))
    odd = pc.indices_nonzero(pc.invert(pc.fill_null(ends, True))).to_pylist()
    return [batch.column("sequence")[row].as_py() for row in odd if _is_misplaced(batch, row)]


def _is_misplaced(batch: pa.RecordBatch, row: int) -> bool:
    headers, data = (_bytes(batch.column(name)[row].as_buffer()) for name in ("headers", "data"))
    content = headers + data
    end = content.find(_HEADERS_END)
    return content.startswith(_HEADERS_BEGIN) and end >= 0 and end + len(_HEADERS_END) != len(headers)


def _bytes(buffer: Buffer) -> bytes:
    return bytes(memoryview(buffer))
