"""Connections for accounts: the servers of one connection, the login of another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jsbackup.config.connection import Connection, Login, layered_connection
from jsbackup.config.options import ConnectionOptions
from jsbackup.errors import UsageError

__all__ = ["with_login", "with_options"]


def with_login(base: Connection, login: Login) -> Connection:
    """Return the connection with another login; those in its URLs are gone."""
    servers = tuple(replace(one, login=None, token=None) for one in base.servers)
    return replace(base, servers=servers, login=login, token=None, context=None)


def with_options(base: Connection, options: ConnectionOptions, environ: Mapping[str, str]) -> Connection:
    """Return the connection with the login of options, or of the context that they name. The servers stay those of
    `base`; of TLS, files that the options name count. Raises UsageError.
    """
    made = layered_connection(options, ConnectionOptions(), options.context or None, environ)
    login, token = made.login, made.token
    if login is None and token is None:  # in the URL
        login, token = made.servers[0].login, made.servers[0].token
    tls = replace(
        base.tls,
        required=base.tls.required or made.tls.required,
        first=base.tls.first or made.tls.first,
        ca=made.tls.ca or base.tls.ca,
        cert=made.tls.cert or base.tls.cert,
        key=made.tls.key or base.tls.key,
    )
    if login is None and token is None and made.tls.cert is None:
        named = f"the nats context {options.context!r}" if options.context else "it"
        raise UsageError(f"{named} has no login")
    servers = tuple(replace(one, login=None, token=None) for one in base.servers)
    return replace(base, servers=servers, login=login, token=token, tls=tls, context=options.context or None)
