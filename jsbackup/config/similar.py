"""Names that are similar to a mistyped one: of streams, commands, options, keys, profiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

__all__ = ["edits", "nearest", "similar"]

_MOST_CHARACTERS = 100  # more of a name is not compared
_MOST_EDITS = 3
_BUCKETS = ("KV_", "OBJ_")  # the prefixes of a bucket's stream


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return a hint with the most similar name, if there is one. The stream of a bucket is similar to its name, and to
    what is similar to that.
    """
    names = list(known)
    bucket = next((one for prefix in _BUCKETS if (one := prefix + name) in names), None)
    found = [bucket] if bucket else similar(name, names)
    if not found:
        buckets = {one.removeprefix(prefix): one for prefix in _BUCKETS for one in names if one.startswith(prefix)}
        found = [buckets[one] for one in similar(name, buckets)]
    return f"Did you mean {found[0]}?" if found else None


def similar(name: str, known: Iterable[str]) -> list[str]:
    """Return the most similar names, none if no name is similar enough; upper and lower case are the same.

    A name may differ by one edit for each three of its characters, up to three.
    """
    best: list[str] = []
    fewest = _MOST_EDITS
    for one in dict.fromkeys(known):
        count = edits(name.casefold(), one.casefold(), min(fewest, max(len(name), len(one)) // 3))
        if count is not None:
            best = [*best, one] if count == fewest and best else [one]
            fewest = count
    return best


def edits(name: str, other: str, most: int) -> int | None:
    """Return how many edits make one name the other, None if more than `most`.

    An edit adds, removes or replaces a character, or swaps two neighbours (optimal string alignment).
    """
    name, other = name[:_MOST_CHARACTERS], other[:_MOST_CHARACTERS]
    common = (Counter(name) & Counter(other)).total() if most else len(name)
    if max(len(name), len(other)) - common > most:
        return None
    before: list[int] = []
    row = list(range(len(other) + 1))
    for at, character in enumerate(name, start=1):
        earlier, before, row = before, row, [at]
        for to, wanted in enumerate(other, start=1):
            count = min(before[to] + 1, row[-1] + 1, before[to - 1] + (character != wanted))
            if at > 1 and to > 1 and character == other[to - 2] and wanted == name[at - 2]:
                count = min(count, earlier[to - 2] + 1)
            row.append(count)
    return row[-1] if row[-1] <= most else None
