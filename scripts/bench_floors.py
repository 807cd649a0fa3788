"""What the bytes of a backup or a restore take with nothing around them: for `scripts/bench profile`.

Each step runs alone, in one thread, on the messages of one stream in one piece:

    backup               receiving (`link`); S2 and SHA-256 (`decode`); zstd (`compress`); SHA-256 of what is stored,
                         and writing it (`store`)
    restore, unproved    reading, SHA-256 of what is stored, zstd (`read`); the checksums of an archive v1, and those
                         of S2 (`decode`, whose threads make the archive); sending (`link`)
    restore, proved      that, and receiving (`link`); S2 and the stream's digest (`decode`)

Where a server sends archives v1, the checksums of their records are added to what decodes them. What is sent in the
floor of a restore is the archive that this server sends, in frames that are not compressed. `start` is importing the
libraries that have to be there.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path

import pyarrow as pa

from jsbackup.formats.kernels import HighwayHash
from jsbackup.formats.s2 import BLOCK_BYTES, S2Decoder, S2Encoder, checksum_of
from scripts.bench_load import CHUNK_BYTES, receive, request, restore_chunks
from tests.harness.servers import NatsServer, version_tuple

__all__ = ["BACKUP", "FLOORS", "PROVED", "RESTORE", "floors"]

BACKUP = "floor of a backup"
RESTORE = "floor of a restore, --verify none"
PROVED = "floor of a restore, --verify full"
FLOORS = (BACKUP, RESTORE, PROVED)

# As segments are written: pages of a megabyte at the default level.
_PAGE_BYTES = 1 << 20
_LEVEL = 1
_IMPORTS = "import asyncio, ssl, click, nats, pyarrow.parquet, zstandard"
_KEY = bytes(32)


def floors(
    server: NatsServer, target: NatsServer, stream: str, file: Path, *, total_bytes: int
) -> dict[str, dict[str, float]]:
    """Return the seconds of each stage of each floor for each GB; those of `start` as they are.

    `stream` is in `server`, and not yet in `target`, which is of the same version. `file` is written.
    """

    def seconds(work: Callable[[], object]) -> float:
        began = time.process_time()
        work()
        return (time.process_time() - began) * 10**9 / total_bytes

    def each(work: Callable[[bytes], object], pieces: Iterable[bytes]) -> float:
        return seconds(lambda: deque(map(work, pieces), maxlen=0))

    sent_as_v1 = version_tuple(server.version) < (2, 15)
    chunks: list[bytes] = []
    receiving = seconds(lambda: receive(server.url, stream, chunks))
    blocks: list[bytes] = []
    decoder = S2Decoder()
    unpacking = seconds(lambda: blocks.extend(block for chunk in chunks for block in decoder.feed(chunk)))
    hashing = each(hashlib.sha256().update, blocks)
    checksums = each(HighwayHash(_KEY).update, blocks)  # of records, or of messages for the stream's digest
    whole = b"".join(blocks)
    pages = [whole[at : at + _PAGE_BYTES] for at in range(0, len(whole), _PAGE_BYTES)]
    chunks.clear()
    blocks.clear()

    codec = pa.Codec("zstd", compression_level=_LEVEL)
    stored: list[bytes] = []
    packing = seconds(lambda: stored.extend(codec.compress(page, asbytes=True) for page in pages))
    hashing_stored = each(hashlib.sha256().update, stored)
    with file.open("wb") as out:
        writing = seconds(lambda: out.writelines(stored))
    reading = seconds(file.read_bytes)
    expanding = each(lambda page: codec.decompress(page, _PAGE_BYTES), stored[:-1])
    stored.clear()

    framing = each(checksum_of, pages)
    sending = _sending(server, target, stream, pages, seconds)
    start = _start()
    backup = {
        "start": start,
        "link": receiving,
        "decode": unpacking + hashing + (checksums if sent_as_v1 else 0.0),
        "compress": packing,
        "store": hashing_stored + writing,
    }
    read = reading + hashing_stored + expanding
    made = framing + checksums
    proof = unpacking + checksums * (2 if sent_as_v1 else 1)
    return {
        BACKUP: backup,
        RESTORE: {"start": start, "link": sending, "read": read, "decode": made},
        PROVED: {"start": start, "link": sending + receiving, "read": read, "decode": made + proof},
    }


def _sending(
    server: NatsServer,
    target: NatsServer,
    stream: str,
    pages: Iterable[bytes],
    seconds: Callable[[Callable[[], object]], float],
) -> float:
    """Return what sending the archive takes, which consists of these pieces."""
    assert _PAGE_BYTES == BLOCK_BYTES, "each page is one frame"
    encoder = S2Encoder(lambda: True)
    archive = b"".join(chain.from_iterable([*map(encoder.feed, pages), encoder.finish()]))
    chunks = [archive[at : at + CHUNK_BYTES] for at in range(0, len(archive), CHUNK_BYTES)]
    found = request(server.url, f"STREAM.INFO.{stream}", {})
    asked = {"config": found["config"], "state": found["state"]}
    return seconds(lambda: restore_chunks(target.url, asked, chunks))


def _start() -> float:
    before = os.times()
    subprocess.run([sys.executable, "-c", _IMPORTS], check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system
