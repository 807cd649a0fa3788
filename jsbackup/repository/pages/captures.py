"""How and when the streams of pages were captured: what of them differs with each backup, so that manifests have it.

The streams in which nothing had changed are named by no list, and share one window of time: from the first of their
captures to the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from jsbackup.model import JsonObject
from jsbackup.repository.document import DocumentFields
from jsbackup.repository.manifest import ArchiveFormat, ReadAs, Reading, StreamBackup
from jsbackup.repository.pages.stream_json import reading_from_json, reading_to_json, time_from_json
from jsbackup.times import parse_time

__all__ = ["captured_as", "captures_to_json"]


@dataclass(frozen=True, slots=True)
class _Capture:
    """How and when a stream was captured."""

    archive_format: ArchiveFormat
    read: Reading | None
    begun: str
    ended: str

    @classmethod
    def of(cls, stream: StreamBackup) -> _Capture:
        return cls(stream.archive_format, stream.read, stream.captured.begun, stream.captured.ended)

    def to_json(self) -> JsonObject:
        return {
            "archive_format": self.archive_format,
            "read": reading_to_json(self.read),
            "begun": self.begun,
            "ended": self.ended,
        }

    @classmethod
    def from_json(cls, fields: DocumentFields) -> _Capture:
        return cls(
            fields.choice("archive_format", ArchiveFormat),
            reading_from_json(fields.optional_fields("read")),
            time_from_json(fields, "begun"),
            time_from_json(fields, "ended"),
        )


def captured_as(
    streams: Iterable[StreamBackup], fields: DocumentFields, *, all_listed: Callable[[], bool] = lambda: True
) -> Iterator[StreamBackup]:
    """Yield streams of pages as the manifest with these fields captured them. Raises FormatError.

    `all_listed` returns, when all were read, whether no page was left out.
    """
    captures = {one.text("stream"): _Capture.from_json(one) for one in fields.each("captures")}
    others = fields.optional_fields("unchanged")
    unchanged = None if others is None else _Capture.from_json(others)
    names: set[str] = set()
    for stream in streams:
        if stream.name in names:  # at once: a hostile list may go on for ever
            fields.wrong("pages", "a list of streams with different names")
        names.add(stream.name)
        capture = captures.pop(stream.name, unchanged)
        if capture is None:
            fields.wrong("captures", f"with one of stream {stream.name}")
        yield stream.captured_again(capture.begun, capture.ended, capture.archive_format, capture.read)
    if captures and all_listed():
        fields.wrong("captures", "without streams that no page lists")


def captures_to_json(streams: Sequence[StreamBackup]) -> JsonObject:
    """Return how and when each stream was captured, for `captured_as`."""
    kinds = [_kind(stream) for stream in streams]
    counted = Counter(kind for kind in kinds if kind is not None)
    common = max(counted, key=lambda kind: (counted[kind], kind), default=None)
    alike = [stream for stream, kind in zip(streams, kinds, strict=True) if kind is not None and kind == common]
    named = [
        {"stream": stream.name, **_Capture.of(stream).to_json()}
        for stream, kind in zip(streams, kinds, strict=True)
        if kind is None or kind != common
    ]
    return {"captures": named, "unchanged": _window(alike).to_json() if alike else None}


def _kind(stream: StreamBackup) -> tuple[str, str, str] | None:
    """Return what streams have in common whose capture is stored once; None for one of which messages were read."""
    read = stream.read
    if read is None:
        return stream.archive_format, "", ""
    if read.how is not ReadAs.INCREMENT or read.extra:
        return None
    return stream.archive_format, read.how, read.why


def _window(streams: Sequence[StreamBackup]) -> _Capture:
    """Return the capture that has the first begin and the last end. Many have the same, so few times are parsed."""
    return replace(
        _Capture.of(streams[0]),
        begun=min({stream.captured.begun for stream in streams}, key=parse_time),
        ended=max({stream.captured.ended for stream in streams}, key=parse_time),
    )
