"""The mark of a stream that is being restored: a metadata key, by which the next restore recognizes a leftover.
Pure.
"""

from __future__ import annotations

from jsbackup.model import JsonObject
from jsbackup.protocol.info import MARKER

__all__ = ["MARKER", "about_mark", "is_marked", "with_marker"]


def with_marker(config: JsonObject, backup: str) -> JsonObject:
    """Return the configuration of a stream that is being restored from `backup`."""
    return {**config, "metadata": {**(config.get("metadata") or {}), MARKER: backup}}


def is_marked(config: JsonObject) -> bool:
    """Return whether the stream is not complete yet, or was not when its restore was interrupted."""
    return MARKER in (config.get("metadata") or {})


def about_mark(config: JsonObject) -> tuple[str, ...]:
    """Return a warning for the backup of a stream with the mark."""
    if not is_marked(config):
        return ()
    backup = config["metadata"][MARKER]
    return (
        f"it may be incomplete: a restore of backup {backup} into it was interrupted "
        f"(its metadata key {MARKER} says so); restore it again, or remove the key if it is whole",
    )
