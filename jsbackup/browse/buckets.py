"""A bucket as it was at a moment, a key of it, and the files of an object store."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response

from jsbackup.browse.attachments import attachment
from jsbackup.browse.library import Library
from jsbackup.browse.payloads import marked, show_payload
from jsbackup.browse.query import Query, address
from jsbackup.browse.render import Renderer
from jsbackup.config import format_bytes
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.look.buckets.bucket import KeyList, KeyRevision, KeyValueBucket, check_bucket_key
from jsbackup.look.buckets.key_values import value_starts
from jsbackup.look.buckets.object_bucket import ObjectBucket, ObjectEntry
from jsbackup.look.moment import known_until, option_text
from jsbackup.names import is_subject
from jsbackup.readable import format_count
from jsbackup.repository.pages.segment_list import parts_of, size_of
from jsbackup.shell import command_line
from jsbackup.transforms.cut import AtTime, Edge
from jsbackup.transforms.filters.key_marker import KeyOperation

__all__ = ["BucketPages", "listed_keys"]

_SECOND = 10**9
_KEYS = 100
_UNKNOWN = 50
_FILES = 200
_REVISIONS = 64
_MOST_REVISIONS = 150_000
_MOST_BYTES = 1 << 30
_PATTERN = ">"


class BucketPages:
    """Handlers of requests. They raise the errors of what they read."""

    def __init__(self, library: Library, renderer: Renderer) -> None:
        self._library = library
        self._renderer = renderer

    def bucket(self, request: Request) -> Response:
        query, bucket = Query.of(request), self._bucket(request)
        first, last = _span(bucket)
        at, slid = _moment(query, first, last)
        pattern = query.line("keys") or _PATTERN
        start = query.number("start", 10**9)
        problem: JsBackupError | None = None
        listed = KeyList(())
        try:
            with self._library.counting():
                listed = listed_keys(bucket, at, pattern)
                shown = listed.keys[start : start + _KEYS]
                values = value_starts(self._library.repository.objects, bucket, shown)
        except JsBackupError as error:
            problem, shown, values = error, (), {}
        kept = {"name": bucket.stream.name, "at": query.line("at"), "t": "" if query.line("at") else query.line("t")}
        path = f"/backup/{bucket.manifest.id}/bucket"
        search = "" if pattern == _PATTERN else pattern
        return self._renderer.page(
            request,
            "bucket.html",
            manifest=bucket.manifest,
            stream=bucket.stream,
            bucket=bucket,
            keys=[(one, values.get(one.revision)) for one in shown],
            found=len(listed.keys),
            unknown=listed.unknown[:_UNKNOWN],
            more_unknown=max(0, len(listed.unknown) - _UNKNOWN),
            whole=listed.whole,
            problem=problem,
            start=start,
            pattern=search,
            at=at,
            at_option=[] if at is None else [("--at", option_text(at))],
            first=first,
            last=last,
            slid=slid,
            asked=kept,
            earlier=address(path, **kept, keys=search, start=max(0, start - _KEYS)) if start else "",
            later=address(path, **kept, keys=search, start=start + _KEYS) if start + _KEYS < len(listed.keys) else "",
        )

    def key(self, request: Request) -> Response:
        query, bucket = Query.of(request), self._bucket(request)
        key = check_bucket_key(query.needed("key"))
        first, last = _span(bucket)
        at, _ = _moment(query, first, last)
        answer: JsBackupError | None = None
        value: KeyRevision | None = None
        with self._library.reading():
            revisions = bucket.newest_revisions(key, _REVISIONS)
            try:
                value = bucket.value(key, at)
            except UsageError:
                raise
            except JsBackupError as error:
                answer = error
        if not revisions and answer is not None:
            raise answer
        puts = [one.revision for one in revisions if one.operation is KeyOperation.PUT]
        newest = value.revision if value is not None else puts[0] if puts else 0
        older = next((one for one in puts if one < newest), 0)
        left, right = query.number("a") or older, query.number("b") or newest
        sides = [next((one for one in revisions if one.revision == number), None) for number in (left, right)]
        payloads = [
            None if one is None or one.operation is not KeyOperation.PUT else show_payload(one.value) for one in sides
        ]
        texts = ["" if one is None else one.text for one in payloads]
        return self._renderer.page(
            request,
            "key.html",
            manifest=bucket.manifest,
            stream=bucket.stream,
            key=key,
            at=at,
            asked={"name": bucket.stream.name, "key": key, "at": query.line("at"), "t": query.line("t")},
            revisions=revisions,
            more=len(revisions) == _REVISIONS,
            value=value,
            payload=None if value is None else show_payload(value.value),
            answer=answer,
            sides=list(zip(sides, payloads, marked(*texts), strict=True)) if all(sides) and left != right else [],
        )

    def value(self, request: Request) -> Response:
        query, bucket = Query.of(request), self._bucket(request)
        key, revision = check_bucket_key(query.needed("key")), query.number("revision")
        with self._library.reading():
            found = next((one for one in bucket.newest_revisions(key, _REVISIONS) if one.revision == revision), None)
        if found is None or found.operation is not KeyOperation.PUT:
            raise UsageError(f"key {key} has no value at revision {revision}")
        return attachment(f"{key}-{revision}", [found.value], len(found.value))

    def files(self, request: Request) -> Response:
        query, store = Query.of(request), self._store(request)
        size = size_of(store.stream.segments)
        asked = query.line("search")
        start = query.number("start", 10**9)
        path = f"/backup/{store.manifest.id}/files"
        base = {"name": store.stream.name, "search": asked, "all": "1" if query.flag("all") else ""}
        listed = size <= _MOST_BYTES or query.flag("all")
        entries: list[ObjectEntry] = []
        unreadable = 0
        if listed:
            with self._library.counting():
                entries, unreadable = store.entries()
        found = [one for one in entries if asked.lower() in one.name.lower()]
        return self._renderer.page(
            request,
            "files.html",
            manifest=store.manifest,
            stream=store.stream,
            store=store,
            listed=listed,
            size=size,
            entries=found[start : start + _FILES],
            found=len(found),
            start=start,
            unreadable=unreadable,
            search=asked,
            everything=address(path, **{**base, "all": 1}),
            earlier=address(path, **base, start=max(0, start - _FILES)) if start else "",
            later=address(path, **base, start=start + _FILES) if start + _FILES < len(found) else "",
        )

    def file(self, request: Request) -> Response:
        """Send a file whose size and digest were compared before: the first reading sends nothing."""
        query, store = Query.of(request), self._store(request)
        entry = store.entry(query.needed("file"))
        if entry.link is not None:
            raise UsageError(f"object {entry.name} is a link to {entry.link}", hint="Open that one.")
        with self._library.reading():
            for _ in store.content(entry):
                if self._library.stopping.is_set():
                    raise JsBackupError("the server of this page is stopping")

        def pieces() -> Iterator[bytes]:
            # What fails now ends the connection before its announced end: the browser discards the file.
            for piece in store.content(entry):
                if self._library.stopping.is_set():
                    raise JsBackupError("the server of this page is stopping")
                yield piece

        return attachment(entry.name, pieces(), entry.size)

    def _bucket(self, request: Request) -> KeyValueBucket:
        manifest = self._library.manifest(request.path_params["backup"])
        return KeyValueBucket.find(self._library.repository.objects, manifest, Query.of(request).needed("name"))

    def _store(self, request: Request) -> ObjectBucket:
        manifest = self._library.manifest(request.path_params["backup"])
        return ObjectBucket.find(self._library.repository.objects, manifest, Query.of(request).needed("name"))


def listed_keys(bucket: KeyValueBucket, at: Edge | None, pattern: str) -> KeyList:
    """Return the keys of a bucket. Raises UsageError if they may be too many to hold in memory, and as `keys`."""
    if bucket.stream.captured.messages > _MOST_REVISIONS and not is_subject(pattern):
        count, size = (
            format_count(bucket.stream.captured.messages, "revision"),
            format_bytes(bucket.stream.captured.bytes),
        )
        raise UsageError(
            f"bucket {bucket.name} has {count} of {size}, too many to list here",
            hint=f"Name one key, or run: {command_line('kv ls', bucket.manifest.id, bucket.name)}",
        )
    return bucket.keys(at, pattern)


def _span(bucket: KeyValueBucket) -> tuple[int, int]:
    """Return the seconds between which the slider goes: those of the first revision, and of the backup."""
    last_ns = known_until(bucket.manifest, bucket.stream)
    first_ns = min((part.min_ns for part in parts_of(bucket.stream.segments)), default=last_ns)
    return first_ns // _SECOND, max(last_ns, first_ns) // _SECOND


def _moment(query: Query, first: int, last: int) -> tuple[Edge | None, int]:
    """Return the moment that is asked for, None for that of the backup, and where the slider is."""
    at = query.edge("at")
    if at is not None:
        return at, min(max(at.time_ns // _SECOND, first), last) if isinstance(at, AtTime) else last
    typed = query.line("t")
    seconds = query.number("t", 1 << 40) if typed else last
    if seconds >= last:
        return None, last
    # The end of the second, so that what it shows includes what came in it.
    return AtTime(seconds * _SECOND + _SECOND - 1), max(seconds, first)
