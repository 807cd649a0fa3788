"""One layer of connection options: the command line, the environment, or a nats context.

All values are the user's texts; `jsbackup.config.connection` combines layers and checks them.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from jsbackup.config.programs import output_of
from jsbackup.errors import UsageError

__all__ = ["LOGIN_NAMES", "ConnectionOptions", "connection_options", "environment_options"]

_FIELDS: Final = {"tlscert": "tls_cert", "tlskey": "tls_key", "tlsca": "tls_ca", "tlsfirst": "tls_first"}
_BY_FILE_OR_COMMAND: Final = ("password", "token")

# Names of options for logging in.
LOGIN_NAMES: Final = frozenset(
    {"user", "creds", "nkey"} | {f"{name}{way}" for name in _BY_FILE_OR_COMMAND for way in ("", "_file", "_command")}
)


@dataclass(frozen=True, slots=True, repr=False)
class ConnectionOptions:
    """The options of one layer; None (and an empty text) means not given. Its repr has only the names of fields."""

    context: str | None = None
    server: str | None = None  # URL, or a comma list of them
    user: str | None = None
    password: str | None = None
    token: str | None = None
    creds: str | None = None
    nkey: str | None = None
    jwt: str | None = None
    seed: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    tls_first: bool | None = None
    js_domain: str | None = None
    js_api_prefix: str | None = None
    inbox_prefix: str | None = None
    timeout: str | None = None
    socks_proxy: str | None = None

    def __repr__(self) -> str:
        given = [field.name for field in fields(self) if getattr(self, field.name) not in (None, "")]
        return f"ConnectionOptions({', '.join(given)})"


def connection_options(given: Mapping[str, Any]) -> ConnectionOptions:
    """Return the layer of the options that were `given`, by parameter name. Runs the commands that print secrets.

    Raises UsageError if one is given twice, or its command fails.
    """
    named = {_FIELDS.get(name, name): value for name, value in given.items()}
    for secret in _BY_FILE_OR_COMMAND:
        file, command = named.pop(f"{secret}_file", None), named.pop(f"{secret}_command", None)
        if len([way for way in (named.get(secret), file, command) if way]) > 1:
            raise UsageError(f"the {secret} is given twice", hint=f"Give --{secret}, --{secret}-file or a command.")
        if file:
            named[secret] = f"file://{file}"
        elif command:
            # As data, because the output may look like another kind of reference.
            printed = output_of(str(command), secret).rstrip(b"\r\n")
            named[secret] = f"data:;base64,{base64.b64encode(printed).decode()}"
    return ConnectionOptions(**named)


def environment_options(environ: Mapping[str, str]) -> ConnectionOptions:
    """Return the layer of the nats CLI's environment variables."""
    return ConnectionOptions(
        context=environ.get("NATS_CONTEXT"),
        server=environ.get("NATS_URL"),
        user=environ.get("NATS_USER"),
        password=environ.get("NATS_PASSWORD"),
        token=environ.get("NATS_TOKEN"),
        creds=environ.get("NATS_CREDS"),
        nkey=environ.get("NATS_NKEY"),
        jwt=environ.get("NATS_JWT"),
        seed=environ.get("NATS_SEED"),
        tls_cert=environ.get("NATS_CERT"),
        tls_key=environ.get("NATS_KEY"),
        tls_ca=environ.get("NATS_CA"),
        timeout=environ.get("NATS_TIMEOUT"),
        socks_proxy=environ.get("NATS_SOCKS_PROXY"),
    )
