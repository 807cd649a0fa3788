"""The time to live of a single message, which its header `Nats-TTL` has.

A server counts it from the message's timestamp, also in a restored stream, and removes what has outlived it at once
(measured: nats-server 2.11.11, 2.12.8 and 2.15.1). It finds the header by its exact name, and only heeds it in a stream
with `allow_msg_ttl`.
"""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["NEVER", "ttl_of", "ttl_seconds"]

NEVER = -1
"""The time to live of a message that does not expire, not even by the `max_age` of its stream."""

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_LINE = b"\r\nNats-TTL:"


def ttl_seconds(text: str) -> int | None:
    """Return whole seconds as the server reads them, `NEVER`, or 0 for none; None if it is not valid."""
    if not text:
        return 0
    if text.lower() == "never":
        return NEVER
    if re.fullmatch(r"\d{1,18}", text, re.ASCII):
        return int(text)
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    return int(seconds) if 1 <= seconds < 1e10 else None


def ttl_of(block: bytes) -> int:
    """Return the same for a header block; 0 if it has none, or none that is valid."""
    at = block.find(_LINE)
    if at < 0:
        return 0
    start = at + len(_LINE)
    end = block.find(b"\r\n", start)
    return _value(block[start : end if end >= 0 else len(block)])


@lru_cache(maxsize=4096)  # most messages of a stream have the same few
def _value(text: bytes) -> int:
    return ttl_seconds(text.decode("utf-8", "replace").strip(" \t")) or 0
