"""A subscription: the messages of one subject in the order of arrival, for one reader.

Rules of this module:
- Nothing is dropped silently. Messages are kept for the reader; beyond `limit_bytes` unread the subscription fails.
  (Flow control limits a well-behaved server: a snapshot's window is at most 32 MiB.)
- A subscription belongs to its connection. When that is lost, or the server refuses the subject, the reader gets the
  earlier messages and then the error, at once, and again on every further call.

`PendingReplies` is the state of one connection: requests that wait for answers, subscriptions, and the end.

The connection itself (`connection.py`) passes on messages by subscription id, the server's denials, and the end.
Everything that waits gets its answer or its error here, and nothing waits after the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, Self, TypeAlias

from jsbackup.errors import JsBackupError, NatsError, NatsPermissionDenied, NatsTimeout, TransferError
from jsbackup.protocol.dialogue import Message

__all__ = ["DEFAULT_LIMIT_BYTES", "PUBLISH", "REPLY", "SUBSCRIBE", "PendingReplies", "Subscription"]

DEFAULT_LIMIT_BYTES: Final = 64 << 20

# A denial arrives after a round trip and names the subject of a publish: the last few are kept to match it.
_REMEMBERED_SUBJECTS: Final = 64


_Publish: TypeAlias = Callable[[str, bytes, str | None, bytes | None], Awaitable[None]]


class Subscription:
    """What `Link.subscribe` yields. One reader at a time. `generation` is that of its connection."""

    def __init__(
        self,
        subject: str,
        generation: int,
        publish: _Publish,
        limit_bytes: int,
    ) -> None:
        self.subject = subject
        self.generation = generation
        self._publish = publish
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
        await self._publish(subject, payload, reply, headers)

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


# What a permissions violation is about, in the server's words.
PUBLISH: Final = "publish to"
REPLY: Final = "publish with reply of"
SUBSCRIBE: Final = "subscription to"


class PendingReplies:
    """The requests and subscriptions of one connection to `where`. `gone` is done when it has ended."""

    def __init__(self, where: str) -> None:
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._where = where
        self._inbox = ""
        self._inbox_id: int | None = None
        self._requests: dict[str, tuple[str, asyncio.Future[Message]]] = {}  # subject and answer, by token
        self._tokens = itertools.count(1)
        self._subscriptions: dict[int, Subscription] = {}
        self._ending: Callable[[], NatsError] | None = None
        self._denied: NatsPermissionDenied | None = None

    def use_inbox(self, inbox: str, sid: int) -> None:
        """Set the `inbox` for answers, and the id of its subscription."""
        self._inbox, self._inbox_id = inbox, sid

    @contextlib.contextmanager
    def expecting(self, subject: str) -> Iterator[tuple[str, asyncio.Future[Message]]]:
        """Yield the reply subject for one request to `subject`, and the future of its answer."""
        token = str(next(self._tokens))
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._requests[token] = (subject, answer)
        try:
            yield f"{self._inbox}.{token}", answer
        finally:
            del self._requests[token]
            if answer.done() and not answer.cancelled():
                answer.exception()  # marks it as retrieved, so that asyncio does not complain

    def add(self, sid: int, subscription: Subscription) -> None:
        self._subscriptions[sid] = subscription

    def remove(self, sid: int) -> None:
        self._subscriptions.pop(sid, None)

    def deliver(self, sid: int, message: Message) -> None:
        """Deliver a message to the subscription with this id. Late messages are dropped."""
        if sid == self._inbox_id:
            request = self._requests.get(message.subject.rpartition(".")[2])
            if request is not None and not request[1].done():
                request[1].set_result(message)
        elif (subscription := self._subscriptions.get(sid)) is not None:
            subscription.push(message)

    def refuse(self, what: str, quoted: str) -> None:
        """Handle a denial of a subject, given in quotes and lower case. Fails the requests or subscriptions concerned.

        A denied publish of no known request or subscription is kept for `take_denial`.
        """
        said = _unquoted(quoted)
        if what == SUBSCRIBE:
            for subscription in self._subscriptions.values():
                if _is(subscription.subject, said):
                    subscription.fail(lambda subject=subscription.subject: self._denial(what, subject))  # type: ignore[misc]
            if _is(f"{self._inbox}.*", said):
                self.end(lambda: self._denial(what, f"{self._inbox}.*"))
        elif not self._refuse_publish(what, said):
            self._denied = self._denial(what, said)

    def _refuse_publish(self, what: str, said: str) -> bool:
        """Fail the requests and subscriptions that published there; return whether there were any."""
        known = False
        for token, (asked, answer) in self._requests.items():
            subject = asked if what == PUBLISH else f"{self._inbox}.{token}"
            if _is(subject, said) and not answer.done():
                answer.set_exception(self._denial(what, subject))
                known = True
        for subscription in self._subscriptions.values():
            replies_here = what == REPLY and _is(subscription.subject, said)
            # As it was written: nats-py has changed the case of what the server says.
            published = subscription.published(lambda subject: _is(subject, said))
            if replies_here or published is not None:
                subscription.fail(lambda subject=published or said: self._denial(what, subject))  # type: ignore[misc]
                known = True
        return known

    def _denial(self, what: str, subject: str) -> NatsPermissionDenied:
        if what == SUBSCRIBE:
            return NatsPermissionDenied(
                f"{self._where} does not allow subscribing to {subject}",
                hint="Allow the user to subscribe to this subject, or choose one that is allowed with --inbox-prefix.",
            )
        doing = "publishing to" if what == PUBLISH else "replies to"
        return NatsPermissionDenied(
            f"{self._where} does not allow {doing} {subject}", hint="Allow the user to publish to this subject."
        )

    def take_denial(self) -> None:
        """Raise the denial that was kept, once."""
        denied, self._denied = self._denied, None
        if denied is not None:
            raise denied

    @property
    def ended(self) -> bool:
        return self._ending is not None

    def check(self) -> None:
        """Raise the error that ended the connection, if it has ended."""
        if self._ending is not None:
            raise self._ending()

    def end(self, ending: Callable[[], NatsError]) -> None:
        """End the connection: everything that waits fails with the error that `ending` makes. Only the first call
        counts.
        """
        if self._ending is not None:
            return
        self._ending = ending
        for _, answer in self._requests.values():
            if not answer.done():
                answer.set_exception(ending())
        for subscription in self._subscriptions.values():
            subscription.fail(ending)
        self.gone.set_result(None)


# The escapes of Go's %q, in lower case, as nats-py has changed them. So U with eight digits and u with four look alike,
# but four digits never begin with 000 or are 0010: those characters are written with x.
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u(00(?:0[0-9a-f]|10)[0-9a-f]{4}|[0-9a-f]{4})|(.))", re.DOTALL)
_SHORT = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def _unquoted(quoted: str) -> str:
    """Unquote a subject that the server has quoted (Go's %q); its case is lost."""

    def character(match: re.Match[str]) -> str:
        digits = match[1] or match[2]
        if digits is None:
            return _SHORT.get(match[3], match[3])
        code = int(digits, 16)
        return chr(code) if code <= sys.maxunicode else "\ufffd"

    return _ESCAPE.sub(character, quoted[1:-1])


def _is(subject: str, said: str) -> bool:
    """Compare with a subject from the server, whose case nats-py has changed."""
    return subject.casefold() == said.casefold()
