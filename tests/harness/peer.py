"""A scripted NATS server: it greets, answers PING, keeps subscriptions, and else says only what the test tells it to.

    async with ScriptedPeer() as peer:
        capture = asyncio.create_task(…)                             # a client of `peer.url`
        asked = await peer.expect("$JS.API.STREAM.SNAPSHOT.ORDERS")
        await peer.answer(asked, {"type": …})
        await peer.say(deliver_subject, chunk, reply=ack_subject)
        await peer.expect(ack_subject)
        await peer.drop()

A test reads as the dialogue that it is about. What a client says and nobody expects fails the next `expect`; what is
of no interest is answered by the side (`always`). Nothing here knows jsbackup.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

JSON = dict[str, Any]

_STALL_SECONDS = 20.0
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Heard:
    """A message that a client published."""

    subject: str
    reply: str
    headers: bytes
    data: bytes

    @property
    def json(self) -> JSON:
        document: JSON = json.loads(self.data)
        return document


@dataclass(slots=True, eq=False)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    subscriptions: dict[str, str] = field(default_factory=dict)  # sid → subject


class ScriptedPeer:
    """Listens on a free port of 127.0.0.1; an async context manager. `version` is what its INFO says."""

    def __init__(self, *, version: str = "2.15.1", max_payload: int = 1 << 20, cluster: str | None = None) -> None:
        self._info: JSON = {
            "server_id": "SCRIPTED",
            "server_name": "scripted",
            "version": version,
            "max_payload": max_payload,
            "proto": 1,
            "headers": True,
            "jetstream": True,
        }
        if cluster is not None:
            self._info["cluster"] = cluster
        self.connections = 0
        self._heard: asyncio.Queue[Heard] = asyncio.Queue()
        self._always: list[tuple[str, Callable[[Heard], JSON | None]]] = []
        self._open: list[_Connection] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscribed = asyncio.Event()
        self._listening = asyncio.Event()
        self._listening.set()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    def always(self, pattern: str, answer: Callable[[Heard], JSON | None]) -> None:
        """Answer what comes on `pattern` (NATS wildcards) by the side; what `answer` has None for gets no answer.

        Of several patterns that match, the last one given answers.
        """
        self._always.insert(0, (pattern, answer))

    async def expect(self, pattern: str) -> Heard:
        """The next message that a client publishes, which has to be on `pattern` (NATS wildcards)."""
        heard = await asyncio.wait_for(self._heard.get(), _STALL_SECONDS)
        assert _matches(pattern, heard.subject), f"expected {pattern}, heard {heard}"
        return heard

    async def silence(self, seconds: float) -> None:
        """Clients publish nothing for so long."""
        with contextlib.suppress(TimeoutError):
            heard = await asyncio.wait_for(self._heard.get(), seconds)
            raise AssertionError(f"expected silence, heard {heard}")

    async def answer(self, heard: Heard, document: JSON | bytes = b"", headers: bytes = b"") -> None:
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        await self.say(heard.reply, data, headers=headers)

    def listens(self, subject: str) -> bool:
        """Whether a client subscribes to `subject`, or to a pattern that matches it."""
        return any(_matches(wanted, subject) for one in self._open for wanted in one.subscriptions.values())

    async def interest(self, subject: str) -> None:
        """Wait until a client listens to `subject`."""
        async with asyncio.timeout(_STALL_SECONDS):
            while not self.listens(subject):
                self._subscribed.clear()
                await self._subscribed.wait()

    async def say(
        self, subject: str, data: bytes = b"", *, reply: str = "", headers: bytes = b"", shown: str = ""
    ) -> None:
        """Send to every subscription that matches; AssertionError if there is none.

        The client sees the subject `shown`, if given: as what a consumer delivers.
        """
        found = False
        for connection in list(self._open):
            for sid, wanted in list(connection.subscriptions.items()):
                if not _matches(wanted, subject):
                    continue
                found = True
                verb, sizes = ("HMSG", f"{len(headers)} {len(headers) + len(data)}") if headers else ("MSG", len(data))
                line = " ".join(f"{verb} {shown or subject} {sid} {reply} {sizes}".split())
                connection.writer.write(f"{line}\r\n".encode() + headers + data + b"\r\n")
                with contextlib.suppress(ConnectionError):
                    await connection.writer.drain()
        assert found, f"nothing answers on {subject}"

    def drop(self) -> None:
        """Reset every connection. New ones are welcome."""
        for connection in self._open:
            transport = connection.writer.transport
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            transport.abort()
        self._open.clear()

    def stall(self) -> None:
        """Hear nothing and answer nothing any more, not even a PING; connections stay open."""
        self._listening.clear()

    def go_on(self) -> None:
        """Hear and answer again."""
        self._listening.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection = _Connection(reader, writer)
        self._open.append(connection)
        writer.write(f"INFO {json.dumps(self._info)}\r\n".encode())
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while line := await reader.readline():
                await self._listening.wait()
                await self._take(connection, line)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            if connection in self._open:
                self._open.remove(connection)
            writer.close()

    async def _take(self, connection: _Connection, line: bytes) -> None:
        words = line.decode().split()
        match words[0].upper():
            case "PING":
                connection.writer.write(b"PONG\r\n")
            case "SUB":
                connection.subscriptions[words[-1]] = words[1]
                self._subscribed.set()
            case "UNSUB":
                connection.subscriptions.pop(words[1], None)
            case "PUB" | "HPUB":
                await self._hear(connection, words)
            case "CONNECT" | "PONG":
                pass
            case _:
                raise AssertionError(f"a client said {line!r}")

    async def _hear(self, connection: _Connection, words: list[str]) -> None:
        with_headers = words[0].upper() == "HPUB"
        sizes = 2 if with_headers else 1
        body = await connection.reader.readexactly(int(words[-1]) + 2)
        header_size = int(words[-2]) if with_headers else 0
        reply = words[2] if len(words) == 3 + sizes else ""
        heard = Heard(words[1], reply, body[:header_size], body[header_size:-2])
        for pattern, answer in self._always:
            if _matches(pattern, heard.subject):
                document = answer(heard)
                if document is not None:
                    await self.answer(heard, document)
                return
        self._heard.put_nowait(heard)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        self._port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self._listening.set()
        self.drop()
        # They end with their connections, and raise what a client said that it should not.
        await asyncio.gather(*self._tasks)
        await self._server.wait_closed()


def _matches(wanted: str, subject: str) -> bool:
    ours, theirs = wanted.split("."), subject.split(".")
    if ours[-1] == ">":
        return len(theirs) >= len(ours) and all(o in ("*", t) for o, t in zip(ours[:-1], theirs, strict=False))
    return len(ours) == len(theirs) and all(o in ("*", t) for o, t in zip(ours, theirs, strict=True))
