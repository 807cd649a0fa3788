"""Pages of streams: where a backup has too many streams for its manifest.

A page is an immutable object, named by its content, that lists streams of a backup: a document with `streams`,
compressed by zstd. Backups share the pages whose streams have not changed, so a manifest and what is written with it
grow with what changed, also in an account of thousands of streams.

How and when a stream was captured differs with each backup, so a page does not have it: `archive_format`, `read`, and
`begun` and `ended` of `captured` are in the manifest (`captures.py`).

Where pages end depends on each stream alone: after one whose name's SHA-256 ends in five zero bits, or fewer if its
entry is large. So a stream that is added, removed or changed concerns one page, or two. Measured, 10,000 streams of one
segment without consumers: 32 streams a page, of 12 KiB; in the manifest 130 bytes for each page.

Pages that a backup of this process named are used again, if that backup still exists. So they do too: nothing deletes
an object that a manifest names.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any

import zstandard

from jsbackup.errors import DigestMismatch, FormatError, IntegrityError, ObjectNotFound
from jsbackup.model import JsonObject
from jsbackup.repository import layout
from jsbackup.repository.background import in_order
from jsbackup.repository.crypto.sealing import Sealing
from jsbackup.repository.document import (
    MAX_DOCUMENT_BYTES,
    DocumentFields,
    decode_document,
    encode_document,
)
from jsbackup.repository.documents import Documents
from jsbackup.repository.manifest import ArchiveFormat, StreamBackup
from jsbackup.repository.pages.named_documents import NamedDocuments
from jsbackup.repository.pages.page_row import HEX256, REPLACEMENT, PageRow
from jsbackup.repository.pages.page_store import PageStore
from jsbackup.repository.pages.segment_list import parts_of
from jsbackup.repository.pages.stream_json import (
    stream_from_json,
    stream_to_json,
)
from jsbackup.repository.refs import StreamPageRef

__all__ = ["UNPAGED", "StreamPages", "stream_pages_from_json", "stream_pages_to_json"]

# At most this many streams are in the manifest.
UNPAGED = 64

FORMAT_VERSION = 1
FEATURES: frozenset[str] = frozenset()

_ZERO_BITS = 5
_MOST = 256
# About the size of an entry without segments and consumers, and of each of them.
_ENTRY_BYTES = 1024
_PART_BYTES = 512

_LEVEL = 9
_KEPT = 2048  # pages kept in memory
_THREADS = 16
_UNKNOWN = "1970-01-01T00:00:00Z"


class StreamPages:
    """The pages of streams of one repository. May be used from several threads.

    `segments` has the pages of long lists of segments. `has_backup` returns whether a backup's manifest exists now.
    `replaces` is as in `Objects`.
    """

    def __init__(
        self,
        documents: Documents,
        sealing: Sealing,
        segments: PageStore,
        *,
        has_backup: Callable[[str], bool],
        replaces: bool,
    ) -> None:
        self._documents = documents
        self._sealing = sealing
        self.segments = segments
        self._has_backup = has_backup
        self._named = NamedDocuments(documents, replaces=replaces)
        self._kept: OrderedDict[StreamPageRef, tuple[StreamBackup, ...]] = OrderedDict()
        self._by_first: dict[str, StreamPageRef] = {}  # of the pages that are kept, the one seen last
        self._named_by: dict[StreamPageRef, str] = {}
        self._lock = Lock()

    def read(self, pages: Sequence[StreamPageRef]) -> Iterator[StreamBackup]:
        """Yield the streams of some pages, as captured at no known time (`captured_as`).

        Raises:
            IntegrityError: a page is missing, damaged, or not the one that is named.
            KeyUnavailable: it is encrypted, and no key that opens it was given.
            UnsupportedError: it needs a newer tool.
            StoreError: it cannot be read.
        """
        for streams in in_order([partial(self._read, page) for page in pages], _THREADS) if pages else ():
            yield from streams

    def _read(self, page: StreamPageRef) -> tuple[StreamBackup, ...]:
        with self._lock:
            if page in self._kept:
                self._kept.move_to_end(page)
                return self._kept[page]
        try:
            found = self._documents.fetch(page.key.removesuffix(self._sealing.suffix), MAX_DOCUMENT_BYTES)
        except ObjectNotFound as error:
            raise IntegrityError(f"object {page.key} is missing") from error
        if (found.size, found.sha256) != (page.size, page.sha256):
            raise DigestMismatch(f"object {page.key} has changed since it was stored (SHA-256 differs)")
        streams = _decode(found.data, page, self.segments)
        self._keep(page, streams)
        return streams

    def is_sound(self, page: StreamPageRef) -> bool:
        """Return whether a page can be read. Raises KeyUnavailable and StoreError as `read`."""
        try:
            self._read(page)
        except (IntegrityError, FormatError):
            return False
        return True

    def note(self, pages: Iterable[StreamPageRef], backup: str) -> None:
        """Note that the manifest of a backup names these pages: as long as it exists, they do."""
        with self._lock:
            self._named_by.update((page, backup) for page in pages if page in self._kept)

    def store(self, streams: Sequence[StreamBackup]) -> tuple[StreamPageRef, ...]:
        """Return the pages that list these streams, after storing those that are not; none if the streams are few.

        Raises as `read`, and StoreError.
        """
        if len(streams) <= UNPAGED:
            return ()
        there: dict[str, bool] = {}
        return tuple(self._known(page, there) or self._put(page) for page in _pages_of(streams))

    def _known(self, streams: Sequence[StreamBackup], there: dict[str, bool]) -> StreamPageRef | None:
        """Return the stored page that lists exactly these streams, if one is known to exist. `there` has the backups
        that were looked for.
        """
        with self._lock:
            page = self._by_first.get(streams[0].name)
            found = self._kept.get(page, ()) if page else ()
            backup = self._named_by.get(page, "") if page else ""
        if not backup or len(found) != len(streams) or not all(map(_is_same, found, streams)):
            return None
        if backup not in there:
            there[backup] = self._has_backup(backup)
        return page if there[backup] else None

    def _put(self, streams: Sequence[StreamBackup]) -> StreamPageRef:
        data = _encode(streams)
        name = self._sealing.name(hashlib.sha256(data).hexdigest())
        stored = self._named.put(layout.stream_page_key(name), data, name=name, limit=MAX_DOCUMENT_BYTES)
        page = StreamPageRef(
            stored.key,
            stored.size,
            stored.sha256,
            name,
            streams[0].name,
            len(streams),
            sum(stream.captured.messages for stream in streams),
            sum(stream.captured.bytes for stream in streams),
        )
        self._keep(page, _decode(data, page, self.segments))
        return page

    def _keep(self, page: StreamPageRef, streams: tuple[StreamBackup, ...]) -> None:
        with self._lock:
            self._kept[page] = streams
            self._by_first[page.first] = page
            while len(self._kept) > _KEPT:
                gone, _ = self._kept.popitem(last=False)
                self._named_by.pop(gone, None)
                if self._by_first.get(gone.first) == gone:
                    del self._by_first[gone.first]


def stream_pages_to_json(pages: Sequence[StreamPageRef]) -> JsonObject:
    """Return the list of pages as manifests have it: rows of name, replacement, size and SHA-256 of the stored object
    ("" if it is the name), first stream, number of streams, messages and raw bytes.
    """
    suffix = layout.SEALED_SUFFIX if pages[0].key.endswith(layout.SEALED_SUFFIX) else ""
    return {"suffix": suffix, "pages": [_row_of(page) for page in pages]}


def _row_of(page: StreamPageRef) -> list[Any]:
    return [
        page.name,
        layout.replacement_of(page.key),
        page.size,
        "" if page.sha256 == page.name else page.sha256,
        page.first,
        page.streams,
        page.messages,
        page.bytes,
    ]


def stream_pages_from_json(fields: DocumentFields) -> tuple[StreamPageRef, ...]:
    """Decode the list of pages. Raises FormatError."""
    suffix = fields.text("suffix")
    if suffix not in ("", layout.SEALED_SUFFIX):
        fields.wrong("suffix", "that of an object")
    where = f"{fields.where}: pages"
    return tuple(_page_from(row, f"{where}[{at}]", suffix) for at, row in enumerate(fields.array("pages")))


def _page_from(values: Any, where: str, suffix: str) -> StreamPageRef:
    if not isinstance(values, list) or len(values) != 8 or not isinstance(values[4], str):
        raise FormatError(f"{where} is not the row of a page")
    row = PageRow(values, where)
    name, replacement = row.text(0, HEX256), row.text(1, REPLACEMENT)
    key = layout.stream_page_key(name)
    if replacement:
        key = key.replace(".json", f".{replacement}.json")
    return StreamPageRef(
        key=f"{key}{suffix}",
        size=row.number(2, 1),
        sha256=row.text(3, HEX256) if values[3] != "" else name,
        name=name,
        first=values[4],
        streams=row.number(5, 1),
        messages=row.number(6),
        bytes=row.number(7),
    )


def _pages_of(streams: Sequence[StreamBackup]) -> Iterator[Sequence[StreamBackup]]:
    begin = 0
    for at, stream in enumerate(streams, 1):
        if at == len(streams) or at - begin >= _MOST or _ends_page(stream):
            yield streams[begin:at]
            begin = at


def _ends_page(stream: StreamBackup) -> bool:
    entry = _ENTRY_BYTES + _PART_BYTES * (len(parts_of(stream.segments)) + len(stream.consumers))
    bits = max(_ZERO_BITS + 1 - (entry // _ENTRY_BYTES).bit_length(), 0)
    digest = hashlib.sha256(stream.name.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[-4:], "big") % (1 << bits) == 0


def _encode(streams: Sequence[StreamBackup]) -> bytes:
    document: JsonObject = {
        "format": FORMAT_VERSION,
        "required_features": [],
        "streams": [_without_capture(stream_to_json(stream)) for stream in streams],
    }
    data = encode_document(document, f"page of stream {streams[0].name}")
    return zstandard.ZstdCompressor(level=_LEVEL).compress(data)


def _without_capture(entry: JsonObject) -> JsonObject:
    entry = {key: value for key, value in entry.items() if key not in ("archive_format", "read")}
    captured = {key: value for key, value in entry["captured"].items() if key not in ("begun", "ended")}
    return {**entry, "captured": captured}


def _decode(data: bytes, page: StreamPageRef, segments: PageStore) -> tuple[StreamBackup, ...]:
    """Return the streams that a page lists, as captured at no known time.

    Raises:
        FormatError: damaged, hostile, or not the page that `page` describes.
        UnsupportedError: it has a later format.
    """
    what = f"page {page.key}"
    fields = decode_document(_decompressed(data, what), what)
    fields.version(FORMAT_VERSION, FEATURES)
    streams = tuple(stream_from_json(_with_capture(one), segments) for one in fields.each("streams"))
    stated = (page.first, page.streams, page.messages, page.bytes)
    messages = sum(stream.captured.messages for stream in streams)
    raw = sum(stream.captured.bytes for stream in streams)
    if not streams or (streams[0].name, len(streams), messages, raw) != stated:
        raise FormatError(f"{what} is not the one that is named: its totals differ")
    return streams


def _decompressed(data: bytes, what: str) -> bytes:
    try:
        if not 0 <= zstandard.frame_content_size(data) <= MAX_DOCUMENT_BYTES:
            raise FormatError(f"{what} is not compressed as a page of streams is")
        return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FormatError(f"{what} cannot be decompressed: {error}") from error


def _with_capture(fields: DocumentFields) -> DocumentFields:
    captured: Mapping[str, Any] = fields.object("captured")
    times = {"begun": _UNKNOWN, "ended": _UNKNOWN}
    how: JsonObject = {"archive_format": ArchiveFormat.MESSAGES.value, "read": None}
    return DocumentFields({**fields.value, **how, "captured": {**captured, **times}}, fields.where)


def _is_same(one: StreamBackup, other: StreamBackup) -> bool:
    """Whether both have the same entry in a page.

    A server never writes a number where it wrote a truth value, which would be equal here.
    """
    parts, others = parts_of(one.segments), parts_of(other.segments)
    return list(parts) == list(others) and _without_segments(one) == _without_segments(other)


def _without_segments(stream: StreamBackup) -> StreamBackup:
    captured = replace(stream.captured, begun="", ended="")
    return replace(stream, segments=(), archive_format=ArchiveFormat.MESSAGES, read=None, captured=captured)
