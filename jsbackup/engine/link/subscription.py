"""A subscription: the messages of one subject in the order they came, and one reader that waits for them.

Rules of this module:
- Nothing is dropped in silence. What arrives is kept for the reader; past `limit_bytes` unread the subscription fails.
  (Flow control bounds what a well-behaved server sends: a snapshot's window is at most 32 MiB.)
- A subscription lives and dies with the connection it was made on. When that is lost, or the server refuses the
  subject, the reader gets what had come before and then the error, at once, and again on every further call.
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

# A denial comes back after a round trip and names the subject of a publish: the last few are kept to know it by.
_REMEMBERED_SUBJECTS: Final = 64


class _Publisher(Protocol):
    async def publish(self, subject: str, payload: bytes, reply: str | None) -> None: ...


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
        """The next message. Raises NatsTimeout after `timeout` seconds, or what the subscription failed with."""
        if not self._messages:
            try:
                async with asyncio.timeout(timeout):
                    await self._arrival()
            except TimeoutError:
                # The clock and a message may be due in the same turn of the loop.
                if not self._messages:
                    raise NatsTimeout(f"nothing arrived on {self.subject} within {timeout:g} s") from None
        return self._take()

    def next_nowait(self) -> Message | None:
        """The next message if there is one already, else None. Raises what the subscription failed with."""
        if self._messages:
            return self._take()
        self._check()
        return None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """`next` without a timeout: iteration ends with the error that ends the subscription."""
        return await self.next()

    async def publish(self, subject: str, payload: bytes = b"", reply: str | None = None) -> None:
        """Publishes on the connection of this subscription, never on one that came after it.

        If the server does not allow the subject, the subscription fails with NatsPermissionDenied. Raises NatsError.
        """
        self._check()
        self._published.append(subject)
        await self._publisher.publish(subject, payload, reply)

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

    # For the conversation.

    def push(self, message: Message) -> None:
        """A message arrived. Past the limit the subscription fails, and takes no more."""
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
        """From now on nothing comes; `failure` makes the error that the reader gets after what is unread."""
        if self._failure is None:
            self._failure = failure
            self._wake()

    def has_published(self, matches: Callable[[str], bool]) -> bool:
        """Whether one of the subjects that were published to lately is the one that the server refuses."""
        return any(matches(subject) for subject in self._published)

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
