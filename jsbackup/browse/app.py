"""The web server of the pages: where it listens, which addresses they have, and how it ends.

Here are the pages of how backups stand, of what a restore would do, and of errors. What backups have, and what differs
between two, is in `contents.py`.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import cast

import uvicorn
from anyio import create_task_group, sleep
from anyio.to_thread import current_default_thread_limiter
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jsbackup import __version__
from jsbackup.api.arguments import RestoreArguments, asked_by
from jsbackup.api.worker import blocking
from jsbackup.browse.contents import ComparisonPages, ContentPages, stream_links
from jsbackup.browse.guard import Guard, new_token
from jsbackup.browse.library import Library, RestoreTarget
from jsbackup.browse.overview import key_figures, next_removal
from jsbackup.browse.render import Pages, Query, browse_environment, pager, words_of
from jsbackup.engine.restore.restore import preview_restore
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.html.page import STYLE
from jsbackup.look.moment import option_text
from jsbackup.planning.plan import Decision
from jsbackup.planning.typed_options import restore_options
from jsbackup.repository.manifest import BackupSummary
from jsbackup.shell import command_line
from jsbackup.transforms.cut import parse_edge

__all__ = ["PageServer"]

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
_THREADS = 8
_MOST_CONNECTIONS = 64
_LONGEST_HEAD = 32 << 10
_GRACE_SECONDS = 2


class AppPages(Pages):
    """How backups stand, all of them, what a restore would do, and what is shown instead of a page that cannot be made.

    The page of a plan has the command line for it, and restores nothing itself.
    """

    def home(self, request: Request) -> Response:
        library = self._library
        taken = library.status(fresh=Query(request).flag("fresh"))
        status, inventory, held = taken.status, taken.inventory, taken.held
        expiry = next_removal(
            inventory, held, library.policy, now_ns=status.now_ns, profile=library.profile, damaged=status.damaged
        )
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
        query, taken = Query(request), self._library.status()
        search, start = query.line("search"), query.number("start", 10**9)
        matching = [summary for summary in reversed(taken.inventory.summaries) if _matches(summary, search)]
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

    def plan(self, request: Request) -> Response:
        query, library = Query(request), self._library
        asked = {name: query.line(name) for name in ("backup", "streams", "until", "target", "if_exists", "prefix")}
        preview: Decision | None = None
        problem: JsBackupError | None = None
        command = ""
        lacking: list[str] = []
        manifest = library.manifest(asked["backup"]) if asked["backup"] else None
        if manifest is not None and query.flag("go"):
            try:
                target = next((target for target in library.targets if target.name == asked["target"]), None)
                if target is None:
                    raise UsageError("choose a server to restore into", hint="Contexts of the nats CLI are offered.")
                streams, typed = words_of(asked["streams"]), _typed(asked)
                renamed = {"*": f"{asked['prefix']}*"} if asked["prefix"] else {}
                how = cast(RestoreArguments, {"streams": streams, "rename": renamed, **typed})
                wanted = restore_options(asked_by("plan", how))
                connection, repository = target.connect(), library.repository
                with library.reading():
                    preview = blocking(
                        lambda worker: worker.complete(
                            preview_restore(connection, repository, manifest, wanted, now_ns=time.time_ns)
                        )
                    )
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
            streams=[] if manifest is None else [stream.name for stream in manifest.streams[:_STREAMS]],
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

    def error(self, request: Request, error: Exception) -> Response:
        status = _NOT_FOUND if isinstance(error, UsageError) else _UNREADABLE
        return self.page(request, "error.html", status, error=error)

    def nothing(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        nothing = UsageError("there is no such page", hint="Go to the home page.")
        return self.page(request, "error.html", error.status_code, error=nothing)


def _matches(summary: BackupSummary, search: str) -> bool:
    words = (summary.id, summary.created, summary.result, summary.cluster, summary.account, summary.account_name or "")
    text = "\n".join((*words, *summary.tags, *summary.tags.values())).lower()
    return all(part in text for part in search.lower().split())


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


def _text(text: str, kind: str, request: Request) -> Response:
    return Response(text, media_type=kind)


def _app(library: Library) -> Starlette:
    """Return the application; a guard has to stand before it."""
    shared = library, browse_environment(location=library.location, version=__version__, stream_links=stream_links)
    pages, contents, comparisons = AppPages(*shared), ContentPages(*shared), ComparisonPages(*shared)
    routes = [
        Route("/", pages.home),
        Route("/backups", pages.backups),
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
        Route("/plan", pages.plan),
        Route("/style.css", partial(_text, STYLE, "text/css")),
        Route("/icon.svg", partial(_text, _ICON, "image/svg+xml")),
        Route("/page.js", partial(_text, _SCRIPT, "text/javascript")),
    ]
    return Starlette(routes=routes, exception_handlers={JsBackupError: pages.error, HTTPException: pages.nothing})


class _KnownEnds(logging.Filter):
    """Leaves out what the end of the server does to requests, and says in a sentence what broke a download off."""

    def __init__(self, library: Library) -> None:
        super().__init__()
        self._library = library

    def filter(self, record: logging.LogRecord) -> bool:
        if self._library.stopping.is_set():
            return False
        error = record.exc_info[1] if record.exc_info else None
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, JsBackupError):
            record.msg, record.args, record.exc_info = "a download was broken off: %s", (error.message,), None
        return True


class _QuietServer(uvicorn.Server):
    """The command line has the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class PageServer:
    """Serves the pages of a library. `loopback`: only to browsers of this machine."""

    def __init__(self, library: Library, address: str, port: int) -> None:
        """Bind a port of this machine, any free one if it is 0. Raises UsageError."""
        try:
            family, kind, protocol, _, place = socket.getaddrinfo(
                address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self._socket = socket.socket(family, kind, protocol)
        except (OSError, UnicodeError) as error:
            raise UsageError(f"--bind: not an address of this machine: {address[:80]!r}") from error
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(place)
            self._socket.listen(_MOST_CONNECTIONS)
        except OSError as error:
            self._socket.close()
            reason = (error.strerror or str(error)).lower()
            hint = "Leave --port out for any free one, or see whether --bind is an address of this machine."
            raise UsageError(f"cannot listen on {address}, port {port}: {reason}", hint=hint) from error
        ip = ipaddress.ip_address(str(place[0]).partition("%")[0])
        own = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(str(ip), str(ip))
        own = f"[{own}]" if ":" in own else own
        number: int = self._socket.getsockname()[1]
        self._own = f"http://{own}:{number}/"
        token = new_token()
        self.url = f"http://{socket.gethostname() if ip.is_unspecified else own}:{number}/?token={token}"
        self.loopback = ip.is_loopback
        names = {"localhost", "ip6-localhost"}
        if not self.loopback:
            names |= {socket.gethostname(), socket.getfqdn(), address} - {""}
        self._library = library
        self._guard = Guard(_app(library), token, names)
        self._server = _QuietServer(
            uvicorn.Config(
                self._guard,
                http="h11",
                ws="none",
                loop="asyncio",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=_MOST_CONNECTIONS,
                h11_max_incomplete_event_size=_LONGEST_HEAD,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )

    def url_once(self) -> str:
        """Return an address for the command line of a browser of this machine, which others can see: it works once."""
        return f"{self._own}?token={self._guard.ticket()}"

    async def serve(self, seconds: float | None = None) -> None:
        """Answer requests until `stop` is called, or for so long."""
        current_default_thread_limiter().total_tokens = _THREADS
        # It stays: requests learn of the end when this has returned.
        logging.getLogger("uvicorn.error").addFilter(_KnownEnds(self._library))
        async with create_task_group() as tasks:
            if seconds is not None:
                tasks.start_soon(self._stop_after, seconds)
            await self._server.serve(sockets=[self._socket])
            tasks.cancel_scope.cancel()

    async def _stop_after(self, seconds: float) -> None:
        await sleep(seconds)
        self.stop()

    def stop(self) -> None:
        self._library.stopping.set()
        self._server.should_exit = True
