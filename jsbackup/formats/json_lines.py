"""Messages as JSON, one object a line:

    {"stream":"ORDERS","sequence":1,"time":"2026-11-21T07:41:00.123456789Z","subject":"orders.eu",
     "headers":{"Nats-Msg-Id":["order-1"]},"data":"{\\"order\\": 1}"}

`headers` is null without any; if the same block could not be made from them, byte for byte, `headers_base64` has it
instead. A payload that is not UTF-8 is in `data_base64`, a subject in `subject_base64`. So a line has all of its
message. Lines to read may lack headers and stream, and have other members, but for a misspelt `headers` or a `Stream`
where these are not there.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Any, NamedTuple

from jsbackup.errors import FormatError, UsageError
from jsbackup.formats.digest import MessageBatch
from jsbackup.formats.header_block import lines
from jsbackup.model import JsonObject
from jsbackup.strict_json import read_json
from jsbackup.times import format_time, parse_time

__all__ = [
    "JsonLine",
    "decode_line",
    "encode_lines",
    "is_misspelt",
    "message_json",
    "parse_headers",
    "refuse_misspelt",
]

_VERSION = "NATS/1.0\r\n"
_INT64 = range(-(1 << 63), 1 << 63)
_HEADERS = "headers"
_OF_HEADERS = (_HEADERS, f"{_HEADERS}_base64")
# With one letter less, or two of them in the other order; in small letters.
_MISSPELT = {
    *(_HEADERS[:at] + _HEADERS[at + 1 :] for at in range(len(_HEADERS))),
    *(_HEADERS[:at] + _HEADERS[at + 1] + _HEADERS[at] + _HEADERS[at + 2 :] for at in range(len(_HEADERS) - 1)),
}


class JsonLine(NamedTuple):
    """A message and the stream named in its line."""

    stream: str | None
    sequence: int
    timestamp_ns: int
    subject: bytes
    headers: bytes | None
    data: bytes


def encode_lines(batch: MessageBatch, stream: str) -> bytes:
    """Return the messages of a batch, one per line."""
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    columns: Iterable[tuple[int, int, str | bytes, bytes | None, bytes]] = zip(
        *(column.to_pylist() for column in batch.columns), strict=True
    )
    lines = [encode({"stream": stream, **message_json(*row[:4], data=row[4])}) for row in columns]
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass") if lines else b""


def message_json(
    sequence: int, timestamp_ns: int, subject: str | bytes, headers: bytes | None, *, data: bytes
) -> JsonObject:
    """Return a message as in a line, without its stream."""
    line: JsonObject = {"sequence": sequence, "time": _time(timestamp_ns)}
    _put_text(line, "subject", subject)
    parsed = None if headers is None else parse_headers(headers)
    if headers is not None and parsed is None:
        line["headers_base64"] = b64encode(headers).decode()
    else:
        line["headers"] = parsed
    _put_text(line, "data", data)
    return line


def decode_line(line: bytes) -> JsonLine:
    """Decode the message in a line.

    Raises:
        FormatError: it is not JSON, or something in it cannot be written as JSON again.
        UsageError: something is missing or not valid, or a name is there twice.
    """
    members = _read(line)
    if not isinstance(members, dict):
        raise UsageError("not a JSON object")
    stream, sequence = members.get("stream"), members.get("sequence")
    if "stream" not in members and (other := next((name for name in members if name.lower() == "stream"), None)):
        raise UsageError(f"it has no stream, but {other!r}", hint="Call it stream, or take it out.")
    if stream is not None and not isinstance(stream, str):
        raise UsageError("stream is not text")
    if sequence is None:
        raise UsageError("there is no sequence")
    if type(sequence) is not int or sequence not in _INT64:
        raise UsageError("sequence is not a number of 64 bits")
    if members.get("time") is None:
        raise UsageError("there is no time")
    try:
        timestamp_ns = parse_time(members["time"], "time")
    except FormatError as error:
        raise UsageError(error.message) from error
    if members.keys().isdisjoint(_OF_HEADERS):
        refuse_misspelt("it", members)
    subject, data = _bytes(members, "subject"), _bytes(members, "data")
    if subject is None or data is None:
        raise UsageError(f"there is no {'subject' if subject is None else 'data'}")
    return JsonLine(stream, sequence, timestamp_ns, subject, _headers(members), data)


def _read(line: bytes) -> Any:
    """Return the value in a line. Raises FormatError, UsageError."""
    try:
        return read_json(line, "it", max_bytes=len(line), unique_names=True)
    except FormatError as error:
        read_json(line, "it", max_bytes=len(line))
        raise UsageError(error.message) from error  # all else is sound


def refuse_misspelt(what: str, names: Iterable[str]) -> None:
    """Raise UsageError if `what` has no headers, but a member or column of a misspelt name."""
    for name in names:
        if is_misspelt(name):
            raise UsageError(
                f"{what} has no headers, but {name[:80]!r}",
                hint="If those are the headers, call them headers; else rename them, or take them out.",
            )


def is_misspelt(name: str) -> bool:
    """Return whether headers may be meant by this name of a member or column, which is another one."""
    small = name.lower().removesuffix("_base64")
    return name not in _OF_HEADERS and ("header" in small or "hdr" in small or small in _MISSPELT)


def parse_headers(block: bytes) -> dict[str, list[str]] | None:
    """Return a block's values by name; None if the same block could not be made from them."""
    values: dict[str, list[str]] = {}
    try:
        for line in lines(block):
            value = line.line[len(line.name) + 1 :].removeprefix(b" ")
            values.setdefault(line.name.decode(), []).append(value.decode())
    except UnicodeDecodeError:
        return None
    return values if values and _block_of(values).encode() == block else None


def _block_of(headers: dict[str, list[str]]) -> str:
    lines = [f"{name}: {value}\r\n" for name, values in headers.items() for value in values]
    return f"{_VERSION}{''.join(lines)}\r\n"


def _headers(members: JsonObject) -> bytes | None:
    headers = members.get("headers")
    if not headers:
        return _base64(members, "headers")
    _refuse_both(members, "headers")
    if not isinstance(headers, dict) or not all(
        isinstance(values, list) and values and all(isinstance(value, str) for value in values)
        for values in headers.values()
    ):
        raise UsageError("headers are not lists of texts by name")
    block = _block_of(headers).encode()
    if parse_headers(block) != headers:
        raise UsageError("headers have line breaks, or names that no header has")
    return block


def _bytes(members: JsonObject, name: str) -> bytes | None:
    value = members.get(name)
    if value is None:
        return _base64(members, name)
    if not isinstance(value, str):
        raise UsageError(f"{name} is not text")
    _refuse_both(members, name)
    return value.encode()


def _refuse_both(members: JsonObject, name: str) -> None:
    """Raise UsageError if a line has a value twice: it cannot be known which of them was meant."""
    if members.get(f"{name}_base64") is not None:
        raise UsageError(f"it has both {name} and {name}_base64")


def _base64(members: JsonObject, name: str) -> bytes | None:
    value = members.get(f"{name}_base64")
    if value is None:
        return None
    try:
        return b64decode(value, validate=True)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name}_base64 is not base64") from error


def _put_text(line: JsonObject, name: str, value: str | bytes) -> None:
    if isinstance(value, str):
        line[name] = value
        return
    try:
        line[name] = value.decode()
    except UnicodeDecodeError:
        line[f"{name}_base64"] = b64encode(value).decode()


def _time(timestamp_ns: int) -> str:
    # The server's format has no time for 0; here it is an actual time.
    return format_time(timestamp_ns) if timestamp_ns else "1970-01-01T00:00:00Z"
