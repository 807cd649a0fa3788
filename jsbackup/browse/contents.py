"""What backups have: their streams and messages, a bucket as it was at a moment, and the files of an object store.

And two backups side by side: which streams differ, how, and the two values of one message or key.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from jsbackup.browse.payloads import ShownPayload, marked, show_payload
from jsbackup.browse.render import Pages, Query, address, pager
from jsbackup.config import format_bytes
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.look.buckets.bucket import KeyList, KeyRevision, KeyValueBucket, check_bucket_key
from jsbackup.look.buckets.bucket_series import KeyDifference, key_differences, value_starts
from jsbackup.look.buckets.object_bucket import ObjectBucket, ObjectEntry
from jsbackup.look.message import LookedUp, headers_of
from jsbackup.look.moment import option_text
from jsbackup.look.stream import find_stream, message_at, read_message_page, with_messages
from jsbackup.look.subject_counts import SubjectCount, largest_subjects, newest_part
from jsbackup.look.timeline import Timeline, timeline_of
from jsbackup.names import BUCKET_STREAM, OBJECT_STREAM, is_subject
from jsbackup.progress import NullProgress
from jsbackup.readable import format_count
from jsbackup.repository.keep.holds import find_hold
from jsbackup.repository.manifest import ArchiveFormat, Manifest, StreamBackup, summary_of
from jsbackup.repository.objects import Objects
from jsbackup.repository.pages.segment_list import size_of
from jsbackup.repository.read.diff import diff_configs, diff_stream, group_segments, unequal_segments
from jsbackup.shell import command_line
from jsbackup.transforms.cut import Edge
from jsbackup.transforms.filters.key_marker import KeyOperation

__all__ = ["ComparisonPages", "ContentPages", "stream_links"]

_STREAMS = 150
_CONSUMERS = 200
_SUBJECTS = 50
_MESSAGES = 50
_KEYS = 100
_UNKNOWN = 50
_FILES = 200
_REVISIONS = 64
_MOST_REVISIONS = 150_000
_MOST_BYTES = 1 << 30
_MOST_COMPARED_BYTES = 512 << 20
_EXAMPLES = 50
_DIFFERENT_KEYS = 200
_DIFFERENT_STREAMS = 500
_CHOICES = 200
_MOST_START = 10**9
_LONGEST_NAME = 120
_ALL_KEYS = ">"
_KINDS = {BUCKET_STREAM: "bucket", OBJECT_STREAM: "object store"}


class ContentPages(Pages):
    """A backup, its streams and their messages; a bucket, a key of it; and the files of an object store."""

    def backup(self, request: Request) -> Response:
        query, manifest = Query(request), self._manifest(request)
        search, sort, start = query.line("search"), query.text("sort", "name"), query.number("start", _MOST_START)
        size = sort if sort in ("bytes", "messages") else ""
        streams = sorted(
            (stream for stream in manifest.streams if search.lower() in stream.name.lower()),
            key=lambda stream: (-getattr(stream.captured, size) if size else 0, stream.name),
        )
        return self.page(
            request,
            "backup.html",
            manifest=manifest,
            summary=summary_of(manifest),
            damaged=manifest.id in self._library.status().status.damaged,
            hold=find_hold(self._library.repository, manifest.id),
            stored=sum(map(_stored_bytes, manifest.streams)),
            matching=len(streams),
            streams=streams[start : start + _STREAMS],
            warned=[stream for stream in manifest.streams if stream.remarks][:_STREAMS],
            start=start,
            search=search,
            sort=sort,
            **pager(f"/backup/{manifest.id}", start, _STREAMS, len(streams), search=search, sort=sort),
        )

    def stream(self, request: Request) -> Response:
        query, (manifest, entry) = Query(request), self._stream(request)
        library, objects = self._library, self._library.repository.objects
        problems: list[JsBackupError] = []
        timeline: Timeline | None = None
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
        start = query.number("consumers", _MOST_START)
        return self.page(
            request,
            "stream.html",
            manifest=manifest,
            stream=entry,
            stored=_stored_bytes(entry),
            kind=_bucket_kind(entry),
            problems=problems,
            timeline=timeline,
            bins=[]
            if timeline is None
            else [
                {"start_ns": timeline.start_ns + number * timeline.width_ns, "messages": count}
                for number, count in enumerate(timeline.messages)
            ],
            subjects=subjects,
            subject_count=subject_count,
            counted=counted,
            consumers=entry.consumers[start : start + _CONSUMERS],
            more_consumers=max(0, len(entry.consumers) - start - _CONSUMERS),
            next_consumers=start + _CONSUMERS,
        )

    def messages(self, request: Request) -> Response:
        query, (manifest, entry) = Query(request), self._stream(request)
        with_messages(manifest, entry)
        back, objects = query.flag("back"), self._library.repository.objects
        start, wanted = query.number("from"), query.messages()
        with self._library.reading() as is_over:
            page = read_message_page(objects, entry, wanted, start=start, back=back, most=_MESSAGES, is_over=is_over)
        names = ("subject", "since", "until", "header", "grep")
        kept = {"name": entry.name, **{name: query.text(name) for name in names}}
        path = f"/backup/{manifest.id}/messages"
        onward = "" if page.more is None else address(path, **kept, from_=page.more, back=1 if back else "")
        if back:
            after = page.messages[-1].sequence + 1 if page.messages else start
            behind = address(path, **kept, from_=after) if start else ""
        else:
            before = (page.messages[0].sequence if page.messages else start) - 1
            behind = address(path, **kept, from_=before, back=1) if start > 1 and before > 0 else ""
        return self.page(
            request,
            "messages.html",
            manifest=manifest,
            stream=entry,
            page=page,
            asked=kept,
            filtered=any(kept[name] for name in names),
            earlier=onward if back else behind,
            later=behind if back else onward,
            first=address(path, **kept),
            last=address(path, **kept, back=1),
        )

    def message(self, request: Request) -> Response:
        manifest, entry, message = self._message(request)
        return self.page(
            request,
            "message.html",
            manifest=manifest,
            stream=entry,
            message=message,
            headers=headers_of(message.headers)[:500],
            payload=show_payload(message.data),
        )

    def payload(self, request: Request) -> Response:
        _, entry, message = self._message(request)
        return _attachment(f"{entry.name}-{message.sequence}", [message.data], len(message.data))

    def _stream(self, request: Request) -> tuple[Manifest, StreamBackup]:
        manifest = self._manifest(request)
        return manifest, find_stream(manifest, Query(request).needed("name"))

    def _message(self, request: Request) -> tuple[Manifest, StreamBackup, LookedUp]:
        manifest, entry = self._stream(request)
        sequence, objects = Query(request).number("seq"), self._library.repository.objects
        with self._library.reading():
            return manifest, entry, message_at(objects, manifest, with_messages(manifest, entry), sequence)

    def bucket(self, request: Request) -> Response:
        query, bucket = Query(request), KeyValueBucket.find(*self._named(request))
        at, search, start = query.edge("at"), query.line("keys"), query.number("start", _MOST_START)
        problem: JsBackupError | None = None
        listed, values = KeyList(()), {}
        try:
            with self._library.counting():
                listed = _listed_keys(bucket, at, search or _ALL_KEYS)
                shown = listed.keys[start : start + _KEYS]
                values = value_starts(self._library.repository.objects, bucket, shown)
        except JsBackupError as error:
            problem, shown = error, ()
        kept = {"name": bucket.stream.name, "at": query.line("at")}
        path = f"/backup/{bucket.manifest.id}/bucket"
        return self.page(
            request,
            "bucket.html",
            manifest=bucket.manifest,
            stream=bucket.stream,
            bucket=bucket,
            keys=[(state, values.get(state.revision)) for state in shown],
            matching=len(listed.keys),
            unknown=listed.unknown[:_UNKNOWN],
            more_unknown=max(0, len(listed.unknown) - _UNKNOWN),
            whole=listed.whole,
            problem=problem,
            start=start,
            pattern=search,
            at=at,
            at_option=[] if at is None else [("--at", option_text(at))],
            asked=kept,
            **pager(path, start, _KEYS, len(listed.keys), **kept, keys=search),
        )

    def key(self, request: Request) -> Response:
        query, bucket = Query(request), KeyValueBucket.find(*self._named(request))
        key = check_bucket_key(query.needed("key"))
        at = query.edge("at")
        answer: JsBackupError | None = None
        value: KeyRevision | None = None
        with self._library.reading():
            revisions = bucket.newest_revisions(key, _REVISIONS)
            try:
                value = bucket.value(key, at)
            except UsageError:
                raise
            except JsBackupError as error:
                if not revisions:
                    raise
                answer = error
        puts = [revision.revision for revision in revisions if revision.operation is KeyOperation.PUT]
        newest = value.revision if value is not None else next(iter(puts), 0)
        older = next((put for put in puts if put < newest), 0)
        left, right = query.number("a") or older, query.number("b") or newest
        sides = [revision for number in (left, right) for revision in revisions if revision.revision == number]
        payloads = [show_payload(side.value) if side.revision in puts else None for side in sides]
        lines = marked(*("" if payload is None else payload.text for payload in payloads)) if len(sides) == 2 else ()
        return self.page(
            request,
            "key.html",
            manifest=bucket.manifest,
            stream=bucket.stream,
            key=key,
            at=at,
            asked=query.line("at"),
            revisions=revisions,
            more=len(revisions) == _REVISIONS,
            value=value,
            payload=None if value is None else show_payload(value.value),
            answer=answer,
            sides=list(zip(sides, payloads, lines, strict=False)) if left != right else [],
        )

    def value(self, request: Request) -> Response:
        query, bucket = Query(request), KeyValueBucket.find(*self._named(request))
        key, revision = check_bucket_key(query.needed("key")), query.number("revision")
        with self._library.reading():
            revisions = bucket.newest_revisions(key, _REVISIONS)
        for revised in revisions:
            if revised.revision == revision and revised.operation is KeyOperation.PUT:
                return _attachment(f"{key}-{revision}", [revised.value], len(revised.value))
        raise UsageError(f"key {key} has no value at revision {revision}")

    def files(self, request: Request) -> Response:
        query, store = Query(request), ObjectBucket.find(*self._named(request))
        size, every = size_of(store.stream.segments), query.flag("all")
        search, start = query.line("search"), query.number("start", _MOST_START)
        path, kept = f"/backup/{store.manifest.id}/files", {"name": store.stream.name, "search": search}
        listed = every or size <= _MOST_BYTES
        entries: list[ObjectEntry] = []
        unreadable = 0
        if listed:
            with self._library.counting():
                entries, unreadable = store.entries()
        matching = [entry for entry in entries if search.lower() in entry.name.lower()]
        return self.page(
            request,
            "files.html",
            manifest=store.manifest,
            stream=store.stream,
            store=store,
            listed=listed,
            size=size,
            entries=matching[start : start + _FILES],
            matching=len(matching),
            start=start,
            unreadable=unreadable,
            search=search,
            everything=address(path, **kept, all=1),
            **pager(path, start, _FILES, len(matching), **kept, all=1 if every else ""),
        )

    def file(self, request: Request) -> Response:
        """Send a file whose size and digest were compared before: the first reading sends nothing."""
        query, store = Query(request), ObjectBucket.find(*self._named(request))
        entry = store.entry(query.needed("file"))
        if entry.link is not None:
            raise UsageError(f"object {entry.name} is a link to {entry.link}", hint="Open that one.")

        def pieces() -> Iterator[bytes]:
            for piece in store.content(entry):
                if self._library.stopping.is_set():
                    raise JsBackupError("the server of this page is stopping")
                yield piece

        with self._library.reading():
            deque(pieces(), maxlen=0)
        # What fails now ends the connection before its announced end: the browser discards the file.
        return _attachment(entry.name, pieces(), entry.size)

    def _named(self, request: Request) -> tuple[Objects, Manifest, str]:
        return self._library.repository.objects, self._manifest(request), Query(request).needed("name")


class ComparisonPages(Pages):
    """Two backups side by side: which streams differ, how, and the two values of one message or key."""

    def compare(self, request: Request) -> Response:
        query = Query(request)
        choices = self._library.status().inventory.summaries[:-_CHOICES:-1]
        if not query.line("a") or not query.line("b"):
            return self.page(request, "compare_choice.html", choices=choices, a=query.line("a"))
        a, b = self._sides(query)
        ours, theirs = ({stream.name: stream for stream in side.streams} for side in (a, b))
        rows = [(name, ours.get(name), theirs.get(name)) for name in sorted(ours.keys() | theirs.keys())]
        different = [(*row, what) for row in rows if (what := _difference(row[1], row[2]))]
        return self.page(
            request,
            "compare.html",
            a=a,
            b=b,
            rows=different[:_DIFFERENT_STREAMS],
            more=max(0, len(different) - _DIFFERENT_STREAMS),
            different=len(different),
            equal=len(rows) - len(different),
            choices=choices,
        )

    def stream(self, request: Request) -> Response:
        query, objects = Query(request), self._library.repository.objects
        (a, b), name = self._sides(query), query.needed("name")
        old, new = (next((stream for stream in side.streams if stream.name == name), None) for side in (a, b))
        if old is None or new is None:
            lacking = a.id if old is None else b.id
            raise UsageError(f"backup {lacking} has no stream {name}", hint="Only streams of both can be compared.")
        size = 0
        if not (old.digest == new.digest or old.opaque or new.opaque):
            size = sum(ref.bytes for ref in unequal_segments(group_segments(old.segments, new.segments)))
        diff = None
        keys: list[KeyDifference] = []
        problem: JsBackupError | None = None
        if size <= _MOST_COMPARED_BYTES or query.flag("all"):
            try:
                with self._library.counting():
                    diff = diff_stream(objects, old, new, NullProgress(), consumers=True, named=_EXAMPLES)
                    if _bucket_kind(new) == "bucket" and old.digest != new.digest:
                        sides = [(side, with_messages(side, text)) for side, text in ((a, old), (b, new))]
                        keys = key_differences(*(_listed_keys(KeyValueBucket(objects, *side)).keys for side in sides))
            except JsBackupError as error:
                problem = error
        return self.page(
            request,
            "compare_stream.html",
            a=a,
            b=b,
            name=name,
            diff=diff,
            config=diff_configs(old.config, new.config),
            problem=problem,
            keys=keys[:_DIFFERENT_KEYS],
            key_count=len(keys),
            size=size,
            everything=address("/compare/stream", a=a.id, b=b.id, name=name, all=1),
        )

    def message(self, request: Request) -> Response:
        sequence, objects = Query(request).number("seq"), self._library.repository.objects

        def read(side: Manifest, entry: StreamBackup) -> tuple[ShownPayload, str]:
            message = message_at(objects, side, entry, sequence)
            return show_payload(message.data), message.subject

        return self._both(request, f"Message {sequence}", read)

    def key(self, request: Request) -> Response:
        key, objects = check_bucket_key(Query(request).needed("key")), self._library.repository.objects

        def read(side: Manifest, entry: StreamBackup) -> tuple[ShownPayload, str]:
            value = KeyValueBucket(objects, side, entry).value(key)
            return show_payload(value.value), f"revision {value.revision}"

        return self._both(request, f"Key {key}", read)

    def _both(
        self, request: Request, title: str, read: Callable[[Manifest, StreamBackup], tuple[ShownPayload, str]]
    ) -> Response:
        query = Query(request)
        (a, b), name = self._sides(query), query.needed("name")
        shown: list[tuple[ShownPayload | None, str]] = []
        with self._library.reading():
            for side in (a, b):
                try:
                    shown.append(read(side, with_messages(side, find_stream(side, name))))
                except JsBackupError as error:
                    shown.append((None, f"{error.message}."))
        lines = marked(*("" if payload is None else payload.text for payload, _ in shown))
        sides = [(side, *sides_of_line, marks) for side, sides_of_line, marks in zip((a, b), shown, lines, strict=True)]
        return self.page(request, "compare_values.html", a=a, b=b, name=name, title=title, sides=sides)

    def _sides(self, query: Query) -> tuple[Manifest, Manifest]:
        return self._library.manifest(query.line("a")), self._library.manifest(query.line("b"))


def _difference(old: StreamBackup | None, new: StreamBackup | None) -> str:
    """Return how a stream differs by the manifests alone, "" if it does not."""
    if old is None or new is None:
        return "only in B" if old is None else "only in A"
    formats = {old.archive_format, new.archive_format}
    messages = [(stream.digest, stream.captured.messages, stream.opaque) for stream in (old, new)]
    consumers = [[(c.name, c.config, c.state, c.pending) for c in stream.consumers] for stream in (old, new)]
    differs = {
        "one has the configuration only": ArchiveFormat.CONFIG in formats and len(formats) > 1,
        "messages": ArchiveFormat.CONFIG not in formats and messages[0] != messages[1],
        "configuration": bool(diff_configs(old.config, new.config)),
        "consumers": consumers[0] != consumers[1],
        "another stream of this name": old.incarnation != new.incarnation,
    }
    return ", ".join(what for what, is_so in differs.items() if is_so)


def _bucket_kind(stream: StreamBackup) -> str:
    """Return `bucket` or `object store`, "" for another stream."""
    return next((kind for prefix, kind in _KINDS.items() if stream.name.startswith(prefix)), "")


def stream_links(backup: str, stream: StreamBackup) -> list[tuple[str, str]]:
    """Return the pages of a stream: how they are called, and their addresses."""
    links = [("Overview", "stream")]
    if stream.archive_format.has_messages:
        links += {"bucket": [("Keys at a moment", "bucket")], "object store": [("Files", "files")]}.get(
            _bucket_kind(stream), []
        )
        links.append(("Messages", "messages"))
    return [(text, address(f"/backup/{backup}/{page}", name=stream.name)) for text, page in links]


def _listed_keys(bucket: KeyValueBucket, at: Edge | None = None, pattern: str = _ALL_KEYS) -> KeyList:
    """Return the keys of a bucket. Raises UsageError if they may be too many to hold in memory, and as `keys`."""
    captured = bucket.stream.captured
    if captured.messages > _MOST_REVISIONS and not is_subject(pattern):
        count, size = format_count(captured.messages, "revision"), format_bytes(captured.bytes)
        raise UsageError(
            f"bucket {bucket.name} has {count} of {size}, too many to list here",
            hint=f"Name one key, or run: {command_line('kv', bucket.manifest.id, bucket.name)}",
        )
    return bucket.keys(at, pattern)


def _stored_bytes(stream: StreamBackup) -> int:
    return size_of(stream.segments) + sum(ref.size for ref in stream.opaque)


def _attachment(name: str, pieces: Iterable[bytes], size: int) -> StreamingResponse:
    """Return bytes to keep as a file: a browser never shows them, as they may be anything.

    `name` is what a client called it; only its last part counts, without odd signs.
    """
    last = re.split(r"[/\\]", name)[-1].strip(" .") or "file"
    kept = "".join(c if c.isprintable() and c not in '"*:<>?|%' else "_" for c in last)[:_LONGEST_NAME]
    plain = kept.encode("ascii", "replace").decode().replace("?", "_")
    exact = quote(kept.encode("utf-8", "replace"))
    headers = {
        "Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{exact}",
        "Content-Length": str(size),
    }
    return StreamingResponse(pieces, media_type="application/octet-stream", headers=headers)
