"""The state of one connection: requests that wait for answers, subscriptions, and the end.

The connection itself (`link.py`) passes on messages by subscription id, the server's denials, and the end. Everything
that waits gets its answer or its error here, and nothing waits after the end.
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

# What a permissions violation is about, in the server's words.
PUBLISH: Final = "publish to"
REPLY: Final = "publish with reply of"
SUBSCRIBE: Final = "subscription to"


@dataclass(frozen=True, slots=True)
class _Request:
    subject: str
    answer: asyncio.Future[Message]


class Conversation:
    """The requests and subscriptions of one connection to `where`. `gone` is done when it has ended."""

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
        """Set the `inbox` for answers, and the id of its subscription."""
        self._inbox, self._inbox_id = inbox, sid

    @contextlib.contextmanager
    def expecting(self, subject: str) -> Iterator[tuple[str, asyncio.Future[Message]]]:
        """Yield the reply subject for one request to `subject`, and the future of its answer."""
        token = str(next(self._tokens))
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._requests[token] = _Request(subject, answer)
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
            if request is not None and not request.answer.done():
                request.answer.set_result(message)
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
        for token, request in self._requests.items():
            subject = request.subject if what == PUBLISH else f"{self._inbox}.{token}"
            if _is(subject, said) and not request.answer.done():
                request.answer.set_exception(self._denial(what, subject))
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
        for request in self._requests.values():
            if not request.answer.done():
                request.answer.set_exception(ending())
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
