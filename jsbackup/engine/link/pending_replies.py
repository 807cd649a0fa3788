"""What is being said over one connection: requests that wait for answers, subscriptions, and how it all ends.

The connection itself (`link.py`) feeds it: messages by subscription id, the server's denials, the end. Everything that
waits gets its answer or its error here, and nothing waits on after the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from jsbackup.engine.link.subscription import Subscription
from jsbackup.errors import NatsError, NatsPermissionDenied
from jsbackup.protocol.events import Message

__all__ = ["PUBLISH", "REPLY", "SUBSCRIBE", "Conversation"]

# What a permissions violation is about, in the words of the server.
PUBLISH: Final = "publish to"
REPLY: Final = "publish with reply of"
SUBSCRIBE: Final = "subscription to"


@dataclass(frozen=True, slots=True)
class _Request:
    subject: str
    answer: asyncio.Future[Message]


class Conversation:
    """Of one connection to `where`. `gone` is done when it has ended."""

    def __init__(self, where: str) -> None:
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._where = where
        self._inbox = ""
        self._inbox_id: int | None = None
        self._requests: dict[str, _Request] = {}
        self._tokens = itertools.count(1)
        self._subscriptions: dict[int, Subscription] = {}
        self._ending: Callable[[], NatsError] | None = None
        self._denied: NatsPermissionDenied | None = None

    def use_inbox(self, inbox: str, sid: int) -> None:
        """Answers come below `inbox`, on the subscription with this id."""
        self._inbox, self._inbox_id = inbox, sid

    @contextlib.contextmanager
    def expecting(self, subject: str) -> Iterator[tuple[str, asyncio.Future[Message]]]:
        """The reply subject for one request to `subject`, and the answer that comes there."""
        token = str(next(self._tokens))
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._requests[token] = _Request(subject, answer)
        try:
            yield f"{self._inbox}.{token}", answer
        finally:
            del self._requests[token]
            if answer.done() and not answer.cancelled():
                answer.exception()  # seen: asyncio complains of errors that nobody looks at

    def add(self, sid: int, subscription: Subscription) -> None:
        self._subscriptions[sid] = subscription

    def remove(self, sid: int) -> None:
        self._subscriptions.pop(sid, None)

    def deliver(self, sid: int, message: Message) -> None:
        """A message came for the subscription with this id. One for nobody is late, and of no use."""
        if sid == self._inbox_id:
            request = self._requests.get(message.subject.rpartition(".")[2])
            if request is not None and not request.answer.done():
                request.answer.set_result(message)
        elif (subscription := self._subscriptions.get(sid)) is not None:
            subscription.push(message)

    def refuse(self, what: str, quoted: str) -> None:
        """The server does not allow a subject, given in quotes and lower case. Fails what that belongs to.

        A denied publish that belongs to no request and no subscription is kept for `take_denial`.
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
        """Fails the requests and subscriptions that published there; whether there were any."""
        known = False
        for token, request in self._requests.items():
            subject = request.subject if what == PUBLISH else f"{self._inbox}.{token}"
            if _is(subject, said) and not request.answer.done():
                request.answer.set_exception(self._denial(what, subject))
                known = True
        for subscription in self._subscriptions.values():
            replies_here = what == REPLY and _is(subscription.subject, said)
            if replies_here or subscription.has_published(lambda subject: _is(subject, said)):
                subscription.fail(lambda: self._denial(what, said))
                known = True
        return known

    def _denial(self, what: str, subject: str) -> NatsPermissionDenied:
        if what == SUBSCRIBE:
            return NatsPermissionDenied(
                f"{self._where} does not allow subscribing to {subject}",
                hint="Grant the user this subject, or choose one that is granted with --inbox-prefix.",
            )
        doing = "publishing to" if what == PUBLISH else "replies to"
        return NatsPermissionDenied(
            f"{self._where} does not allow {doing} {subject}", hint="Grant the user this subject."
        )

    def take_denial(self) -> None:
        """Raises the denial that was kept, once."""
        denied, self._denied = self._denied, None
        if denied is not None:
            raise denied

    @property
    def ended(self) -> bool:
        return self._ending is not None

    def check(self) -> None:
        """Raises what ended the conversation, if it has ended."""
        if self._ending is not None:
            raise self._ending()

    def end(self, ending: Callable[[], NatsError]) -> None:
        """Everything that waits fails now with what `ending` makes. Only the first end counts."""
        if self._ending is not None:
            return
        self._ending = ending
        for request in self._requests.values():
            if not request.answer.done():
                request.answer.set_exception(ending())
        for subscription in self._subscriptions.values():
            subscription.fail(ending)
        self.gone.set_result(None)


# What Go's %q writes for characters, in the lower case that nats-py makes of it. Eight digits after U and four after u
# look alike then, but four never begin with 000 or are 0010: those characters are written with x.
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u(00(?:0[0-9a-f]|10)[0-9a-f]{4}|[0-9a-f]{4})|(.))", re.DOTALL)
_SHORT = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def _unquoted(quoted: str) -> str:
    """A subject that the server gives in quotes (Go's %q), but for upper and lower case."""

    def character(match: re.Match[str]) -> str:
        digits = match[1] or match[2]
        if digits is None:
            return _SHORT.get(match[3], match[3])
        code = int(digits, 16)
        return chr(code) if code <= sys.maxunicode else "\ufffd"

    return _ESCAPE.sub(character, quoted[1:-1])


def _is(subject: str, said: str) -> bool:
    """Whether the server means this subject. nats-py has lost upper and lower case."""
    return subject.casefold() == said.casefold()
