"""Subjects with wildcards as sets of literal subjects: match, containment and intersection.

`*` matches one token, `>` at the end one or more; either is only a wildcard if it is a whole token
(docs.nats.io, "Subject-Based Messaging"). A *pattern* is a subject in which these are wildcards. The subject of a
message is always literal, whatever its tokens.

Subjects are text here. Bytes that are not UTF-8 are surrogates (`surrogateescape`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from jsbackup.errors import UsageError
from jsbackup.names import is_pattern

__all__ = [
    "check_pattern",
    "contains",
    "intersection",
    "is_literal",
    "matcher",
    "overlaps",
    "tidy",
]


def check_pattern(what: str, text: str) -> str:
    """Return `text` if it is a pattern. Raises UsageError, which names `what`, otherwise."""
    if not is_pattern(text):
        raise UsageError(
            f"{what}: not a subject: {text[:80]!r}",
            hint="Subjects are tokens joined by dots; * stands for one token, > at the end for all that follow.",
        )
    return text


@lru_cache(maxsize=1024)
def matcher(pattern: str) -> re.Pattern[str]:
    """Return a regular expression whose `fullmatch` tests a literal subject; its groups are the wildcards."""
    parts = {"*": "([^.]*)", ">": "(.*)"}
    return re.compile(r"\.".join(parts.get(token) or re.escape(token) for token in pattern.split(".")), re.DOTALL)


def is_literal(pattern: str) -> bool:
    """Return whether the pattern has no wildcard."""
    return not any(token in ("*", ">") for token in pattern.split("."))


def contains(outer: str, inner: str) -> bool:
    """Return whether all that matches the pattern `inner` matches `outer`."""
    wide, narrow = outer.split("."), inner.split(".")
    for at, token in enumerate(wide):
        if at == len(narrow):
            return False
        if token == ">":
            return True
        if narrow[at] == ">" or token not in ("*", narrow[at]):
            return False
    return len(wide) == len(narrow)


def intersection(pattern: str, other: str) -> str | None:
    """Return the pattern of what matches both; None if nothing does."""
    left, right = pattern.split("."), other.split(".")
    both: list[str] = []
    for at in range(max(len(left), len(right))):
        if at == len(left) or at == len(right):
            return None
        if left[at] == ">":
            return ".".join([*both, *right[at:]])
        if right[at] == ">":
            return ".".join([*both, *left[at:]])
        if left[at] == "*":
            both.append(right[at])
        elif right[at] in ("*", left[at]):
            both.append(left[at])
        else:
            return None
    return ".".join(both)


def overlaps(pattern: str, other: str) -> bool:
    """Return whether any literal subject matches both patterns."""
    return intersection(pattern, other) is not None


def tidy(patterns: Iterable[str]) -> Sequence[str]:
    """Return the patterns that no other one contains, in order."""
    distinct = list(dict.fromkeys(patterns))
    return [p for p in distinct if not any(other != p and contains(other, p) for other in distinct)]
