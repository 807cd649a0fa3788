"""Pages of segments: where a stream has too many segments for its manifest. Their rows, where they end, and how they
are stored and shared.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from jsbackup.errors import FormatError, ObjectNotFound
from jsbackup.formats.digest import StreamDigest
from jsbackup.model import JsonObject
from jsbackup.repository import layout
from jsbackup.repository.document import INT64_MAX, DocumentFields, Documents
from jsbackup.repository.objects import Objects, PageRef, SegmentRef, folder_of
from jsbackup.repository.pages.page_store import (
    DIGITS,
    HEX256,
    ZERO_BITS,
    PageRow,
    PageStore,
    encode,
    opened,
    suffix_from_json,
)
from jsbackup.repository.pages.segment_list import Part, SegmentList, parts_of, total_of

__all__ = [
    "LEAST",
    "MOST",
    "ListWriter",
    "SegmentPages",
    "arrange",
    "decode_page",
    "encode_page",
    "list_from_json",
    "list_to_json",
    "page_of",
]


# --- rows ---
#
# A list in a manifest, a receipt or a page is an object: `folder` is that of the stream, `suffix` that of encryption,
# which ends the keys of its objects, and `parts` has rows. What follows from other values is not stored: a key is made
# of the folder, the suffix, and a row.
#
# A row of a segment: first and last sequence, messages, raw bytes, least and greatest time (ns since the Unix epoch),
# size and SHA-256 of the stored object, digest, fingerprint, gaps ("" if there are none), the name in the key ("" if it
# is the digest), the digits of the bytes in the key.
#
# A row of a page: level, name, digits in the key, size and SHA-256 of the stored object ("" if it is the name), number
# of segments, messages, raw bytes, stored bytes, first and last sequence, least and greatest time, fingerprint.

# A page has at most `MOST` rows of about 300 bytes.
_MOST_BYTES = 1 << 20
# Thirty levels would list more segments than there are sequences.
_MAX_LEVEL = 30

_SEGMENT_VALUES = 13
_PAGE_VALUES = 14
_HEX128 = re.compile(r"([0-9a-f]{32})?")


def encode_page(level: int, parts: Sequence[Part]) -> bytes:
    """Encode the page of this level that lists `parts`."""
    return encode({"level": level, **list_to_json(parts)}, f"page of sequence {parts[0].first_seq}")[0]


def decode_page(data: bytes, page: PageRef) -> tuple[Part, ...]:
    """Return the parts that a page lists.

    Raises:
        FormatError: damaged, hostile, or not the page that `page` describes.
        UnsupportedError: it has a later format.
    """
    fields = opened(data, page, _MOST_BYTES)
    folder, parts = list_from_json(fields)
    if not parts or any(_level_of(part) != page.level - 1 for part in parts):
        fields.wrong("parts", f"a list of parts of level {page.level - 1}")
    level = fields.number("level", 0, _MAX_LEVEL)
    decoded = page_of(level, parts, key=page.key, name=page.name, size=page.size, sha256=page.sha256)
    if decoded != page or folder != folder_of(page):
        raise FormatError(f"page {page.key} is not the one that is named: its totals differ")
    return parts


def list_to_json(parts: Sequence[Part]) -> JsonObject:
    """Return the object that lists these parts, all in one folder."""
    key = parts[0].key if parts else ""
    return {
        "folder": layout.folder_of(key),
        "suffix": layout.SEALED_SUFFIX if key.endswith(layout.SEALED_SUFFIX) else "",
        "parts": [_page_row(part) if isinstance(part, PageRef) else _segment_row(part) for part in parts],
    }


def list_from_json(fields: DocumentFields) -> tuple[str, tuple[Part, ...]]:
    """Decode a list of segments and pages: the folder of its stream, and the parts.

    Raises FormatError unless they are in order and none is of a higher level than the one before.
    """
    folder, suffix, where = fields.text("folder"), suffix_from_json(fields), f"{fields.where}: parts"
    rows = [PageRow(row, f"{where}[{at}]") for at, row in enumerate(fields.array("parts"))]
    if rows and not layout.is_stream_folder(folder):
        fields.wrong("folder", "that of a stream")
    parts = tuple((_page if len(row.values) == _PAGE_VALUES else _segment)(row, folder, suffix) for row in rows)
    for before, after in pairwise(parts):
        if after.first_seq <= before.last_seq or _level_of(after) > _level_of(before):
            fields.wrong("parts", "in order")
    return folder, parts


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


def _segment(row: PageRow, folder: str, suffix: str) -> SegmentRef:
    if len(row.values) != _SEGMENT_VALUES:
        row.wrong("is not that of a segment")
    first_seq, last_seq = row.number(0, 1), row.number(1, 1)
    digest = row.text(8, HEX256)
    name = row.text(11, HEX256) if row.values[11] != "" else digest
    digits = row.text(12, DIGITS)
    messages = row.number(2, 1)
    if messages > last_seq - first_seq + 1:
        row.wrong("has more messages than sequences")
    return SegmentRef(
        key=layout.segment_key(folder, first_seq, last_seq, name, digits=digits, suffix=suffix),
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
    )


def _page(row: PageRow, folder: str, suffix: str) -> PageRef:
    name, digits = row.text(1, HEX256), row.text(2, DIGITS)
    segments, messages, first_seq, last_seq = row.number(5, 1), row.number(6, 1), row.number(9, 1), row.number(10, 1)
    # So the segments of pages in order can be counted: there are no more than sequences.
    if not segments <= messages <= last_seq - first_seq + 1:
        row.wrong("states totals that no page has")
    return PageRef(
        key=layout.page_key(folder, name, digits=digits, suffix=suffix),
        size=row.number(3, 1),
        sha256=row.text(4, HEX256) if row.values[4] != "" else name,
        level=row.number(0, 0, _MAX_LEVEL),
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
    totals = total_of(parts)
    return PageRef(
        key=key,
        size=size,
        sha256=sha256,
        level=level,
        name=name,
        segments=sum(part.segments if isinstance(part, PageRef) else 1 for part in parts),
        messages=totals.messages,
        bytes=totals.bytes,
        stored_bytes=sum(part.stored_bytes if isinstance(part, PageRef) else part.size for part in parts),
        first_seq=totals.first_seq,
        last_seq=totals.last_seq,
        min_ns=min(part.min_ns for part in parts),
        max_ns=max(part.max_ns for part in parts),
        fingerprint=totals.digest,
    )


# --- where pages end ---
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


def arrange(
    parts: Iterable[Part], read: Callable[[PageRef], Sequence[Part]], store: Callable[[int, Sequence[Part]], PageRef]
) -> list[Part]:
    """Arrange parts in pages. Returns what a manifest lists: pages of falling levels, then segments.

    `store` makes the page of a level that lists some parts. Pages among `parts` were made by this rule: one that begins
    where a page would begin is taken as it is; any other is read, and its parts arranged.
    """
    arranging = _Arranging(read, store)
    for part in parts:
        arranging.add(part)
    return arranging.parts


class _Arranging:
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
        level = _level_of(part) + 1
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
    return count >= MOST or (count >= LEAST and int(name[-8:], 16) % (1 << ZERO_BITS) == 0)


# --- stored pages ---

# Lists of at most this many segments are in the manifest: 20 KB.
UNPAGED = 64
# Pages whose names are known, of 1 KB each: if they are stored again, one request finds that they are there.
_KNOWN = 1000


class SegmentPages(PageStore[PageRef, Part]):
    """The pages of segments of one repository."""

    most_kept = 100  # of about 40 KB each: a walk through a list reads none twice

    def __init__(self, documents: Documents, objects: Objects) -> None:
        super().__init__(documents, objects)
        self._known: OrderedDict[str, PageRef] = OrderedDict()  # stored or read here, by name

    def list_of(self, parts: Sequence[Part]) -> SegmentList:
        """Return the list of these parts, whose pages are in this repository."""
        return SegmentList(parts, self.read)

    def store(self, segments: Sequence[SegmentRef]) -> Sequence[SegmentRef]:
        """Return the same segments with all pages of a long list stored; a short list as a tuple.

        Pages of this repository that stay as they are are not read. Raises IntegrityError, KeyUnavailable, StoreError.
        """
        if len(segments) <= UNPAGED:
            return tuple(segments)
        is_ours = isinstance(segments, SegmentList) and getattr(segments.read, "__self__", None) is self
        parts = parts_of(segments) if is_ours else tuple(segments)
        return self.list_of(arrange(parts, self.read, partial(self._store_page, folder_of(parts[0]))))

    def arranging(self, folder: str) -> _Arranging:
        """Return what stores the pages of a list in this folder while its parts come.

        Raises IntegrityError, KeyUnavailable, StoreError.
        """
        return _Arranging(self.read, partial(self._store_page, folder))

    def _limit(self, page: PageRef) -> int:
        return _MOST_BYTES

    def _decode(self, data: bytes, page: PageRef) -> tuple[Part, ...]:
        return decode_page(data, page)

    def _store_page(self, folder: str, level: int, parts: Sequence[Part]) -> PageRef:
        data = encode_page(level, parts)
        name = self._name(data)
        with self._lock:
            known = self._known.get(name)
        if known is not None and self._is_usable(known):
            return known
        page = page_of(level, parts, **self._put(folder, name, data))
        self._keep(page, tuple(parts))
        return page

    def _is_usable(self, page: PageRef) -> bool:
        """Return whether a page is still there, as far as is known: `prune` may have run since this process last named
        it.
        """
        if self._objects.is_damaged(page):
            return False
        try:
            return self._documents.head(self._named(page)).size == page.size
        except ObjectNotFound:
            return False

    def _keep(self, page: PageRef, listed: tuple[Part, ...]) -> None:
        super()._keep(page, listed)
        with self._lock:
            self._known[page.name] = page
            self._known.move_to_end(page.name)
            while len(self._known) > _KNOWN:
                self._known.popitem(last=False)


class ListWriter:
    """Makes the list that `SegmentPages.store` makes of segments that come one after the other, and stores its pages
    meanwhile, so that they are never held.
    """

    def __init__(self, pages: SegmentPages) -> None:
        self._pages = pages
        self._few: list[SegmentRef] = []
        self._arranging: _Arranging | None = None

    def add(self, segments: Iterable[SegmentRef]) -> None:
        """Add the next segments, all in one folder. Raises IntegrityError, KeyUnavailable, StoreError."""
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
