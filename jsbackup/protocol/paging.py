"""Lists in pages: requested until the total that the server reports is reached, or the list is an error.

    offset ──request──▶ page ──receive──▶ offset … ──▶ None: complete, `result` holds all of it

A page accounts for more than it lists: streams and consumers that did not answer, or are offline, count for offsets too
(`missing`, `offline`; an entry may be both listed and missing). The next page starts after all of them. A list that
changes while it is read is noticed by a new total, a moved offset, a repeated entry, or an empty page before the total:
it is then read again from the start, and a second change is an error. (A deletion and a creation that cancel out
between two pages are not noticed.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, NoReturn, TypeVar

from jsbackup.errors import NatsError
from jsbackup.model import JsonObject
from jsbackup.protocol.fields import Fields
from jsbackup.protocol.headers import one_line
from jsbackup.protocol.info import ConsumerInfo, StreamInfo, consumer_info, stream_info

__all__ = [
    "Listing",
    "Page",
    "Pager",
    "consumer_list_page",
    "next_offsets",
    "stream_list_page",
    "stream_names_page",
]

# More streams or consumers than any account has; a longer list is not believed.
MAX_ENTRIES = 1_000_000
_CALM = "Try again when fewer streams and consumers come and go."

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One answer: entries and their names; names that did not answer (`missing`) or are `offline`, with reasons."""

    entries: tuple[tuple[str, T], ...]
    total: int
    offset: int
    missing: tuple[str, ...] = ()
    offline: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """All names that this page accounts for."""
        return {*dict(self.entries), *self.missing, *self.offline}


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """The whole list. Names in `missing` or `offline` may be in `entries` too, then with an empty state."""

    entries: Mapping[str, T]
    missing: tuple[str, ...]
    offline: Mapping[str, str]

    @property
    def silent(self) -> dict[str, str]:
        """Those that are not known, with the reasons."""
        offline = {name: f"it is offline: {reason}" for name, reason in self.offline.items()}
        return {**dict.fromkeys(self.missing, "it did not answer"), **offline}


class Pager(Generic[T]):
    """Collects pages. Request `offset` until it is None, pass each answer to `receive`, then take `result`."""

    def __init__(self, what: str, max_entries: int = MAX_ENTRIES) -> None:
        self._what = what
        self._max_entries = max_entries
        self._restarted = False
        self._start()

    def _start(self) -> None:
        self._entries: dict[str, T] = {}
        self._missing: list[str] = []
        self._offline: dict[str, str] = {}
        self._seen: set[str] = set()
        self._total: int | None = None
        self._offset: int | None = 0

    @property
    def offset(self) -> int | None:
        """The start of the next page; None when the list is complete or broken."""
        return self._offset

    @property
    def result(self) -> Listing[T]:
        """The whole list. Raises NatsError if it is not complete."""
        if self._offset is not None or self._total is None:
            raise NatsError(f"{self._what}: the list is not complete")
        return Listing(dict(self._entries), tuple(sorted(set(self._missing))), dict(self._offline))

    def receive(self, page: Page[T]) -> None:
        """Take the answer to a request for `offset`. Raises NatsError if the list is inconsistent."""
        if self._offset is None:
            self._fail("a page after the last one", None)
        if page.total > self._max_entries:
            self._fail(f"{page.total} entries, more than the {self._max_entries} that are believed", None)
        change = self._change(page)
        if change is not None:
            if self._restarted:
                self._fail(f"the list changes while it is read ({change})", _CALM)
            self._start()
            self._restarted = True
            return
        self._total = page.total
        self._entries.update(page.entries)
        self._missing += page.missing
        self._offline.update(page.offline)
        self._seen |= page.names
        self._offset = None if len(self._seen) == page.total else len(self._seen)

    def _change(self, page: Page[T]) -> str | None:
        """Return what shows that this page belongs to another state of the list than the earlier ones."""
        if self._total is not None and page.total != self._total:
            return f"its total went from {self._total} to {page.total}"
        if page.offset != self._offset:
            return f"asked for offset {self._offset}, got {page.offset}"
        twice = self._seen & page.names
        if twice or len(dict(page.entries)) < len(page.entries):
            return f"{min(twice or page.names)!r} is there twice"
        count = len(self._seen) + len(page.names)
        if count > page.total:
            return f"{count} entries of {page.total}"
        if not page.names and count < page.total:
            return f"an empty page after {count} of {page.total} entries"
        return None

    def _fail(self, problem: str, hint: str | None) -> NoReturn:
        self._start()
        self._offset = None
        raise NatsError(f"{self._what}: {problem}", hint=hint)


def _page(document: JsonObject, where: str, entries: Callable[[Fields], Iterable[tuple[str, T]]]) -> Page[T]:
    value = Fields(document, where)
    offline = value.optional("offline")
    return Page(
        entries=tuple(entries(value)),
        total=value.number("total"),
        offset=value.number("offset"),
        missing=value.names("missing"),
        offline={} if offline is None else {name: one_line(offline.text(name, "")) for name in offline.value},
    )


def next_offsets(document: JsonObject, most: int) -> range:
    """Return the offsets that the pages after this answer most likely have, at most so many, without decoding it.

    A full page has as many entries as the server's `limit`. What is expected wrongly is asked for again.
    """
    total, limit, offset = (document.get(key) for key in ("total", "limit", "offset"))
    if not (type(total) is int and type(limit) is int and type(offset) is int and limit > 0 and offset >= 0):
        return range(0)
    return range(offset + limit, min(total, offset + limit * most + 1), limit)


def stream_names_page(document: JsonObject) -> Page[None]:
    """Decode an answer of STREAM.NAMES. Raises FormatError, as the others do."""
    return _page(document, "stream names", lambda value: ((name, None) for name in value.names("streams")))


def stream_list_page(document: JsonObject) -> Page[StreamInfo]:
    def entries(value: Fields) -> Iterator[tuple[str, StreamInfo]]:
        for entry in value.array("streams"):
            info = stream_info(entry, "stream list")
            yield info.name, info

    return _page(document, "stream list", entries)


def consumer_list_page(document: JsonObject, stream: str) -> Page[ConsumerInfo]:
    def entries(value: Fields) -> Iterator[tuple[str, ConsumerInfo]]:
        for entry in value.array("consumers"):
            info = consumer_info(entry, "consumer list", stream)
            yield info.name, info

    return _page(document, "consumer list", entries)
