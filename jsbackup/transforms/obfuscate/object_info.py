"""The description of a file in an object store, for a file whose content has become zeros (the character `0`).

Its message (nats.go `object.go` ObjectInfo, ADR-20) names the file, its bucket and its chunks, has the digest of the
content, and may have a description, metadata and headers. The result has hashed names, the digest of as many zeros, and
the numbers and times; nothing else.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import urlsafe_b64encode
from functools import lru_cache
from typing import Any

from jsbackup.errors import FormatError
from jsbackup.model import JsonObject
from jsbackup.names import OBJECT_STREAM
from jsbackup.strict_json import read_object
from jsbackup.transforms.obfuscate.names import ObfuscatedNames

__all__ = ["ZERO", "digest_of_zeros", "obfuscate_object_info"]

ZERO = b"0"
_STEP = 16 << 20
# A larger size is more likely damaged: no digest is made for it, which would take minutes.
_MOST_BYTES = 64 << 30
_TIME = re.compile(r"[-+:.0-9TZ]{10,40}", re.ASCII)


def obfuscate_object_info(payload: bytes, names: ObfuscatedNames) -> bytes | None:
    """Return the payload of a description; None if it is not one."""
    try:
        info = read_object(payload, "a description")
    except FormatError:
        return None
    if not isinstance(info.get("name"), str) or not isinstance(info.get("bucket"), str):
        return None
    out: JsonObject = {"name": names.object(info["name"])}
    if options := _options(info.get("options"), names):
        out["options"] = options
    out["bucket"] = _bucket(info["bucket"], names)
    if isinstance(nuid := info.get("nuid"), str):
        out["nuid"] = names.token(nuid)
    size = info.get("size")
    for field in ("size", "mtime", "chunks"):
        value = info.get(field)
        if _is_count(value) or (field == "mtime" and isinstance(value, str) and _TIME.fullmatch(value)):
            out[field] = value
    if isinstance(info.get("digest"), str) and info["digest"] and type(size) is int and 0 <= size <= _MOST_BYTES:
        out["digest"] = "SHA-256=" + digest_of_zeros(size)
    if isinstance(info.get("deleted"), bool):
        out["deleted"] = info["deleted"]
    return json.dumps(out, separators=(",", ":")).encode()


def _options(options: Any, names: ObfuscatedNames) -> JsonObject:
    if not isinstance(options, dict):
        return {}
    out: JsonObject = {}
    link = options.get("link")
    if isinstance(link, dict):
        out["link"] = {"bucket": _bucket(str(link.get("bucket") or ""), names)}
        if isinstance(link.get("name"), str):
            out["link"]["name"] = names.object(link["name"])
    if _is_count(options.get("max_chunk_size")):
        out["max_chunk_size"] = options["max_chunk_size"]
    return out


def _bucket(name: str, names: ObfuscatedNames) -> str:
    return names.stream(OBJECT_STREAM + name)[len(OBJECT_STREAM) :] if name else ""


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


@lru_cache(maxsize=4096)
def digest_of_zeros(size: int) -> str:
    """Return SHA-256 of so many characters `0`, in base64 as clients write it."""
    digest, step = hashlib.sha256(), ZERO * min(size, _STEP)
    for _ in range(size // _STEP):
        digest.update(step)
    digest.update(step[: size % _STEP])
    return urlsafe_b64encode(digest.digest()).decode()
