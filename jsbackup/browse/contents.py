"""A backup, its streams, and their messages."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from jsbackup.browse.attachments import attachment
from jsbackup.browse.library import Library
from jsbackup.browse.payloads import hex_of, narrow_hex_of, show_payload
from jsbackup.browse.query import Query, address
from jsbackup.browse.render import Renderer
from jsbackup.config import format_bytes
from jsbackup.errors import JsBackupError
from jsbackup.html.charts import ChartScale, Slot, columns
from jsbackup.html.page import Markup
from jsbackup.look.message import headers_of
from jsbackup.look.message_pages import PageStart, read_message_page
from jsbackup.look.stream import find_stream, message_at, with_messages
from jsbackup.look.subject_counts import SubjectCount, largest_subjects, newest_part
from jsbackup.look.timeline import Timeline, timeline_of
from jsbackup.model import ConsumerState
from jsbackup.names import BUCKET_STREAM, OBJECT_STREAM
from jsbackup.readable import format_count, format_time
from jsbackup.repository.keep.holds import find_hold
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.repository.pages.segment_list import size_of
from jsbackup.repository.summary import summary_of

__all__ = ["ContentPages", "bucket_kind", "stream_links"]

_STREAMS = 150
_CONSUMERS = 200
_SUBJECTS = 50
_MESSAGES = 50
_KINDS = {BUCKET_STREAM: "bucket", OBJECT_STREAM: "object store"}
_DAY = 86_400 * 10**9


class ContentPages:
    """Handlers of requests. They raise the errors of what they read."""

    def __init__(self, library: Library, renderer: Renderer) -> None:
        self._library = library
        self._renderer = renderer

    def backup(self, request: Request) -> Response:
        query, manifest = Query.of(request), self._manifest(request)
        asked, sort, start = query.line("search"), query.text("sort", "name"), query.number("start", 10**9)
        found = [one for one in manifest.streams if asked.lower() in one.name.lower()]
        if sort == "bytes":
            found.sort(key=lambda one: (-one.captured.bytes, one.name))
        elif sort == "messages":
            found.sort(key=lambda one: (-one.captured.messages, one.name))
        else:
            found.sort(key=lambda one: one.name)
        path = f"/backup/{manifest.id}"
        return self._renderer.page(
            request,
            "backup.html",
            manifest=manifest,
            summary=summary_of(manifest),
            damaged=manifest.id in self._library.status().status.damaged,
            hold=find_hold(self._library.repository, manifest.id),
            stored=sum(stored_bytes(one) for one in manifest.streams),
            found=len(found),
            streams=found[start : start + _STREAMS],
            warned=[one for one in manifest.streams if one.warnings][:_STREAMS],
            start=start,
            search=asked,
            sort=sort,
            earlier=address(path, search=asked, sort=sort, start=max(0, start - _STREAMS)) if start else "",
            later=address(path, search=asked, sort=sort, start=start + _STREAMS)
            if start + _STREAMS < len(found)
            else "",
        )

    def stream(self, request: Request) -> Response:
        query, (manifest, entry) = Query.of(request), self._stream(request)
        library, objects = self._library, self._library.repository.objects
        problems: list[JsBackupError] = []
        timeline = None
        subjects: list[SubjectCount] = []
        counted = subject_count = 0
        if entry.archive_format.has_messages and entry.captured.messages:
            try:
                with library.counting():
                    timeline = timeline_of(objects, entry)
                    part = newest_part(entry)
                    counted = sum(ref.messages for ref in part.segments)
                    subjects, subject_count = largest_subjects(objects, part, _SUBJECTS)
            except JsBackupError as error:
                problems.append(error)
        start = query.number("consumers", 10**9)
        return self._renderer.page(
            request,
            "stream.html",
            manifest=manifest,
            stream=entry,
            stored=stored_bytes(entry),
            kind=bucket_kind(entry),
            problems=problems,
            timeline=None if timeline is None else _drawn(entry, timeline),
            timeline_exact=timeline is not None and timeline.exact,
            subjects=subjects,
            subject_count=subject_count,
            counted=counted,
            consumers=[(one, _pending(one.state)) for one in entry.consumers[start : start + _CONSUMERS]],
            more_consumers=max(0, len(entry.consumers) - start - _CONSUMERS),
            next_consumers=start + _CONSUMERS,
        )

    def messages(self, request: Request) -> Response:
        query, (manifest, entry) = Query.of(request), self._stream(request)
        with_messages(manifest, entry)
        back = query.flag("back")
        start = PageStart(query.number("from"), back)
        wanted = query.messages()
        with self._library.reading() as is_over:
            page = read_message_page(
                self._library.repository.objects, entry, wanted, start=start, most=_MESSAGES, is_over=is_over
            )
        shown = page.messages
        names = ("subject", "since", "until", "header", "grep")
        kept = {"name": entry.name, **{name: query.text(name) for name in names}}
        path = f"/backup/{manifest.id}/messages"
        earlier = later = ""
        if back:
            earlier = "" if page.more is None else address(path, **kept, from_=page.more, back=1)
            after = shown[-1].sequence + 1 if shown else start.sequence
            later = address(path, **kept, from_=after) if start.sequence else ""
        else:
            later = "" if page.more is None else address(path, **kept, from_=page.more)
            before = (shown[0].sequence if shown else start.sequence) - 1
            earlier = address(path, **kept, from_=before, back=1) if start.sequence > 1 and before > 0 else ""
        return self._renderer.page(
            request,
            "messages.html",
            manifest=manifest,
            stream=entry,
            page=page,
            asked=kept,
            filtered=any(kept[name] for name in names),
            earlier=earlier,
            later=later,
            first=address(path, **kept),
            last=address(path, **kept, back=1),
        )

    def message(self, request: Request) -> Response:
        query, (manifest, entry) = Query.of(request), self._stream(request)
        sequence = query.number("seq")
        with self._library.reading():
            found = message_at(self._library.repository.objects, manifest, with_messages(manifest, entry), sequence)
        as_hex = query.flag("hex")
        return self._renderer.page(
            request,
            "message.html",
            manifest=manifest,
            stream=entry,
            message=found,
            headers=headers_of(found.headers)[:500],
            payload=show_payload(found.data),
            hex=hex_of(found.data[:4096]) if as_hex else "",
            narrow_hex=narrow_hex_of(found.data[:4096]) if as_hex else "",
            as_hex=as_hex,
        )

    def payload(self, request: Request) -> Response:
        query, (manifest, entry) = Query.of(request), self._stream(request)
        sequence = query.number("seq")
        with self._library.reading():
            found = message_at(self._library.repository.objects, manifest, with_messages(manifest, entry), sequence)
        return attachment(f"{entry.name}-{sequence}", [found.data], len(found.data))

    def _manifest(self, request: Request) -> Manifest:
        return self._library.manifest(request.path_params["backup"])

    def _stream(self, request: Request) -> tuple[Manifest, StreamBackup]:
        manifest = self._manifest(request)
        return manifest, find_stream(manifest, Query.of(request).needed("name"))


def bucket_kind(stream: StreamBackup) -> str:
    """Return `bucket` or `object store`, "" for another stream."""
    return next((kind for prefix, kind in _KINDS.items() if stream.name.startswith(prefix)), "")


def stored_bytes(stream: StreamBackup) -> int:
    return size_of(stream.segments) + sum(ref.size for ref in stream.opaque)


def stream_links(backup: str, stream: StreamBackup) -> list[tuple[str, str]]:
    """Return the pages of a stream: how they are called, and their addresses."""
    base = f"/backup/{backup}"
    links = [("Overview", address(f"{base}/stream", name=stream.name))]
    if stream.archive_format.has_messages:
        if bucket_kind(stream) == "bucket":
            links.append(("Keys at a moment", address(f"{base}/bucket", name=stream.name)))
        if bucket_kind(stream) == "object store":
            links.append(("Files", address(f"{base}/files", name=stream.name)))
        links.append(("Messages", address(f"{base}/messages", name=stream.name)))
    return links


def _pending(state: ConsumerState | None) -> int | None:
    return None if state is None else len(state.pending)


def _drawn(stream: StreamBackup, timeline: Timeline) -> Markup:
    width = timeline.width_ns
    last = len(timeline.messages) - 1
    slots = []
    for number, count in enumerate(timeline.messages):
        start = timeline.start_ns + number * width
        text = format_time(start)
        mark = "" if number not in (0, last) else text[:10] if width >= _DAY else f"{text[5:10]} {text[11:16]}"
        if width < 60 * 10**9 and mark:
            mark = text[11:19]
        slots.append(Slot(count, f"from {text}: {format_count(count, 'message')}", mark))
    most = max(slots, key=lambda slot: slot.value)
    about = f"Messages over time, {format_bytes(stream.captured.bytes)} in all. Most {most.tip}."
    return columns(about, slots, ChartScale.COUNT)
