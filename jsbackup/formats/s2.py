"""S2 streams: the frames around every snapshot a server sends and every archive it takes back.

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
stream has no end mark: what holds it must know its end. A stream of no bytes at all is what S2 makes of empty content.
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

__all__ = ["BLOCK_BYTES", "MAX_BLOCK_BYTES", "S2Decoder", "S2Encoder", "first_block_end"]

MAX_BLOCK_BYTES = 4 << 20
# What nats-server writes, and what its reader has a buffer for from the start; a larger block makes it allocate again.
# Snappy looks back 64 KiB at most, so a larger block would not be smaller either.
BLOCK_BYTES = 1 << 20

_COMPRESSED, _UNCOMPRESSED, _IDENTIFIER = 0x00, 0x01, 0xFF
_FIRST_SKIPPABLE = 0x80
_HEAD_BYTES = 4
_CHECKSUM_BYTES = 4
_IDENTIFIER_BYTES = 6
_MAX_BLOCK_OF = {b"S2sTwO": MAX_BLOCK_BYTES, b"sNaPpY": 64 << 10}
_STREAM_START = b"\xff\x06\x00\x00S2sTwO"


def first_block_end(stream: bytes) -> int:
    """Where the frame behind the stream identifier ends, from the first bytes of a stream that is taken to be sound."""
    at = len(_STREAM_START)
    return at + _HEAD_BYTES + int.from_bytes(stream[at + 1 : at + _HEAD_BYTES], "little")


def _is_skipped(kind: int) -> bool:
    return _FIRST_SKIPPABLE <= kind < _IDENTIFIER


def _checksum(data: bytes) -> bytes:
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(_CHECKSUM_BYTES, "little")


class S2Decoder:
    """Takes an S2 stream in pieces of any size and gives its decoded blocks.

    It holds what was fed and not yet decoded, beyond that less than one frame. All errors are `FormatError`; a stream
    once refused stays refused.
    """

    __slots__ = ("_at", "_buffer", "_max_block", "_passed", "_skip")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0
        self._passed = 0  # bytes of the stream before the buffer
        self._max_block = 0  # none until a stream identifier sets it
        self._skip = 0  # bytes still to come of a skipped frame

    def feed(self, data: Buffer) -> Iterator[bytes]:
        """Take `data` at once, and give each block that is complete by now when it is asked for.

        Lazily, because a few bytes may stand for megabytes: whoever iterates need not hold more than one block. Blocks
        not asked for are given by the next call's iterator.
        """
        self._buffer += data
        return self._blocks()

    def finish(self) -> None:
        """Raise `FormatError` unless the stream stops between two frames and every block was taken."""
        if self._skip or self._at < len(self._buffer):
            raise self._refused("cut short")

    def _blocks(self) -> Iterator[bytes]:
        while self._skip_rest() and (head := self._next_head()) is not None:
            kind, size = head
            start = self._at + _HEAD_BYTES
            if _is_skipped(kind):
                # Up to 16 MiB that nobody needs: dropped as they arrive, not kept until they are complete.
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
        """Pass what has arrived of a skipped frame; whether that was the last of it."""
        arrived = min(self._skip, len(self._buffer) - self._at)
        self._at += arrived
        self._skip -= arrived
        return self._skip == 0

    def _next_head(self) -> tuple[int, int] | None:
        """Kind and size of the next frame, checked; None if it is not all there, unless it is one to skip."""
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
                # What incompressible bytes may grow by (Snappy's own bound): more is not worth waiting for.
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
        if _checksum(block) != stored:
            raise self._refused("wrong checksum")
        return block

    def _refused(self, reason: str) -> FormatError:
        return FormatError(f"s2 stream: {reason} in the frame at byte {self._passed + self._at}")


def _never() -> bool:
    return False


class S2Encoder:
    """Turns bytes into an S2 stream of blocks of `BLOCK_BYTES`, which every nats-server reads.

    Blocks are compressed by Snappy, of which S2 is a superset; one that does not shrink is stored as it is, and so is
    one for which `hurried`, asked for each, says that there is no time (compressing takes as long as all else that a
    restore does with its messages).
    """

    __slots__ = ("_hurried", "_pending", "_pending_bytes", "_started")

    def __init__(self, hurried: Callable[[], bool] = _never) -> None:
        self._hurried = hurried
        self._pending: list[bytes] = []  # of a block that is not full
        self._pending_bytes = 0
        self._started = False

    def feed(self, data: Buffer) -> list[bytes]:
        """Take `data`; give the frames of the blocks that are full by now, often none, in parts."""
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
        """Give what is left. A stream of no data at all is a stream identifier alone."""
        out = self._start()
        if self._pending:
            out += self._end_block(memoryview(b""))
        return out

    def _start(self) -> list[bytes]:
        started, self._started = self._started, True
        return [] if started else [_STREAM_START]

    def _end_block(self, rest: memoryview) -> tuple[bytes, bytes]:
        """The frame of the pending bytes and `rest`, which are copied only here."""
        block = b"".join((*self._pending, rest))
        self._pending.clear()
        self._pending_bytes = 0
        return _frame(block, self._hurried())


def _frame(block: bytes, hurried: bool) -> tuple[bytes, bytes]:
    """Head and checksum, and the content."""
    kind, content = _UNCOMPRESSED, block
    if not hurried:
        compressed = bytes(cramjam.snappy.compress_raw(block))
        if len(compressed) < len(block):
            kind, content = _COMPRESSED, compressed
    size = _CHECKSUM_BYTES + len(content)
    return bytes((kind, *size.to_bytes(3, "little"))) + _checksum(block), content
