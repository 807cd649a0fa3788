"""Where and as whom to connect: layers of options, contexts of the nats CLI, and how the layers combine.

    command line  >  environment (NATS_*)  >  context: --context, else NATS_CONTEXT, else the selected one

As in the nats CLI each field is decided separately, so `--server` or `NATS_URL` beside a context replaces its URL and
keeps its credentials. Of several ways to log in, the one from the highest layer counts; within a layer the order is
login in the URL, user and password, creds, nkey, JWT and seed (the CLI only uses that order, so that a user name in a
context wins over `--creds`; here the option wins). A token is sent in addition. A user without a password, outside a
context, is a token. Two ways to log in on one command line are refused.

For the second server of a command (`--to-…`) the environment and the selected context are ignored: a target must be
named.

A context is `context/<name>.json` below `$XDG_CONFIG_HOME/nats` (or `~/.config/nats`); `context.txt` beside that folder
holds the name of the selected one. A name that ends in `.json` and is an existing file is that file, as in the CLI.
Unknown keys are ignored: the CLI adds some with each release. A SOCKS proxy, which jsbackup does not support, is
refused: without it, it would connect to something else.
The old key `nsc` (`OPERATOR/ACCOUNT/USER`) stands for what nsc knows about a user: the credentials, unless the context
has `creds`, and the servers, unless it has `url`.

Processes on other machines get a `ConnectionReference`, without secrets: files (credentials, seeds, keys of
certificates, contexts) are named by absolute paths, secrets of the environment by their variables
(`env://NATS_PASSWORD`), and both are read where the connection is made. A secret on the command line or within a URL is
refused.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from jsbackup.config.secrets import (
    Secret,
    check_jwt,
    check_seed,
    expand_path,
    home,
    known_scheme,
    nsc_profile,
    output_of,
    parse_creds,
    parse_seed,
    read_file,
    resolve_reference,
    resolve_secret,
    shown,
)
from jsbackup.config.values import parse_duration
from jsbackup.errors import UsageError
from jsbackup.names import BLANKS
from jsbackup.strict_json import read_object

__all__ = [
    "LOGIN_NAMES",
    "Connection",
    "ConnectionOptions",
    "ConnectionReference",
    "IssuedUser",
    "Login",
    "Nkey",
    "Server",
    "Tls",
    "UserJwt",
    "UserPassword",
    "connection_options",
    "connection_reference",
    "context_names",
    "context_path",
    "environment_options",
    "has_login",
    "layered_connection",
    "read_context",
    "selected_context",
    "source_connection",
    "target_connection",
    "target_reference",
]


DEFAULT_SERVER: Final = "nats://127.0.0.1:4222"
DEFAULT_PORT: Final = 4222
_PORTS: Final = {"nats": DEFAULT_PORT, "tls": DEFAULT_PORT, "ws": 80, "wss": 443}  # those of nats.go
DEFAULT_TIMEOUT_SECONDS: Final = 5.0  # the nats CLI's
MAX_TIMEOUT_SECONDS: Final = 3600.0

_TOKEN = rf"[^{BLANKS}\0.*>]+"
_TOKEN_TEXT = re.compile(_TOKEN)
_SUBJECT_TEXT = re.compile(rf"{_TOKEN}(\.{_TOKEN})*")


@dataclass(frozen=True, slots=True)
class UserPassword:
    user: str
    password: Secret


@dataclass(frozen=True, slots=True)
class Nkey:
    """Log in by signing with this seed; the server knows the public key."""

    seed: Secret


@dataclass(frozen=True, slots=True)
class UserJwt:
    """Log in with a JWT, and a signature by its seed; without a seed it is a bearer JWT."""

    jwt: Secret
    seed: Secret | None


@dataclass(frozen=True, slots=True)
class IssuedUser:
    """Log in as a user of an account (its public key) that is made anew for each connection, by `issue`."""

    account: str
    issue: Callable[[], UserJwt]


Login = UserPassword | Nkey | UserJwt | IssuedUser


@dataclass(frozen=True, slots=True)
class Server:
    """One address. A login or token in its URL is only for it and replaces the connection's. `str` has neither."""

    host: str
    port: int = DEFAULT_PORT
    tls: bool = False
    login: UserPassword | None = None
    token: Secret | None = None
    websocket: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = ("wss" if self.tls else "ws") if self.websocket else "tls" if self.tls else "nats"
        return f"{scheme}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Tls:
    """`required`: never connect without TLS, even if the server would. `first`: handshake before its greeting."""

    required: bool = False
    first: bool = False
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class Connection:
    """Everything needed to connect, checked. Its repr has no secrets."""

    servers: tuple[Server, ...]
    login: Login | None = None
    token: Secret | None = None
    tls: Tls = Tls()
    js_domain: str | None = None
    js_api_prefix: str | None = None
    inbox_prefix: str = "_INBOX"
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    context: str | None = None

    @property
    def url(self) -> str:
        """The servers as a comma list, without credentials: for messages and manifests."""
        return ",".join(map(str, self.servers))

    @property
    def api_prefix(self) -> str:
        """The prefix of subjects of the JetStream API: `$JS.API`, `$JS.<domain>.API`, or as configured."""
        if self.js_api_prefix is not None:
            return self.js_api_prefix
        return f"$JS.{self.js_domain}.API" if self.js_domain is not None else "$JS.API"


