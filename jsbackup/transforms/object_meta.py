"""Rename buckets within the metadata of an object bucket.

Each object has a message on `$O.<bucket>.M.<name in base64>` whose payload describes it in JSON (nats.go `object.go`
ObjectInfo, ADR-20). Two members name buckets: `bucket`, which contains it, and `options.link.bucket`, the target of a
link; clients compare the latter with their own to see whether a link leaves the bucket. The rest stays byte for byte,
as does a payload that is not such JSON, which clients cannot read anyway.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from jsbackup.errors import FormatError
from jsbackup.transforms.json_path import JsonPath
from jsbackup.transforms.json_text import decode_text, find, splice

__all__ = ["META", "rename_in_meta"]

META = "$O.*.M.>"  # subjects of metadata
_PATHS = (JsonPath.parse("$.bucket"), JsonPath.parse("$.options.link.bucket"))


def rename_in_meta(payload: bytes, rename: Callable[[str], str]) -> bytes:
    """Return the payload with the new names of object buckets; `rename` returns one for each name."""
    try:
        text = decode_text(payload)
        for path in _PATHS:
            spans = find(text, path)
            values = [text[start:stop] for start, stop in spans]
            text = splice(text, spans, [_renamed(value, rename) for value in values])
        return text.encode()
    except FormatError:
        return payload


def _renamed(value: str, rename: Callable[[str], str]) -> str:
    if not value.startswith('"'):
        return value
    old = json.loads(value)
    new = rename(old)
    return value if new == old else json.dumps(new, ensure_ascii=False)
