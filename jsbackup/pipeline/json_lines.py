"""Messages as JSON, one object a line:

    {"stream":"ORDERS","sequence":1,"time":"2026-11-21T07:41:00.123456789Z","subject":"orders.eu",
     "headers":{"Nats-Msg-Id":["order-1"]},"data":"{\\"order\\": 1}"}

`headers` is null without any; where the block is none of NATS, `headers_base64` has it instead. A payload that is not
UTF-8 is `data_base64`, a subject `subject_base64`. Nothing is lost, so a line says all of its message.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable

from jsbackup.formats.digest import MessageBatch
from jsbackup.times import format_time

__all__ = ["encode_lines", "parse_headers"]

_VERSION = "NATS/1.0\r\n"


def encode_lines(batch: MessageBatch, stream: str) -> bytes:
    """The messages of a batch, a line each."""
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    columns: Iterable[tuple[int, int, str | bytes, bytes | None, bytes]] = zip(
        *(column.to_pylist() for column in batch.columns), strict=True
    )
    lines = []
    for sequence, timestamp_ns, subject, headers, data in columns:
        line: dict[str, object] = {"stream": stream, "sequence": sequence, "time": _time(timestamp_ns)}
        _put_text(line, "subject", subject)
        parsed = None if headers is None else parse_headers(headers)
        if headers is not None and parsed is None:
            line["headers_base64"] = b64encode(headers).decode()
        else:
            line["headers"] = parsed
        _put_text(line, "data", data)
        lines.append(encode(line))
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass") if lines else b""


def parse_headers(block: bytes) -> dict[str, list[str]] | None:
    """A block's values by name; None if it would not come back from them byte for byte."""
    try:
        text = block.decode()
    except UnicodeDecodeError:
        return None
    if not text.startswith(_VERSION) or not text.endswith("\r\n\r\n"):
        return None
    found: dict[str, list[str]] = {}
    for line in text[len(_VERSION) : -4].split("\r\n"):
        name, colon, value = line.partition(":")
        if not colon or not name:
            return None
        found.setdefault(name, []).append(value.removeprefix(" "))
    return found


def _put_text(line: dict[str, object], name: str, value: str | bytes) -> None:
    if isinstance(value, str):
        line[name] = value
        return
    try:
        line[name] = value.decode()
    except UnicodeDecodeError:
        line[f"{name}_base64"] = b64encode(value).decode()


def _time(timestamp_ns: int) -> str:
    # 0 is no moment for the server's format; here it is the one that is stored.
    return format_time(timestamp_ns) if timestamp_ns else "1970-01-01T00:00:00Z"
