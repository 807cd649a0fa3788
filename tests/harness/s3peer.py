"""An S3 store that has bad moments: a reverse proxy in front of a real one, which does what a script says.

    with S3Peer(server.port) as peer:
        peer.meet(Fault.RESET_AFTER, "PUT", times=1)
        …                                           # the next PUT is carried out, and its answer lost
        assert peer.count("PUT") == 2

Requests are told by their method, but a GET of a bucket is a `LIST`, and those of a multipart upload are `BEGIN`,
`PART`, `COMPLETE` and `ABORT`. Nothing here imports jsbackup.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.harness.s3server import ACCESS_KEY, REGION, SECRET_KEY

_RESET = struct.pack("ii", 1, 0)
_HOP = {"connection", "transfer-encoding", "expect", "keep-alive"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What the peer says in place of the store, without asking it."""

    status: int
    code: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None

    @property
    def content(self) -> bytes:
        if self.body is not None:
            return self.body
        if not self.code:
            return b""
        return f"<?xml version='1.0'?><Error><Code>{self.code}</Code><Message>told</Message></Error>".encode()


class Fault(Enum):
    RESET_BEFORE = "the connection is reset, and nothing was done"
    RESET_AFTER = "the connection is reset when it was done"
    ERROR_AFTER = "it is done, and the answer is 500"
    HANG = "there is no answer"
    TRUNCATE = "half of the body is sent"
    FLIP = "one bit of the body is another, each time another one"
    FLIP_UPLOAD = "one bit of what is stored is another"
    UNCONDITIONAL = "conditions are ignored"


Trouble = Fault | Answer


class S3Peer:
    """Listens on a free port of 127.0.0.1; use it as a context manager. With `certificate` (a PEM file with its key) it
    speaks TLS."""

    def __init__(self, port: int, *, certificate: Path | None = None) -> None:
        self._target = port
        self._rules: list[tuple[Trouble, str, int]] = []
        self._lock = threading.Lock()
        self._flips = 0
        self.log: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.over = threading.Event()
        peer = self

        class Handler(_Handler):
            def handle_request(self) -> None:
                peer._serve(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.port: int = self._server.server_address[1]
        self._scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    def meet(self, trouble: Trouble, kind: str = "", *, times: int = 1, after: int = 0) -> None:
        """The next `times` requests of that kind (any, if empty), but for the first `after`, meet this."""
        with self._lock:
            self._rules += [(trouble, kind, after + number) for number in range(times)]

    def always(self, trouble: Trouble, kind: str = "") -> None:
        self.meet(trouble, kind, times=1000)

    def count(self, kind: str) -> int:
        return sum(found == kind for found, _ in self.log)

    def _trouble(self, kind: str) -> Trouble | None:
        """The first that is due; each request of a kind counts those down that wait for one."""
        with self._lock:
            due: Trouble | None = None
            left: list[tuple[Trouble, str, int]] = []
            for trouble, wanted, waits in self._rules:
                if wanted not in ("", kind):
                    left.append((trouble, wanted, waits))
                elif waits == 0 and due is None:
                    due = trouble
                else:
                    left.append((trouble, wanted, max(0, waits - 1)))
            self._rules = left
            return due

    def _serve(self, request: _Handler) -> None:
        kind = _kind(request.command, request.path)
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        with self._lock:
            self.log.append((kind, request.path))
            self.headers.append(headers)
        trouble = self._trouble(kind)
        match trouble:
            case Answer():
                request.answer(trouble.status, dict(trouble.headers), trouble.content)
                return
            case Fault.RESET_BEFORE:
                request.reset()
                return
            case Fault.HANG:
                self.over.wait(60)
                request.reset()
                return
            case Fault.FLIP_UPLOAD:
                body = self._flip(body)
            case Fault.UNCONDITIONAL:
                headers = _signed_anew(request, headers)
        status, answered, content = self._ask(request, headers, body)
        match trouble:
            case Fault.RESET_AFTER:
                request.reset()
            case Fault.ERROR_AFTER:
                request.answer(500, {}, Answer(500, "InternalError").content)
            case Fault.TRUNCATE:
                request.answer(status, answered, content[: len(content) // 2], said=len(content))
                request.reset()
            case Fault.FLIP:
                request.answer(status, answered, self._flip(content))
            case _:
                request.answer(status, answered, content)

    def _flip(self, data: bytes) -> bytes:
        with self._lock:
            self._flips += 1
            at = self._flips % len(data)
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    def _ask(self, request: _Handler, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._target, timeout=60)
        try:
            connection.putrequest(request.command, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()


def _kind(method: str, path: str) -> str:
    parts = urlsplit(path)
    query = parse_qs(parts.query, keep_blank_values=True)
    if "uploadId" in query:
        return {"PUT": "PART", "POST": "COMPLETE", "DELETE": "ABORT"}[method]
    if "uploads" in query and method == "POST":
        return "BEGIN"
    return "LIST" if method == "GET" and "/" not in parts.path.strip("/") else method


def _signed_anew(request: _Handler, headers: Mapping[str, str]) -> dict[str, str]:
    """The headers without the condition, with a signature that fits them."""
    left = {name: value for name, value in headers.items() if name.lower() not in ("if-none-match", "authorization")}
    url = f"http://{headers['Host']}{request.path}"
    anew = AWSRequest(method=request.command, url=url, headers=left)
    auth = S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", REGION)
    signed = left["X-Amz-Content-SHA256"]
    auth.payload = lambda _request: signed  # type: ignore[method-assign]
    auth.add_auth(anew)
    return dict(anew.headers.items())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    handle_request: Callable[[], None]

    def do_GET(self) -> None:
        with contextlib.suppress(OSError):
            self.handle_request()

    do_PUT = do_POST = do_HEAD = do_DELETE = do_GET

    def answer(self, status: int, headers: Mapping[str, str], content: bytes, *, said: int | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in _HOP and (name.lower() != "content-length" or self.command == "HEAD"):
                self.send_header(name, value)
        if self.command != "HEAD" and status != 204:
            self.send_header("Content-Length", str(len(content) if said is None else said))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.wfile.flush()

    def reset(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()

    def log_message(self, format: str, *args: object) -> None:
        pass
