"""The descriptor `jsbackup.json`: what makes a location a repository, and what it takes to read it.

`required_features` names the features that a tool must know: a tool that does not know one of them stops.

    signatures    documents are signed; `"signatures": {"scheme": "ed25519", "authority": <64 hex digits>}` says by
                  whose leave (`writers.py`)
    pages         long lists of segments are stored in pages (`pages/`)
    encryption    all but this, `keys/` and leases is encrypted; `"encryption": {"scheme": "age", "recipient": "age1…"}`
                  says for whom. Goes with signatures.

`segment_bytes` is the raw size of new segments, and `compression` says how they are compressed, if another than the
usual one was chosen. No features: a tool that does not know them keeps them, and makes segments of the usual size,
compressed as usual, which all can read.

The descriptor is in the same store as everything else, so with a key it is checked first: see `access.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from jsbackup.errors import UnsupportedError
from jsbackup.formats.compression import ZSTD, Compression
from jsbackup.model import JsonObject
from jsbackup.repository import layout
from jsbackup.repository.document import DocumentFields, decode_document, encode_document
from jsbackup.repository.segment_size import MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES, SEGMENT_BYTES
from jsbackup.stores.base import Data

__all__ = ["FORMAT_VERSION", "KNOWN_FEATURES", "Descriptor", "decode_descriptor", "encode_descriptor"]

FORMAT_VERSION = 1
SIGNATURES = "signatures"
ENCRYPTION = "encryption"
PAGES = "pages"
KNOWN_FEATURES = frozenset({SIGNATURES, ENCRYPTION, PAGES})

_SEGMENT_BYTES = "segment_bytes"
_COMPRESSION = "compression"

# Another document, put in place of the descriptor by mistake, has an id of another form, or none.
_ID = re.compile(r"(?:[0-9a-f]{2}){1,32}")
_RECIPIENT = re.compile(r"age1[0-9a-z]{58}")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """`id` is a random name of the repository, in hex; `created` is RFC 3339; `tool` is the name and version of the
    maker.

    `authority` is the public key behind all signatures, None if nothing is signed. `recipient` is the public key that
    content is encrypted for, None if nothing is. `segment_bytes` is the size of new segments, raw, and `compression` is
    theirs.
    """

    id: str
    created: str
    tool: str
    authority: str | None = None
    recipient: str | None = None
    segment_bytes: int = SEGMENT_BYTES
    compression: Compression = ZSTD
    extra: Mapping[str, Any] = field(default_factory=dict)


def encode_descriptor(descriptor: Descriptor) -> bytes:
    features: JsonObject = {}
    if descriptor.recipient is not None:
        features[ENCRYPTION] = {"scheme": "age", "recipient": descriptor.recipient}
    if descriptor.authority is not None:
        features[SIGNATURES] = {"scheme": "ed25519", "authority": descriptor.authority}
    chosen: JsonObject = {}
    if descriptor.segment_bytes != SEGMENT_BYTES:
        chosen[_SEGMENT_BYTES] = descriptor.segment_bytes
    if descriptor.compression != ZSTD:
        chosen[_COMPRESSION] = str(descriptor.compression)
    document: JsonObject = {
        **descriptor.extra,
        **features,
        **chosen,
        "format": FORMAT_VERSION,
        "required_features": sorted([*features, PAGES]),
        "id": descriptor.id,
        "created": descriptor.created,
        "tool": descriptor.tool,
    }
    return encode_document(document, "repository descriptor")


def decode_descriptor(data: Data, key: str = layout.DESCRIPTOR) -> Descriptor:
    """Decode the descriptor stored under `key`.

    Raises `FormatError` if it is damaged, `UnsupportedError` if a later tool is needed.
    """
    fields = decode_document(data, f"repository descriptor {key}")
    fields.version(FORMAT_VERSION, KNOWN_FEATURES)
    features = set(fields.texts("required_features"))
    signatures = _feature(fields, SIGNATURES, "ed25519", features)
    encryption = _feature(fields, ENCRYPTION, "age", features)
    recipient = None if encryption is None else encryption.text("recipient")
    if recipient is not None and (signatures is None or not _RECIPIENT.fullmatch(recipient)):
        fields.wrong(ENCRYPTION, "that of a signed repository, with an age recipient")
    repository_id = fields.text("id")
    if not _ID.fullmatch(repository_id):
        fields.wrong("id", "that of a repository")
    fields.time_ns("created")
    segment_bytes = SEGMENT_BYTES
    if fields.get(_SEGMENT_BYTES) is not None:
        segment_bytes = fields.number(_SEGMENT_BYTES, MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES)
    compression = ZSTD
    if fields.get(_COMPRESSION) is not None:
        try:
            compression = Compression.parse(fields.text(_COMPRESSION))
        except ValueError:
            fields.wrong(_COMPRESSION, "none, zstd, or zstd with a level")
    return Descriptor(
        id=repository_id,
        created=fields.text("created"),
        tool=fields.text("tool"),
        authority=None if signatures is None else signatures.hex256("authority"),
        recipient=recipient,
        segment_bytes=segment_bytes,
        compression=compression,
        extra=fields.rest(),
    )


def _feature(fields: DocumentFields, name: str, scheme: str, required: Collection[str]) -> DocumentFields | None:
    """Return the descriptor's fields for a feature, None if it does not have it."""
    found = fields.optional_fields(name)
    if (found is not None) != (name in required):
        fields.wrong(name, "what required_features says")
    if found is not None and (other := found.text("scheme")) != scheme:
        raise UnsupportedError(f"{found.where}: unknown scheme {other[:80]!r}", hint="Use a newer jsbackup.")
    return found
