"""One connection to a NATS server, until it is lost or closed. Only this module uses nats-py and nkeys.

It takes and returns plain values, and raises jsbackup.errors.

- Headers are passed on byte for byte. nats-py parses them into a dict, which loses repeated names, order, case and
  spaces; so `NatsClient` takes each message before that, and sends a header block as it is.
- nats-py never reconnects (`link.py` does, and explains why). When a connection is lost in any way, everything that
  waits for it fails (`PendingReplies`).
- nats-py never writes to stderr: its errors arrive through callbacks, and its logger is silent.
- Permissions are denied asynchronously (`-ERR 'Permissions Violation …'`): `PendingReplies` matches a denial with its
  request or subscription, which fails at once instead of at its timeout.

This relies on the internals of nats-py 2.15 and 2.16. Private names in use: `_process_msg`, `_process_info`,
`_connect_command` (overridden), `_ps`, `_sid`, `_id`, `_transport`, `_client`, `_bare_io_writer`, `_reading_task`,
`_flusher_task`, `_send_command`, `_flush_pending`, `_flush_queue`, `MSG_RE`, `HMSG_RE`; tests/engine/link/test_link.py
fails if one of them changes its meaning.

A failed attempt to connect is explained to the user: the error of the operating system, TLS or the server becomes one
with the server's address (never its credentials) and a hint. The server's own words pass through `one_line`: they are
foreign text.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from types import FunctionType
from typing import Any, Final, TypeAlias

import nats.errors
import nats.protocol.parser
from nats.aio.client import Client, RawCredentials
from nats.aio.transport import TcpTransport, Transport, WebSocketTransport
from nats.protocol.parser import AWAITING_MSG_PAYLOAD, Parser

from jsbackup.config import Secret
from jsbackup.config.connection import Connection, IssuedUser, Nkey, Server, Tls, UserJwt, UserPassword
from jsbackup.engine.link.subscription import PUBLISH, REPLY, SUBSCRIBE, PendingReplies, Subscription
from jsbackup.errors import NatsError, NatsNoResponders, NatsTimeout, TransferError, UsageError
from jsbackup.model import JsonObject
from jsbackup.names import BLANKS
from jsbackup.protocol.dialogue import Message
from jsbackup.protocol.headers import NO_RESPONDERS, parse_status
from jsbackup.readable import one_line

__all__ = ["AnyHeaders", "Candidate", "NatsConnection", "new_user_seed", "public_key", "sign"]

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


AnyHeaders: TypeAlias = Mapping[str, str] | bytes
"""Headers to send: by name, or as a header block, which is sent byte for byte."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A server to try, and the name for checking its certificate if that is not its host."""

    server: Server
    tls_hostname: str | None = None


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

    def __init__(self, owner: NatsConnection) -> None:
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


def public_key(seed: Secret) -> str:
    """Return the public key of a seed, of whatever role."""
    import nkeys

    return str(nkeys.from_seed(bytearray(seed.reveal().encode())).public_key.decode())


def sign(seed: Secret, data: bytes) -> bytes:
    """Return the Ed25519 signature, 64 bytes."""
    import nkeys

    return bytes(nkeys.from_seed(bytearray(seed.reveal().encode())).sign(data))


def new_user_seed(random: bytes) -> Secret:
    """Return the seed of a user, made of 32 random bytes."""
    import nkeys

    return Secret(nkeys.encode_seed(random, nkeys.PREFIX_BYTE_USER).decode())


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


def tls_context(tls: Tls) -> ssl.SSLContext | None:
    """Return the context for these files; None (the system's authorities) without any. Raises UsageError."""
    if tls.ca is None and tls.cert is None:
        return None
    try:
        context = ssl.create_default_context(cafile=tls.ca)
    except (ssl.SSLError, OSError) as error:
        raise UsageError(f"the TLS certificate authority {tls.ca} holds no certificate in PEM form") from error
    # Python 3.13 turns this on. Many private authorities sign without the key identifiers that it requires, and such
    # certificates work with the nats CLI.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if tls.cert is not None:
        try:
            # With a callback for the password; otherwise OpenSSL asks for it on the terminal.
            context.load_cert_chain(tls.cert, tls.key, password=lambda: "")
        except (ssl.SSLError, OSError) as error:
            raise UsageError(
                f"the TLS certificate {tls.cert} and the key {tls.key} cannot be used",
                hint="Both have to be PEM files that belong together, and the key must not be encrypted.",
            ) from error
    return context