def source_connection(options: ConnectionOptions, environ: Mapping[str, str]) -> Connection:
    """Return the connection of a command: its options over the environment over a context. Raises UsageError."""
    variables = environment_options(environ)
    name = options.context or variables.context or selected_context(environ)
    return layered_connection(options, variables, name, environ)


def target_connection(options: ConnectionOptions, environ: Mapping[str, str]) -> Connection:
    """Return the second connection of a command, only from its own options; `environ` is for paths and `env://`."""
    if not (options.server or options.context):
        raise UsageError("the target server is not named", hint="Give --to-server or --to-context.")
    return layered_connection(options, ConnectionOptions(), options.context or None, environ)


def layered_connection(
    options: ConnectionOptions, variables: ConnectionOptions, name: str | None, environ: Mapping[str, str]
) -> Connection:
    """Return the connection of options over variables over the context `name`; `environ` is for paths and `env://`."""
    ways = [f"--{way}" for way in ("user", "creds", "nkey", "jwt") if getattr(options, way)]
    if len(ways) > 1:
        raise UsageError(f"{' and '.join(ways)} are different ways to log in", hint="Give one of them.")
    context = read_context(name, environ) if name else ConnectionOptions()
    layers = (options, variables, context)
    if _first(layers, "socks_proxy"):
        raise UsageError("a SOCKS proxy is not supported", hint="Unset NATS_SOCKS_PROXY, or take another context.")
    servers = _servers(_first(layers, "server") or DEFAULT_SERVER)
    way, outranks_url = _way_to_log_in(layers)
    if outranks_url:
        servers = tuple(replace(server, login=None, token=None) for server in servers)
    needed = not all(server.login or server.token for server in servers)
    domain, prefix = _domain_or_prefix(layers)
    return Connection(
        servers=servers,
        login=_login(way, layers, environ) if needed else None,
        token=_token(layers, environ),
        tls=_tls(layers, servers, environ),
        js_domain=domain,
        js_api_prefix=prefix,
        inbox_prefix=_subject(_first(layers, "inbox_prefix") or "_INBOX", "inbox prefix"),
        timeout_seconds=_timeout(_first(layers, "timeout")),
        context=name or None,
    )


def _first(layers: Sequence[ConnectionOptions], field: str) -> str | None:
    """Return the field's text in the highest layer that has it."""
    return next((value for layer in layers if (value := getattr(layer, field))), None)


