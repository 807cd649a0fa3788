"""The readable twin of the compiled kernel `_kernels.pyx`: same names, same results, same error messages.

It is used if the kernel could not be compiled, and it is the specification that the kernel is tested against. Below
`twin/` are the larger parts, each with its format, and in `_shaping_py.py` masks and subjects. Here is the rest.

`index.db` subject entry (nats-server `server/filestore.go`, `recoverFullState`): uvarint length, subject, uvarint
messages, uvarint first block, and uvarint last block where there is more than one message or the file's version is 4 or
later. A length of zero has nothing behind it.
"""

from __future__ import annotations

import re
from array import array
from itertools import pairwise
from typing import TYPE_CHECKING

from jsbackup.errors import FormatError
from jsbackup.formats._shaping_py import Masker, SubjectMapper, SubjectMatcher
from jsbackup.formats.column_reader import bytes_of
from jsbackup.formats.twin.column_writer import MAX_TAKE_BYTES
from jsbackup.formats.twin.entries import (
    MAX_ENTRY_BYTES,
    MAX_NAME,
    STREAM_DIGEST_KEY,
    decode_entries,
    encode_entries,
    sum_digest,
)
from jsbackup.formats.twin.highwayhash import HighwayHash
from jsbackup.formats.twin.records import MAX_RECORD_BYTES, decode_records, encode_records
from jsbackup.formats.twin.s2 import s2_decode_block
from jsbackup.formats.twin.varints import uvarint

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "MAX_ENTRY_BYTES",
    "MAX_RECORD_BYTES",
    "MAX_TAKE_BYTES",
    "MAX_TEXT_BYTES",
    "STREAM_DIGEST_KEY",
    "HighwayHash",
    "Masker",
    "SubjectMapper",
    "SubjectMatcher",
    "decode_entries",
    "decode_records",
    "encode_entries",
    "encode_records",
    "extremes",
    "first_fall",
    "replace_strays",
    "s2_decode_block",
    "skip_index_subjects",
    "sum_digest",
]

# What int32 offsets can say.
MAX_TEXT_BYTES = (1 << 31) - 1
_STRAY = re.compile("[\udc80-\udcff]")  # as `surrogateescape` decodes them


# --- index.db -----------------------------------------------------------------------------------------------------


def skip_index_subjects(buffer: Buffer, offset: int, count: int, version: int) -> tuple[int, int]:
    """Skip up to `count` subject entries of an `index.db`; return the next offset and how many entries are left.

    Stops before an incomplete entry. Raises `FormatError` for a subject of more than 65535 bytes.
    """
    view = bytes_of(buffer)
    end = len(view)
    if not 0 <= offset <= end:
        raise ValueError("offset is outside the buffer")
    while count > 0 and offset < end:
        size, cursor = uvarint(view, offset, "stream index")
        if cursor == 0:
            break
        if size > MAX_NAME:
            raise FormatError(f"stream index: a subject of {size} bytes at byte {offset}")
        if size:
            cursor += size
            total, cursor = uvarint(view, cursor, "stream index")
            for _ in range(2 if total > 1 or version >= 4 else 1):
                if cursor:
                    _, cursor = uvarint(view, cursor, "stream index")
            if cursor == 0:
                break
        offset = cursor
        count -= 1
    return offset, count


# --- packed int64 -------------------------------------------------------------------------------------------------


def extremes(values: Buffer) -> tuple[int, int]:
    """Return the least and the greatest of packed int64 (at least one)."""
    view = bytes_of(values)
    if not view or len(view) % 8:
        raise ValueError("values have 8 bytes each, and there is one at least")
    numbers = view.cast("q")
    return min(numbers), max(numbers)


def first_fall(values: Buffer, after: int) -> int:
    """Return the index of the first packed int64 that is not greater than the one before it, or than `after`; or -1."""
    view = bytes_of(values)
    if len(view) % 8:
        raise ValueError("values have 8 bytes each")
    for index, value in enumerate(view.cast("q")):
        if value <= after:
            return index
        after = value
    return -1


# --- text ---------------------------------------------------------------------------------------------------------


def replace_strays(offsets: Buffer, data: Buffer) -> tuple[bytes, bytes]:
    """Replace each byte of rows of text that is no part of a character in UTF-8 by U+FFFD; return offsets and text.

    `offsets` (packed int32) are where the rows begin, and where the last one ends. Raises `FormatError` if they are not
    within `data`, or if the text is larger than offsets can say.
    """
    where, view = bytes_of(offsets), bytes_of(data)
    if not where or len(where) % 4:
        raise ValueError("offsets have 4 bytes each, and there is one at least")
    text, ends = bytearray(), array("i", [0])
    numbers = where.cast("i")
    for row, (start, stop) in enumerate(pairwise(numbers)):
        if not 0 <= start <= stop <= len(view):
            raise FormatError(f"text: bad offsets in row {row}")
        text += _STRAY.sub("\ufffd", bytes(view[start:stop]).decode("utf-8", "surrogateescape")).encode()
        if len(text) > MAX_TEXT_BYTES:
            raise FormatError(f"text: more than {MAX_TEXT_BYTES} bytes")
        ends.append(len(text))
    return ends.tobytes(), bytes(text)
