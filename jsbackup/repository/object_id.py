"""A short id for all that a manifest says about an object: its key, its bytes and its content."""

from __future__ import annotations

import hashlib

from jsbackup.repository.manifest import AnyRef, OpaqueRef, SegmentRef

__all__ = ["ID_BYTES", "id_of"]

# Bytes of SHA-256: collisions among a million objects are unlikely.
ID_BYTES = 12


def id_of(ref: AnyRef) -> bytes:
    """Return `ID_BYTES` bytes that identify key, size, SHA-256 and the stated content."""
    said: tuple[object, ...] = (ref.key, ref.size, ref.sha256)
    if isinstance(ref, SegmentRef):
        said += (ref.first_seq, ref.last_seq, ref.messages, ref.bytes, ref.digest, ref.fingerprint.hex)
    elif isinstance(ref, OpaqueRef):
        said += (ref.bytes,)
    return hashlib.sha256("\0".join(map(str, said)).encode()).digest()[:ID_BYTES]
