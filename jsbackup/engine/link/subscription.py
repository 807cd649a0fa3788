"""A subscription: the messages of one subject in the order of arrival, for one reader.

Rules of this module:
- Nothing is dropped silently. Messages are kept for the reader; beyond `limit_bytes` unread the subscription fails.
  (Flow control limits a well-behaved server: a snapshot's window is at most 32 MiB.)
- A subscription belongs to its connection. When that is lost, or the server refuses the subject, the reader gets the
  earlier messages and then the error, at once, and again on every further call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, Self

from jsbackup.errors import JsBackupError, NatsTimeout, TransferError
from jsbackup.protocol.events import Message

__all__ = ["DEFAULT_LIMIT_BYTES", "Subscription"]

DEFAULT_LIMIT_BYTES: Final = 64 << 20

# A denial arrives after a round trip and names the subject of a publish: the last few are kept to match it.
_REMEMBERED_SUBJECTS: Final = 64


class _Publisher(Protocol):
    async def publish(self, subject: str, payload: bytes, reply: str | None, headers: bytes | None) -> None: ...


class Subscription:
    """What `Link.subscribe` yields. One reader at a time. `generation` is that of its connection."""

    def __init__(self, subject: str, generation: int, publisher: _Publisher, limit_bytes: int) -> None:
        self.subject = subject
        self.generation = generation
        self._publisher = publisher
        self._limit_bytes = limit_bytes
        self._messages: deque[Message] = deque()
        self._unread_bytes = 0
        self._failure: Callable[[], JsBackupError] | None = None
        self._reader: asyncio.Future[None] | None = None
        self._published: deque[str] = deque(maxlen=_REMEMBERED_SUBJECTS)

    async def next(self, timeout: float | None = None) -> Message:
        """Return the next message. Raises NatsTimeout after `timeout` seconds, or the failure of the subscription."""
        if not self._messages:
            try:
                async with asyncio.timeout(timeout):
                    await self._arrival()
            except TimeoutError:
                # The timeout and a message may be due in the same iteration of the loop.
                if not self._messages:
                    raise NatsTimeout(f"nothing arrived on {self.subject} within {timeout:g} s") from None
        return self._take()

    def next_nowait(self) -> Message | None:
        """Return the next message if there is one, else None. Raises the failure of the subscription."""
        if self._messages:
            return self._take()
        self._check()
        return None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Do `next` without a timeout: iteration ends with the error that ends the subscription."""
        return await self.next()

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str | None = None, headers: bytes | None = None
    ) -> None:
        """Publish on the connection of this subscription, never on a later one. `headers` is a header block.

        If the server does not allow the subject, the subscription fails with NatsPermissionDenied. Raises NatsError.
        """
        self._check()
        self._published.append(subject)
        await self._publisher.publish(subject, payload, reply, headers)

    def remember(self, count: int) -> None:
        """Notice denials of the last `count` publishes, for one who has so many in flight."""
        self._published = deque(self._published, maxlen=count)

    async def _arrival(self) -> None:
        while not self._messages:
            self._check()
            if self._reader is not None:
                raise RuntimeError(f"two readers on the subscription to {self.subject}")
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None

    def _take(self) -> Message:
        message = self._messages.popleft()
        self._unread_bytes -= len(message.data) + len(message.headers)
        return message

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure()

    # Used by the conversation.

    def push(self, message: Message) -> None:
        """Add a message. Beyond the limit the subscription fails, and ignores messages."""
        if self._failure is not None:
            return
        self._unread_bytes += len(message.data) + len(message.headers)
        if self._unread_bytes > self._limit_bytes:
            text = f"more than {self._limit_bytes} bytes came on {self.subject} and were not read"
            self.fail(lambda: TransferError(text))
            return
        self._messages.append(message)
        self._wake()

    def fail(self, failure: Callable[[], JsBackupError]) -> None:
        """Accept no more messages; the reader gets the error that `failure` makes after the unread ones."""
        if self._failure is None:
            self._failure = failure
            self._wake()

    def published(self, matches: Callable[[str], bool]) -> str | None:
        """Return the recently published subject that matches the one that the server refuses, if there is one."""
        return next((subject for subject in self._published if matches(subject)), None)

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
