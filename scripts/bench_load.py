"""What the benchmarks load a server with, and the limits that they measure against.

`fill` publishes a stream at full speed; `receive` and `send` move one archive over the wire and do nothing else with
it, as a process each (`python -m scripts.bench_load receive|send …`): nothing that reads or writes a stream through the
snapshot API can be quicker than these. `delay` is a link with a round-trip time.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

__all__ = ["Text", "fill", "receive", "request", "request_each", "restore_chunks"]

CHUNK_BYTES = 512 * 1024
SEND_WINDOW_BYTES = 4 << 20
_UNACKNOWLEDGED = 20_000
_PIECE_BYTES = 256 * 1024
_IN_FLIGHT_BYTES = 64 << 20


class Text:
    """Words as people write them (a few of them often), so that payloads compress about as real ones do."""

    def __init__(self, seed: int = 1, length: int = 24 << 20) -> None:
        self._random = random.Random(seed)
        letters = "etaoinshrdlucmfwypvbgkjqxz"
        words = ["".join(self._random.choices(letters, k=self._random.randint(2, 11))) for _ in range(8000)]
        weights = [1 / rank for rank in range(1, len(words) + 1)]
        self._text = " ".join(self._random.choices(words, weights, k=length // 5))

    def record(self, number: int, size: int) -> bytes:
        """A JSON document of `size` bytes."""
        order = {
            "id": number,
            "customer": f"c-{self._random.randrange(50_000)}",
            "amount": round(self._random.random() * 500, 2),
            "state": self._random.choice(("new", "paid", "sent")),
        }
        head = f'{json.dumps(order)[:-1]}, "note": "'
        length = max(0, size - len(head) - 2)
        at = self._random.randrange(len(self._text) - length)
        return f'{head}{self._text[at : at + length]}"}}'.encode()

    def record_half_random(self, number: int, size: int) -> bytes:
        """As `record`, with a second half that does not compress."""
        return self.record(number, size // 2) + self._random.randbytes(size - size // 2)


class Wire:
    """One connection, blocking, with as little as a client can get away with."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self.socket = socket.create_connection((place.hostname, place.port), timeout=300)
        self._buffer = bytearray()
        # Of its own, as a client's is: where one connection after the other had the same, an answer once never came.
        self.inbox = f"_INBOX.{secrets.token_hex(8)}".encode()
        self.line()
        self.socket.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n')

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            self._more()
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def message(self) -> tuple[bytes, bytes, int]:
        """The next one that comes: reply subject (empty if none), the headers and the payload, size of the payload."""
        while True:
            line = self.line()
            if line.startswith(b"PING"):
                self.send(b"PONG\r\n")
            elif line.startswith((b"MSG ", b"HMSG ")):
                words = line.split(b" ")
                size = int(words[-1])
                payload_size = size - (int(words[-2]) if line.startswith(b"H") else 0)
                reply = words[3] if len(words) == (6 if line.startswith(b"H") else 5) else b""
                while len(self._buffer) < size + 2:
                    self._more()
                body = bytes(self._buffer[:size])
                del self._buffer[: size + 2]
                return reply, body, payload_size
            elif line.startswith(b"-ERR"):
                raise ConnectionError(line.decode())

    def ask(self, subject: str, body: object) -> dict[str, object]:
        payload = json.dumps(body).encode()
        self.send(b"SUB %b.ask 9\r\nUNSUB 9 1\r\n" % self.inbox)
        self.send(b"PUB %b %b.ask %d\r\n%b\r\n" % (subject.encode(), self.inbox, len(payload), payload))
        answer: dict[str, object] = json.loads(self.message()[1])
        if "error" in answer:
            raise RuntimeError(f"{subject}: {answer['error']}")
        return answer

    def _more(self) -> None:
        data = self.socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._buffer += data


def request(url: str, verb: str, body: object) -> dict[str, object]:
    """One request of the JetStream API, such as `STREAM.DELETE.x`."""
    wire = Wire(url)
    try:
        return wire.ask(f"$JS.API.{verb}", body)
    finally:
        wire.socket.close()


def request_each(url: str, requests: Iterable[tuple[str, object]]) -> None:
    """Requests of the JetStream API, one after the other, on one connection."""
    wire = Wire(url)
    # One subscription for all answers: where each request had its own of the same number, an answer once never came.
    wire.send(b"SUB %b.ask 1\r\n" % wire.inbox)
    for verb, body in requests:
        payload = json.dumps(body).encode()
        wire.send(b"PUB $JS.API.%b %b.ask %d\r\n%b\r\n" % (verb.encode(), wire.inbox, len(payload), payload))
        answer = json.loads(wire.message()[1])
        if "error" in answer:
            raise RuntimeError(f"{verb}: {answer['error']}")
    wire.socket.close()


