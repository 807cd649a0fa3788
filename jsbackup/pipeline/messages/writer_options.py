"""The options by which a DataFrame is written to a stream of a server, and the columns that it may have.

    server, context       the server: URLs, separated by commas, or a context of the nats CLI. One of them is needed
    stream                the stream, which exists
    ids                   `own` (the default): messages keep their ids, of the column `message_id` or of their headers;
                          `new`: all get new ones
    resume                the id of a write that has failed, to go on with it; a streaming query goes on by itself
    creds, nkey, user, password, password-file, token, token-file, tlscert, tlskey, tlsca, tlsfirst, js-domain,
    js-api-prefix, inbox-prefix, timeout: as on the command line. `password` and `token` are no secrets but name
                          a file (`file:///PATH`) or a variable (`env://NAME`)

Case does not matter, nor do `-` and `_`. Where no option says so, the variables of the nats CLI (`NATS_CREDS` …) do.
Options may be visible to others, so a secret among them is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jsbackup.config import (
    ConnectionReference,
    connection_options,
    connection_reference,
    environment,
    nearest,
    parse_bool,
)
from jsbackup.errors import UsageError
from jsbackup.names import check_name
from jsbackup.pipeline.messages.source_options import option_of

__all__ = ["WRITER_NAMES", "WriterOptions", "check_rows", "read_writer_options"]

_LOGIN = ("creds", "nkey", "user", "password", "password-file", "token", "token-file")
_SERVER = ("server", "context", *_LOGIN, "tlscert", "tlskey", "tlsca", "tlsfirst", "timeout")
_JETSTREAM = ("js-domain", "js-api-prefix", "inbox-prefix")
_OWN = ("stream", "ids", "resume")
WRITER_NAMES = (*_OWN, *_SERVER, *_JETSTREAM)
# What Spark passes on with the options of a streaming query.
_OF_A_QUERY = ("checkpointlocation", "queryname")

_A_BACKUP = (
    "a backup is not written by df.write, which cannot say what it made. Call jsbackup.pipeline.jobs.write.write_backup"
)
_NO_QUERY = "a streaming query does not write a backup"
_TO_A_SERVER = "To publish rows to a stream, give the options 'server' and 'stream', and call {} without a path."

_NAME_THEM = (
    "Give the options 'server' and 'stream'. With CREATE TABLE … USING jsbackup, Spark passes no options: "
    "call df.write.format('jsbackup')."
)

_TYPES = {
    "subject": ("string",),
    "data": ("binary", "string"),
    "headers": ("binary",),
    "message_id": ("string",),
}
_NEEDED = ("subject", "data")
# Columns of the reader that say where a message was: the server decides that of a new one.
_IGNORED = ("stream", "sequence", "timestamp_ns", "time", "backup")


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """The options of a writer, without secrets."""

    server: ConnectionReference
    stream: str
    new_ids: bool = False
    resume: str = ""


def read_writer_options(options: Mapping[str, str], *, streaming: bool = False) -> WriterOptions:
    """Return what the options say. `streaming`: those of a streaming query.

    Raises UsageError for what is unknown, missing or wrong, and for secrets.
    """
    found: dict[str, str] = {}
    for given, value in options.items():
        if given.lower() in ("path", "repo"):
            hint = _TO_A_SERVER.format("start()" if streaming else "save()")
            raise UsageError(_NO_QUERY if streaming else _A_BACKUP, hint=hint)
        if streaming and given.lower() in _OF_A_QUERY:
            continue
        found[option_of(given, WRITER_NAMES, " for writing")] = value
    if streaming and "resume" in found:
        raise UsageError(
            "the option 'resume' is one of df.write", hint="A streaming query goes on from its checkpointLocation."
        )
    stream = found.get("stream", "").strip()
    if not found:
        raise UsageError("the server and the stream are not named", hint=_NAME_THEM)
    if not stream:
        raise UsageError("the option 'stream' is missing", hint="It names the stream that rows are published to.")
    if not (found.get("server") or found.get("context")):
        raise UsageError("the server is not named", hint="Give the option 'server' or 'context'.")
    ids = found.get("ids", "own")
    if ids not in ("own", "new"):
        raise UsageError(f"the option 'ids' is neither own nor new: {ids[:40]!r}")
    given_server: dict[str, Any] = {
        name.replace("-", "_"): value for name, value in found.items() if name not in _OWN and value
    }
    if "tlsfirst" in given_server:
        try:
            given_server["tlsfirst"] = parse_bool(given_server["tlsfirst"])
        except UsageError as error:
            raise UsageError(f"the option 'tlsfirst' is {error.message}", hint=error.hint) from error
    server = connection_reference(connection_options(given_server), environment())
    return WriterOptions(server, check_name("stream", stream), ids == "new", found.get("resume", ""))


def check_rows(types: Mapping[str, str]) -> None:
    """Check the columns of a DataFrame, a type for each. Raises UsageError for those that a message cannot have."""
    for name, kind in types.items():
        if name in _IGNORED:
            continue
        if name not in _TYPES:
            raise UsageError(
                f"a message has no column {name[:80]!r}",
                hint=nearest(name, _TYPES)
                or f"Columns are {', '.join(_TYPES)}; {', '.join(_IGNORED)} are ignored. Drop the others.",
            )
        if kind not in _TYPES[name]:
            raise UsageError(f"the column {name} has the type {kind[:80]}, not {' or '.join(_TYPES[name])}")
    for name in _NEEDED:
        if name not in types:
            raise UsageError(f"the column {name} is missing", hint=f"Columns are {', '.join(_TYPES)}.")
