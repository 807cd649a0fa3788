"""Store the pages of a repository, and read them."""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock

from jsbackup.errors import DigestMismatch, FormatError, IntegrityError, ObjectExists, ObjectNotFound
from jsbackup.repository import layout
from jsbackup.repository.crypto.sealing import Sealing
from jsbackup.repository.documents import Documents
from jsbackup.repository.pages.page_json import MAX_PAGE_BYTES, decode_page, encode_page, page_of
from jsbackup.repository.pages.paging import arrange
from jsbackup.repository.pages.segment_list import Part, SegmentList, parts_of
from jsbackup.repository.refs import AnyRef, PageRef, SegmentRef

__all__ = ["UNPAGED", "PageStore"]

# Lists of at most this many segments are in the manifest: 35 KB.
UNPAGED = 64
# Pages kept in memory, of about 40 KB each: a walk through a list reads none twice.
_KEPT = 100


class PageStore:
    """The pages of one repository. May be used from several threads.

    `is_damaged` returns whether an object was found damaged; such a page is stored beside the damaged one. `replaces`
    is as in `Objects`.
    """

    def __init__(
        self, documents: Documents, sealing: Sealing, is_damaged: Callable[[AnyRef], bool], *, replaces: bool
    ) -> None:
        self._documents = documents
        self._sealing = sealing
        self._is_damaged = is_damaged
        self._token = secrets.token_hex() if replaces else ""
        self._kept: OrderedDict[PageRef, tuple[Part, ...]] = OrderedDict()
        self._known: dict[str, PageRef] = {}  # stored or read here, by name
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
        try:
            found = self._documents.fetch(page.key.removesuffix(self._sealing.suffix), MAX_PAGE_BYTES)
        except ObjectNotFound as error:
            raise IntegrityError(f"object {page.key} is missing") from error
        if (found.size, found.sha256) != (page.size, page.sha256):
            raise DigestMismatch(f"object {page.key} has changed since it was stored (SHA-256 differs)")
        parts = decode_page(found.data, page)
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

    def _is_ours(self, segments: SegmentList) -> bool:
        return getattr(segments.read, "__self__", None) is self

    def _put(self, folder: str, level: int, parts: Sequence[Part]) -> PageRef:
        data = encode_page(level, parts)
        name = self._sealing.name(hashlib.sha256(data).hexdigest())
        with self._lock:
            known = self._known.get(name)
        if known is not None and known.key.startswith(f"{folder}/"):
            return known
        key = layout.page_key(folder, name)
        page = page_of(level, parts, key=f"{key}{self._sealing.suffix}", name=name, size=0, sha256="")
        for one in self._keys(key, name):
            stored = self._put_as(replace(page, key=f"{one}{self._sealing.suffix}"), one, data)
            if stored is not None:
                self._keep(stored, tuple(parts))
                return stored
        raise IntegrityError(
            f"object {page.key} is damaged, and so are those that replace it",
            hint="Remove them and run the command again.",
        )

    def _keys(self, key: str, name: str) -> Sequence[str]:
        """Return the keys for a page, in order. Where two writers would replace each other's, each has its own."""
        if not self._token:
            return [key, *layout.replacement_keys(key, name)]
        return layout.replacement_keys(key, hashlib.sha256(f"{self._token}{name}".encode()).hexdigest())

    def _put_as(self, page: PageRef, key: str, data: bytes) -> PageRef | None:
        """Store a page under `key`, or use the one that is there; None if that is damaged."""
        try:
            stored = self._documents.put(key, data)
        except ObjectExists:
            try:
                found = self._documents.fetch(key, MAX_PAGE_BYTES)
            except (IntegrityError, FormatError):
                return None
            there = replace(page, size=found.size, sha256=found.sha256)
            return there if found.data == data and not self._is_damaged(there) else None
        return replace(page, size=stored.size, sha256=stored.sha256)

    def _keep(self, page: PageRef, parts: tuple[Part, ...]) -> None:
        with self._lock:
            self._known[page.name] = page
            self._kept[page] = parts
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
