"""S2 streams: the frames around every snapshot that a server sends and every archive that it restores.

The framing is Snappy's (github.com/google/snappy, `framing_format.txt`) with the changes of S2
(github.com/klauspost/compress, `s2/README.md`, `s2/reader.go`). A frame is a type byte, a length of three bytes (little
endian) and that many bytes:

    0xff         stream identifier, first of all and allowed again: `S2sTwO`, or `sNaPpY` for blocks of 64 KiB at most
    0x00         checksum, then an S2 block (`_kernels_py.py` has its format) of at most 4 MiB decoded
    0x01         checksum, then at most 4 MiB as they are
    0xfe         padding, skipped
    0x80-0xfd    skipped; 0x99 is S2's index of the stream
    0x02-0x7f    must not be skipped, so the stream is refused

The checksum is CRC-32C of the decoded bytes, rotated right by 15 bits, plus 0xa282ead8, four bytes little endian. A
stream has no end mark: its container must know its end. Empty content may be a stream of no bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import cramjam
import google_crc32c

from jsbackup.errors import FormatError
from jsbackup.formats import kernels

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["BLOCK_BYTES", "MAX_BLOCK_BYTES", "S2Decoder", "S2Encoder", "checksum_of", "first_block_end"]

MAX_BLOCK_BYTES = 4 << 20
# The size that nats-server writes and preallocates for reading; for larger blocks it must allocate again. Snappy looks
# back 64 KiB at most, so a larger block would not be smaller either.
BLOCK_BYTES = 1 << 20

_COMPRESSED, _UNCOMPRESSED, _IDENTIFIER = 0x00, 0x01, 0xFF
_FIRST_SKIPPABLE = 0x80
_HEAD_BYTES = 4
_CHECKSUM_BYTES = 4
_IDENTIFIER_BYTES = 6
_MAX_BLOCK_OF = {b"S2sTwO": MAX_BLOCK_BYTES, b"sNaPpY": 64 << 10}
_STREAM_START = b"\xff\x06\x00\x00S2sTwO"


def first_block_end(stream: bytes) -> int:
    """Return the end of the frame after the stream identifier, from the first bytes of a stream that is assumed to be
    valid.
    """
    at = len(_STREAM_START)
    return at + _HEAD_BYTES + int.from_bytes(stream[at + 1 : at + _HEAD_BYTES], "little")


def _is_skipped(kind: int) -> bool:
    return _FIRST_SKIPPABLE <= kind < _IDENTIFIER


def checksum_of(data: bytes) -> bytes:
    """Return the checksum of a frame with this content, as it is stored."""
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(_CHECKSUM_BYTES, "little")


class S2Decoder:
    """Takes an S2 stream in pieces of any size and yields its decoded blocks.

    Holds the fed bytes that are not decoded yet, which is less than one frame if all blocks are taken. All errors are
    `FormatError`; after an error the stream stays refused.
    """

    __slots__ = ("_at", "_buffer", "_max_block", "_passed", "_skip")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0
        self._passed = 0  # bytes of the stream before the buffer
        self._max_block = 0  # none until a stream identifier sets it
        self._skip = 0  # remaining bytes of a skipped frame

    def feed(self, data: Buffer) -> Iterator[bytes]:
        """Take `data` at once, and yield each block that is complete by now.

        Lazily, because a few bytes may decode to megabytes: the caller need not hold more than one block. Blocks that
        are not taken are yielded by the next call's iterator.
        """
        self._buffer += data
        return self._blocks()

    def finish(self) -> None:
        """Raise `FormatError` unless the stream ends between two frames and every block was taken."""
        if self._skip or self._at < len(self._buffer):
            raise self._refused("cut short")

    def _blocks(self) -> Iterator[bytes]:
        while self._skip_rest() and (head := self._next_head()) is not None:
            kind, size = head
            start = self._at + _HEAD_BYTES
            if _is_skipped(kind):
                # Up to 16 MiB that are not needed: dropped as they arrive.
                self._at, self._skip = start, size
                continue
            with memoryview(self._buffer) as view, view[start : start + size] as body:
                block = self._decode(kind, body)
            self._at = start + size
            if block:
                yield block
        del self._buffer[: self._at]
        self._passed += self._at
        self._at = 0

    def _skip_rest(self) -> bool:
        """Skip the available part of a skipped frame; return whether that was all of it."""
        arrived = min(self._skip, len(self._buffer) - self._at)
        self._at += arrived
        self._skip -= arrived
        return self._skip == 0

    def _next_head(self) -> tuple[int, int] | None:
        """Return kind and size of the next frame, checked; None if it is incomplete, unless it is to be skipped."""
        available = len(self._buffer) - self._at - _HEAD_BYTES
        if available < 0:
            return None
        kind = self._buffer[self._at]
        size = int.from_bytes(self._buffer[self._at + 1 : self._at + _HEAD_BYTES], "little")
        self._check_head(kind, size)
        return (kind, size) if size <= available or _is_skipped(kind) else None

    def _check_head(self, kind: int, size: int) -> None:
        if kind == _IDENTIFIER:
            least = most = _IDENTIFIER_BYTES
        elif self._max_block == 0:
            raise self._refused("no stream identifier")
        elif _is_skipped(kind):
            return
        elif kind > _UNCOMPRESSED:
            raise self._refused(f"unknown kind 0x{kind:02x}")
        else:
            least = _CHECKSUM_BYTES
            most = least + self._max_block
            if kind == _COMPRESSED:
                # The most that incompressible bytes may grow (Snappy's own limit).
                most += 32 + self._max_block // 6
        if not least <= size <= most:
            raise self._refused(f"bad size {size}")

    def _decode(self, kind: int, body: memoryview) -> bytes:
        if kind == _IDENTIFIER:
            limit = _MAX_BLOCK_OF.get(bytes(body))
            if limit is None:
                raise self._refused("unknown stream identifier")
            self._max_block = limit
            return b""
        stored, content = body[:_CHECKSUM_BYTES], body[_CHECKSUM_BYTES:]
        if kind == _UNCOMPRESSED:
            block = bytes(content)
        else:
            try:
                block = kernels.s2_decode_block(content, self._max_block)
            except FormatError as error:
                raise self._refused(error.message) from error
        if checksum_of(block) != stored:
            raise self._refused("wrong checksum")
        return block

    def _refused(self, reason: str) -> FormatError:
        return FormatError(f"s2 stream: {reason} in the frame at byte {self._passed + self._at}")


def _never() -> bool:
    return False


class S2Encoder:
    """Encodes bytes as an S2 stream of blocks of `BLOCK_BYTES`, which every nats-server reads.

    Blocks are compressed by Snappy, of which S2 is a superset. A block that does not shrink is stored uncompressed, and
    so is one for which `hurried`, called for each, returns True (compressing takes as long as everything else that a
    restore does with its messages).
    """

    __slots__ = ("_hurried", "_pending", "_pending_bytes", "_started")

    def __init__(self, hurried: Callable[[], bool] = _never) -> None:
        self._hurried = hurried
        self._pending: list[bytes] = []  # of an incomplete block
        self._pending_bytes = 0
        self._started = False

    def feed(self, data: Buffer) -> list[bytes]:
        """Take `data`; return the frames of the blocks that are full by now, often none, in parts."""
        out = self._start()
        view = memoryview(data).cast("B")
        at = 0
        while len(view) - at >= (missing := BLOCK_BYTES - self._pending_bytes):
            out += self._end_block(view[at : at + missing])
            at += missing
        if at < len(view):
            self._pending.append(bytes(view[at:]))  # the caller may use the buffer again
            self._pending_bytes += len(view) - at
        return out

    def finish(self) -> list[bytes]:
        """Return the rest. Without any data, the stream is only a stream identifier."""
        out = self._start()
        if self._pending:
            out += self._end_block(memoryview(b""))
        return out

    def _start(self) -> list[bytes]:
        started, self._started = self._started, True
        return [] if started else [_STREAM_START]

    def _end_block(self, rest: memoryview) -> tuple[bytes, bytes]:
        """Return the frame of the pending bytes and `rest`, which are only copied here."""
        block = b"".join((*self._pending, rest))
        self._pending.clear()
        self._pending_bytes = 0
        return _frame(block, self._hurried())


def _frame(block: bytes, hurried: bool) -> tuple[bytes, bytes]:
    """Return head with checksum, and the content."""
    kind, content = _UNCOMPRESSED, block
    if not hurried:
        compressed = bytes(cramjam.snappy.compress_raw(block))
        if len(compressed) < len(block):
            kind, content = _COMPRESSED, compressed
    size = _CHECKSUM_BYTES + len(content)
    return bytes((kind, *size.to_bytes(3, "little"))) + checksum_of(block), content
