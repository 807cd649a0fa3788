"""Tags and origins, by which backups are chosen, and the end of a lock, parsed from what was typed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jsbackup.config import Glob, parse_duration, parse_typed_time
from jsbackup.errors import UsageError

if TYPE_CHECKING:
    from jsbackup.repository.keep.retention import TagRule

__all__ = [
    "Choosing",
    "parse_choosing",
    "parse_lock_end",
    "parse_origin",
    "parse_tag_rule",
    "parse_tags",
]


@dataclass(frozen=True, slots=True)
class Choosing:
    """The values of `--origin` and `--tag`; `given` if the command has them."""

    origins: tuple[Glob, ...] = ()
    tags: tuple[TagRule, ...] = ()
    given: bool = False


def parse_choosing(origins: Sequence[str], tags: Sequence[str], backups: Sequence[str | None] = ()) -> Choosing:
    """Parse the options. Raises UsageError for invalid ones, and if all `backups` that the command names are ids."""
    ids = [text for text in backups if text not in (None, "", "latest", "live")]
    if ids and "latest" not in backups and (origins or tags):
        raise UsageError(
            f"--{'origin' if origins else 'tag'} chooses what `latest` means, and {ids[0]} is an id",
            hint="Leave one of them out.",
        )
    return Choosing(tuple(map(parse_origin, origins)), tuple(map(parse_tag_rule, tags)), given=True)


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
