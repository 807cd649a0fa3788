"""Names that are similar to a mistyped one: of streams, commands, options, keys, profiles."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["nearest", "similar"]

_ALIKE = 0.66  # of the ratio of difflib: "gte" is like "get"
_BUCKETS = ("KV_", "OBJ_")  # the prefixes of a bucket's stream


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return a hint with the most similar name, if there is one. The stream of a bucket is similar to its name, and to
    what is similar to that.
    """
    names = list(known)
    buckets = {each.removeprefix(prefix): each for prefix in _BUCKETS for each in names if each.startswith(prefix)}
    meant = buckets.get(name) or next(iter(similar(name, names)), None)
    if meant is None:
        meant = next((buckets[each] for each in similar(name, buckets)), None)
    return f"Did you mean {meant}?" if meant else None


def similar(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three similar names, the most similar first; upper and lower case are the same."""
    folded = {each.casefold(): each for each in known}
    return [folded[match] for match in get_close_matches(name.casefold()[:100], folded, cutoff=_ALIKE)]
