"""The JetStream API as plain JSON over nats-py core requests, and a wire of its own for exact bytes.

Nothing here knows jsbackup, and nothing but keys goes through nats-py's own JetStream classes: those drop fields that
they do not know.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nkeys
from nats.aio.client import Client
from nats.errors import NoRespondersError
from nats.js.errors import NoKeysError
from nats.js.kv import KeyValue

JSON = dict[str, Any]

# Far beyond what the slowest machine needs for one step: only what hangs lasts so long.
PATIENCE_SECONDS = 60

_OTHER_STREAM = 10060  # "expected stream does not match"
_NO_STORE = 10049  # "error creating store for stream"


async def keys_of(bucket: KeyValue) -> list[str]:
    """The keys of a bucket that has some, sorted. nats-py asks what is pending, and takes a bucket for empty if all was
    sent before it has seen the first one.
    """
    while True:
        with contextlib.suppress(NoKeysError):
            return sorted(await bucket.keys())


async def history_of(bucket: KeyValue, key: str) -> list[KeyValue.Entry]:
    """The revisions of a key that has some, oldest first; asked again as by `keys_of`."""
    while True:
        with contextlib.suppress(NoKeysError):
            return await bucket.history(key)


class Refused(Exception):
    """JetStream answered with an error."""

    def __init__(self, subject: str, error: JSON) -> None:
        super().__init__(f"{subject}: {error.get('description')} ({error.get('err_code')})")
        self.code: int = error.get("code", 0)
        self.err_code: int = error.get("err_code", 0)
        self.description: str = error.get("description", "")


async def connect(url: str, creds: Path | None = None) -> Client:
    """A nats-py connection that does not reconnect: a server that is gone fails the test at once. Close it."""
    client = Client()
    await client.connect(
        servers=url.split(","),
        allow_reconnect=False,
        max_outstanding_pings=10,
        connect_timeout=PATIENCE_SECONDS,
        user_credentials=None if creds is None else str(creds),
    )
    return client


def creds_of(nc: Client) -> str | None:
    """The credentials file that a connection was made with."""
    found: str | None = nc._user_credentials
    return found


async def until_stored(nc: Client, *subjects: str) -> None:
    """Wait until streams have stored all that this client has published before, without waiting for acks: a message
    that the stream of a subject refuses is answered after those. `flush` says only that the server has received them.
    """
    for subject in subjects:
        reply = await nc.request(subject, b"", headers={"Nats-Expected-Stream": "none"}, timeout=PATIENCE_SECONDS)
        assert json.loads(reply.data)["error"]["err_code"] == _OTHER_STREAM, reply.data


@contextlib.asynccontextmanager
async def connected(url: str, creds: Path | None = None) -> AsyncIterator[Client]:
    """The same as a context: closed at the end, whatever happened."""
    client = await connect(url, creds)
    try:
        yield client
    finally:
        await client.close()


async def call(nc: Client, subject: str, request: JSON | None = None, *, prefix: str = "$JS.API") -> JSON:
    """One API request below `prefix`. Raises Refused with the server's error."""
    payload = b"" if request is None else json.dumps(request).encode()
    message = await nc.request(f"{prefix}.{subject}", payload, timeout=PATIENCE_SECONDS)
    answer: JSON = json.loads(message.data)
    if error := answer.get("error"):
        raise Refused(subject, error)
    return answer


async def create(nc: Client, config: JSON) -> None:
    """Make a stream. A cluster that has just removed one of its name may fail to make its folder: it is asked again."""
    for last in (False, False, True):
        try:
            await call(nc, f"STREAM.CREATE.{config['name']}", config)
            return
        except Refused as error:
            if last or error.err_code != _NO_STORE:
                raise
        await asyncio.sleep(1)


