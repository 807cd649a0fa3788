"""Pages of segments: where a stream has too many segments for its manifest. Pages ⇄ canonical JSON, and how they are
stored and shared.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from threading import Lock
from typing import Any, NoReturn, TypeVar

from jsbackup.errors import DigestMismatch, FormatError, IntegrityError, ObjectNotFound
from jsbackup.formats.digest import StreamDigest
from jsbackup.model import JsonObject
from jsbackup.repository import layout
from jsbackup.repository.document import INT64_MAX, DocumentFields, Documents, decode_document, encode_document
from jsbackup.repository.objects import Objects, PageRef, SegmentRef, StoredObject, StreamPageRef, folder_of
from jsbackup.repository.pages.segment_list import Part, SegmentList, parts_of, total_of

__all__ = [
    "DIGITS",
    "HEX256",
    "LEAST",
    "MAX_LEVEL",
    "MAX_PAGE_BYTES",
    "MOST",
    "ListWriter",
    "PageRow",
    "PageStore",
    "arrange",
    "decode_page",
    "encode_page",
    "fetch_page",
    "page_of",
    "parts_from_rows",
    "rows_of",
    "stored_as",
]


# --- page row ---
#
# Rows of documents: lists of values, where objects would repeat the names of their fields thousands of times.

HEX256 = re.compile(r"[0-9a-f]{64}")
# Those of the stored bytes in a key (`layout.py`); "" if there are none.
DIGITS = re.compile(r"([0-9a-f]{8})?")


class PageRow:
    """Checked access to the values of a row, which errors call `where`."""

    def __init__(self, values: list[Any], where: str) -> None:
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


# --- page json ---
#
# Pages ⇄ canonical JSON, and the rows that pages and manifests have in common.
#
# A page is a document (`document.py`) with `format`, `level` and `parts`, a list of rows. So is the list in a manifest,
# except that each part of it has a level of its own. What follows from other values is not stored: a key is made of the
# folder, the suffix of encryption, and a row.
#
# A row of a segment: first and last sequence, messages, raw bytes, least and greatest time (ns since the Unix epoch),
# size and SHA-256 of the stored object, digest, fingerprint, gaps ("" if there are none), the name in the key ("" if it
# is the digest), the digits of the bytes in the key.
#
# A row of a page: level, name, digits in the key, size and SHA-256 of the stored object ("" if it is the name), number
# of segments, messages, raw bytes, stored bytes, first and last sequence, least and greatest time, fingerprint.

FORMAT_VERSION = 1
FEATURES: frozenset[str] = frozenset()

# A page has at most `paging.MOST` rows of about 300 bytes.
MAX_PAGE_BYTES = 1 << 20
# Thirty levels would list more segments than there are sequences.
MAX_LEVEL = 30

_HEX128 = re.compile(r"([0-9a-f]{32})?")


def encode_page(level: int, parts: Sequence[Part]) -> bytes:
    """Encode the page of this level that lists `parts`."""
    document: JsonObject = {
        "format": FORMAT_VERSION,
        "required_features": [],
        "level": level,
        "parts": rows_of(parts),
    }
    return encode_document(document, f"page of sequence {parts[0].first_seq}")


def decode_page(data: bytes, page: PageRef) -> tuple[Part, ...]:
    """Return the parts that a page lists.

    Raises:
        FormatError: damaged, hostile, or not the page that `page` describes.
        UnsupportedError: it has a later format.
    """
    what = f"page {page.key}"
    fields = decode_document(data, what)
    fields.version(FORMAT_VERSION, FEATURES)
    if fields.number("level", 0, MAX_LEVEL) != page.level:
        fields.wrong("level", f"{page.level}")
    folder, _, name = page.key.rpartition("/")
    suffix = name.partition(".json")[2]
    parts = parts_from_rows(fields, "parts", folder, suffix)
    if not parts or any(_level_of(part) != page.level - 1 for part in parts):
        fields.wrong("parts", f"a list of parts of level {page.level - 1}")
    if _sums(parts) != _stated(page):
        raise FormatError(f"{what} is not the one that is named: its totals differ")
    return parts


def rows_of(parts: Iterable[Part]) -> list[list[Any]]:
    return [_page_row(part) if isinstance(part, PageRef) else _segment_row(part) for part in parts]


def parts_from_rows(fields: DocumentFields, key: str, folder: str, suffix: str) -> tuple[Part, ...]:
    """Decode rows of segments and pages in the folder of a stream; `suffix` ends the keys of its objects.

    Raises FormatError unless they are in order and none is of a higher level than the one before.
    """
    where = f"{fields.where}: {key}"
    parts = tuple(_part(row, f"{where}[{at}]", folder, suffix) for at, row in enumerate(fields.array(key)))
    for before, after in pairwise(parts):
        if after.first_seq <= before.last_seq or _level_of(after) > _level_of(before):
            fields.wrong(key, "in order")
    return parts


def _segment_row(ref: SegmentRef) -> list[Any]:
    parsed = layout.parse_segment_key(ref.key)
    return [
        ref.first_seq,
        ref.last_seq,
        ref.messages,
        ref.bytes,
        ref.min_ns,
        ref.max_ns,
        ref.size,
        ref.sha256,
        ref.digest,
        ref.fingerprint.hex,
        ref.gaps,
        "" if parsed.digest == ref.digest else parsed.digest,
        parsed.digits or "",
        *([dict(ref.extra)] if ref.extra else []),
    ]


def _page_row(ref: PageRef) -> list[Any]:
    return [
        ref.level,
        ref.name,
        layout.stored_digits(ref.key),
        ref.size,
        "" if ref.sha256 == ref.name else ref.sha256,
        ref.segments,
        ref.messages,
        ref.bytes,
        ref.stored_bytes,
        ref.first_seq,
        ref.last_seq,
        ref.min_ns,
        ref.max_ns,
        ref.fingerprint.hex,
    ]


def _part(row: Any, where: str, folder: str, suffix: str) -> Part:
    if not isinstance(row, list):
        raise FormatError(f"{where} is not a list")
    values = PageRow(row, where)
    if len(row) == 14 and not isinstance(row[13], dict):
        return _page(values, folder, suffix)
    return _segment(values, folder, suffix)


def _segment(row: PageRow, folder: str, suffix: str) -> SegmentRef:
    if len(row.values) not in (13, 14):
        row.wrong("is not that of a segment")
    first_seq, last_seq = row.number(0, 1), row.number(1, 1)
    digest = row.text(8, HEX256)
    name = row.text(11, HEX256) if row.values[11] != "" else digest
    digits = row.text(12, DIGITS)
    key = layout.segment_key(folder, first_seq, last_seq, name, digits=digits, suffix=suffix)
    messages = row.number(2, 1)
    if messages > last_seq - first_seq + 1:
        row.wrong("has more messages than sequences")
    extra = row.values[13] if len(row.values) == 14 else {}
    return SegmentRef(
        key=key,
        first_seq=first_seq,
        last_seq=last_seq,
        messages=messages,
        bytes=row.number(3, 1),
        min_ns=row.number(4, -INT64_MAX - 1),
        max_ns=row.number(5, -INT64_MAX - 1),
        size=row.number(6, 1),
        sha256=row.text(7, HEX256),
        digest=digest,
        fingerprint=StreamDigest.from_hex(row.text(9, HEX256)),
        gaps=row.text(10, _HEX128),
        extra=extra,
    )


def _page(row: PageRow, folder: str, suffix: str) -> PageRef:
    name, digits = row.text(1, HEX256), row.text(2, DIGITS)
    dotted = f".{digits}" if digits else ""
    segments, messages, first_seq, last_seq = row.number(5, 1), row.number(6, 1), row.number(9, 1), row.number(10, 1)
    # So the segments of pages in order can be counted: there are no more than sequences.
    if not segments <= messages <= last_seq - first_seq + 1:
        row.wrong("states totals that no page has")
    return PageRef(
        key=f"{folder}/page-{name}{dotted}.json{suffix}",
        size=row.number(3, 1),
        sha256=row.text(4, HEX256) if row.values[4] != "" else name,
        level=row.number(0, 0, MAX_LEVEL),
        name=name,
        segments=segments,
        messages=messages,
        bytes=row.number(7, 1),
        stored_bytes=row.number(8, 1),
        first_seq=first_seq,
        last_seq=last_seq,
        min_ns=row.number(11, -INT64_MAX - 1),
        max_ns=row.number(12, -INT64_MAX - 1),
        fingerprint=StreamDigest.from_hex(row.text(13, HEX256)),
    )


def _level_of(part: Part) -> int:
    return part.level if isinstance(part, PageRef) else -1


def page_of(level: int, parts: Sequence[Part], *, key: str, name: str, size: int, sha256: str) -> PageRef:
    """Return the reference to the stored page of this level that lists `parts`."""
    segments, messages, raw, stored, first_seq, last_seq, min_ns, max_ns, fingerprint = _sums(parts)
    return PageRef(
        key=key,
        size=size,
        sha256=sha256,
        level=level,
        name=name,
        segments=segments,
        messages=messages,
        bytes=raw,
        stored_bytes=stored,
        first_seq=first_seq,
        last_seq=last_seq,
        min_ns=min_ns,
        max_ns=max_ns,
        fingerprint=fingerprint,
    )


def _sums(parts: Sequence[Part]) -> tuple[int, int, int, int, int, int, int, int, StreamDigest]:
    totals = total_of(parts)
    return (
        sum(part.segments if isinstance(part, PageRef) else 1 for part in parts),
        totals.messages,
        totals.bytes,
        sum(part.stored_bytes if isinstance(part, PageRef) else part.size for part in parts),
        totals.first_seq,
        totals.last_seq,
        min(part.min_ns for part in parts),
        max(part.max_ns for part in parts),
        totals.digest,
    )


def _stated(page: PageRef) -> tuple[int, int, int, int, int, int, int, int, StreamDigest]:
    return (
        page.segments,
        page.messages,
        page.bytes,
        page.stored_bytes,
        page.first_seq,
        page.last_seq,
        page.min_ns,
        page.max_ns,
        page.fingerprint,
    )


# --- page store ---
#
# Store the pages of a repository, and read them.
#
# Where pages end.
#
# A page ends with the first part, after `LEAST`, whose name ends in five zero bits, or with the `MOST`th. (The name of
# a segment is its digest, that of a page its own.) So where pages end depends on what they list, not on the backup that
# made them: equal lists have equal pages, a change in the middle makes the page that has it again, and those above, and
# appending makes a page only when one is full. What follows the last page of a level is listed in the manifest.
#
# Measured, segments of random digests: 39 parts a page. So a manifest lists about 20 parts of each level, and a stream
# of 300,000 segments has four levels with its manifest: 7,700 pages, 197, 5.

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
