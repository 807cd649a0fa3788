"""Names of resources in other tools, which allow fewer characters than NATS.

Two names may become the same. Then all but one that fits unchanged get a part of their digest, so that a name does not
depend on the order: another name would mean another resource, and these tools delete a stream that is not declared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256

__all__ = ["unique_files", "unique_labels"]

_FEW, _MANY = 8, 40


def unique_labels(names: Iterable[str], label: Callable[[str], str], most: int) -> dict[str, str]:
    """Return the label of each name, of at most `most` characters."""
    wanted = {name: label(name) for name in names}
    labels = _labels(wanted, most, _FEW)
    # Only somebody who wants it makes two digests begin alike.
    return labels if len(set(labels.values())) == len(labels) else _labels(wanted, most, _MANY)


def unique_files(labels: Iterable[str], most: int) -> dict[str, str]:
    """Return the name of each label's file: the same, but with a digest where another one differs only in case, since
    file systems of macOS and Windows would take one file for both.
    """
    plain = list(labels)
    files = _files(plain, most, _FEW)
    return files if len({file.lower() for file in files.values()}) == len(plain) else _files(plain, most, _MANY)


def _files(labels: Sequence[str], most: int, digits: int) -> dict[str, str]:
    alike = Counter(label.lower() for label in labels)
    return {one: one if alike[one.lower()] == 1 else _with_digest(one, one, most, digits) for one in labels}


def _labels(wanted: Mapping[str, str], most: int, digits: int) -> dict[str, str]:
    shared = Counter(wanted.values())
    return {
        name: plain
        if len(plain) <= most and (shared[plain] == 1 or plain == name)
        else _with_digest(plain, name, most, digits)
        for name, plain in wanted.items()
    }


def _with_digest(plain: str, name: str, most: int, digits: int) -> str:
    return f"{plain[: most - digits - 1]}-{sha256(name.encode()).hexdigest()[:digits]}"
