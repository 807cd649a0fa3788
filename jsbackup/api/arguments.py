"""Arguments of functions: which server, which messages, how streams are restored; checked, and as a command line has
them.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from enum import StrEnum
from json import dumps
from os import PathLike, fspath
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

from jsbackup.config import environment
from jsbackup.config.connection import Connection, ConnectionOptions, source_connection, target_connection
from jsbackup.errors import UsageError
from jsbackup.planning.asked import AskedRestore
from jsbackup.planning.model import Consumers, IfExists
from jsbackup.planning.typed_options import change_options
from jsbackup.transforms.cut import Edge, parse_edge
from jsbackup.transforms.mask import Unmaskable
from jsbackup.transforms.reshape import Reshape

__all__ = [
    "LOCK_TIMEOUT_SECONDS",
    "AnyServer",
    "File",
    "MessageConditions",
    "Moment",
    "ReshapingArguments",
    "RestoreArguments",
    "WantedMessages",
    "as_texts",
    "asked_by",
    "chosen_by",
    "connection",
    "connection_to",
    "edge_of",
    "one_of",
    "within",
]

# As on the command line: longer than the lease of a killed command.
LOCK_TIMEOUT_SECONDS = 660.0

File: TypeAlias = str | PathLike[str] | bytes
"""The path of a file, or its content as bytes."""

Moment: TypeAlias = datetime | str | int
"""A time with a zone; a text such as `2026-11-21T14:02:00Z`, or `24h` (before now); or a sequence."""

AnyServer: TypeAlias = str | Connection
"""A URL, or the result of `connection`."""

E = TypeVar("E", bound=StrEnum)


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
        tls_cert=_reference(tls_cert),
        tls_key=_reference(tls_key),
        tls_ca=_reference(tls_ca),
        tls_first=tls_first or None,
        js_domain=js_domain,
        js_api_prefix=js_api_prefix,
        inbox_prefix=inbox_prefix,
        timeout=None if timeout_seconds is None else f"{timeout_seconds}s",
    )
    connection_by = target_connection if server or context else source_connection
    return connection_by(options, environment())


def connection_to(server: AnyServer) -> Connection:
    """Return the connection to a server. Raises UsageError as in `connection`."""
    return server if isinstance(server, Connection) else connection(server)


def _reference(file: File | None) -> str | None:
    """Return the value for options: a path, or the content of a file."""
    if isinstance(file, bytes):
        return f"data:;base64,{base64.b64encode(file).decode()}"
    return None if file is None else fspath(file)


class MessageConditions(TypedDict, total=False):
    """Which messages are chosen, as keywords: see `Stream.messages`."""

    since: Moment | None
    until: Moment | None
    exclude_subject: str | Sequence[str]
    header: str | Sequence[str]
    payload_match: str | Sequence[str]
    last_per_subject: int | None


class WantedMessages(MessageConditions, total=False):
    kv_compact: bool


class ReshapingArguments(WantedMessages, total=False):
    """Which streams are wanted, and how they are changed."""

    streams: str | Sequence[str]
    rename: Mapping[str, str]
    map_subject: str | Sequence[str]
    subject: str | Sequence[str]
    renumber: bool
    mask: str | Sequence[str]
    unmaskable: Literal["refuse", "drop", "keep"]
    obfuscate: bool
    obfuscation_key: str | PathLike[str] | None
    allow_nothing: bool


class RestoreArguments(ReshapingArguments, total=False):
    """Which streams to restore, and how: the options of `jsbackup restore`, by their names."""

    exclude: str | Sequence[str]
    if_exists: Literal["fail", "skip", "replace"]
    replace_with_part: bool
    replicas: int | None
    config: Mapping[str, Any]
    consumers: Literal["all", "config", "none"]
    adapt: bool
    resume_sources: bool


def asked_by(
    called: str, how: MessageConditions, kind: type[MessageConditions] = RestoreArguments, **more: object
) -> AskedRestore:
    """Return the arguments, which are those of `kind`, and `more`, as typed on the command line. Raises UsageError;
    TypeError for an unknown name.
    """
    if unknown := sorted(how.keys() - kind.__annotations__.keys()):
        raise TypeError(f"{called}() got an unexpected keyword argument {unknown[0]!r}")
    texts: dict[str, Any] = {**how, **more}
    if "config" in texts:
        texts["fields"] = tuple(f"{name}={dumps(value)}" for name, value in texts.pop("config").items())
    if "rename" in texts:
        texts["rename"] = tuple(f"{old}={new}" for old, new in texts["rename"].items())
    for field in fields(AskedRestore):
        if field.name in texts and field.default == ():
            texts[field.name] = as_texts(texts[field.name])
    for name in texts.keys() & {"since", "until"}:
        texts[name] = _moment_text(name, texts[name])
    texts["obfuscation_key"] = _reference(texts.get("obfuscation_key"))
    asked = AskedRestore(**texts)
    if asked.replicas is not None:
        within("replicas", asked.replicas, 5)
    one_of("if_exists", IfExists, asked.if_exists)
    one_of("consumers", Consumers, asked.consumers)
    one_of("unmaskable", Unmaskable, asked.unmaskable)
    return asked


def chosen_by(
    called: str, subject: str | Sequence[str] | None, how: MessageConditions, kind: type[MessageConditions]
) -> Reshape:
    """Return what keeps the messages that are chosen. Raises UsageError; TypeError for an unknown name."""
    return change_options(asked_by(called, how, kind, subject=subject or ()), ()).reshape


def as_texts(value: str | Sequence[str]) -> tuple[str, ...]:
    """Return a list; a single text is a list of one."""
    return (value,) if isinstance(value, str) else tuple(value)


def edge_of(at: Moment | None) -> Edge | None:
    """Return the moment or sequence. Raises UsageError."""
    text = _moment_text("at", at)
    return None if text is None else parse_edge("at", text, time.time_ns())


def _moment_text(name: str, value: Moment | None) -> str | None:
    """Return the value as typed on the command line. Raises UsageError for a time without a zone."""
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise UsageError(f"{name}: a time without a zone", hint="Give it one: datetime(…, tzinfo=timezone.utc).")
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return None if value is None else str(value)


def one_of(name: str, kind: type[E], value: str) -> E:
    """Return the member with this value. Raises UsageError if there is none."""
    if value not in list(kind):
        raise UsageError(f"{name}: {value!r} is not one of {', '.join(kind)}")
    return kind(value)


def within(name: str, number: int, most: int) -> int:
    """Return the number. Raises UsageError if it is out of range."""
    if not 1 <= number <= most:
        raise UsageError(f"{name}: {number} is not in the range 1 to {most}")
    return number