_ERROR_NUMBER = re.compile(r"\[Errno (\d{1,4})\]", re.ASCII)


class NoTls(Exception):
    """TLS is required and the server does not offer it. Raised before any credentials are sent."""

    def __str__(self) -> str:
        return "the server offers no TLS"


def connect_error(server: Server, connection: Connection, info: JsonObject, cause: BaseException) -> NatsError:
    """Return the error for an attempt on `server` that failed with `cause`; `info` is the server's INFO, if it
    arrived.
    """
    where = f"cannot connect to {server}"
    if isinstance(cause, NatsError):
        return cause
    if isinstance(cause, asyncio.TimeoutError):
        advice = "Check the address, or allow more time with --timeout."
        if not connection.tls.first:
            advice += " A server that wants the TLS handshake first needs --tlsfirst."
        return NatsTimeout(f"{where}: no answer within {connection.timeout_seconds:g} s", hint=advice)
    hint = _hint(connection, server, cause)
    if info.get("tls_verify") is True and connection.tls.cert is None:
        # The server's alert may arrive as an alert, a reset, a broken pipe or an end of file.
        hint = "The server asks for a client certificate: give --tlscert and --tlskey."
    return NatsError(f"{where}: {plain_reason(cause)}", hint=hint)


def plain_reason(cause: BaseException) -> str:
    """Return `cause` as a phrase: lower case, one line, without the name of a library."""
    if isinstance(cause, NoTls):
        return str(cause)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the server's certificate is not accepted: {one_line(cause.verify_message)}"
    if isinstance(cause, ssl.SSLError):
        return f"TLS failed: {one_line((cause.reason or str(cause)).replace('_', ' ').lower())}"
    if isinstance(cause, socket.gaierror):
        return f"the host name is not known ({one_line(cause.strerror or str(cause)).lower()})"
    number = _error_number(cause)
    if number is not None:
        return os.strerror(number).lower()
    text = one_line(str(cause)).removeprefix("nats: ").strip("'\" ")
    return text.lower() if text else type(cause).__name__


def _error_number(cause: BaseException) -> int | None:
    """Return the errno, even if asyncio has joined the errors of several addresses of a host into one text."""
    if not isinstance(cause, OSError):
        return None
    if cause.errno is not None and cause.errno > 0:
        return cause.errno
    numbers = set(_ERROR_NUMBER.findall(str(cause)))
    return int(numbers.pop()) if len(numbers) == 1 else None


def _hint(connection: Connection, server: Server, cause: BaseException) -> str | None:
    text = str(cause).lower()
    if isinstance(cause, NoTls):
        return "Use a nats:// URL and no TLS options if the connection is meant to be plain."
    if isinstance(cause, ssl.SSLCertVerificationError):
        return "Name the authority that signed it with --tlsca, and the server as its certificate does."
    if isinstance(cause, ssl.SSLError):
        if connection.tls.first:
            return "The server may not want the TLS handshake first: try without --tlsfirst."
        return "Check --tlsca, --tlscert and --tlskey; the server may ask for a client certificate."
    if _error_number(cause) == errno.ECONNREFUSED:
        return "Check that a nats-server runs there and that address and port are right."
    if isinstance(cause, socket.gaierror):
        return "Check the spelling of the host name."
    if "authorization" in text or "authentication" in text:
        return _login_hint(connection, server)
    if "maximum" in text:
        return "A limit of the server or the account is reached; ask its operator."
    return None


def _login_hint(connection: Connection, server: Server) -> str:
    login = server.login or (None if server.token else connection.login)
    match login:
        case UserPassword(user=user):
            return f"The server does not accept user {user!r} with this password."
        case Nkey():
            return "The server does not know the nkey."
        case IssuedUser():
            return "The server does not accept users of the signing key; it may be revoked, or no key of the account."
        case UserJwt():
            return "The server does not accept the credentials; they may be expired, revoked or for another operator."
        case _:
            if server.token or connection.token:
                return "The server does not accept the token."
            return "The server wants credentials; give --creds, --nkey, --user or --token, or name a nats context."