def _rank(layers: Sequence[ConnectionOptions], *names: str) -> int | None:
    """Return the index of the highest layer with one of the fields."""
    return next((index for index, layer in enumerate(layers) if any(getattr(layer, name) for name in names)), None)


# ------------------------------------------------------------------------------------------------------- servers


def has_login(server: str) -> bool:
    """Return whether one of these URLs has a login or a token in it. Raises UsageError."""
    return any(url.login or url.token for url in _servers(server))


def _servers(text: str) -> tuple[Server, ...]:
    servers = tuple(_server(part.strip()) for part in text.split(",") if part.strip())
    if not servers:
        raise UsageError("the list of servers is empty")
    return servers


def _server(text: str) -> Server:
    hint = "Write it as nats://host:4222, tls://, ws:// or wss://; in a password, percent-encode : / ? # @ and %."
    try:
        parts = urlsplit(text if "://" in text else f"nats://{text}")
        host, port = parts.hostname, parts.port
    except ValueError:  # not chained: it may quote the URL with its password
        raise UsageError("a server URL cannot be understood", hint=hint) from None
    blank = any(character.isspace() or not character.isprintable() for character in host or "")
    more = parts.path.strip("/") or parts.query or parts.fragment
    if parts.scheme not in _PORTS or not host or blank or more:
        # Not quoted: without a scheme, or with an unencoded / ? or # in a password, any part may be of a password.
        raise UsageError("a server URL has another scheme, no host, or more than a host and a port", hint=hint)
    user = unquote(parts.username or "")
    login = None if parts.password is None else UserPassword(user, Secret(unquote(parts.password)))
    token = Secret(user) if user and login is None else None
    tls, websocket = parts.scheme in ("tls", "wss"), parts.scheme in ("ws", "wss")
    return Server(host, _PORTS[parts.scheme] if port is None else port, tls, login, token, websocket)


# --------------------------------------------------------------------------------------------------------- login


def _way_to_log_in(layers: Sequence[ConnectionOptions]) -> tuple[str | None, bool]:
    """Return the field that names the login, and whether it is also used for servers with a login in their URL."""
    ranks = {
        "user": _rank(layers, "user", "password") if _user_with_password(layers) else None,
        "creds": _rank(layers, "creds"),
        "nkey": _rank(layers, "nkey"),
        "jwt": _rank(layers, "jwt"),
    }
    present = [(rank, order, way) for order, (way, rank) in enumerate(ranks.items()) if rank is not None]
    if not present:
        if _first(layers, "password") and not _first(layers, "user"):
            raise UsageError("there is a password but no user")
        if _first(layers, "seed"):
            raise UsageError("there is a user seed but no user JWT")
        return None, False
    rank, _, way = min(present)
    url_rank = _rank(layers, "server")
    return way, url_rank is not None and rank < url_rank


def _login(way: str | None, layers: Sequence[ConnectionOptions], environ: Mapping[str, str]) -> Login | None:
    text = (way and _first(layers, way)) or ""
    match way:
        case "user":
            return UserPassword(text, resolve_secret(_first(layers, "password") or "", "password", environ))
        case "creds":
            return UserJwt(*parse_creds(resolve_reference(text, "credentials file", environ), "credentials file"))
        case "nkey":
            return Nkey(parse_seed(resolve_reference(text, "nkey file", environ), "nkey file"))
        case "jwt":
            jwt = check_jwt(resolve_secret(text, "user JWT", environ).reveal(), "user JWT")
            seed = _first(layers, "seed")
            seed = seed and resolve_secret(seed, "user seed", environ).reveal()
            return UserJwt(jwt, None if seed is None else check_seed(seed, "user seed"))
        case _:
            return None


def _user_with_password(layers: Sequence[ConnectionOptions]) -> bool:
    """Return whether there is a user that is not a token: it has a password, or is in a context (which may have "")."""
    rank = _rank(layers, "user")
    return rank is not None and (rank == len(layers) - 1 or _first(layers[:-1], "password") is not None)


