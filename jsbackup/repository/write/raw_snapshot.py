"""A snapshot that cannot be decoded, kept verbatim: the bytes as they came, in zstd frames.

Each piece is one object of one zstd frame, made from `PIECE_BYTES` of the snapshot (the last from what is left); the
manifest has them in order. `zstd -dc` over all of them gives the server's S2 stream, which a server of the same kind
can restore. Pieces are named by the SHA-256 of the frame, so a second attempt at the same bytes stores nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import zstandard

from jsbackup.errors import FormatError
from jsbackup.repository import layout
from jsbackup.repository.manifest import OpaqueRef
from jsbackup.repository.objects import Objects, sha256_of
from jsbackup.stores.base import Data

__all__ = ["PIECE_BYTES", "OpaqueWriter", "read_opaque", "read_piece"]

PIECE_BYTES = 32 << 20

# The S2 stream is compressed already; more effort gains nothing.
_LEVEL = 1

# What a reference may declare. Ours have PIECE_BYTES; a later version may choose another size.
_MAX_PIECE_BYTES = 256 << 20


class OpaqueWriter:
    """Stores a byte stream below `folder`. Holds up to one piece, raw and compressed."""

    def __init__(self, objects: Objects, folder: str, *, piece_bytes: int = PIECE_BYTES) -> None:
        self._objects = objects
        self._folder = folder
        self._piece_bytes = piece_bytes
        self._held = bytearray()
        self._refs: list[OpaqueRef] = []
        self.stored_bytes = 0

    def feed(self, data: Data) -> None:
        """Append bytes; a full piece is stored."""
        view = memoryview(data).cast("B")
        while view:
            room = self._piece_bytes - len(self._held)
            self._held += view[:room]
            view = view[room:]
            if len(self._held) == self._piece_bytes:
                self._store_piece()

    def finish(self) -> list[OpaqueRef]:
        """Store the rest, and return all pieces, in order."""
        if self._held:
            self._store_piece()
        return self._refs

    def _store_piece(self) -> None:
        data = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(self._held)
        sealing = self._objects.sealing
        key = layout.opaque_key(self._folder, sealing.name(sha256_of(data)), sealing.suffix)
        stored = self._objects.put_once(key, data)
        ref = OpaqueRef(stored.key, stored.size, stored.sha256, len(self._held))
        if stored.added:
            self.stored_bytes += ref.size
        self._refs.append(ref)
        self._held = bytearray()


def read_opaque(objects: Objects, refs: Iterable[OpaqueRef]) -> Iterator[bytes]:
    """Yield the bytes, piece by piece, each verified first. Errors as `Objects.fetch`."""
    for ref in refs:
        yield read_piece(objects, ref)


def read_piece(objects: Objects, ref: OpaqueRef) -> bytes:
    """Return one piece. Raises `FormatError` if it does not match its reference."""
    data = objects.fetch(ref)
    try:
        # The frame declares its content size, which is checked before memory is allocated.
        if zstandard.frame_content_size(data) != ref.bytes or ref.bytes > _MAX_PIECE_BYTES:
            raise FormatError(f"piece {ref.key} of a raw snapshot does not have {ref.bytes} bytes")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=ref.bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FormatError(f"piece {ref.key} of a raw snapshot: {str(error)[:200]}") from error
