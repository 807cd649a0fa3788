"""Who may see the pages, and what browsers may do with them.

token     a random one in the URL that is printed. It is exchanged for a cookie with the id of a session, so that it
          does not stay in the address. Other sites cannot send the cookie, and scripts cannot read it; but browsers
          send it to all ports of this host, so that it is not the token, opens no address, and ends with this process.
origin    a browser says where a request comes from (Sec-Fetch-Site). What other sites, or other ports of this host,
          lead to or load needs the token.
host      the Host header must be an address, or a name of this machine. A name that someone else owns may lead
          here (DNS rebinding), and its pages could then read ours.
method    GET and HEAD: there is nothing to change
policy    only our own style sheet and script are loaded, by a number that each response draws again
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import time
from collections import deque
from collections.abc import Collection
from html import escape
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Guard", "new_token"]

_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_POLICY = (
    "default-src 'none'; style-src 'nonce-{0}'; script-src 'nonce-{0}'; img-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_TOKEN = "token"
_LONGEST_QUERY = 24 << 10  # with a subject of 4 KiB, each byte of which may take three signs
_TICKET_SECONDS = 60.0
_SESSIONS = 64
_OWN_REQUESTS = {"same-origin", "none"}


def new_token() -> str:
    """Return a token of 256 bits."""
    return secrets.token_urlsafe(32)


class Guard:
    """Passes requests on that may be answered. `names` are the host names of this machine that are allowed."""

    def __init__(self, app: ASGIApp, token: str, names: Collection[str]) -> None:
        self._app = app
        self._token = token
        self._tickets: dict[str, float] = {}  # until when each is good
        self._sessions: deque[str] = deque(maxlen=_SESSIONS)
        self._names = {name.lower().rstrip(".") for name in names}
        # Cookies do not tell ports apart: two of these servers must not take each other's.
        self._cookie = f"jsbackup-{secrets.token_hex(4)}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        nonce = secrets.token_urlsafe(16)
        scope.setdefault("state", {})["nonce"] = nonce

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers["Content-Security-Policy"] = _POLICY.format(nonce)
            await send(message)

        refused = self._refusal(scope)
        await (refused or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return what to answer instead of a page, None if the page may be seen."""
        headers = Headers(scope=scope)
        if not self._is_ours(headers.getlist("host")):
            return PlainTextResponse("This page does not answer to that host name.\n", 421)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("These pages only show: GET and HEAD.\n", 405, {"Allow": "GET, HEAD"})
        query = scope["query_string"]
        if len(query) > _LONGEST_QUERY:
            return PlainTextResponse("The address is too long.\n", 414)
        given = parse_qsl(query.decode("latin-1"), keep_blank_values=True, encoding="utf-8", errors="surrogateescape")
        typed = next((value for name, value in given if name == _TOKEN), None)
        if typed is not None and (_same(self._token, typed) or self._takes(typed)):
            return self._welcome(scope["path"], [header for header in given if header[0] != _TOKEN])
        if not set(headers.getlist("sec-fetch-site")) <= _OWN_REQUESTS:
            return PlainTextResponse("Another page has led here: open the address yourself.\n", 403)
        cookies = self._cookies(headers.getlist("cookie"))
        if not any(_same(session, given) for given in cookies for session in self._sessions):
            return PlainTextResponse("Open the address that 'jsbackup browse' has printed, with its token.\n", 403)
        return None

    def ticket(self) -> str:
        """Return a token for a command line that others may see: it opens the pages once, within a minute."""
        token = new_token()
        self._tickets[token] = time.monotonic() + _TICKET_SECONDS
        return token

    def _takes(self, given: str) -> bool:
        match = next((ticket for ticket in list(self._tickets) if _same(ticket, given)), "")
        return time.monotonic() < self._tickets.pop(match, 0.0)

    def _welcome(self, path: str, query: list[tuple[str, str]]) -> Response:
        """Give the cookie, and lead to the address without the token.

        A page does that, and no redirect: if another site led here, a browser would not send this cookie there.
        """
        # A path that begins with two slashes would lead to another host.
        path = quote("/" + path.lstrip("/\\"), safe="/")
        target = escape(f"{path}?{urlencode(query, errors='surrogateescape')}" if query else path)
        refresh = f'<meta http-equiv="refresh" content="0; url={target}">'
        text = f'<!doctype html><title>jsbackup</title>{refresh}<p><a href="{target}">Go on</a></p>\n'
        answer = HTMLResponse(text)
        session = new_token()
        self._sessions.append(session)
        answer.set_cookie(self._cookie, session, httponly=True, samesite="strict", path="/")
        return answer

    def _cookies(self, lines: Collection[str]) -> list[str]:
        cookies = []
        for line in lines:
            for part in line.split(";"):
                try:
                    read = SimpleCookie(part.strip())
                except CookieError:  # of another server of this machine
                    continue
                if self._cookie in read:
                    cookies.append(read[self._cookie].value)
        return cookies

    def _is_ours(self, hosts: Collection[str]) -> bool:
        if len(hosts) != 1:
            return False
        name = next(iter(hosts)).lower()
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        elif name.count(":") == 1:
            name = name.partition(":")[0]
        if name.rstrip(".") in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _same(known: str, given: str) -> bool:
    """Compare in a time that tells nothing."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), known.encode())
