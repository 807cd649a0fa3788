"""The pages and their addresses: how backups stand, what differs between two, what a restore would do, and errors.

What one backup has is in `contents.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jsbackup import __version__
from jsbackup.api.restore_arguments import RestoreArguments, typed_arguments
from jsbackup.api.worker import blocking
from jsbackup.browse.contents import ContentPages, bucket_kind, listed_keys, stream_links
from jsbackup.browse.guard import Guard
from jsbackup.browse.library import Library, RestoreTarget
from jsbackup.browse.overview import key_figures, next_removal
from jsbackup.browse.payloads import ShownPayload, marked, show_payload
from jsbackup.browse.render import Pages, Query, address, browse_environment, pager, words_of
from jsbackup.engine.restore.preview import Preview, preview_restore
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.html.page import STYLE
from jsbackup.look.buckets.bucket import KeyValueBucket, check_bucket_key
from jsbackup.look.buckets.key_values import KeyDifference, key_differences
from jsbackup.look.moment import option_text
from jsbackup.look.stream import find_stream, message_at, with_messages
from jsbackup.planning.model import RestoreOptions
from jsbackup.planning.typed_options import restore_options
from jsbackup.progress import NullProgress
from jsbackup.repository.manifest import ArchiveFormat, Manifest, StreamBackup
from jsbackup.repository.read.config_diff import diff_configs
from jsbackup.repository.read.diff import diff_stream
from jsbackup.repository.read.segment_diff import find_spans
from jsbackup.repository.summary import BackupSummary
from jsbackup.shell import command_line
from jsbackup.transforms.cut import parse_edge

__all__ = ["make_app"]

_BACKUPS = 100
_STREAMS = 1000
_EXAMPLES = 50
_KEYS = 200
_ROWS = 500
_CHOICES = 200
_MOST_BYTES = 512 << 20
_IF_EXISTS = ("fail", "skip", "replace")
_READS = {"--identity", "--identity-command", "--passphrase-file", "--passphrase-command"}
_SCRIPT = (Path(__file__).parent / "page.js").read_text()
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="3" fill="#2563c9"/>'
    '<path d="M4 5h8M4 8h8M4 11h5" stroke="#fff" stroke-width="1.5"/></svg>'
)
_NOT_FOUND, _UNREADABLE = 404, 422


class HomePages(Pages):
    """How backups stand, and all of them."""

    def home(self, request: Request) -> Response:
        library = self._library
        taken = library.status(fresh=Query.of(request).flag("fresh"))
        status, inventory, held = taken.status, taken.inventory, taken.held
        now_ns, damaged = status.now_ns, status.damaged
        expiry = next_removal(inventory, held, library.policy, now_ns=now_ns, profile=library.profile, damaged=damaged)
        return self.page(
            request,
            "home.html",
            status=status,
            breaches=taken.breaches,
            figures=key_figures(status, taken.breaches, expiry),
            backups=inventory.summaries,
            held=held,
            age=round(taken.age_seconds),
        )

    def backups(self, request: Request) -> Response:
        query, taken = Query.of(request), self._library.status()
        search, start = query.line("search"), query.number("start", 10**9)
        matching = [one for one in reversed(taken.inventory.summaries) if _matches(one, search)]
        return self.page(
            request,
            "backups.html",
            status=taken.status,
            held=taken.held,
            backups=matching[start : start + _BACKUPS],
            matching=len(matching),
            start=start,
            search=search,
            **pager("/backups", start, _BACKUPS, len(matching), search=search),
        )


def _matches(one: BackupSummary, search: str) -> bool:
    words = (one.id, one.created, one.result, one.cluster, one.account, one.account_name or "")
    text = "\n".join((*words, *one.tags, *one.tags.values())).lower()
    return all(part in text for part in search.lower().split())


class ComparisonPages(Pages):
    """Two backups side by side: which streams differ, how, and the two values of one message or key."""

    def compare(self, request: Request) -> Response:
        query = Query.of(request)
        choices = self._library.status().inventory.summaries[:-_CHOICES:-1]
        if not query.line("a") or not query.line("b"):
            return self.page(request, "compare_choice.html", choices=choices, a=query.line("a"))
        a, b = self._sides(query)
        ours, theirs = ({one.name: one for one in side.streams} for side in (a, b))
        rows = [(name, ours.get(name), theirs.get(name)) for name in sorted(ours.keys() | theirs.keys())]
        different = [(*row, what) for row in rows if (what := _difference(row[1], row[2]))]
        return self.page(
            request,
            "compare.html",
            a=a,
            b=b,
            rows=different[:_ROWS],
            more=max(0, len(different) - _ROWS),
            different=len(different),
            equal=len(rows) - len(different),
            choices=choices,
        )

    def stream(self, request: Request) -> Response:
        query, objects = Query.of(request), self._library.repository.objects
        (a, b), name = self._sides(query), query.needed("name")
        old, new = (next((one for one in side.streams if one.name == name), None) for side in (a, b))
        if old is None or new is None:
            lacking = a.id if old is None else b.id
            raise UsageError(f"backup {lacking} has no stream {name}", hint="Only streams of both can be compared.")
        size = _bytes_to_read(old, new)
        diff = None
        keys: list[KeyDifference] = []
        problem: JsBackupError | None = None
        if size <= _MOST_BYTES or query.flag("all"):
            try:
                with self._library.counting():
                    diff = diff_stream(objects, old, new, NullProgress(), consumers=True, named=_EXAMPLES)
                    if bucket_kind(new) == "bucket" and old.digest != new.digest:
                        sides = [(side, with_messages(side, one)) for side, one in ((a, old), (b, new))]
                        keys = key_differences(*(listed_keys(KeyValueBucket(objects, *side)).keys for side in sides))
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
            keys=keys[:_KEYS],
            key_count=len(keys),
            size=size,
            everything=address("/compare/stream", a=a.id, b=b.id, name=name, all=1),
        )

    def message(self, request: Request) -> Response:
        sequence, objects = Query.of(request).number("seq"), self._library.repository.objects

        def read(side: Manifest, entry: StreamBackup) -> tuple[ShownPayload, str]:
            message = message_at(objects, side, entry, sequence)
            return show_payload(message.data), message.subject

        return self._both(request, f"Message {sequence}", read)

    def key(self, request: Request) -> Response:
        key, objects = check_bucket_key(Query.of(request).needed("key")), self._library.repository.objects

        def read(side: Manifest, entry: StreamBackup) -> tuple[ShownPayload, str]:
            value = KeyValueBucket(objects, side, entry).value(key)
            return show_payload(value.value), f"revision {value.revision}"

        return self._both(request, f"Key {key}", read)

    def _both(
        self, request: Request, title: str, read: Callable[[Manifest, StreamBackup], tuple[ShownPayload, str]]
    ) -> Response:
        query = Query.of(request)
        (a, b), name = self._sides(query), query.needed("name")
        shown: list[tuple[ShownPayload | None, str]] = []
        with self._library.reading():
            for side in (a, b):
                try:
                    shown.append(read(side, with_messages(side, find_stream(side, name))))
                except JsBackupError as error:
                    shown.append((None, f"{error.message}."))
        lines = marked(*("" if payload is None else payload.text for payload, _ in shown))
        sides = [(side, *one, marks) for side, one, marks in zip((a, b), shown, lines, strict=True)]
        return self.page(request, "compare_values.html", a=a, b=b, name=name, title=title, sides=sides)

    def _sides(self, query: Query) -> tuple[Manifest, Manifest]:
        return self._library.manifest(query.line("a")), self._library.manifest(query.line("b"))


def _difference(old: StreamBackup | None, new: StreamBackup | None) -> str:
    """Return how a stream differs by the manifests alone, "" if it does not."""
    if old is None or new is None:
        return "only in B" if old is None else "only in A"
    formats = {old.archive_format, new.archive_format}
    messages = [(one.digest, one.captured.messages, one.opaque) for one in (old, new)]
    consumers = [[(c.name, c.config, c.state, c.pending) for c in one.consumers] for one in (old, new)]
    differs = {
        "one has the configuration only": ArchiveFormat.CONFIG in formats and len(formats) > 1,
        "messages": ArchiveFormat.CONFIG not in formats and messages[0] != messages[1],
        "configuration": bool(diff_configs(old.config, new.config)),
        "consumers": consumers[0] != consumers[1],
        "another stream of this name": old.incarnation != new.incarnation,
    }
    return ", ".join(what for what, is_so in differs.items() if is_so)


def _bytes_to_read(old: StreamBackup, new: StreamBackup) -> int:
    if old.digest == new.digest or old.opaque or new.opaque:
        return 0
    return sum(span.bytes for span in find_spans(old.segments, new.segments))


class PlanPages(Pages):
    """What a restore would do, and the command line for it. The page itself restores nothing."""

    def plan(self, request: Request) -> Response:
        query, library = Query.of(request), self._library
        asked = {name: query.line(name) for name in ("backup", "streams", "until", "target", "if_exists", "prefix")}
        preview: Preview | None = None
        problem: JsBackupError | None = None
        command = ""
        lacking: list[str] = []
        manifest = library.manifest(asked["backup"]) if asked["backup"] else None
        if manifest is not None and query.flag("go"):
            try:
                target, streams, typed = self._target(asked["target"]), words_of(asked["streams"]), _typed(asked)
                how = cast(RestoreArguments, {"streams": streams, **typed})
                preview = self._preview(manifest, target, restore_options(typed_arguments("plan", how)))
                # Not before: what cannot be planned is not to be run either.
                options = [(f"--{name.replace('_', '-')}", value) for name, value in typed.items()]
                options += [*target.options, ("-r", library.place), *library.options]
                command = command_line("restore", manifest.id, options=options, names=streams)
                lacking = list(_lacking(library, target))
            except JsBackupError as error:
                problem = error
        return self.page(
            request,
            "plan.html",
            asked=asked,
            streams=[] if manifest is None else [one.name for one in manifest.streams[:_STREAMS]],
            choices=library.status().inventory.summaries[:-_CHOICES:-1],
            targets=library.targets,
            if_exists=_IF_EXISTS,
            preview=preview,
            plan=None if preview is None else preview.plan,
            most=_ROWS,
            problem=problem,
            command=command,
            lacking=lacking,
        )

    def _preview(self, manifest: Manifest, target: RestoreTarget, options: RestoreOptions) -> Preview:
        connection, repository = target.connect(), self._library.repository
        with self._library.reading():
            return blocking(
                lambda worker: worker.complete(
                    preview_restore(connection, repository, manifest, options, now_ns=time.time_ns)
                )
            )

    def _target(self, name: str) -> RestoreTarget:
        for target in self._library.targets:
            if target.name == name:
                return target
        raise UsageError("choose a server to restore into", hint="Contexts of the nats CLI are offered.")


def _typed(asked: dict[str, str]) -> dict[str, str]:
    """Return the options of a command line for what is asked for, by their names in Python."""
    # A duration ago is another moment when the command is run.
    until = option_text(parse_edge("--until", asked["until"], time.time_ns())) if asked["until"] else ""
    if_exists = "" if asked["if_exists"] == _IF_EXISTS[0] else asked["if_exists"]
    typed = {"until": until, "rename_prefix": asked["prefix"], "if_exists": if_exists}
    return {name: value for name, value in typed.items() if value}


def _lacking(library: Library, target: RestoreTarget) -> Iterator[str]:
    """Say what the command line does not have and needs."""
    if target.hidden:
        yield "User and password, or the token, of the server were left out: give them in the environment or in a file."
    named = {name for name, _ in library.options}
    if library.repository.descriptor.recipient is not None and not named & _READS:
        yield "The repository is encrypted: add --identity or --passphrase-file, unless the environment has the key."


class ErrorPages(Pages):
    """What is shown instead of a page that cannot be made."""

    def error(self, request: Request, error: Exception) -> Response:
        status = _NOT_FOUND if isinstance(error, UsageError) else _UNREADABLE
        return self.page(request, "error.html", status, error=error)

    def nothing(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        nothing = UsageError("there is no such page", hint="Go to the home page.")
        return self.page(request, "error.html", error.status_code, error=nothing)


def make_app(library: Library, token: str, names: Collection[str]) -> Guard:
    """Return the application. Only requests with the token, and to one of these host names, are answered."""
    shared = library, browse_environment(location=library.location, version=__version__, stream_links=stream_links)
    home, contents = HomePages(*shared), ContentPages(*shared)
    comparisons, errors = ComparisonPages(*shared), ErrorPages(*shared)
    routes = [
        Route("/", home.home),
        Route("/backups", home.backups),
        Route("/backup/{backup}", contents.backup),
        Route("/backup/{backup}/stream", contents.stream),
        Route("/backup/{backup}/messages", contents.messages),
        Route("/backup/{backup}/message", contents.message),
        Route("/backup/{backup}/payload", contents.payload),
        Route("/backup/{backup}/bucket", contents.bucket),
        Route("/backup/{backup}/key", contents.key),
        Route("/backup/{backup}/value", contents.value),
        Route("/backup/{backup}/files", contents.files),
        Route("/backup/{backup}/file", contents.file),
        Route("/compare", comparisons.compare),
        Route("/compare/stream", comparisons.stream),
        Route("/compare/message", comparisons.message),
        Route("/compare/key", comparisons.key),
        Route("/plan", PlanPages(*shared).plan),
        Route("/style.css", partial(_text, STYLE, "text/css")),
        Route("/icon.svg", partial(_text, _ICON, "image/svg+xml")),
        Route("/page.js", partial(_text, _SCRIPT, "text/javascript")),
    ]
    handlers = {JsBackupError: errors.error, HTTPException: errors.nothing}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token, names)


def _text(text: str, kind: str, request: Request) -> Response:
    return Response(text, media_type=kind)
