"""The objects that `prune` found unused, and since when: a list in the store, which outlives the run that put it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from jsbackup.errors import FormatError, ObjectLocked, ObjectNotFound
from jsbackup.model import JsonObject
from jsbackup.repository import layout
from jsbackup.repository.document import MAX_DOCUMENT_BYTES, decode_document, encode_document
from jsbackup.repository.layout import ObjectKind
from jsbackup.stores.base import Store
from jsbackup.times import format_time

__all__ = ["Marks", "delete_marks", "put_marks", "read_marks"]

_FORMAT_VERSION = 1
# About 100 MB of JSON; further objects are marked after these are gone.
_MOST_MARKED = 500_000


@dataclass(frozen=True, slots=True)
class Marks:
    """The keys of the lists, and since when each object in them is known to be unused (Unix time)."""

    keys: tuple[str, ...]
    seen_ns: Mapping[str, int]


def read_marks(store: Store) -> Marks:
    """Read the lists. Raises `UnsupportedError` for one of a newer tool. A damaged list only makes objects wait
    again.
    """
    keys: list[str] = []
    seen: dict[str, int] = {}
    for info in list(store.list(layout.MARKS)):
        if layout.kind_of(info.key) is not ObjectKind.MARKS:
            continue
        keys.append(info.key)
        try:
            found = _decode(store.get_range(info.key, 0, MAX_DOCUMENT_BYTES + 1), info.key)
        except (FormatError, ObjectNotFound):  # another prune has replaced it
            continue
        for key, seen_ns in found.items():
            # Several lists exist if a run was killed or two overlapped: the later time is the safer one.
            seen[key] = max(seen_ns, seen.get(key, seen_ns))
    return Marks(tuple(keys), seen)


def put_marks(
    store: Store, before: Marks, seen_ns: Mapping[str, int], tool: str, *, random: Callable[[int], bytes]
) -> Marks:
    """Replace the lists with this one, unless they are the same. Raises StoreError."""
    seen_ns = dict(islice(seen_ns.items(), _MOST_MARKED))
    if seen_ns == before.seen_ns and len(before.keys) <= 1:
        return before
    after: tuple[str, ...] = ()
    if seen_ns:
        after = (layout.mark_key(random(8).hex()),)
        store.put(after[0], _encode(seen_ns, tool, after[0]))
    delete_marks(store, before)
    return Marks(after, seen_ns)


def delete_marks(store: Store, marks: Marks) -> None:
    """Delete the lists, except those that the store keeps locked. Raises StoreError."""
    for key in marks.keys:
        with suppress(ObjectLocked):
            store.delete(key)


def _encode(seen_ns: Mapping[str, int], tool: str, what: str) -> bytes:
    unused: list[JsonObject] = [{"key": key, "seen": format_time(seen)} for key, seen in sorted(seen_ns.items())]
    document: JsonObject = {"format": _FORMAT_VERSION, "required_features": [], "tool": tool, "unused": unused}
    return encode_document(document, what)


def _decode(data: bytes, what: str) -> dict[str, int]:
    fields = decode_document(data, what)
    fields.version(_FORMAT_VERSION, frozenset())
    return {one.text("key"): one.time_ns("seen") for one in fields.each("unused")}
