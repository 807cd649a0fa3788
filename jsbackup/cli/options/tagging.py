"""Options of a backup at its creation, and for choosing it: tags, origin, the end of a lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsbackup.config import Glob, parse_duration, parse_typed_time
from jsbackup.errors import UsageError

if TYPE_CHECKING:
    from jsbackup.repository.keep.retention import TagRule

__all__ = ["parse_lock_end", "parse_origin", "parse_tag_rule", "parse_tags"]


def parse_tags(texts: tuple[str, ...]) -> dict[str, str]:
    """Parse `K=V` texts to a mapping. Raises UsageError for anything else."""
    tags = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f"not a tag: {text!r}", hint="Write it as KEY=VALUE.")
        tags[key] = value
    return tags


def parse_lock_end(text: str) -> tuple[float | None, float | None]:
    """Parse a time to seconds since the epoch, or a duration to seconds. Raises UsageError for anything else."""
    if text[:4].isdecimal() and "-" in text:
        return parse_typed_time(text) / 10**9, None
    return None, parse_duration(text)


def parse_origin(text: str) -> Glob:
    """Parse a cluster, an account, a domain, or a pattern of them. Raises UsageError."""
    if not text.strip() or not text.isprintable():
        raise UsageError(
            f"no cluster, account or domain can be named {text!r}", hint="See 'jsbackup list' for those there are."
        )
    return Glob(text)


def parse_tag_rule(text: str) -> TagRule:
    """Parse `KEY` or `KEY=VALUE` to a rule. Raises UsageError for anything else."""
    from jsbackup.repository.keep.retention import TagRule

    key, equals, value = text.partition("=")
    if not key:
        raise UsageError(f"not a tag: {text!r}", hint="Write it as KEY or as KEY=VALUE.")
    return TagRule(key, value if equals else None)
