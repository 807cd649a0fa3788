"""The tar layer of archive v1: reads and writes members, supporting only the parts of tar that the server uses.

Written by Go's `archive/tar` with `FormatPAX`, read by the same package. A member is a header of 512 bytes and its
content padded to a multiple of 512; two zero blocks end the archive. Header fields (POSIX ustar): name 0-99, mode
100-107, size 124-135 (octal), checksum 148-155 (sum of all bytes, itself taken as spaces), type 156, magic 257-262,
version 263-264, prefix 345-499. A member of type `x` before another one holds PAX records (`<length> <key>=<value>\\n`)
that override it: the server writes one before each member, for the modification time, and for names that are long or
not ASCII. Anything else (links, directories, sparse files, base-256 numbers, global records) is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jsbackup.errors import FormatError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["TAR_BLOCK_BYTES", "TAR_END", "TarPiece", "TarReader", "header_name", "tar_header", "tar_padding"]

TAR_BLOCK_BYTES = 512
TAR_END = bytes(2 * TAR_BLOCK_BYTES)

_ZERO_BLOCK = bytes(TAR_BLOCK_BYTES)
_MAGIC = b"ustar\x0000"
# Room for a consumer name of 255 bytes, a few folders, and a time.
_MAX_PAX_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class TarPiece:
    """Consecutive bytes of a member. An empty member has one empty piece."""

    name: str
    size: int
    offset: int
    data: memoryview

    @property
    def is_last(self) -> bool:
        return self.offset + len(self.data) == self.size


class TarReader:
    """Takes a tar archive in pieces of any size and yields its members as `TarPiece`s, without collecting them."""

    __slots__ = ("_block", "_end_blocks", "_name", "_offset", "_padding", "_passed", "_path", "_pax", "_size", "_type")

    def __init__(self) -> None:
        self._passed = 0
        self._block = bytearray()  # of an incomplete header
        self._name: str | None = None  # of the member whose content is next
        self._type = "0"
        self._size = self._offset = self._padding = 0
        self._pax = bytearray()
        self._path: str | None = None  # the path of the next member from PAX records
        self._end_blocks = 0

    def feed(self, data: Buffer) -> Iterator[TarPiece]:
        """Yield pieces of the members in `data`, as views of it. Iterate to the end. Raises `FormatError`."""
        view = memoryview(data).cast("B")
        at = 0
        while at < len(view):
            if self._padding:
                step = min(self._padding, len(view) - at)
                self._padding -= step
            elif self._name is not None:
                step = min(self._size - self._offset, len(view) - at)
                yield from self._content(view[at : at + step])
            else:
                step = min(TAR_BLOCK_BYTES - len(self._block), len(view) - at)
                self._block += view[at : at + step]
                if len(self._block) == TAR_BLOCK_BYTES:
                    block, self._block = bytes(self._block), bytearray()
                    yield from self._header(block)
            at += step
            self._passed += step

    def finish(self) -> None:
        """Raise `FormatError` unless the archive is complete."""
        if self._end_blocks < 2 or self._block:
            raise FormatError(f"tar archive: cut short after {self._passed} bytes")

    def _content(self, data: memoryview) -> Iterator[TarPiece]:
        name, offset = self._name, self._offset
        if name is None:
            return
        self._offset += len(data)
        if self._offset == self._size:
            self._name = None
            self._padding = -self._size % TAR_BLOCK_BYTES
        if self._type == "0":
            yield TarPiece(name, self._size, offset, data)
            return
        self._pax += data
        if self._name is None:
            self._path = _pax_path(bytes(self._pax))
            self._pax = bytearray()

    def _header(self, block: bytes) -> Iterator[TarPiece]:
        if block == _ZERO_BLOCK:
            if self._path is not None:
                raise FormatError("tar archive: no member after PAX records")
            self._end_blocks += 1
            return
        if self._end_blocks:
            raise FormatError(f"tar archive: more after its end at byte {self._passed}")
        name = header_name(block)
        if name is None:
            raise FormatError(f"tar archive: bad header before byte {self._passed}")
        kind, size = block[156:157], _octal(block[124:136])
        if kind == b"x":
            if self._path is not None or not 0 < size <= _MAX_PAX_BYTES:
                raise FormatError(f"tar archive: bad PAX records before byte {self._passed}")
            self._type = "x"
        elif kind in (b"0", b"\x00"):
            self._type = "0"
            name, self._path = self._path or name, None
        else:
            raise FormatError(f"tar archive: a member of type {kind!r} before byte {self._passed}")
        self._name, self._size, self._offset = name, size, 0
        if size == 0:
            yield from self._content(memoryview(b""))


def header_name(block: bytes) -> str | None:
    """Return the name in a header of 512 bytes; None if it is not a supported tar header (including its checksum)."""
    if len(block) != TAR_BLOCK_BYTES or block[257:265] != _MAGIC:
        return None
    try:
        stated = _octal(block[148:156])
        name = _text(block[0:100])
        prefix = _text(block[345:500])
    except FormatError:
        return None
    if stated != sum(block) - sum(block[148:156]) + 8 * 0x20:
        return None
    return f"{prefix}/{name}" if prefix else name


def _octal(field: bytes) -> int:
    digits = field.strip(b" \x00")
    if not digits or digits.strip(b"01234567"):
        raise FormatError("tar archive: a field is not an octal number")
    return int(digits, 8)


def _text(field: bytes) -> str:
    text = field.partition(b"\x00")[0]
    if not text.isascii():
        raise FormatError("tar archive: a name is not ASCII")
    return text.decode("ascii")


def _pax_path(records: bytes) -> str:
    """Return the `path` in PAX records, or "". Records that would change the member's meaning are refused."""
    path = ""
    while records:
        length = records.partition(b" ")[0]
        if not length.isdigit() or len(length) > 5 or not len(length) + 1 < int(length) <= len(records):
            raise FormatError("tar archive: bad PAX record")
        record, records = records[: int(length)], records[int(length) :]
        key, equals, value = record[len(length) + 1 : -1].partition(b"=")
        if not equals or record[-1:] != b"\n":
            raise FormatError("tar archive: bad PAX record")
        if key == b"path":
            try:
                path = value.decode()
            except UnicodeDecodeError as error:
                raise FormatError("tar archive: a name is not UTF-8") from error
        elif key not in (b"mtime", b"atime", b"ctime", b"uname", b"gname"):
            raise FormatError(f"tar archive: PAX record {key[:32]!r} is not supported")
    return path


