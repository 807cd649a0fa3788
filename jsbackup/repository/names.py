"""Names of streams and consumers as parts of keys and of file names.

A name is in UTF-8, percent-encoded but for `A–Z a–z 0–9 _ -`. File systems and S3 bound names in bytes, NATS bounds
stream names at 255 bytes, three times as many here at worst: an encoding of more than 200 bytes is cut at a character
to at most 160, followed by a dot (which no encoding contains) and the first 16 hex digits of SHA-256 of the whole name.
On a file system that ignores case, the incarnation of a stream (`layout/`) keeps `orders` and `ORDERS` apart.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from itertools import accumulate

from jsbackup.errors import FormatError

__all__ = ["decode_name", "encode_name", "encode_name_with_digest"]

_MAX_ENCODED = 200
_MAX_CUT = 160
_CUT_NAME = re.compile(r"(?:[A-Za-z0-9_-]|%[0-9A-F]{2})*\.[0-9a-f]{16}")
_SPELLED_AS_IS = re.compile(rf"[A-Za-z0-9_-]{{1,{_MAX_ENCODED}}}")
_WHOLE_NAME = re.compile(r"(?:[A-Za-z0-9_-]|%[0-9A-F]{2})+")


def decode_name(part: str) -> str | None:
    """Decode a part made by `encode_name`; None if the name was too long to be spelled out.

    Raises `FormatError` for anything else.
    """
    if _SPELLED_AS_IS.fullmatch(part):
        return part
    if _CUT_NAME.fullmatch(part) and len(part) <= _MAX_CUT + 17:
        return None
    if _WHOLE_NAME.fullmatch(part):
        data = re.sub(rb"%(..)", lambda m: bytes.fromhex(m[1].decode()), part.encode())
        try:
            name = data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            name = ""
        if name and encode_name(name) == part:
            return name
    raise FormatError(f"not a name as it is part of a key: {part[:300]!r}")


def encode_name(name: str) -> str:
    """Encode a name as a part of a key: safe in any file system, and never `.` or `..`."""
    if _SPELLED_AS_IS.fullmatch(name):
        return name
    encoded = [_encode_character(character) for character in name]
    if sum(map(len, encoded)) <= _MAX_ENCODED:
        return "".join(encoded)
    return _with_digest(name, encoded)


def encode_name_with_digest(name: str) -> str:
    """Encode a name as if it were too long to be spelled out: also where case is ignored, no two are the same."""
    return _with_digest(name, [_encode_character(character) for character in name])


def _with_digest(name: str, encoded: list[str]) -> str:
    count = bisect_right(list(accumulate(map(len, encoded))), _MAX_CUT)
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{''.join(encoded[:count])}.{digest}"


def _encode_character(character: str) -> str:
    if character.isascii() and (character.isalnum() or character in "_-"):
        return character
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))
