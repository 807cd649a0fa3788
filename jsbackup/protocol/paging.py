"""Lists in pages, complete although streams and consumers come and go meanwhile.

    offset ──request──▶ page ──receive──▶ offset … ──▶ None: complete, `result` holds all of it

All servers list by name, and a page has what is at an offset at that moment (nats-server `jetstream_api.go` and
`jetstream_cluster.go`, 2.10 to 2.15). What is created or deleted before it moves the others: so a page that began where
the last one ended could leave one out, with the same total. Therefore pages overlap. One that begins after the end of
those before is not taken, and the list goes back. So all that was there from the first request to the last is in the
result, whichever page was made first; of what was created or deleted meanwhile some is.

A page accounts for more than it lists: streams and consumers that did not answer, or are offline, count for offsets too
(`missing`, `offline`; an entry may be both listed and missing).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, NoReturn, TypeVar

from jsbackup.errors import NatsError
from jsbackup.model import JsonObject
from jsbackup.protocol.info import ConsumerInfo, StreamInfo, consumer_info, stream_info
from jsbackup.readable import one_line
from jsbackup.strict_json import Fields

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
# How many entries of a page are those of the page before, and how far the list goes back first.
_OVERLAP = 8
# So many pages may bring nothing new. To go back, twice as far each time, takes 20 at most.
_IDLE_PAGES = 100
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
        self._entries: dict[str, T] = {}
        self._missing: set[str] = set()
        self._offline: dict[str, str] = {}
        self._seen: set[str] = set()
        self._last = ""  # all names up to this one are known
        self._overlap = self._back = _OVERLAP
        self._idle = 0
        self._complete = False
        self._offset: int | None = 0

    @property
    def offset(self) -> int | None:
        """The start of the next page; None when the list is complete or broken."""
        return self._offset

    @property
    def result(self) -> Listing[T]:
        """The whole list, by name. Raises NatsError if it is not complete."""
        if not self._complete:
            raise NatsError(f"{self._what}: the list is not complete")
        return Listing(dict(sorted(self._entries.items())), tuple(sorted(self._missing)), dict(self._offline))

    def receive(self, page: Page[T]) -> None:
        """Take the answer to a request for `offset`. Raises NatsError if it cannot be one."""
        if self._offset is None:
            self._fail("a page after the last one")
        if page.total > self._max_entries:
            self._fail(f"{page.total} entries, more than the {self._max_entries} that are believed")
        names = page.names
        if page.offset > self._offset:
            self._fail(f"asked for offset {self._offset}, got {page.offset}")
        if len(dict(page.entries)) < len(page.entries):
            self._fail(f"{min(names)!r} is there twice in one page")
        end = page.offset + len(names)
        if names and end > page.total:
            self._fail(f"{end} entries of {page.total}")
        if not names and not page.offset and page.total:
            self._fail(f"an empty page of {page.total} entries")
        before = len(self._seen)
        if page.offset and self._overlap and (not names or min(names) > self._last):
            self._go_back(page)
        else:
            self._take(page)
            self._last = max(self._last, *names) if names else self._last
            self._back, self._overlap = _OVERLAP, overlap(len(names))
            self._complete = end >= page.total
            self._offset = None if self._complete else end - self._overlap
        self._idle = 0 if len(self._seen) > before else self._idle + 1
        if self._idle > _IDLE_PAGES and not self._complete:
            self._offset = None
            raise NatsError(f"{self._what}: the list changes while it is read", hint=_CALM)

    def _go_back(self, page: Page[T]) -> None:
        """Ask for an earlier page: names may have been passed over."""
        self._offset = max(page.offset - self._back, 0)
        self._back *= 2

    def _take(self, page: Page[T]) -> None:
        """Take what a page says. What has answered before, and does not any more, stays as it was."""
        silent = {*page.missing, *page.offline}
        known = self._entries.keys() - self._missing - self._offline.keys()
        for name, entry in page.entries:
            if name not in silent or name not in known:
                self._entries[name] = entry
            if name not in silent:
                self._missing.discard(name)
                self._offline.pop(name, None)
        self._missing |= {*page.missing} - known
        self._offline.update((name, why) for name, why in page.offline.items() if name not in known)
        self._seen |= page.names

    def _fail(self, problem: str) -> NoReturn:
        self._complete = False
        self._offset = None
        raise NatsError(f"{self._what}: {problem}")


def overlap(names: int) -> int:
    """Return how many of the names of a page the next one has, too: none of a single one, which no server has."""
    return min(_OVERLAP, names // 2)


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


def next_offsets(document: JsonObject, most: int) -> Iterator[int]:
    """Yield the offsets that the pages after this answer most likely have, at most so many, without decoding it.

    A full page has as many entries as the server's `limit`. What is expected wrongly is asked for again.
    """
    total, limit, offset = (document.get(key) for key in ("total", "limit", "offset"))
    if type(total) is int and type(limit) is int and type(offset) is int and limit > 0 and offset >= 0:
        for _ in range(most):
            if offset + limit >= total:
                break
            offset += limit - overlap(limit)
            yield offset


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
