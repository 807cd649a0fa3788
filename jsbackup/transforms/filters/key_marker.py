"""Messages of buckets that say that a key is gone: deleted or purged by a client, or removed by the server.

As nats.go reads them (`kv.go`), and so `nats backup edit` (jsm.go `backup/headers.go`): the first header `KV-Operation`
decides, if there is one that is not empty, otherwise `Nats-Marker-Reason`. Their names have this case.
"""

from __future__ import annotations

from enum import StrEnum

import pyarrow as pa

from jsbackup import compute as pc

__all__ = ["KeyOperation", "has_expired", "marker_rows", "operation_of"]

_OPERATION, _REASON = b"KV-Operation", b"Nats-Marker-Reason"
_EXPIRED = b"MaxAge"


class KeyOperation(StrEnum):
    """What a revision did to its key."""

    PUT = "put"
    DELETE = "delete"
    PURGE = "purge"  # with all earlier revisions; also if it expired


def operation_of(block: bytes | None) -> KeyOperation:
    """Return what the message with this header block did."""
    said = _said(block)
    if operation := said.get(_OPERATION):
        return {b"DEL": KeyOperation.DELETE, b"PURGE": KeyOperation.PURGE}.get(operation, KeyOperation.PUT)
    reasons = {b"Remove": KeyOperation.DELETE, _EXPIRED: KeyOperation.PURGE, b"Purge": KeyOperation.PURGE}
    return reasons.get(said.get(_REASON, b""), KeyOperation.PUT)


def has_expired(block: bytes | None) -> bool:
    """Return whether the message with this header block says that the key has expired: a purge, by its age or TTL."""
    said = _said(block)
    return not said.get(_OPERATION) and said.get(_REASON) == _EXPIRED


def _said(block: bytes | None) -> dict[bytes, bytes]:
    """Return the first value of each of the two headers."""
    said: dict[bytes, bytes] = {}
    for line in (block or b"").split(b"\n")[1:]:
        name, colon, value = line.removesuffix(b"\r").partition(b":")
        if colon and name in (_OPERATION, _REASON):
            said.setdefault(name, value.lstrip(b" \t"))
        elif not line.removesuffix(b"\r"):
            break
    return said


def marker_rows(column: pa.Array) -> pa.BooleanArray:
    """Return for each header block (null: none) whether its message says that the key is gone."""
    near = pc.or_(pc.match_substring(column, _OPERATION), pc.match_substring(column, _REASON))
    near = pc.fill_null(near, False)
    if not near.true_count:
        return near
    # Blocks of markers are alike: each is looked at once.
    encoded = column.filter(near).dictionary_encode()
    is_marker = [operation_of(block) is not KeyOperation.PUT for block in encoded.dictionary.to_pylist()]
    return pc.replace_with_mask(near, near, pa.array(is_marker, pa.bool_()).take(encoded.indices))
