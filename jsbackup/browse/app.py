"""The pages and their addresses, and what is shown instead of a page that cannot be made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from functools import partial
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jsbackup import __version__
from jsbackup.browse.buckets import BucketPages
from jsbackup.browse.comparisons import ComparisonPages
from jsbackup.browse.contents import ContentPages, stream_links
from jsbackup.browse.guard import Guard
from jsbackup.browse.home import HomePages
from jsbackup.browse.library import Library
from jsbackup.browse.plans import PlanPages
from jsbackup.browse.render import Renderer
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.html.page import STYLE

__all__ = ["make_app"]

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