def fill(url: str, subject: Callable[[int], str], payload: Callable[[int], bytes], numbers: range) -> None:
    """Publishes one message for each number and returns when all have been acknowledged."""
    wire = Wire(url)
    wire.send(b"SUB %b.acks 1\r\n" % wire.inbox)
    waiting, tail, mark = 0, b"", b'"seq":'

    def collect(most: int) -> None:
        nonlocal waiting, tail
        while waiting > most:
            data = wire.socket.recv(1 << 20)
            if not data or b'"error"' in data:
                raise ConnectionError(data[:200].decode(errors="replace") or "the server closed the connection")
            if b"PING\r\n" in data:
                wire.send(b"PONG\r\n")
            seen = tail + data
            waiting -= seen.count(mark)
            tail = seen[-(len(mark) - 1) :]

    for batch in _batches(numbers, 500):
        lines = []
        for number in batch:
            body = payload(number)
            lines.append(b"PUB %b %b.acks %d\r\n%b\r\n" % (subject(number).encode(), wire.inbox, len(body), body))
        wire.send(b"".join(lines))
        waiting += len(lines)
        collect(_UNACKNOWLEDGED)
    collect(0)
    wire.socket.close()


def _batches(numbers: range, size: int) -> Iterator[range]:
    for at in range(0, len(numbers), size):
        yield numbers[at : at + size]


def receive(url: str, stream: str, kept: list[bytes] | None = None) -> int:
    """Takes a snapshot, acknowledges and forgets it, or keeps its chunks. Its size in bytes."""
    wire = Wire(url)
    wire.send(b"SUB deliver.bench 1\r\n")
    wire.ask(f"$JS.API.STREAM.SNAPSHOT.{stream}", {"deliver_subject": "deliver.bench", "chunk_size": CHUNK_BYTES})
    total = 0
    while True:
        reply, chunk, size = wire.message()
        if not size:
            return total
        total += size
        if kept is not None:
            kept.append(bytes(chunk))
        if reply:
            wire.send(b"PUB %s 0\r\n\r\n" % reply)


def send(url: str, directory: str) -> int:
    """Restores a directory as the nats CLI writes it with nothing but a window of chunks. The bytes sent."""
    folder = Path(directory)
    saved = json.loads((folder / "backup.json").read_text())
    archive = next(path for path in folder.iterdir() if path.name != "backup.json")
    with archive.open("rb") as file:
        chunks = iter(lambda: file.read(CHUNK_BYTES), b"")
        return restore_chunks(url, {"config": saved["config"], "state": saved["state"]}, chunks)


def restore_chunks(url: str, asked: dict[str, Any], chunks: Iterable[bytes]) -> int:
    """Restores the chunks of an archive; `asked` has the stream's config and state. The bytes sent."""
    wire = Wire(url)
    answer = wire.ask(f"$JS.API.STREAM.RESTORE.{asked['config']['name']}", asked)
    to = str(answer["deliver_subject"]).encode()
    wire.send(b"SUB %b.acks 1\r\n" % wire.inbox)
    total, waiting = 0, deque[int]()
    for piece in chunks:
        wire.send(b"PUB %b %b.acks %d\r\n%b\r\n" % (to, wire.inbox, len(piece), piece))
        total += len(piece)
        waiting.append(len(piece))
        while sum(waiting) > SEND_WINDOW_BYTES:
            wire.message()
            waiting.popleft()
    for _ in waiting:
        wire.message()
    wire.send(b"PUB %b %b.acks 0\r\n\r\n" % (to, wire.inbox))
    answer = json.loads(wire.message()[1])
    if "error" in answer:
        raise RuntimeError(str(answer["error"]))
    return total


async def delay(port: int, round_trip_ms: float) -> None:
    """A link to 127.0.0.1:`port` with that round-trip time and no other limit; prints its own port and runs on."""

    async def one_way(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        due: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_IN_FLIGHT_BYTES // _PIECE_BYTES)

        async def deliver() -> None:
            while True:
                when, data = await due.get()
                await asyncio.sleep(max(0.0, when - loop.time()))
                if not data:
                    writer.close()
                    return
                writer.write(data)
                await writer.drain()

        delivering = asyncio.create_task(deliver())
        try:
            while data := await reader.read(_PIECE_BYTES):
                await due.put((loop.time() + round_trip_ms / 2000, data))
        except ConnectionError:
            pass
        await due.put((loop.time(), b""))
        await asyncio.gather(delivering, return_exceptions=True)

    async def link(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port, limit=2 * _PIECE_BYTES)
        await asyncio.gather(one_way(reader, far_writer), one_way(far_reader, writer), return_exceptions=True)

    server = await asyncio.start_server(link, "127.0.0.1", 0, limit=2 * _PIECE_BYTES)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["receive", url, stream]:
            print(receive(url, stream))
        case ["send", url, directory]:
            print(send(url, directory))
        case ["delay", port, milliseconds]:
            asyncio.run(delay(int(port), float(milliseconds)))
        case _:
            sys.exit("usage: receive URL STREAM | send URL DIRECTORY | delay PORT MILLISECONDS")
