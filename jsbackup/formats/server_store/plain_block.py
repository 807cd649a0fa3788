"""The plain content of a block file, as far as it can be decoded (nats-server `filestore.go`, CompressionInfo).

A block that is not compressed is its content. A compressed one is:

    "cmp" · algorithm u8 = 1 · size of the content uvarint · S2 stream (`formats/s2.py`) · last 8 bytes of the content

The last block of a stream is never compressed. Servers write frames of 1 MiB of content.

Damage costs as little as possible: frames are independent of each other, so the next one is looked for, and the
checksum of a frame proves that it is one. A frame that fails its checksum is decoded as far as it goes: what is in it
is proved by the checksums of records, not here. Where bytes are missing, a new region of the content begins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from jsbackup.errors import FormatError
from jsbackup.formats import kernels
from jsbackup.formats.s2 import MAX_BLOCK_BYTES, checksum_of
from jsbackup.formats.varints import append_uvarint

__all__ = ["MAX_PLAIN_BYTES", "ByteFlaw", "PlainBlock", "decode_block"]

# Servers make blocks of at most 8 MiB, or one message. Streams that 2.2 created may still have blocks of 64 MiB.
MAX_PLAIN_BYTES = 128 << 20

_MARK = b"cmp\x01"
_IDENTIFIER = b"\xff\x06\x00\x00S2sTwO"
_TAIL_BYTES = 8
_HEAD_BYTES, _CHECKSUM_BYTES = 4, 4
_COMPRESSED, _UNCOMPRESSED = 0, 1
# As in `s2.py`: the most that incompressible bytes may grow.
_MOST_FRAME_BYTES = _CHECKSUM_BYTES + MAX_BLOCK_BYTES + 32 + MAX_BLOCK_BYTES // 6
_FRAME_HEAD = re.compile(rb"(?s)(?=[\x00\x01]..[\x00-\x4b])")
# How much may be decoded in vain while a frame is looked for: a hostile block could cost hours.
_SEARCHED_BYTES = 4 << 30
_TRIED_BYTES = 64 << 10


class ByteFlaw(NamedTuple):
    """What is wrong with bytes of a file, from `start` to before `stop`."""

    start: int
    stop: int
    problem: str


@dataclass(frozen=True, slots=True)
class PlainBlock:
    """The content of a block: regions between which an unknown number of bytes is missing. `flaws` are of the file."""

    regions: tuple[bytes, ...]
    flaws: tuple[ByteFlaw, ...] = ()
    compressed: bool = False


def decode_block(data: bytes) -> PlainBlock:
    """Return the content of a block file, after decryption. Never raises: what cannot be decoded is a flaw."""
    start = _stream_start(data)
    if start is None:
        return PlainBlock((data,) if data else ())
    frames = _Frames(data, start)
    frames.read()
    flaws = frames.flaws
    # 2.11 writes the size of what follows instead.
    sizes = sum(map(len, frames.regions)), len(data) - start
    if not flaws and data[:start] not in map(_head, sizes):
        flaws = [ByteFlaw(0, start, "the mark of compression is damaged")]
    return PlainBlock(tuple(frames.regions), tuple(flaws), compressed=True)


def _stream_start(data: bytes) -> int | None:
    """Return where the S2 stream begins, None if the block is not compressed.

    A record has a sequence, a time and the length of the subject where the mark of a stream would be.
    """
    at = data.find(_IDENTIFIER, len(_MARK), len(_MARK) + 10 + len(_IDENTIFIER))
    if at >= 0:
        return at
    if not data.startswith(_MARK):
        return None
    at = len(_MARK)
    while at < len(data) and data[at] & 0x80 and at < len(_MARK) + 9:
        at += 1
    return at + 1


def _head(size: int) -> bytes:
    """Return what is before the S2 stream of a content of this size."""
    head = bytearray(_MARK)
    append_uvarint(head, size)
    return bytes(head)


class _Frames:
    def __init__(self, data: bytes, start: int) -> None:
        self._data = data
        self._at = start
        self._region = bytearray()
        self._decoded = 0
        self._budget = _SEARCHED_BYTES
        self.regions: list[bytes] = []
        self.flaws: list[ByteFlaw] = []

    def read(self) -> None:
        data, end = self._data, len(self._data)
        if data[self._at : self._at + len(_IDENTIFIER)] == _IDENTIFIER:
            self._at += len(_IDENTIFIER)
        else:
            self._skip("the S2 stream has no valid beginning")
        while self._at < end:
            if end - self._at == _TAIL_BYTES:
                self._region += data[self._at :]
                break
            frame = _frame(data, self._at)
            content = None if frame is None else _proved(frame)
            if frame is not None and content is not None:
                self._add(content)
                self._at = frame.stop
            else:
                self._pass_damage(frame)
            if self._decoded > MAX_PLAIN_BYTES:
                self.flaws.append(ByteFlaw(self._at, end, f"has more than {MAX_PLAIN_BYTES} bytes decompressed"))
                break
        self._end_region()

    def _add(self, content: bytes) -> None:
        self._region += content
        self._decoded += len(content)

    def _end_region(self) -> None:
        if self._region:
            self.regions.append(bytes(self._region))
            self._region.clear()

    def _pass_damage(self, frame: _Frame | None) -> None:
        """Take what can be decoded of a damaged frame, and go to the next valid one."""
        start = self._at
        stop = self._next_frame(frame)
        declared, content = _decoded_in_part(self._data[start:stop])
        whole = frame is not None and stop == frame.stop and len(content) == declared
        self.flaws.append(ByteFlaw(start, stop, "a compressed part fails its checksum"))
        self._add(content)
        if not whole:
            self._end_region()
        self._at = stop

    def _skip(self, problem: str) -> None:
        stop = self._next_frame(None)
        self.flaws.append(ByteFlaw(self._at, stop, problem))
        self._at = stop

    def _next_frame(self, damaged: _Frame | None) -> int:
        """Return where the next valid frame begins after the one here, or the end."""
        data, end = self._data, len(self._data)
        if damaged is not None and (damaged.stop in (end, end - _TAIL_BYTES) or self._is_frame(damaged.stop)):
            return damaged.stop
        for match in _FRAME_HEAD.finditer(data, self._at + 1):
            if self._budget < 0:
                break
            if self._is_frame(match.start()):
                return match.start()
        return end

    def _is_frame(self, at: int) -> bool:
        frame = _frame(self._data, at)
        if frame is None:
            return False
        # Decoding compressed bytes that are none ends soon.
        self._budget -= len(frame.body) if frame.kind == _UNCOMPRESSED else _TRIED_BYTES
        return _proved(frame) is not None


class _Frame(NamedTuple):
    kind: int
    checksum: bytes
    body: memoryview
    stop: int


def _frame(data: bytes, at: int) -> _Frame | None:
    """Return the frame at this place, by its head; None if there cannot be one."""
    head = data[at : at + _HEAD_BYTES]
    if len(head) < _HEAD_BYTES or head[0] not in (_COMPRESSED, _UNCOMPRESSED):
        return None
    size = int.from_bytes(head[1:], "little")
    stop = at + _HEAD_BYTES + size
    if not _CHECKSUM_BYTES < size <= _MOST_FRAME_BYTES or stop > len(data):
        return None
    body = at + _HEAD_BYTES + _CHECKSUM_BYTES
    return _Frame(head[0], data[at + _HEAD_BYTES : body], memoryview(data)[body:stop], stop)


def _proved(frame: _Frame) -> bytes | None:
    if frame.kind == _COMPRESSED:
        try:
            content = kernels.s2_decode_block(frame.body, MAX_BLOCK_BYTES)
        except FormatError:
            return None
    elif len(frame.body) > MAX_BLOCK_BYTES:
        return None
    else:
        content = bytes(frame.body)
    return content if checksum_of(content) == frame.checksum else None


def _decoded_in_part(data: bytes) -> tuple[int, bytes]:
    """Return the declared size of a damaged frame's content, and what of it can be decoded. Its head may be wrong."""
    body = data[_HEAD_BYTES + _CHECKSUM_BYTES :]
    if data[0] == _UNCOMPRESSED:
        return int.from_bytes(data[1:_HEAD_BYTES], "little") - _CHECKSUM_BYTES, body[:MAX_BLOCK_BYTES]
    try:
        content = kernels.s2_decode_block(body, MAX_BLOCK_BYTES)
        return len(content), content
    except FormatError:
        return _prefix(body)


