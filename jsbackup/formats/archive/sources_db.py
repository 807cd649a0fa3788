"""`sources.db`: where the sources of a stream continue, as nats-server 2.15 stores it beside the messages.

    01 · number of sources u64 · sequence up to which it is valid, plus one, u64
    for each source: key length uvarint · key · sequence uvarint · identity length uvarint · identity

Little endian. A server that finds it valid up to the stream's end does not look for marks in messages. It lies in the
stream's folder; the restore of an archive v1 unpacks all files into that, and 2.15 writes no archive v1, so no archive
of a server has one. Earlier servers do not know the file.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import pack

__all__ = ["NAME", "encode_sources"]

NAME = "sources.db"


def encode_sources(last_seq: int, sources: Iterable[tuple[str, int, str]]) -> bytes:
    """Return the file for a stream that ends at `last_seq`: key, sequence and identity ("" for any) of each source."""
    entries = [_text(key) + _uvarint(sequence) + _text(identity) for key, sequence, identity in sources]
    return b"".join([pack("<BQQ", 1, len(entries), last_seq + 1), *entries])


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return _uvarint(len(data)) + data


def _uvarint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
