"""The pages and their addresses, and what is shown instead of a page that cannot be made.

Two backups side by side: which streams differ, how, and the two values of one message or key.

The home page: how backups stand. And the list of all backups.

What a restore would do, and the command line for it. The page itself restores nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from functools import partial
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jsbackup import __version__
from jsbackup.api.restore_arguments import RestoreArguments, typed_arguments
from jsbackup.api.worker import blocking
from jsbackup.browse.buckets import BucketPages, listed_keys
from jsbackup.browse.contents import ContentPages, bucket_kind, stream_links
from jsbackup.browse.guard import Guard
from jsbackup.browse.library import Library, RestoreTarget
from jsbackup.browse.overview import growth_of_series, key_figures, next_removal, recent_table, shared_part, verdict
from jsbackup.browse.payloads import ShownPayload, marked, show_payload
from jsbackup.browse.query import Query, address
from jsbackup.browse.render import Renderer
from jsbackup.engine.check.health_rules import span
from jsbackup.engine.restore.preview import Preview, preview_restore
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.html.page import STYLE
from jsbackup.look.buckets.bucket import KeyValueBucket, check_bucket_key
from jsbackup.look.buckets.key_values import KeyDifference, key_differences
from jsbackup.look.message import LookedUp
from jsbackup.look.moment import option_text
from jsbackup.look.stream import message_at, with_messages
from jsbackup.names import BLANKS
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

_STREAMS = 1000
_IF_EXISTS = ("fail", "skip", "replace")
_READS = {"--identity", "--identity-command", "--passphrase-file", "--passphrase-command"}


class PlanPages:
    """Handlers of requests. They raise the errors of what they read."""

    def __init__(self, library: Library, renderer: Renderer) -> None:
        self._library = library
        self._renderer = renderer

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
                target = self._target(asked["target"])
                how, options = _asked(asked)
                preview = self._preview(manifest, target, restore_options(typed_arguments("plan", how)))
                # Not before: what cannot be planned is not to be run either.
                options += [*target.options, ("-r", library.place), *library.options]
                command = command_line("restore", manifest.id, options=options, names=how.get("streams", ()))
                lacking = list(_lacking(library, target))
            except JsBackupError as error:
                problem = error
        plan = None if preview is None else preview.plan
        return self._renderer.page(
            request,
            "plan.html",
            asked=asked,
            manifest=manifest,
            streams=[] if manifest is None else [one.name for one in manifest.streams[:_STREAMS]],
            choices=library.status().inventory.summaries[:-_CHOICES:-1],
            targets=library.targets,
            if_exists=_IF_EXISTS,
            preview=preview,
            plan=plan,
            actions=[] if plan is None else plan.actions[:_ROWS],
            warnings=[]
            if plan is None
            else [*plan.warnings, *(found for action in plan.actions for found in action.warnings)][:_ROWS],
            refusals=[] if plan is None else [*plan.refusals, *plan.missing][:_ROWS],
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
        found = next((one for one in self._library.targets if one.name == name), None)
        if found is None:
            raise UsageError("choose a server to restore into", hint="Contexts of the nats CLI are offered.")
        return found


def _lacking(library: Library, target: RestoreTarget) -> Iterator[str]:
    """Say what the command line does not have and needs."""
    if target.hidden:
        yield "User and password, or the token, of the server were left out: give them in the environment or in a file."
    named = {name for name, _ in library.options}
    if library.repository.descriptor.recipient is not None and not named & _READS:
        yield "The repository is encrypted: add --identity or --passphrase-file, unless the environment has the key."


def _asked(asked: dict[str, str]) -> tuple[RestoreArguments, list[tuple[str, str]]]:
    """Return what is asked for, as arguments and as options of a command line; streams are arguments alone."""
    how: RestoreArguments = {}
    options = []
    streams = re.findall(f"[^{BLANKS}]+", asked["streams"])
    if streams:
        how["streams"] = streams
    if asked["until"]:
        # A duration ago is another moment when the command is run.
        how["until"] = until = option_text(parse_edge("--until", asked["until"], time.time_ns()))
        options.append(("--until", until))
    if asked["prefix"]:
        how["rename_prefix"] = asked["prefix"]
        options.append(("--rename-prefix", asked["prefix"]))
    if asked["if_exists"] == "skip":
        how["if_exists"] = "skip"
    elif asked["if_exists"] == "replace":
        how["if_exists"] = "replace"
    elif asked["if_exists"] not in ("", "fail"):
        raise UsageError(f"not one of {', '.join(_IF_EXISTS)}: {asked['if_exists']}")
    if "if_exists" in how:
        options.append(("--if-exists", how["if_exists"]))
    return how, options


_RECENT = 20
_EACH = 100
_DRILLS = 10


class HomePages:
    """Handlers of requests. They raise the errors of what they read."""

    def __init__(self, library: Library, renderer: Renderer) -> None:
        self._library = library
        self._renderer = renderer

    def home(self, request: Request) -> Response:
        library = self._library
        taken = library.status(fresh=Query.of(request).flag("fresh"))
        status, summaries = taken.status, taken.inventory.summaries
        expiry = next_removal(
            taken.inventory,
            taken.held,
            library.policy,
            now_ns=status.now_ns,
            profile=library.profile,
            damaged=status.damaged,
        )
        return self._renderer.page(
            request,
            "home.html",
            verdict=verdict(taken.breaches),
            figures=key_figures(status, taken.breaches, expiry),
            recent=recent_table(
                summaries[: -_RECENT - 1 : -1],
                taken.held,
                status.damaged,
                now_ns=status.now_ns,
                caption="The newest backups",
                link=backup_address,
            ),
            backups=len(summaries),
            choices=summaries[:-_EACH:-1],
            lines=[(line, growth_of_series(line), shared_part(line)) for line in status.lines],
            drills=[(one, span((status.now_ns - _ns(one.ended)) / 1e9)) for one in status.drills_of(None)[:_DRILLS]],
            verifies=[(one, span((status.now_ns - _ns(one.ended)) / 1e9)) for one in status.verifies[:3]],
            work=status.work,
            warnings=status.warnings,
            age=round(taken.age_seconds),
        )

    def backups(self, request: Request) -> Response:
        query = Query.of(request)
        taken = self._library.status()
        asked = query.line("search")
        found = [one for one in reversed(taken.inventory.summaries) if _matches(one, asked)]
        start = query.number("start", 10**9)
        table = recent_table(
            found[start : start + _EACH],
            taken.held,
            taken.status.damaged,
            now_ns=taken.status.now_ns,
            caption=f"Backups {start + 1} to {min(start + _EACH, len(found))} of {len(found)}, the newest first"
            if found
            else "No such backups",
            link=backup_address,
        )
        return self._renderer.page(
            request,
            "backups.html",
            table=table,
            search=asked,
            unreadable=taken.status.unreadable,
            newer=address("/backups", search=asked, start=max(0, start - _EACH)) if start else "",
            older=address("/backups", search=asked, start=start + _EACH) if start + _EACH < len(found) else "",
        )


def backup_address(backup: str) -> str:
    return f"/backup/{backup}"


def _matches(one: BackupSummary, asked: str) -> bool:
    words = (
        one.id,
        one.created,
        one.result,
        one.cluster,
        one.account,
        one.account_name or "",
        *one.tags,
        *one.tags.values(),
    )
    return all(any(part.lower() in word.lower() for word in words) for part in asked.split())


def _ns(moment: str) -> int:
    from jsbackup.times import parse_time

    return parse_time(moment)


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


_SCRIPT = (Path(__file__).parent / "page.js").read_text()
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="3" fill="#2563c9"/>'
    '<path d="M4 5h8M4 8h8M4 11h5" stroke="#fff" stroke-width="1.5"/></svg>'
)
_NOT_FOUND, _UNREADABLE = 404, 422


def make_app(library: Library, token: str, names: Collection[str]) -> Guard:
    """Return the application. Only requests with the token, and to one of these host names, are answered."""
    renderer = Renderer(location=library.location, version=__version__, stream_links=stream_links)
    home, contents = HomePages(library, renderer), ContentPages(library, renderer)
    buckets, comparisons = BucketPages(library, renderer), ComparisonPages(library, renderer)
    routes = [
        Route("/", home.home),
        Route("/backups", home.backups),
        Route("/backup/{backup}", contents.backup),
        Route("/backup/{backup}/stream", contents.stream),
        Route("/backup/{backup}/messages", contents.messages),
        Route("/backup/{backup}/message", contents.message),
        Route("/backup/{backup}/payload", contents.payload),
        Route("/backup/{backup}/bucket", buckets.bucket),
        Route("/backup/{backup}/key", buckets.key),
        Route("/backup/{backup}/value", buckets.value),
        Route("/backup/{backup}/files", buckets.files),
        Route("/backup/{backup}/file", buckets.file),
        Route("/compare", comparisons.compare),
        Route("/compare/stream", comparisons.stream),
        Route("/compare/message", comparisons.message),
        Route("/compare/key", comparisons.key),
        Route("/plan", PlanPages(library, renderer).plan),
        Route("/style.css", partial(_text, STYLE, "text/css")),
        Route("/icon.svg", partial(_text, _ICON, "image/svg+xml")),
        Route("/page.js", partial(_text, _SCRIPT, "text/javascript")),
    ]
    handlers = {
        JsBackupError: partial(_tell_error, renderer),
        HTTPException: partial(_tell_nothing, renderer),
    }
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token, names)


Handler = Callable[[Request, Exception], Response | Awaitable[Response]]


def _text(text: str, kind: str, request: Request) -> Response:
    return Response(text, media_type=kind)


def _tell_error(renderer: Renderer, request: Request, error: Exception) -> Response:
    assert isinstance(error, JsBackupError)
    status = _NOT_FOUND if isinstance(error, UsageError) else _UNREADABLE
    return renderer.page(request, "error.html", status, error=error)


def _tell_nothing(renderer: Renderer, request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    there_is = UsageError("there is no such page", hint="Go to the home page.")
    return renderer.page(request, "error.html", error.status_code, error=there_is)
