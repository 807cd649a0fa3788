"""The pages and their addresses: how backups stand, what a restore would do, and errors.

What backups have, and what differs between two, is in `contents.py`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jsbackup import __version__
from jsbackup.api.arguments import RestoreArguments, asked_by
from jsbackup.api.worker import blocking
from jsbackup.browse.contents import ComparisonPages, ContentPages, stream_links
from jsbackup.browse.guard import Guard
from jsbackup.browse.library import Library, RestoreTarget
from jsbackup.browse.overview import key_figures, next_removal
from jsbackup.browse.render import Pages, Query, browse_environment, pager, words_of
from jsbackup.engine.restore.preview import Preview, preview_restore
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.html.page import STYLE
from jsbackup.look.moment import option_text
from jsbackup.planning.model import RestoreOptions
from jsbackup.planning.typed_options import restore_options
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.summary import BackupSummary
from jsbackup.shell import command_line
from jsbackup.transforms.cut import parse_edge

__all__ = ["make_app"]

_BACKUPS = 100
_STREAMS = 1000
_ROWS = 500
_CHOICES = 200
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
                renamed = {"*": f"{asked['prefix']}*"} if asked["prefix"] else {}
                how = cast(RestoreArguments, {"streams": streams, "rename": renamed, **typed})
                preview = self._preview(manifest, target, restore_options(asked_by("plan", how)))
                # Not before: what cannot be planned is not to be run either.
                options = [(f"--{name.replace('_', '-')}", value) for name, value in typed.items()]
                options += [("--rename", f"{old}={new}") for old, new in renamed.items()]
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
    typed = {"until": until, "if_exists": if_exists}
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
