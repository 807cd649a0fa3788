"""NATS subjects with wildcards: which ones can mean the same message.

`*` stands for one token, `>` at the end for one or more (docs.nats.io, "Subject-Based Messaging").
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["first_overlap", "overlaps"]


def overlaps(one: str, other: str) -> bool:
    """Whether some literal subject matches both."""
    left, right = one.split("."), other.split(".")
    for at in range(max(len(left), len(right))):
        if at == len(left) or at == len(right):
            return False
        if ">" in (left[at], right[at]):
            return True
        if left[at] != right[at] and "*" not in (left[at], right[at]):
            return False
    return True


def first_overlap(ours: Iterable[str], theirs: Iterable[str]) -> tuple[str, str] | None:
    """The first pair, one of each, that can mean the same message."""
    others = list(theirs)
    return next(((one, other) for one in ours for other in others if overlaps(one, other)), None)
