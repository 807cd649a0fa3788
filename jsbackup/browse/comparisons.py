"""Two backups side by side: which streams differ, how, and the two values of one message or key."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from jsbackup.browse.buckets import listed_keys
from jsbackup.browse.contents import bucket_kind
from jsbackup.browse.library import Library
from jsbackup.browse.payloads import ShownPayload, marked, show_payload
from jsbackup.browse.query import Query, address
from jsbackup.browse.render import Renderer
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.look.buckets.bucket import KeyValueBucket, check_bucket_key
from jsbackup.look.buckets.key_values import KeyDifference, key_differences
from jsbackup.look.message import LookedUp
from jsbackup.look.stream import message_at, with_messages
from jsbackup.progress import NullProgress
from jsbackup.repository.manifest import ArchiveFormat, Manifest, StreamBackup
from jsbackup.repository.read.config_diff import diff_configs
from jsbackup.repository.read.diff import diff_stream
from jsbackup.repository.read.segment_diff import find_spans

__all__ = ["ComparisonPages"]

_EXAMPLES = 50
_KEYS = 200
_ROWS = 500
_MOST_BYTES = 512 << 20
_CHOICES = 200


class ComparisonPages:
    """Handlers of requests. They raise the errors of what they read."""

    def __init__(self, library: Library, renderer: Renderer) -> None:
        self._library = library
        self._renderer = renderer

    def compare(self, request: Request) -> Response:
        query = Query.of(request)
        choices = self._library.status().inventory.summaries[:-_CHOICES:-1]
        if not query.line("a") or not query.line("b"):
            return self._renderer.page(request, "compare_choice.html", choices=choices, a=query.line("a"))
        a, b = self._sides(query)
        ours, theirs = ({one.name: one for one in side.streams} for side in (a, b))
        rows = [(name, ours.get(name), theirs.get(name)) for name in sorted(ours.keys() | theirs.keys())]
        judged = [(name, old, new, _judge(old, new)) for name, old, new in rows]
        different = [row for row in judged if row[3]]
        return self._renderer.page(
            request,
            "compare.html",
            a=a,
            b=b,
            rows=different[:_ROWS],
            more=max(0, len(different) - _ROWS),
            different=len(different),
            equal=len(judged) - len(different),
            choices=choices,
        )

    def stream(self, request: Request) -> Response:
        query = Query.of(request)
        a, b = self._sides(query)
        name = query.needed("name")
        old, new = (next((one for one in side.streams if one.name == name), None) for side in (a, b))
        if old is None or new is None:
            lacking = a.id if old is None else b.id
            raise UsageError(f"backup {lacking} has no stream {name}", hint="Only streams of both can be compared.")
        size = _bytes_to_read(old, new)
        read = size <= _MOST_BYTES or query.flag("all")
        diff = None
        keys: list[KeyDifference] = []
        problem: JsBackupError | None = None
        if read:
            try:
                with self._library.counting():
                    objects = self._library.repository.objects
                    diff = diff_stream(objects, old, new, NullProgress(), consumers=True, named=_EXAMPLES)
                    keys = self._keys(a, b, old, new)
            except JsBackupError as error:
                problem = error
        return self._renderer.page(
            request,
            "compare_stream.html",
            a=a,
            b=b,
            old=old,
            new=new,
            name=name,
            diff=diff,
            config=diff_configs(old.config, new.config),
            problem=problem,
            keys=keys[:_KEYS],
            key_count=len(keys),
            is_bucket=bucket_kind(new) == "bucket",
            size=size,
            everything=address("/compare/stream", a=a.id, b=b.id, name=name, all=1),
        )

    def message(self, request: Request) -> Response:
        query = Query.of(request)
        a, b = self._sides(query)
        name, sequence = query.needed("name"), query.number("seq")
        with self._library.reading():
            found = [self._message(side, name, sequence) for side in (a, b)]
        return self._both(request, a, b, name=name, title=f"Message {sequence}", found=found)

    def key(self, request: Request) -> Response:
        query = Query.of(request)
        a, b = self._sides(query)
        name, key = query.needed("name"), check_bucket_key(query.needed("key"))
        with self._library.reading():
            found = [self._value(side, name, key) for side in (a, b)]
        return self._both(request, a, b, name=name, title=f"Key {key}", found=found)

    def _both(
        self,
        request: Request,
        a: Manifest,
        b: Manifest,
        *,
        name: str,
        title: str,
        found: list[tuple[ShownPayload | None, str]],
    ) -> Response:
        texts = ["" if payload is None else payload.text for payload, _ in found]
        return self._renderer.page(
            request,
            "compare_values.html",
            a=a,
            b=b,
            name=name,
            title=title,
            sides=[
                (side, payload, said, lines)
                for side, (payload, said), lines in zip((a, b), found, marked(*texts), strict=True)
            ],
        )

    def _message(self, side: Manifest, name: str, sequence: int) -> tuple[ShownPayload | None, str]:
        entry = next((one for one in side.streams if one.name == name), None)
        if entry is None:
            return None, "The stream is not in this backup."
        try:
            one: LookedUp = message_at(self._library.repository.objects, side, with_messages(side, entry), sequence)
        except JsBackupError as error:
            return None, f"{error.message}."
        return show_payload(one.data), one.subject

    def _value(self, side: Manifest, name: str, key: str) -> tuple[ShownPayload | None, str]:
        entry = next((one for one in side.streams if one.name == name), None)
        if entry is None:
            return None, "The bucket is not in this backup."
        try:
            found = KeyValueBucket(self._library.repository.objects, side, with_messages(side, entry)).value(key)
        except JsBackupError as error:
            return None, f"{error.message}."
        return show_payload(found.value), f"revision {found.revision}"

    def _keys(self, a: Manifest, b: Manifest, old: StreamBackup, new: StreamBackup) -> list[KeyDifference]:
        if bucket_kind(new) != "bucket" or old.digest == new.digest:
            return []
        objects = self._library.repository.objects
        sides = [
            listed_keys(KeyValueBucket(objects, side, with_messages(side, one)), None, ">").keys
            for side, one in ((a, old), (b, new))
        ]
        return key_differences(*sides)

    def _sides(self, query: Query) -> tuple[Manifest, Manifest]:
        return self._library.manifest(query.line("a")), self._library.manifest(query.line("b"))


def _judge(old: StreamBackup | None, new: StreamBackup | None) -> str:
    """Return how a stream differs by the manifests alone, "" if it does not."""
    if old is None or new is None:
        return "only in B" if old is None else "only in A"
    said = []
    if ArchiveFormat.CONFIG in (old.archive_format, new.archive_format):
        if old.archive_format is not new.archive_format:
            said.append("one has the configuration only")
    elif (old.digest, old.captured.messages, old.opaque) != (new.digest, new.captured.messages, new.opaque):
        said.append("messages")
    if diff_configs(old.config, new.config):
        said.append("configuration")
    if [(c.name, c.config, c.state, c.pending) for c in old.consumers] != [
        (c.name, c.config, c.state, c.pending) for c in new.consumers
    ]:
        said.append("consumers")
    if old.incarnation != new.incarnation:
        said.append("another stream of this name")
    return ", ".join(said)


def _bytes_to_read(old: StreamBackup, new: StreamBackup) -> int:
    if old.digest == new.digest or old.opaque or new.opaque:
        return 0
    return sum(span.bytes for span in find_spans(old.segments, new.segments))
