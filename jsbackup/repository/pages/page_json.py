"""Pages ⇄ canonical JSON, and the rows that pages and manifests have in common.

A page is a document (`document.py`) with `format`, `level` and `parts`, a list of rows. So is the list in a manifest,
except that each part of it has a level of its own. What follows from other values is not stored: a key is made of the
folder, the suffix of encryption, and a row.

A row of a segment: first and last sequence, messages, raw bytes, least and greatest time (ns since the Unix epoch),
size and SHA-256 of the stored object, digest, fingerprint, gaps ("" if there are none), the name in the key ("" if it
is the digest), the digits of the bytes in the key.

A row of a page: level, name, digits in the key, size and SHA-256 of the stored object ("" if it is the name), number of
segments, messages, raw bytes, stored bytes, first and last sequence, least and greatest time, fingerprint.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from jsbackup.errors import FormatError
from jsbackup.formats.digest import StreamDigest
from jsbackup.model import JsonObject
from jsbackup.repository import layout
from jsbackup.repository.document import INT64_MAX, DocumentFields, decode_document, encode_document
from jsbackup.repository.pages.page_row import DIGITS, HEX256, PageRow
from jsbackup.repository.pages.segment_list import Part, total_of
from jsbackup.repository.refs import PageRef, SegmentRef

__all__ = ["MAX_LEVEL", "MAX_PAGE_BYTES", "decode_page", "encode_page", "page_of", "parts_from_rows", "rows_of"]

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