# A peer that does not answer PINGs for three intervals is lost. Generous: a server that writes a restore to a slow disk
# does not read the restore's connection meanwhile, and transfers have tighter watchdogs of their own.
_PING_INTERVAL_SECONDS: Final = 20
# An orderly close writes what is pending. After a failed TLS handshake nats-py would wait for ever.
_CLOSE_SECONDS: Final = 2.0
_ABANDON_SECONDS: Final = 0.1
# How many published bytes may be pending in this process before `publish` waits: enough to keep the socket busy.
_PENDING_LIMIT_BYTES: Final = 2 << 20

_VIOLATION = re.compile(rf'permissions violation for ({PUBLISH}|{REPLY}|{SUBSCRIBE}) ("(?:[^"\\]|\\.)*")')
_NOT_A_SUBJECT = re.compile(rf"[{BLANKS}\0]|\A\.|\.\.|\.\Z|\A\Z")


class NatsConnection:
    """One connection, from the attempt until it is lost or closed. Never reconnects."""

    def __init__(self, candidate: Candidate, connection: Connection, generation: int) -> None:
        self.server = candidate.server
        self.generation = generation
        self.conversation = PendingReplies(str(self.server))
        self.client = NatsClient(self)
        self.info: JsonObject = {}
        self.account: str | None = None
        self.quickest_seconds: float | None = None
        self.token_on_top: str | None = None
        self._tls_hostname = candidate.tls_hostname
        self._connection = connection
        self._open = False
        self._last_error: BaseException | None = None
        self._pings: set[asyncio.Task[None]] = set()

    # ---------------------------------------------------------------------------------------------- connecting

    async def open(self, name: str) -> None:
        """Connect, log in and subscribe to the inbox. Raises NatsError or UsageError, and leaves nothing open then."""
        if self.server.websocket and find_spec("aiohttp") is None:
            raise UsageError("WebSocket URLs need aiohttp", hint="Install it with `pip install 'jsbackup[websocket]'`.")
        try:
            async with asyncio.timeout(self._connection.timeout_seconds):
                await self._log_in(name)
                self._open = True
                inbox = self.client.new_inbox()
                self.conversation.use_inbox(inbox, self.client._sid + 1)
                await self.client.subscribe(f"{inbox}.*")
                # After the answer, no denial and no second INFO (from 2.12 on) is outstanding.
                await self.flush(self._connection.timeout_seconds)
        except (OSError, TimeoutError, nats.errors.Error, NatsError, NoTls) as error:
            # nats-py reports an address's error by callback, and then only raises that no server is left.
            unclear = isinstance(error, (nats.errors.NoServersError, TransferError))
            reported = self._last_error if unclear else None
            await self._end(_ABANDON_SECONDS)
            cause = reported or error
            for inner in ("certificate_error", "os_error"):  # aiohttp's errors have that of the socket inside
                cause = getattr(cause, inner, cause)
            raise connect_error(self.server, self._connection, self.info, cause) from None
        except (ValueError, TypeError, LookupError, AttributeError, AssertionError, RecursionError) as error:
            await self._end(_ABANDON_SECONDS)
            raise NatsError(f"cannot connect to {self.server}: it does not speak the NATS protocol") from error
        except asyncio.CancelledError:
            await self._end(_ABANDON_SECONDS)
            raise

    async def _log_in(self, name: str) -> None:
        connection = self._connection
        own = self.server.login is not None or self.server.token is not None
        login = self.server.login if own else connection.login
        if isinstance(login, IssuedUser):
            login = login.issue()
        token = self.server.token if own else connection.token
        user = password = seed = bearer = None
        credentials: RawCredentials | None = None
        match login:
            case UserPassword():
                user, password = login.user, login.password.reveal()
                self.token_on_top = token.reveal() if token is not None else None
            case Nkey():
                seed = login.seed.reveal()
            case UserJwt(seed=None):
                bearer = login.jwt.reveal().encode()
            case UserJwt(seed=Secret() as signer):
                credentials = credentials_of(login.jwt.reveal(), signer.reveal())
        await self.client.connect(
            servers=[str(self.server)],
            name=name,
            error_cb=self._on_error,
            allow_reconnect=False,
            # nats-py then tries the address twice, without a pause; the timeout around this limits both.
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=connection.timeout_seconds,  # type: ignore[arg-type]  # annotated int, used as float
            ping_interval=_PING_INTERVAL_SECONDS,
            tls=tls_context(connection.tls),
            tls_hostname=self._tls_hostname,
            tls_handshake_first=connection.tls.first,
            user=user,
            password=password,
            token=token.reveal() if token is not None else None,
            nkeys_seed_str=seed,
            user_credentials=credentials,
            user_jwt_cb=None if bearer is None else lambda: bearer,
            signature_cb=None if bearer is None else lambda nonce: b"",
            inbox_prefix=connection.inbox_prefix,
            # No limit: otherwise nats-py waits in `publish`, for ever if the connection is lost meanwhile.
            pending_size=0,
        )
        # If a server hangs up instead of answering CONNECT, nats-py is neither connected nor raises an error.
        if not self.client.is_connected:
            raise self._last_error or nats.errors.UnexpectedEOF()
        join_writes(self.client._transport)
        for task in (self.client._reading_task, self.client._flusher_task):
            if task is not None:
                task.add_done_callback(self._task_ended)

    def take_info(self, info: JsonObject, initial: bool) -> None:
        """Take the server's INFO. The first comes before TLS and credentials: this is where plain text is refused."""
        payload_limit = info.get("max_payload")
        if not isinstance(payload_limit, int) or payload_limit <= 0:
            raise nats.errors.ProtocolError
        tls = self._connection.tls
        plain = self.server.websocket and not self.server.tls  # nats-py would never begin TLS
        if initial and tls.required and (plain or not tls.first):
            if plain or not (info.get("tls_required") or info.get("tls_available")):
                raise NoTls
            info["tls_required"] = True  # nats-py only checks this field
        self.info = {**self.info, **info}
        if isinstance(account := info.get("remote_account"), str):
            self.account = account

    # ------------------------------------------------------------------------------------------------- talking

    async def publish(
        self, subject: str, payload: bytes, reply: str | None = None, headers: AnyHeaders | None = None
    ) -> None:
        self.conversation.check()
        limit = self.info["max_payload"]
        size = len(payload) + (len(headers) if isinstance(headers, bytes) else 0)
        if size > limit:
            raise NatsError(
                f"a message of {size} bytes for {subject} is more than the {limit} that {self.server} allows",
                hint="Raise max_payload on the server, or send smaller messages.",
            )
        if _NOT_A_SUBJECT.search(subject) or (reply is not None and _NOT_A_SUBJECT.search(reply)):
            raise NatsError(f"not a subject to publish to: {subject!r} with reply {reply!r}")
        try:
            if headers and not isinstance(headers, bytes):
                await self.client.publish(subject, payload, reply or "", dict(headers))
            else:
                block = headers if isinstance(headers, bytes) else b""
                await self.client.publish_block(subject, payload, reply or "", block)
        except (nats.errors.Error, UnicodeEncodeError) as error:
            self.conversation.check()
            raise NatsError(f"cannot publish to {subject!r}: {plain_reason(error)}") from error
        if self.client.pending_data_size > _PENDING_LIMIT_BYTES:
            await self._written(_PENDING_LIMIT_BYTES)

    async def _written(self, limit_bytes: int) -> None:
        """Wait until at most `limit_bytes` are pending. (nats-py's own wait can outlive the connection.)"""
        while self.client.pending_data_size > limit_bytes:
            self.conversation.check()
            await asyncio.sleep(0)  # lets nats-py's writing task run
            transport = self.client._transport
            if transport is None:
                raise RuntimeError("nats-py has no transport")
            try:
                await transport.drain()  # type: ignore[no-untyped-call]
            except OSError as error:
                self.lose(error)

    async def request(self, subject: str, payload: bytes, timeout: float, headers: AnyHeaders | None = None) -> Message:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with self.conversation.expecting(subject) as (reply, answer):
            try:
                async with asyncio.timeout(timeout):
                    await self.publish(subject, payload, reply, headers)
                    message = await answer
            except TimeoutError:
                raise NatsTimeout(f"no answer to {subject} within {timeout:g} s") from None
        seconds = loop.time() - began
        self.quickest_seconds = seconds if self.quickest_seconds is None else min(seconds, self.quickest_seconds)
        status = parse_status(message.headers) if not message.data else None
        if status is not None and status.code == NO_RESPONDERS:
            raise NatsNoResponders(
                f"nothing answers on {subject}",
                hint="JetStream may be off for this server and account, or be reached with --js-domain only.",
            )
        return message

    async def flush(self, timeout: float) -> float:
        """Wait until the server has received everything that was sent; return the round trip time in seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                await self._written(0)  # nats-py sends a PING ahead of pending data
        except TimeoutError:
            raise NatsTimeout(f"{self.server} accepts no data: nothing was sent within {timeout:g} s") from None
        self.conversation.check()
        start = loop.time()
        # A task that is not cancelled at the timeout: a late PONG for a cancelled ping would end nats-py's read loop.
        ping = loop.create_task(self._ping())
        self._pings.add(ping)
        ping.add_done_callback(self._pings.discard)
        await asyncio.wait(
            {ping, self.conversation.gone}, timeout=deadline - start, return_when=asyncio.FIRST_COMPLETED
        )
        self.conversation.check()
        if not ping.done():
            raise NatsTimeout(f"no answer to a ping of {self.server} within {timeout:g} s")
        self.conversation.take_denial()
        return loop.time() - start

    async def _ping(self) -> None:
        try:
            await self.client.flush(timeout=24 * 3600)
        except nats.errors.Error as error:
            self.lose(error)

    @contextlib.asynccontextmanager
    async def subscribe(self, subject: str, limit_bytes: int) -> AsyncIterator[Subscription]:
        self.conversation.check()
        if _NOT_A_SUBJECT.search(subject):
            raise NatsError(f"not a subject to subscribe to: {subject!r}")
        subscription = Subscription(subject, self.generation, self.publish, limit_bytes)
        sid = self.client._sid + 1  # added to the conversation before the server can answer
        self.conversation.add(sid, subscription)
        made = None
        try:
            made = await self.client.subscribe(subject)
            if made._id != sid:
                raise RuntimeError("nats-py numbers its subscriptions in an unknown way")
            yield subscription
        except nats.errors.Error as error:
            self.conversation.check()
            raise NatsError(f"cannot subscribe to {subject!r}: {plain_reason(error)}") from error
        finally:
            self.conversation.remove(sid)
            if made is not None and not self.conversation.ended:
                try:
                    await made.unsubscribe()
                except nats.errors.Error as error:
                    self.lose(error)

    def new_inbox(self) -> str:
        return self.client.new_inbox()

    def discovered(self) -> list[Candidate]:
        """Return the other servers of the cluster that this one reported. Its login and TLS are used for them too."""
        urls = []
        for address in self.client.discovered_servers:
            try:
                host, port = address.hostname, address.port
            except ValueError:
                continue
            if host and port:
                urls.append(Candidate(replace(self.server, host=host, port=port), tls_hostname=self.server.host))
        return urls

    # -------------------------------------------------------------------------------------------------- ending

    async def _on_error(self, error: Exception) -> None:
        if (violation := _VIOLATION.search(str(error))) is not None:
            self.conversation.refuse(violation[1], violation[2])
            return
        if self._open:
            self.lose(error)
        else:
            self._last_error = error

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """Handle the end of a task of nats-py that runs as long as its connection."""
        cause = None if task.cancelled() else task.exception()
        self.lose(cause or self._last_error)

    def lose(self, cause: BaseException | None) -> None:
        """Mark the connection as lost: everything that waits on it fails now."""
        if self.conversation.ended:
            return
        # The server's last error is more specific than the disconnect.
        said = self.client.last_error
        if said is not None and not _VIOLATION.search(str(said)):
            cause = said
        self._last_error = cause
        reason = "no reason was given" if cause is None else plain_reason(cause)
        self.conversation.end(lambda: TransferError(f"the connection to {self.server} was lost: {reason}"))

    async def close(self) -> None:
        """Close the connection, within a time limit. Pending requests fail with NatsError."""
        await self._end(_CLOSE_SECONDS)

    async def _end(self, seconds: float) -> None:
        self.conversation.end(lambda: NatsError(f"the connection to {self.server} was closed"))
        for ping in self._pings:
            ping.cancel()
        transport = self.client._transport
        if transport is None:
            return
        try:
            with contextlib.suppress(OSError, TimeoutError, nats.errors.Error):
                async with asyncio.timeout(seconds):
                    await self.client.close()
        finally:
            # A socket with pending data would never close by itself if the server hangs.
            if isinstance(transport, WebSocketTransport):
                if transport._client is not None:
                    await transport._client.close()
            elif isinstance(transport, TcpTransport) and transport._bare_io_writer is not None:
                transport._bare_io_writer.transport.abort()
        await asyncio.sleep(0)  # asyncio closes the socket in its next iteration
