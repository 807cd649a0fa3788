"""Explain a failed attempt to connect to the user.

Turns an error of the operating system, TLS or the server into one with the server's address (never its credentials) and
a hint. The server's own words pass through `one_line`: they are foreign text.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import ssl

from jsbackup.config import Connection, IssuedUser, Nkey, Server, UserJwt, UserPassword
from jsbackup.errors import NatsError, NatsTimeout
from jsbackup.model import JsonObject
from jsbackup.protocol.headers import one_line

__all__ = ["NoTls", "connect_error", "plain_reason"]

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
