"""A NATS client of a hundred lines, blocking and bare: subjects, headers and payloads as they are on the wire.

The dialogues do no I/O, so their tests against real servers need somebody to carry messages; a client library would
parse the header blocks that the dialogues read themselves.
"""

from __future__ import annotations

import json
import socket
from collections import deque
from types import TracebackType
from typing import Any, Self

from jsbackup.protocol.api import Request
from jsbackup.protocol.dialogue import Message, Publish


class Wire:
    """One connection. Every message for any subscription comes out of `receive`, in the order of arrival."""

    def __init__(self, port: int, *, seconds: float = 20.0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=seconds)
        self._file = self._socket.makefile("rb")
        self.info: dict[str, Any] = json.loads(self._line().removeprefix(b"INFO "))
        self._waiting: deque[Message] = deque()
        self._requests = 0
        self._sid = 0
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "echo": True}
        self._send(f"CONNECT {json.dumps(options)}\r\n".encode())
        self.inbox = f"_INBOX.wire{id(self)}"
        self.subscribe(f"{self.inbox}.>")

    def subscribe(self, subject: str) -> None:
        self._sid += 1
        self._send(f"SUB {subject} {self._sid}\r\n".encode())
        self.flush()

    def publish(self, subject: str, payload: bytes = b"", reply: str | None = None, headers: bytes = b"") -> None:
        target = f"{subject} {reply}" if reply else subject
        if headers:
            line = f"HPUB {target} {len(headers)} {len(headers) + len(payload)}\r\n"
        else:
            line = f"PUB {target} {len(payload)}\r\n"
        self._send(line.encode() + headers + payload + b"\r\n")

    def send(self, messages: list[Publish]) -> None:
        for message in messages:
            self.publish(message.subject, message.payload, message.reply)

    def flush(self) -> None:
        """Returns when the server has seen all that was sent; messages that arrive meanwhile are kept."""
        self._send(b"PING\r\n")
        while (message := self._read()) is not None:
            self._waiting.append(message)

    def request(self, subject: str, payload: bytes = b"") -> bytes:
        """The payload of the first reply; other messages that arrive meanwhile are kept."""
        self._requests += 1
        reply = f"{self.inbox}.{self._requests}"
        self.publish(subject, payload, reply)
        while True:
            message = self._read()
            assert message is not None, "PONG without a PING"
            if message.subject == reply:
                return message.data
            self._waiting.append(message)

    def ask(self, request: Request) -> bytes:
        return self.request(request.subject, request.payload)

    def receive(self) -> Message:
        if self._waiting:
            return self._waiting.popleft()
        message = self._read()
        assert message is not None, "PONG without a PING"
        return message

    def _read(self) -> Message | None:
        """The next message; None at a PONG."""
        while True:
            line = self._line()
            if line.startswith(b"PING"):
                self._send(b"PONG\r\n")
            elif line.startswith(b"PONG"):
                return None
            elif line.startswith((b"MSG ", b"HMSG ")):
                return self._message(line)
            elif line.startswith(b"-ERR"):
                raise AssertionError(line.decode())

    def _message(self, line: bytes) -> Message:
        operation, subject, _, *rest = line.decode().split(" ")
        total = int(rest.pop())
        headers = int(rest.pop()) if operation == "HMSG" else 0
        body = self._file.read(total + 2)
        return Message(subject, rest[0] if rest else None, body[:headers], body[headers:-2])

    def _line(self) -> bytes:
        line = self._file.readline()
        if not line:
            raise ConnectionError("the server closed the connection")
        return line.rstrip(b"\r\n")

    def _send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
