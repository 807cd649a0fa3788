"""What is known of streams that copy from others, beside their configurations: values that a plan is made from."""

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

    `left` is its last mark in what is kept, None for none. `reached` is the origin's sequence that it had copied up to,
    which is `exact`, or the least that it can be. `again` are the origin's sequences behind `left` that it had copied:
    what would be copied again; where it is not exact, as many as there can be. `most` is their number instead, at most,
    where there are too many to be looked at.
    """

    left: CopyPosition | None
    reached: int
    exact: bool
    again: tuple[int, ...] = ()
    most: int | None = None


@dataclass(frozen=True, slots=True)
class CopyFacts:
    """What is known of the copies of a plan beside their configurations.

    `sources` are by stream and key, as the backup has them; a stream that is missing could not be looked at. `ends` are
    sequences that streams are cut at because their origins were read before (clones); those that are `growing` cannot
    be, and nobody knows yet where their origins end.
    """

    sources: Mapping[str, Mapping[SourceKey, SourceFacts]] = field(default_factory=dict)
    ends: Mapping[str, int] = field(default_factory=dict)
    growing: frozenset[str] = frozenset()


NOTHING_KNOWN = CopyFacts(MappingProxyType({}), MappingProxyType({}))


def sources_of(config: JsonObject) -> list[JsonObject]:
    """The sources of a configuration, without its mirror and without what is not one."""
    found = config.get("sources")
    return [one for one in found if isinstance(one, dict) and isinstance(one.get("name"), str)] if found else []


def key_of_info(source: SourceInfo) -> SourceKey:
    """The key of a source by what STREAM.INFO says of it; a consumer that it may copy by is not said there."""
    return source_key(
        {
            "name": source.name,
            "filter_subject": source.filter_subject,
            "subject_transforms": [dict(one) for one in source.subject_transforms],
            "external": source.external,
        }
    )
