"""A NATS server, over one connection at a time.

A transfer must not continue after a reconnect: a snapshot whose client reconnects can end with status 204 and a gap,
and a restore would miss a chunk. So when the connection is lost, every pending request and every subscription on it
fails at once with a TransferError. The next `request` or `subscribe` makes a new connection, in a limited number of
attempts, and `generation` rises. `publish` does not: its transfer has failed.

What a server reports about itself on connecting is in its INFO, which is parsed defensively.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final, Self

from jsbackup.config.connection import Connection, IssuedUser, Nkey, Server, UserJwt, UserPassword
from jsbackup.engine.link.connection import AnyHeaders, Candidate, NatsConnection, public_key
from jsbackup.engine.link.subscription import DEFAULT_LIMIT_BYTES, Subscription
from jsbackup.errors import FormatError, NatsError, NatsPermissionDenied, TransferError
from jsbackup.model import JsonObject
from jsbackup.protocol.api import Request
from jsbackup.protocol.dialogue import Message
from jsbackup.protocol.responses import decode_response
from jsbackup.strict_json import read_object

__all__ = ["Link"]

_VERSION = re.compile(r"v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})", re.ASCII)


# Attempts to replace a lost connection, with the pause before each. A cluster elects a new leader in that time; a
# server that restarts with much data takes longer, which is left to the retries of whole transfers.
RECONNECT_PAUSES_SECONDS: Final = (0.0, 0.2, 0.5, 1.0, 2.0)


class Link:
    """A server, and an async context manager that closes the connection to it."""

    _wire: NatsConnection

    def __init__(self, connection: Connection, name: str) -> None:
        self.connection = connection
        self.name = name
        self._connecting = asyncio.Lock()
        self._closed = asyncio.Event()
        self._failed: tuple[float, TransferError] | None = None

    async def dial(self, candidate: Candidate, generation: int) -> NatsConnection:
        """Make one connection. Raises NatsError or UsageError, and leaves nothing open then."""
        wire = NatsConnection(candidate, self.connection, generation)
        await wire.open(self.name)
        return wire

    @classmethod
    async def connect(cls, connection: Connection, *, name: str) -> Self:
        """Connect to the first of the servers that accepts. `name` is shown in the server's monitoring.

        Raises NatsError (NatsTimeout, NatsPermissionDenied), and UsageError for an invalid certificate file.
        """
        link = cls(connection, name)
        await link.open()
        return link

    async def open(self) -> None:
        """Make the first connection, with one attempt on each server."""
        self._wire = await self._dial_first(self._configured(), generation=1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection. Pending and later calls raise NatsError."""
        self._closed.set()
        await self._wire.close()

    async def _connected(self) -> NatsConnection:
        """Return the connection, a new one if it was lost."""
        asked = asyncio.get_running_loop().time()
        async with self._connecting:
            if self._closed.is_set() or not self._wire.conversation.ended:
                return self._wire
            if self._failed is not None and self._failed[0] >= asked:
                # All that waited for the same attempts get the same error.
                raise TransferError(self._failed[1].message, hint=self._failed[1].hint)
            await self._replace(self._wire)
            return self._wire

    async def _replace(self, lost: NatsConnection) -> None:
        """Replace the lost connection. Raises TransferError if all attempts fail."""
        await lost.close()
        known = {(c.server.host, c.server.port) for c in self._configured()}
        others = [c for c in lost.discovered() if (c.server.host, c.server.port) not in known]
        reason: NatsError | None = None
        for pause in RECONNECT_PAUSES_SECONDS:
            await asyncio.sleep(pause)
            if self._closed.is_set():
                return
            try:
                self._wire = await self._dial_first([*self._configured(), *others], lost.generation + 1)
            except NatsError as error:
                reason = error
                continue
            if self._closed.is_set():
                await self._wire.close()
            return
        assert reason is not None
        text = f"the connection was lost and cannot be made again: {reason.message}"
        failure = TransferError(text, hint=reason.hint)
        self._failed = asyncio.get_running_loop().time(), failure
        raise failure from reason

    def _configured(self) -> list[Candidate]:
        return [Candidate(server) for server in self.connection.servers]

    async def _dial_first(self, candidates: Sequence[Candidate], generation: int) -> NatsConnection:
        """Connect to the first candidate that accepts. Raises NatsError with the reason of each if none does."""
        errors: list[NatsError] = []
        for candidate in candidates:
            try:
                return await self.dial(candidate, generation)
            except NatsError as error:
                errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        raise NatsError("; ".join(error.message for error in errors), hint=errors[0].hint)

    async def request(
        self, subject: str, payload: bytes = b"", timeout: float | None = None, headers: AnyHeaders | None = None
    ) -> Message:
        """Publish, and wait for the answer, by default for the connection's timeout.

        Raises NatsTimeout; NatsPermissionDenied as soon as the server reports it; TransferError at once when the
        connection is lost, or if a lost one cannot be replaced; NatsNoResponders if no one listens.
        """
        wire = await self._connected()
        return await wire.request(subject, payload, self._seconds(timeout), headers)

    async def api(self, request: Request, timeout: float | None = None) -> JsonObject:
        """Send a request to JetStream and check its answer. Raises NatsError, ApiError, or FormatError."""
        message = await self.request(request.subject, request.payload, timeout)
        return decode_response(message.data, request.response_type, request.subject)

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str | None = None, headers: AnyHeaders | None = None
    ) -> None:
        """Send one message on the existing connection: raises TransferError if that is lost. `flush` reports denials.

        Waits while the socket is behind. Messages of a transfer are sent with `Subscription.publish` instead.
        """
        await self._wire.publish(subject, payload, reply, headers)

    async def denial(self, subject: str, payload: bytes) -> NatsPermissionDenied | None:
        """Send a request without waiting for its answer; return the denial if it is not allowed.

        Uses the existing connection. Raises NatsError.
        """
        wire = self._wire
        with wire.conversation.expecting(subject) as (reply, answer):
            await wire.publish(subject, payload, reply)
            await wire.flush(self._seconds(None))  # denials arrive before its answer
            error = answer.exception() if answer.done() else None
        return error if isinstance(error, NatsPermissionDenied) else None

    @asynccontextmanager
    async def subscribe(self, subject: str, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> AsyncIterator[Subscription]:
        """Use as `async with link.subscribe(inbox) as subscription`. Fails once `limit_bytes` are unread."""
        async with (await self._connected()).subscribe(subject, limit_bytes) as subscription:
            yield subscription

    def new_inbox(self) -> str:
        """Return a unique subject below the inbox prefix."""
        return self._wire.new_inbox()

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until the server has received everything published. Raises NatsPermissionDenied if it refused
        any of it.
        """
        await self._wire.flush(self._seconds(timeout))

    async def rtt(self, timeout: float | None = None) -> float:
        """Return the time of a ping in seconds."""
        return await self._wire.flush(self._seconds(timeout))

    async def round_trip(self) -> float:
        """Return the time of the fastest answer on this connection in seconds, an upper bound of a round trip; else of
        a ping.
        """
        quickest = self._wire.quickest_seconds
        return await self.rtt() if quickest is None else quickest

    def _seconds(self, timeout: float | None) -> float:
        return self.connection.timeout_seconds if timeout is None else timeout

    @property
    def generation(self) -> int:
        """1 for the first connection, plus one for each that replaced a lost one."""
        return self._wire.generation

    @property
    def connected(self) -> bool:
        return not self._wire.conversation.ended

    @property
    def server(self) -> Server:
        """The server of the present or last connection."""
        return self._wire.server

    @property
    def server_info(self) -> JsonObject:
        """The server's INFO as JSON, which may change with the connection."""
        return self._wire.info

    @property
    def server_version(self) -> tuple[int, int, int]:
        """Major, minor, patch; (0, 0, 0) if the server reports no version."""
        match = _VERSION.match(self._text("version") or "")
        return (int(match[1]), int(match[2]), int(match[3])) if match else (0, 0, 0)

    @property
    def server_version_text(self) -> str:
        """The version as the server writes it, such as `2.15.0-dev`."""
        return self._text("version") or "unknown"

    @property
    def server_name(self) -> str | None:
        return self._text("server_name")

    @property
    def cluster_name(self) -> str | None:
        return self._text("cluster")

    @property
    def domain(self) -> str | None:
        """The JetStream domain of the server itself."""
        return self._text("domain")

    @property
    def jetstream(self) -> bool:
        """Whether the server runs JetStream itself; a leaf node may reach one elsewhere."""
        return self.server_info.get("jetstream") is True

    @property
    def max_payload_bytes(self) -> int:
        """The largest message that the server accepts, including headers. 0 if it does not report it."""
        limit = self.server_info.get("max_payload")
        return limit if isinstance(limit, int) else 0

    def _text(self, key: str) -> str | None:
        value = self.server_info.get(key)
        return value if isinstance(value, str) and value else None

    @property
    def login_text(self) -> str:
        """The login: the account of a JWT, else the user. Never printed; contains no secret."""
        server = self.server
        if server.token is not None:
            return "token"
        match server.login or self.connection.login:
            case UserPassword(user=user):
                return f"user {user}"
            case Nkey(seed=seed):
                return f"nkey {public_key(seed)}"
            case UserJwt(jwt=jwt):
                from jsbackup.config.accounts import user_claims

                claims = user_claims(jwt.reveal())
                return f"account {claims.account if claims else ''}"
            case IssuedUser(account=account):
                return f"account {account}"
            case _:
                return "token" if self.connection.token is not None else "nobody"

    async def account(self) -> str | None:
        """Return the account of this connection; None if it cannot be found out.

        Servers from 2.12 on report it on connecting, older ones on request, if the user has the permission.
        """
        wire = await self._connected()
        if wire.account is None:
            wire.account = await self._ask_about_user(wire, "account")
        return wire.account

    async def account_name(self) -> str | None:
        """Return the operator's name for the account; None if it cannot be found out (servers before 2.12)."""
        return await self._ask_about_user(await self._connected(), "account_name")

    async def _ask_about_user(self, wire: NatsConnection, what: str) -> str | None:
        try:
            answer = await wire.request("$SYS.REQ.USER.INFO", b"", self._seconds(None))
            value = read_object(answer.data, "answer")["data"][what]
        except TransferError:
            raise
        except (NatsError, FormatError, LookupError, TypeError):
            return None
        return value if isinstance(value, str) and value else None
