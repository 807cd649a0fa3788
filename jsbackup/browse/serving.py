"""The web server of the pages: where it listens, and how it ends."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import uvicorn
from anyio import create_task_group, sleep
from anyio.to_thread import current_default_thread_limiter

from jsbackup.browse.app import make_app
from jsbackup.browse.guard import new_token
from jsbackup.browse.library import Library
from jsbackup.errors import JsBackupError, UsageError

__all__ = ["PageServer", "listen"]

_THREADS = 8
_MOST_CONNECTIONS = 64
_LONGEST_HEAD = 32 << 10
_GRACE_SECONDS = 2


@dataclass(frozen=True, slots=True)
class Listener:
    """A bound socket. `host` is the name by which browsers reach it, `own_host` that for a browser of this machine."""

    socket: socket.socket
    host: str
    own_host: str
    port: int
    loopback: bool


def listen(address: str, port: int) -> Listener:
    """Bind a port of this machine, any free one if it is 0. Raises UsageError."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--bind: not an address of this machine: {address[:80]!r}") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(place)
        bound.listen(_MOST_CONNECTIONS)
    except OSError as error:
        bound.close()
        reason = (error.strerror or str(error)).lower()
        hint = "Leave --port out for any free one, or see whether --bind is an address of this machine."
        raise UsageError(f"cannot listen on {address}, port {port}: {reason}", hint=hint) from error
    number: int = bound.getsockname()[1]
    ip = ipaddress.ip_address(str(place[0]).partition("%")[0])
    own = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(str(ip), str(ip))
    own = f"[{own}]" if ":" in own else own
    return Listener(bound, socket.gethostname() if ip.is_unspecified else own, own, number, ip.is_loopback)


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
    """Serves the pages of a library."""

    def __init__(self, library: Library, listener: Listener, *, bind: str = "") -> None:
        token = new_token()
        self.url = f"http://{listener.host}:{listener.port}/?token={token}"
        self._library = library
        self._listener = listener
        names = {"localhost", "ip6-localhost"}
        if not listener.loopback:
            names |= {socket.gethostname(), socket.getfqdn(), bind} - {""}
        self._guard = make_app(library, token, names)
        config = uvicorn.Config(
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
        self._server = _QuietServer(config)

    def url_once(self) -> str:
        """Return an address for the command line of a browser, which others can see: it works once."""
        return f"http://{self._listener.own_host}:{self._listener.port}/?token={self._guard.ticket()}"

    async def serve(self, seconds: float | None = None) -> None:
        """Answer requests until `stop` is called, or for so long."""
        current_default_thread_limiter().total_tokens = _THREADS
        # It stays: requests learn of the end when this has returned.
        logging.getLogger("uvicorn.error").addFilter(_KnownEnds(self._library))
        async with create_task_group() as tasks:
            if seconds is not None:
                tasks.start_soon(self._stop_after, seconds)
            await self._server.serve(sockets=[self._listener.socket])
            tasks.cancel_scope.cancel()

    async def _stop_after(self, seconds: float) -> None:
        await sleep(seconds)
        self.stop()

    def stop(self) -> None:
        self._library.stopping.set()
        self._server.should_exit = True