def _token(layers: Sequence[ConnectionOptions], environ: Mapping[str, str]) -> Secret | None:
    text = _first(layers, "token")
    if text is None and not _user_with_password(layers):
        text = _first(layers[:-1], "user")
    return None if text is None else resolve_secret(text, "token", environ)


# --------------------------------------------------------------------------------------------- TLS and JetStream


def _tls(layers: Sequence[ConnectionOptions], servers: tuple[Server, ...], environ: Mapping[str, str]) -> Tls:
    ca, cert, key = (
        None if text is None else _tls_file(text, what, environ)
        for text, what in (
            (_first(layers, "tls_ca"), "TLS certificate authority"),
            (_first(layers, "tls_cert"), "TLS certificate"),
            (_first(layers, "tls_key"), "TLS key"),
        )
    )
    if (cert is None) != (key is None):
        raise UsageError("a TLS client certificate needs its key, and a key its certificate", hint="Give both.")
    first = next((layer.tls_first for layer in layers if layer.tls_first is not None), False)
    required = first or cert is not None or ca is not None or any(server.tls for server in servers)
    return Tls(required, first, ca, cert, key)


def _tls_file(text: str, what: str, environ: Mapping[str, str]) -> Path:
    scheme, separator, rest = text.partition("://")
    if separator and scheme.lower() != "file":
        raise UsageError(f"the {what} has to be a file, not a reference of the kind {scheme}://")
    path = expand_path(rest if separator else text, environ)
    try:
        path.open("rb").close()
    except OSError as error:
        raise UsageError(f"cannot read the {what} {shown(str(path))}: {error.strerror or error}") from error
    return path


def _domain_or_prefix(layers: Sequence[ConnectionOptions]) -> tuple[str | None, str | None]:
    """Return domain and prefix, which are alternatives: the highest layer with either decides, and must not
    have both.
    """
    layer = next((layer for layer in layers if layer.js_domain or layer.js_api_prefix), ConnectionOptions())
    domain, prefix = layer.js_domain or None, layer.js_api_prefix or None
    if domain and prefix:
        raise UsageError("a JetStream domain and a JetStream API prefix exclude each other", hint="Give one of them.")
    if domain and not _TOKEN_TEXT.fullmatch(domain):
        raise UsageError(f"not a JetStream domain: {domain!r}")
    return domain, prefix and _subject(prefix.removesuffix("."), "JetStream API prefix")


def _subject(text: str, what: str) -> str:
    if not _SUBJECT_TEXT.fullmatch(text):
        raise UsageError(
            f"not a usable {what}: {text!r}", hint="It is a subject without wildcards and without a final dot."
        )
    return text


def _timeout(text: str | None) -> float:
    seconds = DEFAULT_TIMEOUT_SECONDS if text is None else parse_duration(text)
    if not 0 < seconds <= MAX_TIMEOUT_SECONDS:
        raise UsageError(f"the timeout {text!r} is not between 0 and one hour")
    return seconds


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


# Key of the context file -> field of ConnectionOptions.
_FIELD_BY_KEY: Final = {
    "url": "server",
    "user": "user",
    "password": "password",
    "token": "token",
    "creds": "creds",
    "nkey": "nkey",
    "user_jwt": "jwt",
    "user_seed": "seed",
    "cert": "tls_cert",
    "key": "tls_key",
    "ca": "tls_ca",
    "jetstream_domain": "js_domain",
    "jetstream_api_prefix": "js_api_prefix",
    "inbox_prefix": "inbox_prefix",
    "tls_first": "tls_first",
    "socks_proxy": "socks_proxy",
}


def context_names(environ: Mapping[str, str]) -> list[str]:
    """Return the names of all contexts. Raises UsageError if there is no home directory."""
    return sorted(path.stem for path in (_folder(environ) / "context").glob("*.json"))


