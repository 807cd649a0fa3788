"""The objects that some backups name. Each page is read once, however many backups share it."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from functools import partial

from jsbackup.repository.background import in_order
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.repository.pages.segment_list import Part, parts_of
from jsbackup.repository.pages.stream_pages import StreamPages
from jsbackup.repository.refs import PageRef, StreamPageRef

__all__ = ["NamedObjects"]

_AT_ONCE = 4096  # pages whose references are held


class NamedObjects:
    """A set of keys.

    Holds a hash of each key instead of the key: 8 bytes for an object, sorted when one is first looked for. If two keys
    had the same hash, an unused object would seem named, and stay. The keys of pages, one in some forty, are held as
    they are: a page that seemed known would not be read, and what only it lists would seem unused.
    """

    def __init__(self, pages: StreamPages) -> None:
        self._pages = pages
        self._hashes = array("q")
        self._sorted = True
        self._pages_seen: set[str] = set()
        self._unread: dict[str, PageRef] = {}
        self._unread_streams: dict[str, StreamPageRef] = {}

    def __contains__(self, key: str) -> bool:
        if not self._sorted:
            self._hashes = array("q", sorted(self._hashes))
            self._sorted = True
        wanted = hash(key)
        at = bisect_left(self._hashes, wanted)
        return at < len(self._hashes) and self._hashes[at] == wanted

    def add(self, manifest: Manifest) -> None:
        """Add what a manifest names itself. `read_pages` adds what its pages list."""
        if manifest.stream_pages:
            new = {page.key: page for page in manifest.stream_pages if page.key not in self._pages_seen}
            self._unread_streams.update(new)
            self._note_pages(new)
            return
        self._add_streams(manifest.streams)

    def read_pages(self, threads: int) -> None:
        """Read the pages that were added, and those that they list. Raises as `StreamPages.read`."""
        while self._unread_streams:
            some = [self._unread_streams.popitem()[1] for _ in range(min(len(self._unread_streams), _AT_ONCE))]
            self._add_streams(self._pages.read(some))
        while self._unread:
            some_pages = [self._unread.popitem()[1] for _ in range(min(len(self._unread), _AT_ONCE))]
            for parts in in_order([partial(self._pages.segments.read, page) for page in some_pages], threads):
                self._add(parts)

    def _add_streams(self, streams: Iterable[StreamBackup]) -> None:
        for stream in streams:
            self._add(parts_of(stream.segments))
            self._note(piece.key for piece in stream.opaque)
            self._note(one.pending.key for one in stream.consumers if one.pending is not None)

    def _add(self, parts: Sequence[Part]) -> None:
        new = {part.key: part for part in parts if isinstance(part, PageRef) and part.key not in self._pages_seen}
        self._unread.update(new)
        self._note_pages(new)
        self._note(part.key for part in parts if not isinstance(part, PageRef))

    def _note_pages(self, keys: Collection[str]) -> None:
        self._pages_seen.update(keys)
        self._note(keys)

    def _note(self, keys: Iterable[str]) -> None:
        self._hashes.extend(hash(key) for key in keys)
        self._sorted = False
