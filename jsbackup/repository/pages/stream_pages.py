"""Pages of streams: where a backup has too many streams for its manifest.

A page is an immutable object, named by its content, that lists streams of a backup: a document with `streams`,
compressed by zstd. Backups share the pages whose streams have not changed, so a manifest and what is written with it
grow with what changed, also in an account of thousands of streams.

How and when a stream was captured differs with each backup, so a page does not have it: `archive_format`, `read`, and
`begun` and `ended` of `captured` are in the manifest (`captures.py`). `stream_page_json.py` has the document.

Where pages end depends on each stream alone: after one whose name's SHA-256 ends in five zero bits, or fewer if its
entry is large. So a stream that is added, removed or changed concerns one page, or two. Measured, 10,000 streams of one
segment without consumers: 32 streams a page, of 12 KiB; in the manifest 130 bytes for each page.

Pages that a backup of this process named are used again, if that backup still exists. So they do too: nothing deletes
an object that a manifest names.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import lru_cache, partial
from operator import attrgetter
from threading import Lock

import zstandard

from jsbackup.errors import FormatError, IntegrityError
from jsbackup.repository import layout
from jsbackup.repository.background import in_order
from jsbackup.repository.document import encode_document
from jsbackup.repository.documents import Documents
from jsbackup.repository.manifest import Captured, StreamBackup
from jsbackup.repository.memory_budget import Room
from jsbackup.repository.objects import Objects
from jsbackup.repository.pages.page_store import PageStore, fetch_page, stored_as
from jsbackup.repository.pages.segment_list import SegmentList, parts_of
from jsbackup.repository.pages.stream_page_json import (
    MOST_BYTES,
    MOST_STREAMS,
    decode_stream_page,
    encode_stream_page,
    limit_of,
    raw_bytes_of_stream_page,
)
from jsbackup.repository.refs import StreamPageRef

__all__ = ["StreamPages"]

# Streams whose entries have at most about these bytes are in the manifest: a small backup is one object.
#
# Measured, KiB written by a backup in which one of the streams had changed, without pages and with them: 1 stream of 64
# segments 35 and 10, 10 of one 12 and 2, 40 of one 48 and 5, 10 of 60 333 and 10, 64 of 64 2,277 and 17. Pages cost one
# put more, and who reads the streams one get for each page (1 to 64 here). A put costs as much as 200 KiB that are kept
# in S3 for a month, so a few KiB are not worth one. With 40 KiB in the manifest, a backup stays below 64 KiB.
UNPAGED_BYTES = 40 << 10

# What the pages that are read at the same time have before compression, apart from one of them (`memory_budget.py`). A
# page of a single stream may be as large as a manifest.
DECODED_BYTES = 16 << 20

_ZERO_BITS = 5
# About the size of an entry without segments and consumers, of the configuration in it, and of each of them.
_ENTRY_BYTES = 1024
_CONFIG_BYTES = 512
_PART_BYTES = 512
_ROW_BYTES = 320  # of a part of a long list

_LEVEL = 9
_KEPT = 2048  # pages kept in memory
_THREADS = 16
# After so many backups of a process, it looks which of the pages that it knows are there.
LOOK_EVERY = 64
# Fields of streams that pages do not have, or that are compared in another way.
_NOT_KEPT = ("segments", "archive_format", "read", "captured")


class StreamPages:
    """The pages of streams of one repository. May be used from several threads.

    `segments` has the pages of long lists of segments. `has_backup` returns whether a backup's manifest exists now.
    `objects` is as in `PageStore`.
    """

    def __init__(
        self,
        documents: Documents,
        objects: Objects,
        segments: PageStore,
        *,
        has_backup: Callable[[str], bool],
    ) -> None:
        self._documents = documents
        self._objects = objects
        self._sealing = objects.sealing
        self.segments = segments
        self._has_backup = has_backup
        self._room = Room(DECODED_BYTES)
        self._kept: OrderedDict[StreamPageRef, tuple[StreamBackup, ...]] = OrderedDict()
        self._by_first: dict[str, StreamPageRef] = {}  # of the pages that are kept, the one seen last
        self._named_by: dict[StreamPageRef, str] = {}
        self._lock = Lock()
        self._stores = 0  # how often pages were stored

    def read(
        self, pages: Sequence[StreamPageRef], broken: dict[StreamPageRef, IntegrityError] | None = None
    ) -> Iterator[StreamBackup]:
        """Yield the streams of some pages, as captured at no known time (`captured_as`).

        Raises:
            IntegrityError: a page is missing, damaged, or not the one that is named. If `broken` is given, it is put
                there instead.
            KeyUnavailable: it is encrypted, and no key that opens it was given.
            UnsupportedError: it needs a newer tool.
            StoreError: it cannot be read.
        """
        with self._lock:
            kept = all(page in self._kept for page in pages)
        read = self._read if broken is None else partial(self._read_if_sound, broken)
        for streams in map(read, pages) if kept else in_order([partial(read, page) for page in pages], _THREADS):
            yield from streams

    def _read_if_sound(
        self, broken: dict[StreamPageRef, IntegrityError], page: StreamPageRef
    ) -> tuple[StreamBackup, ...]:
        try:
            return self._read(page)
        except IntegrityError as error:
            broken[page] = error
            return ()

    def _read(self, page: StreamPageRef) -> tuple[StreamBackup, ...]:
        with self._lock:
            if page in self._kept:
                self._kept.move_to_end(page)
                return self._kept[page]
        if page.size > limit_of(page):
            raise FormatError(f"object {page.key} is said to have {page.size} bytes, more than such a page has")
        with self._room.share() as share:
            share.hold(page.size)
            data = fetch_page(self._documents, self._objects, page, page.size)
            share.hold(raw_bytes_of_stream_page(data, page))
            streams = decode_stream_page(data, page, self.segments)
        self._keep(page, streams)
        return streams

    def note(self, pages: Iterable[StreamPageRef], backup: str) -> None:
        """Note that the manifest of a backup names these pages: as long as it exists, they do."""
        with self._lock:
            self._named_by.update((page, backup) for page in pages if page in self._kept)

    def store(self, streams: Sequence[StreamBackup]) -> tuple[StreamPageRef, ...]:
        """Return the pages that list these streams, after storing those that are not; none if the streams have
        short entries, and are few.

        Raises as `read`, and StoreError.
        """
        if not _are_large(streams):
            return ()
        self._stores += 1
        if self._stores % LOOK_EVERY == 0:
            self._forget_missing()
        there: dict[str, bool] = {}
        return tuple(page for some in _pages_of(streams) for page in self._stored(some, there))

    def _stored(self, streams: Sequence[StreamBackup], there: dict[str, bool]) -> Iterator[StreamPageRef]:
        known = self._known(streams, there)
        if known is not None:
            yield known
            return
        raw = encode_stream_page(streams)
        if len(raw) > MOST_BYTES and len(streams) > 1:
            half = len(streams) // 2
            yield from self._stored(streams[:half], there)
            yield from self._stored(streams[half:], there)
        else:
            yield self._put(streams, raw)

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
        if page is None or self._objects.is_damaged(page):
            return None
        if backup not in there:
            there[backup] = self._has_backup(backup)
        return page if there[backup] else None

    def forget_damaged(self) -> None:
        """Forget the pages that were found damaged. For commands that store for days, after `look_for_damage`."""
        with self._lock:
            for page in filter(self._objects.is_damaged, [*self._kept]):
                self._drop(page)

    def _forget_missing(self) -> None:
        """Forget the pages that are not there any more, with their size. Raises StoreError.

        Nothing but a fault removes them, so they are only looked for now and then: a request lists a thousand.
        """
        _, infos = self._documents.list_beside(layout.STREAMS)
        there = {(info.key, info.size) for info in infos}
        with self._lock:
            for page in [page for page in self._kept if (page.key, page.size) not in there]:
                self._drop(page)

    def _put(self, streams: Sequence[StreamBackup], raw: bytes) -> StreamPageRef:
        data = zstandard.ZstdCompressor(level=_LEVEL).compress(raw)
        name = self._sealing.name(hashlib.sha256(data).hexdigest())
        page = StreamPageRef(
            "",
            0,
            "",
            name,
            streams[0].name,
            len(streams),
            sum(stream.captured.messages for stream in streams),
            sum(stream.captured.bytes for stream in streams),
        )
        page = stored_as(page, self._documents.put_named(layout.stream_page_key(name), data))
        self._keep(page, decode_stream_page(data, page, self.segments), in_place=True)
        return page

    def _keep(self, page: StreamPageRef, streams: tuple[StreamBackup, ...], *, in_place: bool = False) -> None:
        """Keep it in memory; `in_place` of the page that had its first stream, so that a process that stores for days
        needs no more than for the newest backup.
        """
        with self._lock:
            if in_place and page.first in self._by_first:
                self._drop(self._by_first[page.first])
            self._kept[page] = streams
            self._by_first[page.first] = page
            while len(self._kept) > _KEPT:
                self._drop(next(iter(self._kept)))

    def _drop(self, page: StreamPageRef) -> None:
        del self._kept[page]
        self._named_by.pop(page, None)
        if self._by_first.get(page.first) == page:
            del self._by_first[page.first]


def _are_large(streams: Sequence[StreamBackup]) -> bool:
    """Return whether the entries of the streams are more than a manifest should have. Looks at no more than that."""
    size = 0
    for stream in streams:
        each = _ROW_BYTES if isinstance(stream.segments, SegmentList) else _PART_BYTES
        size += _ENTRY_BYTES + each * len(parts_of(stream.segments)) + _PART_BYTES * len(stream.consumers)
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
    bits = max(_ZERO_BITS + 1 - (entry // _ENTRY_BYTES).bit_length(), 0)
    return _end_of_digest(stream.name) % (1 << bits) == 0


@lru_cache(maxsize=1 << 14)  # `follow` asks for the same names every two seconds
def _end_of_digest(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[-4:], "big")


def _is_same(one: StreamBackup, other: StreamBackup) -> bool:
    """Whether both have the same entry in a page.

    A server never writes a number where it wrote a truth value, which would be equal here.
    """
    if _kept_of(one) != _kept_of(other) or _held(one.captured) != _held(other.captured):
        return False
    parts, others = parts_of(one.segments), parts_of(other.segments)
    return parts is others or list(parts) == list(others)


_kept_of = attrgetter(*(field.name for field in fields(StreamBackup) if field.name not in _NOT_KEPT))
_held = attrgetter(*(field.name for field in fields(Captured) if field.name not in ("begun", "ended")))