def tar_header(name: str, size: int) -> bytes:
    """Return the header of a regular file, with PAX records before it if the name needs them (Go's reader accepts
    both).
    """
    encoded = name.encode()
    if len(encoded) <= 100 and encoded.isascii():
        return _header_block(encoded, size, b"0")
    body = b" path=" + encoded + b"\n"
    length = len(body) + 1
    while len(str(length)) + len(body) != length:
        length += 1
    records = str(length).encode() + body
    return b"".join(
        (
            _header_block(b"PaxHeaders.0/member", len(records), b"x"),
            records,
            tar_padding(len(records)),
            _header_block(encoded.decode("ascii", "replace").encode("ascii", "replace")[:100], size, b"0"),
        )
    )


def tar_padding(size: int) -> bytes:
    """Return the zeros after a content of this size."""
    return bytes(-size % TAR_BLOCK_BYTES)


def _header_block(name: bytes, size: int, kind: bytes) -> bytes:
    if size >= 8**11:
        raise FormatError(f"tar archive: a member of {size} bytes is too large")
    fields = (
        name.ljust(100, b"\x00"),
        b"0000600\x000000000\x000000000\x00",  # mode, user, group
        b"%011o\x00" % size,
        b"00000000000\x00",  # modification time
        b" " * 8,
        kind,
        bytes(100),
        _MAGIC,
        bytes(32 + 32 + 8 + 8 + 155 + 12),
    )
    block = b"".join(fields)
    return block[:148] + b"%06o\x00 " % sum(block) + block[156:]
