"""Store the pages of a repository, and read them.

Where pages end.

A page ends with the first part, after `LEAST`, whose name ends in five zero bits, or with the `MOST`th. (The name of a
segment is its digest, that of a page its own.) So where pages end depends on what they list, not on the backup that
made them: equal lists have equal pages, a change in the middle makes the page that has it again, and those above, and
appending makes a page only when one is full. What follows the last page of a level is listed in the manifest.

Measured, segments of random digests: 39 parts a page. So a manifest lists about 20 parts of each level, and a stream of
300,000 segments has four levels with its manifest: 7,700 pages, 197, 5.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import TypeVar

from jsbackup.errors import DigestMismatch, IntegrityError, ObjectNotFound
from jsbackup.repository import layout
from jsbackup.repository.documents import Documents
from jsbackup.repository.objects import Objects, StoredObject
from jsbackup.repository.pages.page_json import MAX_PAGE_BYTES, decode_page, encode_page, page_of
from jsbackup.repository.pages.segment_list import Part, SegmentList, parts_of
from jsbackup.repository.refs import PageRef, SegmentRef, StreamPageRef, folder_of

__all__ = ["LEAST", "MOST", "ListWriter", "PageStore", "arrange", "fetch_page", "stored_as"]

LEAST = 8
MOST = 128
_ZERO_BITS = 5


def arrange(
    parts: Iterable[Part], read: Callable[[PageRef], Sequence[Part]], store: Callable[[int, Sequence[Part]], PageRef]
) -> list[Part]:
    """Arrange parts in pages. Returns what a manifest lists: pages of falling levels, then segments.

    `store` makes the page of a level that lists some parts. Pages among `parts` were made by this rule: one that begins
    where a page would begin is taken as it is; any other is read, and its parts arranged.
    """
    arranging = Arranging(read, store)
    for part in parts:
        arranging.add(part)
    return arranging.parts


class Arranging:
    """Does the same with parts that come one after the other. Holds those of no page yet."""

    def __init__(
        self, read: Callable[[PageRef], Sequence[Part]], store: Callable[[int, Sequence[Part]], PageRef]
    ) -> None:
        self._read = read
        self._store = store
        self._open: list[list[Part]] = [[]]  # by level of the page that they will be in

    @property
    def parts(self) -> list[Part]:
        """What a manifest lists."""
        return [part for level in reversed(self._open) for part in level]

    def add(self, part: Part) -> None:
        """Add the next part. Raises what `read` and `store` raise."""
        level = part.level + 1 if isinstance(part, PageRef) else 0
        while len(self._open) <= level:
            self._open.append([])
        if isinstance(part, PageRef) and any(self._open[:level]):
            for inner in self._read(part):
                self.add(inner)
            return
        listed = self._open[level]
        listed.append(part)
        if _ends_page(part, len(listed)):
            self._open[level] = []
            self.add(self._store(level, listed))


def _ends_page(part: Part, count: int) -> bool:
    name = part.digest if isinstance(part, SegmentRef) else part.name
    return count >= MOST or (count >= LEAST and int(name[-8:], 16) % (1 << _ZERO_BITS) == 0)


AnyPage = TypeVar("AnyPage", PageRef, StreamPageRef)

# Lists of at most this many segments are in the manifest: 35 KB.
UNPAGED = 64
# Pages kept in memory, of about 40 KB each: a walk through a list reads none twice.
_KEPT = 100
# Pages whose names are known, of 1 KB each: if they are stored again, one request finds that they are there.
_KNOWN = 1000


class PageStore:
    """The pages of one repository. May be used from several threads.

    `objects` knows which objects were found damaged: such a page is not used again.
    """

    def __init__(self, documents: Documents, objects: Objects) -> None:
        self._documents = documents
        self._sealing = objects.sealing
        self._objects = objects
        self._kept: OrderedDict[PageRef, tuple[Part, ...]] = OrderedDict()
        self._known: OrderedDict[str, PageRef] = OrderedDict()  # stored or read here, by name
        self._lock = Lock()

    def list_of(self, parts: Sequence[Part]) -> SegmentList:
        """Return the list of these parts, whose pages are in this repository."""
        return SegmentList(parts, self.read)

    def read(self, page: PageRef) -> tuple[Part, ...]:
        """Return the parts that a page lists.

        Raises:
            IntegrityError: it is missing, damaged, or not the one that is named.
            KeyUnavailable: it is encrypted, and no key that opens it was given.
            UnsupportedError: it needs a newer tool.
            StoreError: it cannot be read.
        """
        with self._lock:
            if page in self._kept:
                self._kept.move_to_end(page)
                return self._kept[page]
        parts = decode_page(fetch_page(self._documents, self._objects, page, MAX_PAGE_BYTES), page)
        self._keep(page, parts)
        return parts

    def store(self, segments: Sequence[SegmentRef]) -> Sequence[SegmentRef]:
        """Return the same segments with all pages of a long list stored; a short list as a tuple.

        Pages of this repository that stay as they are are not read. Raises as `read`, and StoreError.
        """
        if len(segments) <= UNPAGED:
            return tuple(segments)
        if not isinstance(segments, SegmentList) or not self._is_ours(segments):
            segments = self.list_of(tuple(segments))
        folder = next(iter(parts_of(segments))).key.rpartition("/")[0]
        return self.list_of(arrange(segments.parts, self.read, partial(self._put, folder)))

    def arranging(self, folder: str) -> Arranging:
        """Return what stores the pages of a list in this folder while its parts come. Raises as `store`."""
        return Arranging(self.read, partial(self._put, folder))

    def _is_ours(self, segments: SegmentList) -> bool:
        return getattr(segments.read, "__self__", None) is self

    def _put(self, folder: str, level: int, parts: Sequence[Part]) -> PageRef:
        data = encode_page(level, parts)
        name = self._sealing.name(hashlib.sha256(data).hexdigest())
        with self._lock:
            known = self._known.get(name)
        if known is not None and folder_of(known) == folder and self._is_usable(known):
            return known
        page = page_of(level, parts, key="", name=name, size=0, sha256="")
        page = stored_as(page, self._documents.put_named(layout.page_key(folder, name), data))
        self._keep(page, tuple(parts))
        return page

    def forget_damaged(self) -> None:
        """Forget the pages that were found damaged. For commands that store for days, after `look_for_damage`."""
        with self._lock:
            for page in filter(self._objects.is_damaged, [*self._kept]):
                del self._kept[page]

    def _is_usable(self, page: PageRef) -> bool:
        """Return whether a page is still there, as far as is known: `prune` may have run since this process last named
        it.
        """
        if self._objects.is_damaged(page):
            return False
        try:
            return self._documents.head(page.key.removesuffix(self._sealing.suffix)).size == page.size
        except ObjectNotFound:
            return False

    def _keep(self, page: PageRef, parts: tuple[Part, ...]) -> None:
        with self._lock:
            self._known[page.name] = page
            self._known.move_to_end(page.name)
            while len(self._known) > _KNOWN:
                self._known.popitem(last=False)
            self._kept[page] = parts
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)


class ListWriter:
    """Makes the list that `PageStore.store` makes of segments that come one after the other, and stores its pages
    meanwhile, so that they are never held.
    """

    def __init__(self, pages: PageStore) -> None:
        self._pages = pages
        self._few: list[SegmentRef] = []
        self._arranging: Arranging | None = None

    def add(self, segments: Iterable[SegmentRef]) -> None:
        """Add the next segments, all in one folder. Raises as `PageStore.store`."""
        for ref in segments:
            if self._arranging is not None:
                self._arranging.add(ref)
                continue
            self._few.append(ref)
            if len(self._few) > UNPAGED:
                self._arranging = self._pages.arranging(folder_of(ref))
                few, self._few = self._few, []
                self.add(few)

    def finish(self) -> Sequence[SegmentRef]:
        """Return the list of all of them."""
        if self._arranging is None:
            return tuple(self._few)
        return self._pages.list_of(self._arranging.parts)


def fetch_page(documents: Documents, objects: Objects, page: PageRef | StreamPageRef, limit: int) -> bytes:
    """Return the document of a page, of at most `limit` bytes; `objects` learns of a damaged one.

    Raises:
        IntegrityError: it is missing, or not the one that was stored.
        KeyUnavailable, StoreError: it cannot be read.
    """
    try:
        found = documents.fetch(page.key.removesuffix(objects.sealing.suffix), limit)
    except ObjectNotFound as error:
        objects.note_damaged(page)
        raise IntegrityError(f"object {page.key} is missing") from error
    if (found.size, found.sha256) != (page.size, page.sha256):
        objects.note_damaged(page)
        raise DigestMismatch(f"object {page.key} has changed since it was stored (SHA-256 differs)")
    return found.data


def stored_as(page: AnyPage, stored: StoredObject) -> AnyPage:
    """Return the page with the object that it is stored in."""
    return replace(page, key=stored.key, size=stored.size, sha256=stored.sha256)
