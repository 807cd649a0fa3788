"""A connection for processes on other machines: its options, and references to its secrets.

No secrets are sent. Files (credentials, seeds, keys of certificates, nats contexts) are named by absolute paths,
secrets of the environment by their variables (`env://NATS_PASSWORD`), and both are read where the connection is made. A
secret on the command line or within a URL is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from jsbackup.config.connection import Connection, has_login, layered_connection
from jsbackup.config.contexts import context_path, selected_context
from jsbackup.config.options import ConnectionOptions, environment_options
from jsbackup.config.secrets import expand_path
from jsbackup.errors import UsageError

__all__ = ["ConnectionReference", "connection_reference", "target_reference"]

_HINT = (
    "Set NATS_USER and NATS_PASSWORD, NATS_TOKEN or NATS_CREDS here and where the executors run, or name a "
    "credentials file or a context that is there too."
)

_FILES: Final = ("creds", "nkey", "tls_cert", "tls_key", "tls_ca")
_SECRETS: Final = ("password", "token", "jwt", "seed")


@dataclass(frozen=True, slots=True)
class ConnectionReference:
    """How to connect. `context` is a file. Contains no secrets."""

    options: ConnectionOptions
    variables: ConnectionOptions
    context: str | None

    def resolve(self, environ: Mapping[str, str]) -> Connection:
        """Return the connection, with the secrets of this machine. Raises UsageError if one is missing."""
        return layered_connection(self.options, self.variables, self.context, environ)


def connection_reference(options: ConnectionOptions, environ: Mapping[str, str]) -> ConnectionReference:
    """Return a reference for the connection of `source_connection`. Raises UsageError if a secret would have to be
    sent.
    """
    variables = environment_options(environ)
    return _reference(options, variables, options.context or variables.context or selected_context(environ), environ)


def target_reference(options: ConnectionOptions, environ: Mapping[str, str]) -> ConnectionReference:
    """Return a reference for the connection of `target_connection`. Raises UsageError likewise."""
    return _reference(options, ConnectionOptions(), options.context, environ)


def _reference(
    options: ConnectionOptions, variables: ConnectionOptions, name: str | None, environ: Mapping[str, str]
) -> ConnectionReference:
    # As in `source_connection`: a user without a password is a token.
    bare = not (options.password or variables.password)
    return ConnectionReference(
        _of_command_line(options, bare, environ),
        _of_environment(variables, bare, environ),
        str(context_path(name, environ).absolute()) if name else None,
    )


def _of_command_line(options: ConnectionOptions, bare: bool, environ: Mapping[str, str]) -> ConnectionOptions:
    if options.server and has_login(options.server):
        raise _refused("--server")
    if options.user and bare:
        raise _refused("--user, which without a password is a token,")
    for field in (*_SECRETS, *_FILES):
        text = getattr(options, field)
        if text and (_scheme(text) == "data" or (field in _SECRETS and not _scheme(text))):
            raise _refused(f"--{field}")
    return _with_whole_paths(options, environ)


def _of_environment(variables: ConnectionOptions, bare: bool, environ: Mapping[str, str]) -> ConnectionOptions:
    if variables.server and has_login(variables.server):
        raise _refused("NATS_URL")
    for field in _FILES:
        if _scheme(getattr(variables, field) or "") == "data":
            raise _refused(f"NATS_{field.upper()}")
    named: dict[str, Any] = {
        field: f"env://NATS_{field.upper()}"
        for field in (*_SECRETS, *(("user",) if bare else ()))
        if (text := getattr(variables, field)) and _scheme(text) in ("", "data")
    }
    return _with_whole_paths(replace(variables, **named), environ)


def _with_whole_paths(options: ConnectionOptions, environ: Mapping[str, str]) -> ConnectionOptions:
    whole: dict[str, Any] = {}
    for field in (*_FILES, *_SECRETS):
        text = getattr(options, field)
        scheme = _scheme(text or "")
        if text and (scheme == "file" or (field in _FILES and not scheme)):
            path = expand_path(text[len("file://") :] if scheme else text, environ)
            whole[field] = f"{'file://' if scheme else ''}{Path(path).absolute()}"
    return replace(options, **whole)


def _scheme(text: str) -> str:
    """Return the scheme of a reference to a secret (`secrets.py`), "" for none."""
    head, separator, _ = text.partition(":")
    scheme = head.lower()
    if separator and (scheme == "data" or (scheme in ("file", "env", "op", "nsc") and text[len(head) :][:3] == "://")):
        return scheme
    return ""


def _refused(what: str) -> UsageError:
    return UsageError(f"{what} holds a secret, and none is sent to executors", hint=_HINT)
