"""A TCP proxy in front of a server, to do something to a connection, or with a process, in the middle of a transfer.

"In the middle" is counted in bytes, so it happens at the same place on a fast and on a slow machine:

    with Proxy(server.port) as proxy:
        proxy.at(Direction.TO_CLIENT, 4 << 20, server.kill)
        jsbackup("backup", "-s", proxy.url, …)

The action runs once, in the proxy's thread, when so many bytes of all connections together have passed that way and
before the next one does.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
from collections.abc import Callable
from enum import Enum
from types import TracebackType
from typing import Self

_PIECE_BYTES = 64 * 1024
_RESET = struct.pack("ii", 1, 0)


class Direction(Enum):
    TO_CLIENT = "what the server sends"
    TO_SERVER = "what the client sends"


class Proxy:
    """Listens on a free port of 127.0.0.1 and passes everything on to `port`; use it as a context manager.

    Only the first `most` connections find a server.
    """

    def __init__(self, port: int, *, most: int = 1_000_000) -> None:
        self._target = port
        self._most = most
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.passed = dict.fromkeys(Direction, 0)
        self.connections = 0
        self._trips: dict[Direction, tuple[int, Callable[[], None]]] = {}
        self._sockets: set[socket.socket] = set()
        self._text: re.Pattern[bytes] | None = None
        self._at_text: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def at(self, direction: Direction, byte_count: int, action: Callable[[], None]) -> None:
        """Call `action` once `byte_count` more bytes have passed that way."""
        with self._lock:
            self._trips[direction] = self.passed[direction] + byte_count, action

    def before(self, text: bytes, action: Callable[[], None]) -> None:
        """Call `action` once, when a client is about to send what matches `text`, which does not pass any more."""
        self._text, self._at_text = re.compile(text), action

    def cut(self) -> None:
        """Resets every connection there is. New ones are welcome."""
        with self._lock:
            victims, self._sockets = self._sockets, set()
        for victim in victims:
            with contextlib.suppress(OSError):
                victim.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                victim.shutdown(socket.SHUT_RDWR)
        for victim in victims:
            victim.close()

    def hold(self) -> None:
        """Nothing passes any more, in either direction, and nobody is told."""
        self._flowing.clear()

    def release(self) -> None:
        self._flowing.set()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            server = self._to_server()
            if server is None:
                client.close()
                continue
            with self._lock:
                self._sockets |= {client, server}
            for source, sink, direction in (
                (server, client, Direction.TO_CLIENT),
                (client, server, Direction.TO_SERVER),
            ):
                threading.Thread(target=self._pump, args=(source, sink, direction), daemon=True).start()

    def _to_server(self) -> socket.socket | None:
        if self.connections <= self._most:
            with contextlib.suppress(OSError):
                server = socket.create_connection(("127.0.0.1", self._target), timeout=10)
                server.settimeout(None)
                return server
        return None

    def _pump(self, source: socket.socket, sink: socket.socket, direction: Direction) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_PIECE_BYTES):
                self._flowing.wait()
                if direction is Direction.TO_SERVER and self._text is not None and self._text.search(data):
                    self._text = None
                    self._at_text()
                    break
                sink.sendall(self._until_trip(direction, data, sink))
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        with self._lock:
            self._sockets -= {source, sink}

    def _until_trip(self, direction: Direction, data: bytes, sink: socket.socket) -> bytes:
        """What of `data` may pass when the action, if it is due now, has been taken."""
        with self._lock:
            before = self.passed[direction]
            self.passed[direction] = before + len(data)
            at, action = self._trips.get(direction, (0, None))
            due = action is not None and self.passed[direction] >= at
            if due:
                del self._trips[direction]
        if not due or action is None:
            return data
        head = max(0, at - before)
        sink.sendall(data[:head])
        action()
        self._flowing.wait()
        return data[head:]

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A thread in `accept` keeps a closed listener alive; `shutdown` wakes it.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.release()
        self.cut()
