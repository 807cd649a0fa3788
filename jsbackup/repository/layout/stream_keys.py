"""Keys of what a stream has: its folder, and the segments and other objects there. Keys of pages of streams too.

The key of such an object says what is in it, and then, in eight digits, which bytes these are (`stored_keys`). The same
messages become other bytes if they are encrypted again, or encoded by another version of a library. So whatever was
lost and is stored again, no key ever has other bytes than those that a manifest names with it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache

from jsbackup.errors import FormatError
from jsbackup.repository.names import decode_name, encode_name
from jsbackup.times import parse_time

__all__ = [
    "OPAQUE_KEY",
    "PAGE_KEY",
    "PENDING_KEY",
    "SEGMENTS",
    "STREAMS",
    "STREAM_PAGE_KEY",
    "SegmentKey",
    "StreamFolder",
    "content_key",
    "incarnation",
    "is_hidden_folder",
    "opaque_key",
    "page_key",
    "parse_segment_key",
    "parse_stream_folder",
    "pending_key",
    "segment_key",
    "stored_digits",
    "stored_keys",
    "stream_folder",
    "stream_page_key",
]

SEGMENTS = "segments/"
STREAMS = "streams/"
_MAX_SEQUENCE = (1 << 64) - 1
_FOLDER = r"segments/([A-Za-z0-9_%.-]+)-([0-9a-f]{8})"
SEGMENT_KEY = re.compile(
    rf"({_FOLDER})/([0-9]{{20}})-([0-9]{{20}})-([0-9a-f]{{64}})(?:\.([0-9a-f]{{8}}))?\.parquet(?:\.age)?"
)
PENDING_KEY = re.compile(rf"{_FOLDER}/pending-[0-9a-f]{{64}}(?:\.[0-9a-f]{{8}})?\.parquet(?:\.age)?")
OPAQUE_KEY = re.compile(rf"{_FOLDER}/opaque-[0-9a-f]{{64}}(?:\.[0-9a-f]{{8}})?\.zst(?:\.age)?")
PAGE_KEY = re.compile(rf"{_FOLDER}/page-[0-9a-f]{{64}}(?:\.[0-9a-f]{{8}})?\.json(?:\.age)?")
STREAM_PAGE_KEY = re.compile(r"streams/page-[0-9a-f]{64}(?:\.[0-9a-f]{8})?\.json\.zst(?:\.age)?")
_DIGITS = re.compile(r"\.[0-9a-f]{8}(?=\.(?:parquet|zst|json|json\.zst)(?:\.age)?$)")
_HIDDEN = re.compile(r"segments/[0-9a-f]{32}-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class StreamFolder:
    """The parts of a stream's folder. `name` is None if it was too long to be spelled out."""

    name: str | None
    incarnation: str


@dataclass(frozen=True, slots=True)
class SegmentKey:
    """The parts of a segment's key; `digits` are those of the stored bytes."""

    folder: str
    first_seq: int
    last_seq: int
    digest: str
    digits: str | None = None


def incarnation(cluster: str, account: str, name: str, created: str) -> str:
    """Return eight hex digits for one incarnation of a stream.

    `created` is RFC 3339 as the server writes it; raises `FormatError` for anything else.
    """
    parts = (cluster, account, name, str(parse_time(created, f"creation time of stream {name}")))
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:8]


@lru_cache(maxsize=1 << 14)  # `follow` asks for the same ones every two seconds
def stream_folder(name: str, incarnation: str) -> str:
    """Return the folder of a stream's objects, without a slash at the end. Raises `FormatError` for invalid parts."""
    if not name or not re.fullmatch(r"[0-9a-f]{8}", incarnation):
        raise FormatError(f"not a stream's name and incarnation: {name[:80]!r}, {incarnation[:80]!r}")
    return f"{SEGMENTS}{encode_name(name)}-{incarnation}"


def is_hidden_folder(folder: str) -> bool:
    """Whether this can be a stream's folder in an encrypted repository."""
    return _HIDDEN.fullmatch(folder) is not None


def parse_stream_folder(folder: str) -> StreamFolder:
    """Parse what `stream_folder` returns. Raises `FormatError` for anything else."""
    match = re.fullmatch(_FOLDER, folder)
    if match is None:
        raise FormatError(f"not a stream's folder: {folder[:300]!r}")
    return StreamFolder(decode_name(match[1]), match[2])


def segment_key(folder: str, first_seq: int, last_seq: int, name: str, *, digits: str = "", suffix: str = "") -> str:
    """Build a segment's key. `name` is the digest, or its HMAC; `digits` are the 8 of the stored bytes, "" in the key
    of the content alone. Raises `FormatError` for invalid parts.
    """
    dotted = f".{digits}" if digits else ""
    key = f"{folder}/{first_seq:020}-{last_seq:020}-{name}{dotted}.parquet{suffix}"
    parse_segment_key(key)
    return key


def stored_keys(key: str, sha256: str) -> list[str]:
    """Return the keys under which an object with this SHA-256 may be stored; `key` is that of its content, or one of
    these.

    The second one is used if the object under the first is damaged, and so on.
    """
    folder, _, name = content_key(key).rpartition("/")
    stem, _, suffix = name.partition(".")
    return [f"{folder}/{stem}.{sha256[at : at + 8]}.{suffix}" for at in range(0, 32, 8)]


def content_key(key: str) -> str:
    """Return the key of an object's content alone, without the digits of its bytes."""
    return _DIGITS.sub("", key)


def stored_digits(key: str) -> str:
    """Return the 8 digits of the bytes of an object; "" in the key of a content alone."""
    match = _DIGITS.search(key)
    return match[0][1:] if match else ""


def parse_segment_key(key: str) -> SegmentKey:
    """Parse a segment's key. Raises `FormatError` for anything else."""
    match = SEGMENT_KEY.fullmatch(key)
    if match is None:
        raise FormatError(f"not a segment's key: {key[:300]!r}")
    folder, _, _, first, last, digest, digits = match.groups()
    parse_stream_folder(folder)
    if not 1 <= int(first) <= int(last) <= _MAX_SEQUENCE:
        raise FormatError(f"not a segment's key: {key[:300]!r}")
    return SegmentKey(folder, int(first), int(last), digest, digits)


def pending_key(folder: str, name: str, suffix: str = "") -> str:
    return f"{folder}/pending-{name}.parquet{suffix}"


def opaque_key(folder: str, name: str, suffix: str = "") -> str:
    return f"{folder}/opaque-{name}.zst{suffix}"


def page_key(folder: str, name: str) -> str:
    """Return the key of a page, without the suffix of encryption, as of all documents."""
    return f"{folder}/page-{name}.json"


def stream_page_key(name: str) -> str:
    """Return the key of a page of streams, without the suffix of encryption, as of all documents."""
    return f"{STREAMS}page-{name}.json.zst"
