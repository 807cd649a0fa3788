"""What is known about streams that copy from others, apart from their configurations: input for plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from jsbackup.model import JsonObject
from jsbackup.protocol.info import SourceInfo
from jsbackup.transforms.copy_positions import CopyPosition, SourceKey, source_key

__all__ = ["NOTHING_KNOWN", "CopyFacts", "SourceFacts", "key_of_info", "sources_of"]


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """One source of a stream in a backup.

    `left` is its last mark in the kept messages, or None. `reached` is the origin's sequence up to which it had copied,
    either `exact` or a lower bound. `again` are the origin's sequences after `left` that it had copied, which would be
    copied again; if not exact, as many as possible. `most` is instead an upper bound of their number, if there are too
    many to list.
    """

    left: CopyPosition | None
    reached: int
    exact: bool
    again: tuple[int, ...] = ()
    most: int | None = None


@dataclass(frozen=True, slots=True)
class CopyFacts:
    """What is known about the copies of a plan, apart from their configurations.

    `sources` are by stream and key, as the backup has them; a missing stream could not be read. `ends` are sequences at
    which streams are cut because their origins were read before (clones); `growing` ones cannot be cut, and the ends of
    their origins are not known yet.
    """

    sources: Mapping[str, Mapping[SourceKey, SourceFacts]] = field(default_factory=dict)
    ends: Mapping[str, int] = field(default_factory=dict)
    growing: frozenset[str] = frozenset()


NOTHING_KNOWN = CopyFacts(MappingProxyType({}), MappingProxyType({}))


def sources_of(config: JsonObject) -> list[JsonObject]:
    """Return the valid sources of a configuration, without its mirror."""
    sources = config.get("sources")
    return (
        [source for source in sources if isinstance(source, dict) and isinstance(source.get("name"), str)]
        if sources
        else []
    )


def key_of_info(source: SourceInfo) -> SourceKey:
    """Return the key of a source from STREAM.INFO, which does not include a consumer that it may copy by."""
    return source_key(
        {
            "name": source.name,
            "filter_subject": source.filter_subject,
            "subject_transforms": [dict(transform) for transform in source.subject_transforms],
            "external": source.external,
        }
    )