def _prefix(block: bytes) -> tuple[int, bytes]:
    """Return the declared size of an S2 block (`_kernels_py.py` has the format), and its content up to the damage."""
    declared = at = 0
    while at < min(5, len(block)):
        byte = block[at]
        declared |= (byte & 0x7F) << 7 * at
        at += 1
        if byte < 0x80:
            break
    declared = min(declared, MAX_BLOCK_BYTES)
    out = bytearray()
    offset = 0
    while at < len(block) and len(out) < declared:
        tag = block[at]
        kind, m = tag & 3, tag >> 2
        at += 1
        if kind == 0:
            extra = max(0, m - 59)
            length = (int.from_bytes(block[at : at + extra], "little") if extra else m) + 1
            at += extra
            out += block[at : at + min(length, declared - len(out))]
            at += length
            continue
        width = (0, 1, 2, 4)[kind]
        value, length = int.from_bytes(block[at : at + width], "little"), m + 1
        at += width
        if kind == 1:
            length = (m & 7) + 4
            value |= (m >> 3) << 8
            if value == 0:
                extra = max(0, (m & 7) - 4)
                if extra:
                    length = int.from_bytes(block[at : at + extra], "little") + (8, 260, 65540)[extra - 1]
                at += extra
                value = offset
        offset = value
        length = min(length, declared - len(out))
        if not 0 < offset <= len(out) or at > len(block):
            break
        pattern = bytes(out[len(out) - offset :][:length])
        out += (pattern * (length // len(pattern) + 1))[:length]
    return declared, bytes(out)
