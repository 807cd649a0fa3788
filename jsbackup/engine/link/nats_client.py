"""nats-py's client, so that it passes on messages and header blocks byte for byte, and accepts no endless ones.

It relies on internals of nats-py, which the docstring of `link.py` lists.
"""

from __future__ import annotations

import json
import re
from types import FunctionType
from typing import Any, Final, Protocol

import nats.errors
import nats.protocol.parser
from nats.aio.client import Client, RawCredentials
from nats.aio.transport import Transport
from nats.protocol.parser import AWAITING_MSG_PAYLOAD, Parser

from jsbackup.engine.link.pending_replies import Conversation
from jsbackup.model import JsonObject
from jsbackup.protocol.events import Message

__all__ = ["NatsClient", "credentials_of", "join_writes"]

# The server's own limits: max_payload is at most 64 MiB; control lines are 4 KiB, but INFO grows with the cluster.
_MESSAGE_LIMIT_BYTES: Final = 65 << 20
_CONTROL_LINE_LIMIT_BYTES: Final = 1 << 20
# nats-py ends a subject at any of the six blanks of ASCII. The server ends it at a space, and delivers subjects with a
# vertical tab or a form feed.
_ARGUMENTS = rb"[ \t]+([^ \t\r\n]+)[ \t]+([^ \t\r\n]+)[ \t]+(([^ \t\r\n]+)[ \t]+)?"
_PATTERNS: Final = {
    "MSG_RE": re.compile(rb"\AMSG" + _ARGUMENTS + rb"(\d+)\r\n"),
    "HMSG_RE": re.compile(rb"\AHMSG" + _ARGUMENTS + rb"(\d+)[ \t]+(\d+)\r\n"),
}
# The same code with these patterns, so that nats-py is unchanged for other users in this process.
_parse: Final = FunctionType(Parser.parse.__code__, {**nats.protocol.parser.__dict__, **_PATTERNS}, "parse", (b"",))


class _Owner(Protocol):
    """The connection that a client belongs to: it gets what arrives."""

    conversation: Conversation
    token_on_top: str | None

    def take_info(self, info: JsonObject, initial: bool) -> None: ...


class _BoundedParser(Parser):
    """nats-py's parser, which would otherwise accept messages of any size and endless control lines."""

    async def parse(self, data: bytes = b"") -> None:
        await _parse(self, data)
        if self.state == AWAITING_MSG_PAYLOAD:
            if self.needed > _MESSAGE_LIMIT_BYTES:
                raise nats.errors.ProtocolError
        elif len(self.buf) > _CONTROL_LINE_LIMIT_BYTES:
            raise nats.errors.ProtocolError


class NatsClient(Client):
    """nats-py's client, with access to unparsed messages and to the server's INFO."""

    def __init__(self, owner: _Owner) -> None:
        super().__init__()
        self._owner = owner
        self._ps = _BoundedParser(self)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        # Does not call super, which would parse the headers and queue the message, with limits that drop messages.
        if headers and len(headers) + len(data) != self._ps.needed:
            raise nats.errors.ProtocolError  # the parser accepts headers that are longer than their message
        text = subject.decode("utf-8", "surrogateescape")
        answer_to = reply.decode("utf-8", "surrogateescape") if reply else None
        self._owner.conversation.deliver(sid, Message(text, answer_to, headers or b"", data))

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        self._owner.take_info(info, initial_connection)
        await super()._process_info(info, initial_connection)

    async def publish_block(self, subject: str, payload: bytes, reply: str, block: bytes) -> None:
        """Publish with a header block, byte for byte; none if it is empty. nats-py would copy the payload twice."""
        sizes = f"{len(block)} {len(block) + len(payload)}" if block else f"{len(payload)}"
        command = f"{'HPUB' if block else 'PUB'} {subject} {f'{reply} ' if reply else ''}{sizes}\r\n"
        await self._send_command(b"".join((command.encode(), block, payload, b"\r\n")))
        if self._flush_queue is not None and self._flush_queue.empty():  # as nats-py: a full queue waits for ever
            await self._flush_pending()

    def _connect_command(self) -> bytes:
        # nats-py omits the token if there is a user and a password; an auth callout may need both.
        command: bytes = super()._connect_command()
        if self._owner.token_on_top is None:
            return command
        options = json.loads(command.removeprefix(b"CONNECT "))
        options["auth_token"] = self._owner.token_on_top
        return b"CONNECT " + json.dumps(options).encode() + b"\r\n"


def join_writes(transport: Transport | None) -> None:
    """Make the transport write many parts as one.

    In Python 3.12 and early 3.13 `writelines` on a lost socket keeps watching its file descriptor, which may be that of
    the next connection by then: that one hangs (https://github.com/python/cpython/issues/136234).
    """
    if transport is not None:
        transport.writelines = lambda payload: transport.write(b"".join(payload))  # type: ignore[method-assign]


def credentials_of(jwt: str, seed: str) -> RawCredentials:
    """Return JWT and seed as the text of a credentials file, the only form in which nats-py takes both from memory."""
    return RawCredentials(
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
