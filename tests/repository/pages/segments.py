"""Segments that nobody stored, and pages kept in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from jsbackup.formats.digest import StreamDigest
from jsbackup.repository import layout
from jsbackup.repository.objects import PageRef, SegmentRef
from jsbackup.repository.pages.segment_list import Part
from jsbackup.repository.pages.segment_pages import decode_page, encode_page, page_of
from tests.harness.backups import INCARNATION

FOLDER = layout.stream_folder("orders", INCARNATION)


def segment(first_seq: int, messages: int = 10, *, version: int = 0) -> SegmentRef:
    digest = hashlib.sha256(f"{first_seq} {messages} {version}".encode()).hexdigest()
    last_seq = first_seq + messages - 1
    return SegmentRef(
        key=layout.segment_key(FOLDER, first_seq, last_seq, digest),
        first_seq=first_seq,
        last_seq=last_seq,
        messages=messages,
        bytes=100 * messages,
        min_ns=10**18 + first_seq,
        max_ns=10**18 + last_seq,
        size=1000 + first_seq,
        sha256=digest,
        digest=digest,
        fingerprint=StreamDigest.from_hex(digest),
    )


def segments(count: int, *, first: int = 0) -> list[SegmentRef]:
    return [segment(10 * number + 1) for number in range(first, first + count)]


class MemoryPages:
    """Stored pages. Counts how many were stored and read."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.puts = 0
        self.reads = 0

    def store(self, level: int, parts: Sequence[Part]) -> PageRef:
        data = encode_page(level, parts)
        name = hashlib.sha256(data).hexdigest()
        key = layout.page_key(FOLDER, name)
        self.puts += key not in self.stored
        self.stored[key] = data
        return page_of(level, parts, key=key, name=name, size=len(data), sha256=name)

    def read(self, page: PageRef) -> tuple[Part, ...]:
        self.reads += 1
        return decode_page(self.stored[page.key], page)
