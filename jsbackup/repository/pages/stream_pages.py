"""Pages of streams: where a backup has too many streams for its manifest.

A page is an immutable object, named by its content, that lists streams of a backup: a document with `streams`,
compressed by zstd. Backups share the pages whose streams have not changed, so a manifest and what is written with it
grow with what changed, also in an account of thousands of streams.

How and when a stream was captured differs with each backup, so a page does not have it: `archive_format`, `read`, and
`begun` and `ended` of `captured` are in the manifest (`manifest_json.py`).

Where pages end depends on each stream alone: after one whose name's SHA-256 ends in five zero bits, or fewer if its
entry is large. So a stream that is added, removed or changed concerns one page, or two. Measured, 10,000 streams of one
segment without consumers: 32 streams a page, of 12 KiB; in the manifest 130 bytes for each page.

Pages that a backup of this process named are used again, if that backup still exists. So they do too: nothing deletes
an object that a manifest names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any

from jsbackup.errors import FormatError, IntegrityError
from jsbackup.model import JsonObject
from jsbackup.repository import layout
from jsbackup.repository.background import in_order
from jsbackup.repository.document import MAX_DOCUMENT_BYTES, DocumentFields, Documents, encode_document
from jsbackup.repository.manifest import ArchiveFormat, Captured, StreamBackup
from jsbackup.repository.objects import Objects, StreamPageRef
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
from jsbackup.repository.pages.segment_list import parts_of
from jsbackup.repository.pages.segment_pages import SegmentPages
from jsbackup.repository.pages.stream_json import stream_from_json, stream_to_json

__all__ = [
    "MOST_BYTES",
    "MOST_STREAMS",
    "StreamPages",
    "decode_stream_page",
    "stream_pages_from_json",
    "stream_pages_to_json",
]


# --- rows and documents ---

# A page of several streams has at most these bytes before compression. Pages end long before, unless configurations are
# huge: measured, 32 streams of 1 to 2 KB.
MOST_BYTES = 16 << 20
MOST_STREAMS = 256
_UNKNOWN = "1970-01-01T00:00:00Z"


def stream_pages_to_json(pages: Sequence[StreamPageRef]) -> JsonObject:
    """Return the list of pages as manifests have it: rows of name, digits in the key, size and SHA-256 of the stored
    object ("" if it is the name), first stream, number of streams, messages and raw bytes.
    """
    suffix = layout.SEALED_SUFFIX if pages[0].key.endswith(layout.SEALED_SUFFIX) else ""
    return {"suffix": suffix, "pages": [_row_of(page) for page in pages]}


def _row_of(page: StreamPageRef) -> list[Any]:
    return [
        page.name,
        layout.stored_digits(page.key),
        page.size,
        "" if page.sha256 == page.name else page.sha256,
        page.first,
        page.streams,
        page.messages,
        page.bytes,
    ]


def stream_pages_from_json(fields: DocumentFields) -> tuple[StreamPageRef, ...]:
    """Decode the list of pages. Raises FormatError."""
    suffix, where = suffix_from_json(fields), f"{fields.where}: pages"
    rows = [PageRow(row, f"{where}[{at}]") for at, row in enumerate(fields.array("pages"))]
    pages = tuple(_page_from(row, suffix) for row in rows)
    if len({page.name for page in pages}) != len(pages):
        fields.wrong("pages", "a list of different pages")
    return pages


def _page_from(row: PageRow, suffix: str) -> StreamPageRef:
    if len(row.values) != 8 or not isinstance(row.values[4], str):
        row.wrong("is not that of a page")
    name, digits = row.text(0, HEX256), row.text(1, DIGITS)
    return StreamPageRef(
        key=layout.page_key(layout.STREAMS_FOLDER, name, digits=digits, suffix=suffix),
        size=row.number(2, 1),
        sha256=row.text(3, HEX256) if row.values[3] != "" else name,
        name=name,
        first=row.values[4],
        streams=row.number(5, 1, MOST_STREAMS),
        messages=row.number(6),
        bytes=row.number(7),
    )


def _page_of(streams: Sequence[StreamBackup], *, key: str, name: str, size: int, sha256: str) -> StreamPageRef:
    """Return the reference to the stored page that lists these streams."""
    return StreamPageRef(
        key=key,
        size=size,
        sha256=sha256,
        name=name,
        first=streams[0].name,
        streams=len(streams),
        messages=sum(stream.captured.messages for stream in streams),
        bytes=sum(stream.captured.bytes for stream in streams),
    )


def _encoded(streams: Sequence[StreamBackup]) -> tuple[bytes, int]:
    entries = [_without_capture(stream_to_json(stream)) for stream in streams]
    return encode({"streams": entries}, f"page of stream {streams[0].name}")


def _without_capture(entry: JsonObject) -> JsonObject:
    entry = {key: value for key, value in entry.items() if key not in ("archive_format", "read")}
    captured = {key: value for key, value in entry["captured"].items() if key not in ("begun", "ended")}
    return {**entry, "captured": captured}


def decode_stream_page(data: bytes, page: StreamPageRef, segments: SegmentPages) -> tuple[StreamBackup, ...]:
    """Return the streams that a page lists, as captured at no known time.

    Raises:
        FormatError: damaged, hostile, or not the page that `page` describes.
        UnsupportedError: it has a later format.
    """
    fields = opened(data, page, _limit_of(page))
    streams = tuple(stream_from_json(_with_capture(entry), segments) for entry in fields.each("streams"))
    if not streams or _page_of(streams, key=page.key, name=page.name, size=page.size, sha256=page.sha256) != page:
        raise FormatError(f"page {page.key} is not the one that is named: its totals differ")
    if len({stream.name for stream in streams}) != len(streams):
        raise FormatError(f"page {page.key} lists a stream twice")
    return streams


def _limit_of(page: StreamPageRef) -> int:
    return MAX_DOCUMENT_BYTES if page.streams == 1 else MOST_BYTES


def _with_capture(fields: DocumentFields) -> DocumentFields:
    captured: Mapping[str, Any] = fields.object("captured")
    times = {"begun": _UNKNOWN, "ended": _UNKNOWN}
    how: JsonObject = {"archive_format": ArchiveFormat.MESSAGES.value, "read": None}
    return DocumentFields({**fields.value, **how, "captured": {**captured, **times}}, fields.where)


# --- stored pages ---

# Streams whose entries have at most about these bytes are in the manifest: a small backup is one object.
#
# Measured, KiB written by a backup in which one of the streams had changed, without pages and with them: 1 stream of 64
# segments 35 and 10, 10 of one 12 and 2, 40 of one 48 and 5, 10 of 60 333 and 10, 64 of 64 2,277 and 17. Pages cost one
# put more, and who reads the streams one get for each page (1 to 64 here). A put costs as much as 200 KiB that are kept
# in S3 for a month, so a few KiB are not worth one. With 40 KiB in the manifest, a backup stays below 64 KiB.
UNPAGED_BYTES = 40 << 10

# About the size of an entry without segments and consumers, of the configuration in it, and of each of them.
_ENTRY_BYTES = 1024
_CONFIG_BYTES = 512
_PART_BYTES = 512  # as it counts where pages end
_ROW_BYTES = 320  # of a part of the list of segments

_THREADS = 16
# After so many backups of a process, it looks which of the pages that it knows are there.
LOOK_EVERY = 64
# Fields of streams that pages do not have, or that are compared in another way.
_NOT_KEPT = ("segments", "archive_format", "read", "captured")


class StreamPages(PageStore[StreamPageRef, StreamBackup]):
    """The pages of streams of one repository.

    `segments` has the pages of long lists of segments. `has_backup` returns whether a backup's manifest exists now.
    """

    most_kept = 2048

    def __init__(
        self, documents: Documents, objects: Objects, segments: SegmentPages, *, has_backup: Callable[[str], bool]
    ) -> None:
        super().__init__(documents, objects)
        self.segments = segments
        self._has_backup = has_backup
        self._by_first: dict[str, StreamPageRef] = {}  # of the pages that are kept, the one seen last
        self._named_by: dict[StreamPageRef, str] = {}
        self._stores = 0  # how often pages were stored

    def read_all(
        self, pages: Sequence[StreamPageRef], broken: dict[StreamPageRef, IntegrityError] | None = None
    ) -> Iterator[StreamBackup]:
        """Yield the streams of some pages, as captured at no known time (`captured_as`).

        Raises IntegrityError, KeyUnavailable, StoreError; if `broken` is given, a page that is missing, damaged, or not
        the one that is named is put there instead.
        """
        with self._lock:
            kept = all(page in self._kept for page in pages)
        read = self.read if broken is None else partial(self._read_if_sound, broken)
        for streams in map(read, pages) if kept else in_order([partial(read, page) for page in pages], _THREADS):
            yield from streams

    def _read_if_sound(
        self, broken: dict[StreamPageRef, IntegrityError], page: StreamPageRef
    ) -> tuple[StreamBackup, ...]:
        try:
            return self.read(page)
        except IntegrityError as error:
            broken[page] = error
            return ()

    def _limit(self, page: StreamPageRef) -> int:
        return _limit_of(page)

    def _decode(self, data: bytes, page: StreamPageRef) -> tuple[StreamBackup, ...]:
        return decode_stream_page(data, page, self.segments)

    def note(self, pages: Iterable[StreamPageRef], backup: str) -> None:
        """Note that the manifest of a backup names these pages: as long as it exists, they do."""
        with self._lock:
            self._named_by.update((page, backup) for page in pages if page in self._kept)

    def store(self, streams: Sequence[StreamBackup]) -> tuple[StreamPageRef, ...]:
        """Return the pages that list these streams, after storing those that are not; none if the streams have
        short entries, and are few.

        Raises IntegrityError, KeyUnavailable, StoreError.
        """
        if not _are_large(streams):
            return ()
        self._stores += 1
        if self._stores % LOOK_EVERY == 0:
            self._forget_missing()
        checked: dict[str, bool] = {}
        return tuple(page for some in _pages_of(streams) for page in self._stored(some, checked))

    def _stored(self, streams: Sequence[StreamBackup], checked: dict[str, bool]) -> Iterator[StreamPageRef]:
        known = self._known(streams, checked)
        if known is not None:
            yield known
            return
        data, raw_bytes = _encoded(streams)
        if raw_bytes > MOST_BYTES and len(streams) > 1:
            half = len(streams) // 2
            yield from self._stored(streams[:half], checked)
            yield from self._stored(streams[half:], checked)
            return
        page = _page_of(streams, **self._put(layout.STREAMS_FOLDER, self._name(data), data))
        with self._lock:  # so a process that stores for days needs no more than for the newest backup
            if page.first in self._by_first:
                self._drop(self._by_first[page.first])
        self._keep(page, self._decode(data, page))
        yield page

    def _known(self, streams: Sequence[StreamBackup], checked: dict[str, bool]) -> StreamPageRef | None:
        """Return the stored page that lists exactly these streams, if one is known to exist. `checked` has the backups
        that were looked for.
        """
        with self._lock:
            page = self._by_first.get(streams[0].name)
            kept = self._kept.get(page, ()) if page else ()
            backup = self._named_by.get(page, "") if page else ""
        if not backup or len(kept) != len(streams) or not all(map(_is_same, kept, streams)):
            return None
        if page is None or self._objects.is_damaged(page):
            return None
        if backup not in checked:
            checked[backup] = self._has_backup(backup)
        return page if checked[backup] else None

    def _forget_missing(self) -> None:
        """Forget the pages that are not there any more, with their size. Raises StoreError.

        Nothing but a fault removes them, so they are only looked for now and then: a request lists a thousand.
        """
        _, infos = self._documents.list_beside(layout.STREAMS)
        present = {(info.key, info.size) for info in infos}
        with self._lock:
            for page in [page for page in self._kept if (page.key, page.size) not in present]:
                self._drop(page)

    def _keep(self, page: StreamPageRef, listed: tuple[StreamBackup, ...]) -> None:
        with self._lock:
            self._by_first[page.first] = page
        super()._keep(page, listed)

    def _drop(self, page: StreamPageRef) -> None:
        super()._drop(page)
        self._named_by.pop(page, None)
        if self._by_first.get(page.first) == page:
            del self._by_first[page.first]


def _are_large(streams: Sequence[StreamBackup]) -> bool:
    """Return whether the entries of the streams are more than a manifest should have. Looks at no more than that."""
    size = 0
    for stream in streams:
        size += _ENTRY_BYTES + _ROW_BYTES * len(parts_of(stream.segments)) + _PART_BYTES * len(stream.consumers)
        if size <= UNPAGED_BYTES:  # else it is not needed
            size += len(encode_document(stream.config, stream.name)) - _CONFIG_BYTES
        if size > UNPAGED_BYTES:
            return True
    return False


def _pages_of(streams: Sequence[StreamBackup]) -> Iterator[Sequence[StreamBackup]]:
    begin = 0
    for at, stream in enumerate(streams, 1):
        if at == len(streams) or at - begin >= MOST_STREAMS or _ends_page(stream):
            yield streams[begin:at]
            begin = at


def _ends_page(stream: StreamBackup) -> bool:
    entry = _ENTRY_BYTES + _PART_BYTES * (len(parts_of(stream.segments)) + len(stream.consumers))
    bits = max(ZERO_BITS + 1 - (entry // _ENTRY_BYTES).bit_length(), 0)
    return _end_of_digest(stream.name) % (1 << bits) == 0


@lru_cache(maxsize=1 << 14)  # `follow` asks for the same names every two seconds
def _end_of_digest(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[-4:], "big")


def _is_same(stream: StreamBackup, other: StreamBackup) -> bool:
    """Whether both have the same entry in a page.

    A server never writes a number where it wrote a truth value, which would be equal here.
    """
    if _kept_of(stream) != _kept_of(other) or _held(stream.captured) != _held(other.captured):
        return False
    parts, others = parts_of(stream.segments), parts_of(other.segments)
    return parts is others or list(parts) == list(others)


_kept_of = attrgetter(*(field.name for field in fields(StreamBackup) if field.name not in _NOT_KEPT))
_held = attrgetter(*(field.name for field in fields(Captured) if field.name not in ("begun", "ended")))
