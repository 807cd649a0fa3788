"""The names of buckets within an object bucket's metadata: they follow when buckets are renamed.

Each object has a message on `$O.<bucket>.M.<name in base64>` whose payload tells of it in JSON (nats.go `object.go`
ObjectInfo, ADR-20). Two members name buckets: `bucket`, the one it is in, and `options.link.bucket`, the one a link
leads to; clients compare the latter with their own to see whether a link leaves the bucket. All else stays byte for
byte, and so does a payload that is not such JSON: clients cannot read it either, before or after.
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
    """The payload with the new names of object buckets; `rename` gives one for each name."""
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
