"""The document of a page of streams, and the rows by which manifests name such pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import zstandard

from jsbackup.errors import FormatError
from jsbackup.model import JsonObject
from jsbackup.repository import layout
from jsbackup.repository.document import MAX_DOCUMENT_BYTES, DocumentFields, decode_document, encode_document
from jsbackup.repository.manifest import ArchiveFormat, StreamBackup
from jsbackup.repository.pages.page_row import DIGITS, HEX256, PageRow
from jsbackup.repository.pages.page_store import PageStore
from jsbackup.repository.pages.stream_json import stream_from_json, stream_to_json
from jsbackup.repository.refs import StreamPageRef

__all__ = [
    "MOST_BYTES",
    "MOST_STREAMS",
    "decode_stream_page",
    "encode_stream_page",
    "limit_of",
    "raw_bytes_of_stream_page",
    "stream_pages_from_json",
    "stream_pages_to_json",
]

FORMAT_VERSION = 1
FEATURES: frozenset[str] = frozenset()
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
    suffix = fields.text("suffix")
    if suffix not in ("", layout.SEALED_SUFFIX):
        fields.wrong("suffix", "that of an object")
    where = f"{fields.where}: pages"
    pages = tuple(_page_from(row, f"{where}[{at}]", suffix) for at, row in enumerate(fields.array("pages")))
    if len({page.name for page in pages}) != len(pages):
        fields.wrong("pages", "a list of different pages")
    return pages


def _page_from(values: Any, where: str, suffix: str) -> StreamPageRef:
    if not isinstance(values, list) or len(values) != 8 or not isinstance(values[4], str):
        raise FormatError(f"{where} is not the row of a page")
    row = PageRow(values, where)
    name, digits = row.text(0, HEX256), row.text(1, DIGITS)
    key = layout.stream_page_key(name)
    if digits:
        key = key.replace(".json", f".{digits}.json")
    return StreamPageRef(
        key=f"{key}{suffix}",
        size=row.number(2, 1),
        sha256=row.text(3, HEX256) if values[3] != "" else name,
        name=name,
        first=values[4],
        streams=row.number(5, 1, MOST_STREAMS),
        messages=row.number(6),
        bytes=row.number(7),
    )


def encode_stream_page(streams: Sequence[StreamBackup]) -> bytes:
    document: JsonObject = {
        "format": FORMAT_VERSION,
        "required_features": [],
        "streams": [_without_capture(stream_to_json(stream)) for stream in streams],
    }
    return encode_document(document, f"page of stream {streams[0].name}")


def _without_capture(entry: JsonObject) -> JsonObject:
    entry = {key: value for key, value in entry.items() if key not in ("archive_format", "read")}
    captured = {key: value for key, value in entry["captured"].items() if key not in ("begun", "ended")}
    return {**entry, "captured": captured}


def decode_stream_page(data: bytes, page: StreamPageRef, segments: PageStore) -> tuple[StreamBackup, ...]:
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
    if len({stream.name for stream in streams}) != len(streams):
        raise FormatError(f"{what} lists a stream twice")
    return streams


def limit_of(page: StreamPageRef) -> int:
    return MAX_DOCUMENT_BYTES if page.streams == 1 else MOST_BYTES


def raw_bytes_of_stream_page(data: bytes, page: StreamPageRef) -> int:
    """Return how many bytes a page will have when it is decompressed."""
    try:
        size = zstandard.frame_content_size(data)
    except zstandard.ZstdError:
        size = -1
    if not 0 <= size <= limit_of(page):
        raise FormatError(f"page {page.key} is not compressed as a page of streams is")
    return size


def _decompressed(data: bytes, what: str) -> bytes:
    try:
        return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FormatError(f"{what} cannot be decompressed: {error}") from error


def _with_capture(fields: DocumentFields) -> DocumentFields:
    captured: Mapping[str, Any] = fields.object("captured")
    times = {"begun": _UNKNOWN, "ended": _UNKNOWN}
    how: JsonObject = {"archive_format": ArchiveFormat.MESSAGES.value, "read": None}
    return DocumentFields({**fields.value, **how, "captured": {**captured, **times}}, fields.where)
