"""How pages are stored, read and kept: documents that are compressed by zstd, and named by their bytes.

A page lists segments of a stream or pages of the level below (`segment_pages.py`), or streams of a backup
(`stream_pages.py`). Where one ends is decided by what it lists alone, so equal lists have equal pages, which backups
share. What is read of a page is believed only if it is the object that was named, and has the totals that were named.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections import OrderedDict
from threading import Lock
from typing import Any, Generic, NoReturn, TypeVar

import zstandard

from jsbackup.errors import DigestMismatch, FormatError, IntegrityError, ObjectNotFound
from jsbackup.model import JsonObject
from jsbackup.repository import layout
from jsbackup.repository.document import INT64_MAX, DocumentFields, Documents, decode_document, encode_document
from jsbackup.repository.memory_budget import Room
from jsbackup.repository.objects import Objects, PageRef, StreamPageRef

__all__ = [
    "DECODED_BYTES",
    "DIGITS",
    "HEX256",
    "ZERO_BITS",
    "PageRow",
    "PageStore",
    "encode",
    "opened",
    "suffix_from_json",
]

_FORMAT_VERSION = 1
_LEVEL = 9

# A page ends where so many bits are zero of a digest of what it lists last: measured, segments of random digests,
# 39 parts a page.
ZERO_BITS = 5

# What the pages that are read at the same time have before compression, apart from one of them (`memory_budget.py`). A
# page of a single stream may be as large as a manifest.
DECODED_BYTES = 16 << 20

HEX256 = re.compile(r"[0-9a-f]{64}")
# Those of the stored bytes in a key (`layout.py`); "" if there are none.
DIGITS = re.compile(r"([0-9a-f]{8})?")

AnyPage = TypeVar("AnyPage", bound=PageRef | StreamPageRef)
Item = TypeVar("Item")


class PageRow:
    """Checked access to the values of a row of a document, which errors call `where`.

    Rows are lists of values, where objects would repeat the names of their fields thousands of times.
    """

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, list):
            raise FormatError(f"{where} is not a list")
        self.values = values
        self._where = where

    def wrong(self, problem: str) -> NoReturn:
        raise FormatError(f"{self._where} {problem}")

    def number(self, at: int, low: int = 0, high: int = INT64_MAX) -> int:
        value = self.values[at]
        if type(value) is not int or not low <= value <= high:
            self.wrong(f"has no valid number in place {at}")
        return value

    def text(self, at: int, form: re.Pattern[str]) -> str:
        value = self.values[at]
        if not isinstance(value, str) or not form.fullmatch(value):
            self.wrong(f"has no valid text in place {at}")
        return value


def suffix_from_json(fields: DocumentFields) -> str:
    """Return what ends the keys of the listed objects. Raises FormatError."""
    suffix = fields.text("suffix")
    if suffix not in ("", layout.SEALED_SUFFIX):
        fields.wrong("suffix", "that of an object")
    return suffix


def encode(content: JsonObject, what: str) -> tuple[bytes, int]:
    """Return a page as it is stored, before encryption, and its size before compression."""
    raw = encode_document({"format": _FORMAT_VERSION, "required_features": [], **content}, what)
    return zstandard.ZstdCompressor(level=_LEVEL).compress(raw), len(raw)


def opened(data: bytes, page: PageRef | StreamPageRef, limit: int) -> DocumentFields:
    """Return the document of a page that has at most `limit` bytes.

    Raises:
        FormatError: it is damaged, or larger.
        UnsupportedError: it has a later format.
    """
    _raw_bytes(data, page, limit)
    what = f"page {page.key}"
    try:
        raw = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FormatError(f"{what} cannot be decompressed: {error}") from error
    fields = decode_document(raw, what)
    fields.version(_FORMAT_VERSION, frozenset())
    return fields


def _raw_bytes(data: bytes, page: PageRef | StreamPageRef, limit: int) -> int:
    try:
        size = zstandard.frame_content_size(data)
    except zstandard.ZstdError:
        size = -1
    if not 0 <= size <= limit:
        raise FormatError(f"page {page.key} is not compressed as a page is")
    return size


class PageStore(ABC, Generic[AnyPage, Item]):
    """The pages of one kind in a repository, and the newest of them in memory. May be used from several threads.

    `objects` knows which objects were found damaged: such a page is not used again.
    """

    most_kept: int

    def __init__(self, documents: Documents, objects: Objects) -> None:
        self._documents = documents
        self._objects = objects
        self._room = Room(DECODED_BYTES)
        self._kept: OrderedDict[AnyPage, tuple[Item, ...]] = OrderedDict()
        self._lock = Lock()

    @abstractmethod
    def _limit(self, page: AnyPage) -> int:
        """Return the most bytes that such a page has before compression."""

    @abstractmethod
    def _decode(self, data: bytes, page: AnyPage) -> tuple[Item, ...]:
        """Return what the stored page lists.

        Raises FormatError, also if it is not the page that is named, and UnsupportedError.
        """

    def read(self, page: AnyPage) -> tuple[Item, ...]:
        """Return what a page lists.

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
        limit = self._limit(page)
        if page.size > limit:
            raise FormatError(f"object {page.key} is said to have {page.size} bytes, more than such a page has")
        with self._room.share() as share:
            share.hold(page.size)
            data = self._fetch(page)
            share.hold(_raw_bytes(data, page, limit))
            listed = self._decode(data, page)
        self._keep(page, listed)
        return listed

    def forget_damaged(self) -> None:
        """Forget the pages that were found damaged. For commands that store for days, after `look_for_damage`."""
        with self._lock:
            for page in filter(self._objects.is_damaged, [*self._kept]):
                self._drop(page)

    def _fetch(self, page: AnyPage) -> bytes:
        try:
            stored = self._documents.fetch(self._named(page), page.size)
        except ObjectNotFound as error:
            self._objects.note_damaged(page)
            raise IntegrityError(f"object {page.key} is missing") from error
        if (stored.size, stored.sha256) != (page.size, page.sha256):
            self._objects.note_damaged(page)
            raise DigestMismatch(f"object {page.key} has changed since it was stored (SHA-256 differs)")
        return stored.data

    def _named(self, page: AnyPage) -> str:
        """Return the key by which documents know a page."""
        return page.key.removesuffix(self._objects.sealing.suffix)

    def _name(self, data: bytes) -> str:
        """Return the name of the page with these bytes."""
        return self._objects.sealing.name(hashlib.sha256(data).hexdigest())

    def _put(self, folder: str, name: str, data: bytes) -> dict[str, Any]:
        """Store a page, and return the fields of its reference that say what is stored."""
        stored = self._documents.put_named(layout.page_key(folder, name), data)
        return {"name": name, "key": stored.key, "size": stored.size, "sha256": stored.sha256}

    def _keep(self, page: AnyPage, listed: tuple[Item, ...]) -> None:
        with self._lock:
            self._kept[page] = listed
            while len(self._kept) > self.most_kept:
                self._drop(next(iter(self._kept)))

    def _drop(self, page: AnyPage) -> None:
        self._kept.pop(page, None)
