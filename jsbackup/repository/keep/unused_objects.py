"""The objects that `prune` found unused, and since when: a list in the store, which outlives the run that put it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from jsbackup.errors import FormatError, ObjectLocked, ObjectNotFound, UsageError
from jsbackup.model import JsonObject
from jsbackup.repository import layout
from jsbackup.repository.document import MAX_DOCUMENT_BYTES, decode_document, encode_document
from jsbackup.repository.layout import ObjectKind
from jsbackup.stores.base import Store
from jsbackup.times import format_time

__all__ = ["Mark", "Marks", "delete_marks", "put_marks", "read_marks"]

_FORMAT_VERSION = 1
# About 100 MB of JSON; further objects are marked after these are gone.
_MOST_MARKED = 500_000


@dataclass(frozen=True, slots=True)
class Mark:
    """Since when an object is known to be unused (Unix time), and its size, which older lists do not have: 0."""

    seen_ns: int
    size: int


@dataclass(frozen=True, slots=True)
class Marks:
    """The keys of the lists, and the objects in them by their keys."""

    keys: tuple[str, ...]
    unused: Mapping[str, Mark]


def read_marks(store: Store) -> Marks:
    """Read the lists. A damaged list only makes objects wait again.

    Raises:
        UnsupportedError: one is of a newer tool.
        UsageError: another repository is in their place; older versions made one there on S3.
        StoreError: the store does not answer.
    """
    keys: list[str] = []
    seen: dict[str, Mark] = {}
    for info in list(store.list(layout.MARKS)):
        if layout.kind_of(info.key) is not ObjectKind.MARKS:
            continue
        if info.key == f"{layout.MARKS}{layout.DESCRIPTOR}":
            raise UsageError(
                f"{store.location}/{layout.MARKS.rstrip('/')} is another repository, where this one keeps "
                "lists of unused objects",
                hint="Copy it to a location outside of this one with 'jsbackup copy', then delete it there.",
            )
        keys.append(info.key)
        try:
            found = _decode(store.get_range(info.key, 0, MAX_DOCUMENT_BYTES + 1), info.key)
        except (FormatError, ObjectNotFound):  # another prune has replaced it
            continue
        for key, mark in found.items():
            # Several lists exist if a run was killed or two overlapped: the later time is the safer one.
            if key not in seen or mark.seen_ns > seen[key].seen_ns:
                seen[key] = mark
    return Marks(tuple(keys), seen)


def put_marks(
    store: Store, before: Marks, unused: Mapping[str, Mark], tool: str, *, random: Callable[[int], bytes]
) -> Marks:
    """Replace the lists with this one, unless they are the same. Raises StoreError."""
    unused = dict(islice(unused.items(), _MOST_MARKED))
    if unused == before.unused and len(before.keys) <= 1:
        return before
    after: tuple[str, ...] = ()
    if unused:
        after = (layout.mark_key(random(8).hex()),)
        store.put(after[0], _encode(unused, tool, after[0]))
    delete_marks(store, before)
    return Marks(after, unused)


def delete_marks(store: Store, marks: Marks) -> None:
    """Delete the lists, except those that the store keeps locked. Raises StoreError."""
    for key in marks.keys:
        with suppress(ObjectLocked):
            store.delete(key)


def _encode(unused: Mapping[str, Mark], tool: str, what: str) -> bytes:
    rows: list[JsonObject] = [
        {"key": key, "seen": format_time(mark.seen_ns), "size": mark.size} for key, mark in sorted(unused.items())
    ]
    document: JsonObject = {"format": _FORMAT_VERSION, "required_features": [], "tool": tool, "unused": rows}
    return encode_document(document, what)


def _decode(data: bytes, what: str) -> dict[str, Mark]:
    fields = decode_document(data, what)
    fields.version(_FORMAT_VERSION, frozenset())
    return {
        one.text("key"): Mark(one.time_ns("seen"), one.number("size") if "size" in one.value else 0)
        for one in fields.each("unused")
    }
