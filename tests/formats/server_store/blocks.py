"""Blocks as servers write them, from messages."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from jsbackup.formats import kernels
from jsbackup.formats.batch import columns_from_batch
from jsbackup.formats.s2 import S2Encoder
from jsbackup.formats.server_store.records import block_key
from tests.harness.batches import Message, batch_of

STREAM, NUMBER = "ORDERS", 3
KEY = block_key(STREAM, NUMBER)
ERASED, TOMBSTONE = 1 << 63, 1 << 62


def records_of_messages(messages: Sequence[Message], key: bytes = KEY) -> list[bytes]:
    """One record for each message."""
    found = []
    for message in messages:
        columns = columns_from_batch(batch_of([message]))
        found.append(kernels.encode_records(columns, 0, key, 1)[0])
    return found


def empty_record(sequence: int, time_ns: int = 10**18, key: bytes = KEY) -> bytes:
    """A tombstone or an erased message, by the flag in its sequence."""
    head = struct.pack("<IQqH", 30, sequence, time_ns, 0)
    hasher = kernels.HighwayHash(key)
    hasher.update(head[4:20])
    return head + hasher.digest64()


def compressed(block: bytes) -> bytes:
    """As a server compresses it; frames of one MiB."""
    encoder = S2Encoder()
    frames = [*encoder.feed(block[:-8]), *encoder.finish()]
    size = bytearray()
    left = len(block)
    while left > 0x7F:
        size.append(left & 0x7F | 0x80)
        left >>= 7
    size.append(left)
    return b"cmp\x01" + bytes(size) + b"".join(frames) + block[-8:]
