"""Streams with messages in them, in one line of a test: `await fill(url, "ORDERS", 100, max_msgs=50)`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

from nats.aio.client import Client

from tests.harness.api import PATIENCE_SECONDS, call, connected

__all__ = ["fill", "publish"]

Payloads = int | Iterable[str | bytes]  # a number: so many, "0", "1", …


@contextlib.asynccontextmanager
async def _client(place: str | Client, creds: Path | None) -> AsyncIterator[Client]:
    if isinstance(place, Client):
        yield place
    else:
        async with connected(place, creds) as nc:
            yield nc


async def publish(
    place: str | Client,
    subject: str,
    payloads: Payloads = 1,
    headers: Mapping[str, str] | None = None,
    *,
    creds: Path | None = None,
) -> None:
    """Publish to a server (its URL) or through a client, each message after the one before it was stored.

    `{}` in the subject or in values of headers stands for the number of the message, from 0.
    """
    texts: Iterable[str | bytes] = map(str, range(payloads)) if isinstance(payloads, int) else payloads
    async with _client(place, creds) as nc:
        for number, text in enumerate(texts):
            data = text.encode() if isinstance(text, str) else text
            block = {name: value.format(number) for name, value in headers.items()} if headers else None
            reply = await nc.request(subject.format(number), data, timeout=PATIENCE_SECONDS, headers=block)
            assert b'"error":' not in reply.data, reply.data  # not always JSON: servers escape names as Go does


async def fill(
    place: str | Client,
    name: str,
    payloads: Payloads = 10,
    *,
    subject: str | None = None,
    headers: Mapping[str, str] | None = None,
    creds: Path | None = None,
    **config: Any,
) -> None:
    """Make a stream and publish into it.

    Without `subjects` in its configuration it has `<name in lower case>.>`. Messages go to `subject`, without one to
    `<name in lower case>.<number of the message>`.
    """
    low = name.lower()
    async with _client(place, creds) as nc:
        await call(nc, f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{low}.>"], **config})
        await publish(nc, subject or f"{low}.{{}}", payloads, headers)
