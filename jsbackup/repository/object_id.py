"""A short name for what a manifest says of an object: where it is, what bytes it has, and what they come to."""

from __future__ import annotations

import hashlib

from jsbackup.repository.manifest import AnyRef, OpaqueRef, SegmentRef

__all__ = ["ID_BYTES", "id_of"]

# Of SHA-256: of a million objects no two are likely to share them.
ID_BYTES = 12


def id_of(ref: AnyRef) -> bytes:
    """`ID_BYTES` bytes that stand for key, size, SHA-256 and what is said of the content."""
    said: tuple[object, ...] = (ref.key, ref.size, ref.sha256)
    if isinstance(ref, SegmentRef):
        said += (ref.first_seq, ref.last_seq, ref.messages, ref.bytes, ref.digest, ref.fingerprint.hex)
    elif isinstance(ref, OpaqueRef):
        said += (ref.bytes,)
    return hashlib.sha256("\0".join(map(str, said)).encode()).digest()[:ID_BYTES]
