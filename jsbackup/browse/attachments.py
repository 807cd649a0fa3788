"""Bytes to keep as a file. A browser never shows them: they may be anything."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote

from starlette.responses import StreamingResponse

__all__ = ["attachment"]

_LONGEST = 120


def attachment(name: str, pieces: Iterable[bytes], size: int) -> StreamingResponse:
    """Return the bytes as a file. `name` is what a client called it; only its last part counts, without odd signs."""
    last = re.split(r"[/\\]", name)[-1].strip(" .") or "file"
    kept = "".join(c if c.isprintable() and c not in '"*:<>?|%' else "_" for c in last)[:_LONGEST]
    plain = kept.encode("ascii", "replace").decode().replace("?", "_")
    exact = quote(kept.encode("utf-8", "replace"))
    headers = {
        "Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{exact}",
        "Content-Length": str(size),
    }
    return StreamingResponse(pieces, media_type="application/octet-stream", headers=headers)