async def publish_stored(nc: Client, subject: str, data: bytes) -> None:
    """Publish, and wait until it is stored. A new stream in a cluster listens a moment after it was made."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            await nc.request(subject, data, timeout=PATIENCE_SECONDS)
            return
        except NoRespondersError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.1)


async def paged(nc: Client, subject: str, field: str, *, prefix: str = "$JS.API") -> list[Any]:
    """All items of a list answer, page by page up to the reported total."""
    items: list[Any] = []
    while True:
        answer = await call(nc, subject, {"offset": len(items)}, prefix=prefix)
        page = answer.get(field) or []
        items += page
        if not page or len(items) >= answer["total"]:
            return items


def headers(*pairs: tuple[str, str]) -> bytes:
    """A header block of these lines, in this order, repeated names kept."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in pairs)
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def _signed(creds: str, nonce: str) -> JSON:
    """What logs in with the text of a credentials file: its JWT, and a signature by its seed."""
    lines = creds.splitlines()
    jwt, seed = (lines[1 + next(at for at, line in enumerate(lines) if f"BEGIN {what}" in line)] for what in _PARTS)
    signature = nkeys.from_seed(bytearray(seed.encode())).sign(nonce.encode())
    return {"jwt": jwt, "sig": base64.urlsafe_b64encode(signature).rstrip(b"=").decode()}


_PARTS = ("NATS USER JWT", "USER NKEY SEED")


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer as the wire carried it; `header_block` is empty where there was none."""

    header_block: bytes
    data: bytes


class Wire:
    """A connection of its own that sends and receives exact bytes: any subject, any header block, any payload.

    nats-py builds and parses header blocks itself, and so cannot repeat a header, write an empty block or a subject
    that is not UTF-8. Requests are pipelined: `send` queues one, `replies` waits for all of them.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._patience_seconds = patience_seconds
        self._inbox = f"_INBOX.wire{id(self):x}"
        self._sent = 0
        self._taken = 0
        self._replies: dict[int, Reply] = {}

    @classmethod
    async def open(cls, url: str, patience_seconds: float = PATIENCE_SECONDS, creds: str | None = None) -> Wire:
        """Connects to the first server of a comma list; user and password of the URL are used, or a credentials file.

        A reply that does not come within `patience_seconds` raises TimeoutError.
        """
        parts = urlsplit(url.split(",")[0])
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 20)
        wire = cls(reader, writer, patience_seconds)
        info = json.loads((await reader.readline()).removeprefix(b"INFO "))
        options: JSON = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
        if parts.username:
            options |= {"user": parts.username, "pass": parts.password}
        if creds:
            options |= _signed(Path(creds).read_text(), info["nonce"])
        writer.write(f"CONNECT {json.dumps(options)}\r\nSUB {wire._inbox}.* 1\r\nPING\r\n".encode())
        while (line := await reader.readline()) != b"PONG\r\n":
            if not line or line.startswith(b"-ERR"):
                raise ConnectionError(line.decode())
        return wire

    async def send(self, subject: str | bytes, data: bytes = b"", header_block: bytes | None = None) -> None:
        """Queues one request; `header_block` is the whole block with its `NATS/1.0` line and its final empty line."""
        raw = subject.encode() if isinstance(subject, str) else subject
        inbox = f" {self._inbox}.{self._sent} ".encode()
        self._sent += 1
        if header_block is None:
            self._writer.write(b"PUB " + raw + inbox + b"%d\r\n" % len(data) + data + b"\r\n")
        else:
            sizes = b"%d %d\r\n" % (len(header_block), len(header_block) + len(data))
            self._writer.write(b"HPUB " + raw + inbox + sizes + header_block + data + b"\r\n")
        # A bound on what is under way: servers drop what overruns their queues.
        await self._receive(until=self._sent - 256)

    async def replies(self) -> list[Reply]:
        """All replies since the last call, in the order of sending."""
        await self._receive(until=self._sent)
        answers = [self._replies[number] for number in range(self._taken, self._sent)]
        self._replies.clear()
        self._taken = self._sent
        return answers

    async def _receive(self, until: int) -> None:
        await self._writer.drain()
        if self._taken + len(self._replies) >= until:
            return
        now = asyncio.get_running_loop().time
        # One limit, put off with each reply: `wait_for` makes a task of each line.
        async with asyncio.timeout(self._patience_seconds) as limit:
            while self._taken + len(self._replies) < until:
                line = await self._reader.readline()
                words = line.split()
                if not line or words[0] == b"-ERR":
                    raise ConnectionError(line.decode() or "closed by the server")
                if words[0] == b"PING":
                    self._writer.write(b"PONG\r\n")
                elif words[0] in (b"MSG", b"HMSG"):
                    body = await self._reader.readexactly(int(words[-1]) + 2)
                    header_size = int(words[-2]) if words[0] == b"HMSG" else 0
                    number = int(words[1].rpartition(b".")[2])
                    self._replies[number] = Reply(body[:header_size], body[header_size:-2])
                    limit.reschedule(now() + self._patience_seconds)

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()
