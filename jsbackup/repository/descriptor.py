"""The descriptor `jsbackup.json`: what makes a location a repository, and what it takes to read it.

`required_features` names what a tool must know before it touches anything: a tool that does not know one of them stops.
None is defined yet (encryption will be one).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jsbackup.model import JsonObject
from jsbackup.repository.document import decode_document, encode_document
from jsbackup.stores.base import Data

__all__ = ["FORMAT_VERSION", "KNOWN_FEATURES", "Descriptor", "decode_descriptor", "encode_descriptor"]

FORMAT_VERSION = 1
KNOWN_FEATURES: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Descriptor:
    """`id` is a random name of the repository, `created` RFC 3339, `tool` name and version of who made it."""

    id: str
    created: str
    tool: str
    required_features: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


def encode_descriptor(descriptor: Descriptor) -> bytes:
    document: JsonObject = {
        **descriptor.extra,
        "format": FORMAT_VERSION,
        "required_features": list(descriptor.required_features),
        "id": descriptor.id,
        "created": descriptor.created,
        "tool": descriptor.tool,
    }
    return encode_document(document, "repository descriptor")


def decode_descriptor(data: Data) -> Descriptor:
    """Raises `FormatError` if it is damaged, `UnsupportedError` if a later tool is needed."""
    fields = decode_document(data, "repository descriptor")
    fields.version(FORMAT_VERSION, KNOWN_FEATURES)
    return Descriptor(
        id=fields.text("id"),
        created=fields.text("created"),
        tool=fields.text("tool"),
        required_features=fields.texts("required_features"),
        extra=fields.rest(),
    )