def selected_context(environ: Mapping[str, str]) -> str | None:
    """Return the name in `context.txt`, or None if no context is selected. Raises UsageError if the file cannot be
    read.
    """
    return read_file(_folder(environ) / "context.txt", "file of the selected context", "").strip() or None


def read_context(name: str, environ: Mapping[str, str]) -> ConnectionOptions:
    """Read a context. Raises UsageError if it is missing, is not JSON, or if nsc cannot be asked."""
    path = context_path(name, environ)
    text = read_file(path, "nats context", "")
    if not text and not path.exists():
        known = context_names(environ)
        raise UsageError(
            f"there is no nats context {name!r} in {path.parent}",
            hint=f"Known contexts: {', '.join(known)}." if known else "Make one with: nats context add NAME.",
        )
    document = read_object(text, f"nats context {name!r}", kind=UsageError)
    for key in (*_FIELD_BY_KEY, "nsc"):
        kind, said = (bool, "neither true nor false") if key == "tls_first" else (str, "not a text")
        if document.get(key) is not None and not isinstance(document[key], kind):
            raise UsageError(f"{key!r} in nats context {name!r} is {said}")
    given = {field: document.get(key) or None for key, field in _FIELD_BY_KEY.items()}
    user = document.get("nsc")
    if user and not (given["creds"] and given["server"]):
        asked = user[len("nsc://") :] if user.lower().startswith("nsc://") else user
        creds, servers = nsc_profile(asked, "credentials file", environ)
        given |= {"creds": given["creds"] or creds or None, "server": given["server"] or servers or None}
    return ConnectionOptions(**given)


def _folder(environ: Mapping[str, str]) -> Path:
    configured = environ.get("XDG_CONFIG_HOME")
    return (Path(configured) if configured else home(environ) / ".config") / "nats"


def context_path(name: str, environ: Mapping[str, str]) -> Path:
    """Return the file of a context. Raises UsageError if the name is not valid."""
    if name.endswith(".json") and (path := Path(name)).is_file():
        return path
    if not name or ".." in name or any(character in "/\\\0" for character in name):
        raise UsageError(
            f"not a name of a nats context: {name!r}", hint="Give a name, or the path of an existing .json file."
        )
    return _folder(environ) / "context" / f"{name}.json"


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
        if text and (known_scheme(text) == "data" or (field in _SECRETS and not known_scheme(text))):
            raise _refused(f"--{field}")
    return _with_whole_paths(options, environ)


def _of_environment(variables: ConnectionOptions, bare: bool, environ: Mapping[str, str]) -> ConnectionOptions:
    if variables.server and has_login(variables.server):
        raise _refused("NATS_URL")
    for field in _FILES:
        if known_scheme(getattr(variables, field) or "") == "data":
            raise _refused(f"NATS_{field.upper()}")
    named: dict[str, Any] = {
        field: f"env://NATS_{field.upper()}"
        for field in (*_SECRETS, *(("user",) if bare else ()))
        if (text := getattr(variables, field)) and known_scheme(text) in ("", "data")
    }
    return _with_whole_paths(replace(variables, **named), environ)


def _with_whole_paths(options: ConnectionOptions, environ: Mapping[str, str]) -> ConnectionOptions:
    whole: dict[str, Any] = {}
    for field in (*_FILES, *_SECRETS):
        text = getattr(options, field)
        scheme = known_scheme(text or "")
        if text and (scheme == "file" or (field in _FILES and not scheme)):
            path = expand_path(text[len("file://") :] if scheme else text, environ)
            whole[field] = f"{'file://' if scheme else ''}{Path(path).absolute()}"
    return replace(options, **whole)


def _refused(what: str) -> UsageError:
    return UsageError(f"{what} holds a secret, and none is sent to executors", hint=_HINT)
