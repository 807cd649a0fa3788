"""Changes to the metadata of an object bucket: renamed buckets, and digests of contents that become zeros.

Each object has a message on `$O.<bucket>.M.<name in base64>` whose payload describes it in JSON (nats.go `object.go`
ObjectInfo, ADR-20). Its content is in messages on `$O.<bucket>.C.<nuid>`. Two members name buckets: `bucket`, which
contains it, and `options.link.bucket`, the target of a link; clients compare the latter with their own to see whether a
link leaves the bucket. `digest` is `SHA-256=` and the content's digest in base64; clients refuse a content with another
one. The rest stays byte for byte, as does a payload that is not such JSON, which clients cannot read anyway.
"""

from __future__ import annotations

import hashlib
import json
from base64 import urlsafe_b64encode
from collections.abc import Callable
from functools import cache
from typing import Any

from jsbackup.errors import FormatError
from jsbackup.formats.json_text import decode_text, find_spans, splice
from jsbackup.strict_json import read_json
from jsbackup.transforms.json_path import Step, parse_path

__all__ = ["META_SUBJECTS", "MOST_REPEATED", "chunks_of", "digest_of", "rename_in_meta", "with_zeros"]

META_SUBJECTS = "$O.*.M.>"  # subjects of metadata
_PATHS = (parse_path("$.bucket"), parse_path("$.options.link.bucket"))

_CONTENT = (parse_path("$.nuid"), parse_path("$.size"), parse_path("$.digest"))
_SHA256 = "sha-256="  # some clients have written it in lower case
_LONGEST = 4096  # characters of a value that is looked at
_STEP = 16 << 20
MOST_REPEATED = 64 << 30
"""A larger size is more likely damaged: no digest is made for it, which would take minutes."""


def rename_in_meta(payload: bytes, rename: Callable[[str], str]) -> bytes:
    """Return the payload with the new names of object buckets; `rename` returns one for each name."""
    try:
        text = decode_text(payload)
        for path in _PATHS:
            spans = find_spans(text, path)
            values = [text[start:stop] for start, stop in spans]
            text = splice(text, spans, [_renamed(value, rename) for value in values])
        return text.encode()
    except FormatError:
        return payload


def chunks_of(meta: str, nuid: str) -> str:
    """Return the subject of an object's chunks, given that of its metadata and the nuid in it."""
    return f"$O.{meta.split('.')[1]}.C.{nuid}"


def with_zeros(payload: bytes, are_zeros: Callable[[str], bool]) -> bytes:
    """Return the payload with the digest of zeros, if `are_zeros` says so for its nuid."""
    try:
        text = decode_text(payload)
        nuid, size, digest = (_only(text, path) for path in _CONTENT)
        if not isinstance(nuid, str) or not isinstance(digest, str) or type(size) is not int:
            return payload
        if not 0 < size <= MOST_REPEATED or digest[: len(_SHA256)].lower() != _SHA256 or not are_zeros(nuid):
            return payload
        zeros = digest_of(b"\0", size)
        return splice(text, find_spans(text, _CONTENT[-1]), [json.dumps(digest[: len(_SHA256)] + zeros)]).encode()
    except FormatError:
        return payload


def _only(text: str, path: tuple[Step, ...]) -> Any:
    """Return the value of a path, None unless there is exactly one."""
    spans = find_spans(text, path)
    short = len(spans) == 1 and spans[0][1] - spans[0][0] < _LONGEST
    return read_json(text[slice(*spans[0])], "a description") if short else None


def digest_of(byte: bytes, size: int) -> str:
    """Return SHA-256 of this byte so many times, at most `MOST_REPEATED`, in base64 as clients write it."""
    for steps in range(size // _STEP):  # in this order, so that each needs the one before only
        _after(byte, steps)
    state = _after(byte, size // _STEP).copy()
    state.update(byte * (size % _STEP))
    return urlsafe_b64encode(state.digest()).decode()


@cache
def _after(byte: bytes, steps: int) -> Any:
    """Return SHA-256 after this number of steps of the byte."""
    if not steps:
        return hashlib.sha256()
    state = _after(byte, steps - 1).copy()
    state.update(byte * _STEP)
    return state


def _renamed(value: str, rename: Callable[[str], str]) -> str:
    if not value.startswith('"'):
        return value
    old = read_json(value, "a name")
    new = rename(old)
    return value if new == old else json.dumps(new, ensure_ascii=False)
