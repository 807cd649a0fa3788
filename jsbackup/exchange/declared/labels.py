"""Names of resources in other tools, which allow fewer characters than NATS.

Two names may become the same. Then all but one that fits unchanged get a part of their digest, so that a name does not
depend on the order: another name would mean another resource, and these tools delete a stream that is not declared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256

__all__ = ["unique_labels"]

_FEW, _MANY = 8, 40


def unique_labels(names: Iterable[str], label: Callable[[str], str], most: int) -> dict[str, str]:
    """Return the label of each name, of at most `most` characters."""
    wanted = {name: label(name) for name in names}
    labels = _labels(wanted, most, _FEW)
    # Only somebody who wants it makes two digests begin alike.
    return labels if len(set(labels.values())) == len(labels) else _labels(wanted, most, _MANY)


def _labels(wanted: Mapping[str, str], most: int, digits: int) -> dict[str, str]:
    shared = Counter(wanted.values())
    return {
        name: plain
        if len(plain) <= most and (shared[plain] == 1 or plain == name)
        else f"{plain[: most - digits - 1]}-{sha256(name.encode()).hexdigest()[:digits]}"
        for name, plain in wanted.items()
    }
