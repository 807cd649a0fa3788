"""Which server to connect to, and as whom."""

from __future__ import annotations

import base64
from os import PathLike, fspath
from typing import TypeAlias

from jsbackup.config import Connection, ConnectionOptions, environment, source_connection, target_connection

__all__ = ["AnyServer", "File", "connection", "connection_to"]

File: TypeAlias = str | PathLike[str] | bytes
"""The path of a file, or its content as bytes."""


def connection(
    server: str | None = None,
    *,
    context: str | None = None,
    creds: File | None = None,
    nkey: File | None = None,
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    tls_ca: str | PathLike[str] | None = None,
    tls_cert: str | PathLike[str] | None = None,
    tls_key: str | PathLike[str] | None = None,
    tls_first: bool = False,
    js_domain: str | None = None,
    js_api_prefix: str | None = None,
    inbox_prefix: str | None = None,
    timeout_seconds: float | None = None,
) -> Connection:
    """Return a server, and as whom to connect to it. Does not connect yet.

    `server` is a URL or several of them with commas, `context` the name of a context of the nats CLI. If one of them is
    given, NATS_URL and other variables and the selected context are ignored. Otherwise it is the server that the
    command line uses without options. The other arguments are those of the command line (`jsbackup help connecting`).
    Its repr has no secrets.

    Raises UsageError if the arguments contradict each other, or a file cannot be read.
    """
    options = ConnectionOptions(
        context=context,
        server=server,
        user=user,
        password=password,
        token=token,
        creds=_reference(creds),
        nkey=_reference(nkey),
        tls_cert=_path(tls_cert),
        tls_key=_path(tls_key),
        tls_ca=_path(tls_ca),
        tls_first=tls_first or None,
        js_domain=js_domain,
        js_api_prefix=js_api_prefix,
        inbox_prefix=inbox_prefix,
        timeout=None if timeout_seconds is None else f"{timeout_seconds}s",
    )
    named = bool(server or context)
    return target_connection(options, environment()) if named else source_connection(options, environment())


AnyServer: TypeAlias = str | Connection
"""A URL, or the result of `connection`."""


def connection_to(server: AnyServer) -> Connection:
    """Return the connection to a server. Raises UsageError as in `connection`."""
    return server if isinstance(server, Connection) else connection(server)


def _path(file: str | PathLike[str] | None) -> str | None:
    return None if file is None else fspath(file)


def _reference(file: File | None) -> str | None:
    """Return the value for options: a path, or the content of a file."""
    if isinstance(file, bytes):
        return f"data:;base64,{base64.b64encode(file).decode()}"
    return _path(file)
