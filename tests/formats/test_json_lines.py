"""JSON lines and back: every message byte for byte, however files are cut, and a sentence for what is none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError, JsBackupError, UsageError
from jsbackup.formats.json_lines import JsonLine, decode_line, encode_lines, parse_headers
from tests.harness.batches import Message, batch_of, message_lists

_HEADER_LINES = st.lists(
    st.sampled_from([b"A: 1", b"B: 2", b"A:3", b"a: 1", b"A:  x ", b"A:", b"A: ", b": y", b"no colon", b"X: \xff"]),
    max_size=5,
)
_BLOCKS = st.builds(
    lambda lines, end: b"NATS/1.0\r\n" + b"".join(line + b"\r\n" for line in lines) + end,
    _HEADER_LINES,
    st.sampled_from([b"\r\n", b"", b"\r\n\r\n"]),
)


def _line_of(stream: str, message: Message) -> JsonLine:
    subject = message.subject.encode() if isinstance(message.subject, str) else message.subject
    return JsonLine(stream, message.sequence, message.timestamp_ns, subject, message.headers, message.data)


@settings(deadline=None, max_examples=200)
@given(message_lists(binary=True), st.lists(st.none() | _BLOCKS, min_size=40, max_size=40))
def test_a_message_comes_back_byte_for_byte(messages: list[Message], blocks: list[bytes | None]) -> None:
    some = [m._replace(headers=block) if block else m for m, block in zip(messages, blocks, strict=False)]
    lines = encode_lines(batch_of(some), "S").splitlines()
    assert [decode_line(line) for line in lines] == [_line_of("S", message) for message in some]


def test_headers_that_would_come_back_otherwise_are_kept_as_they_are() -> None:
    assert parse_headers(b"NATS/1.0\r\nA: 1\r\nB: 2\r\nA: 3\r\n\r\n") is None  # they would change places
    assert parse_headers(b"NATS/1.0\r\nA:1\r\n\r\n") is None
    assert parse_headers(b"NATS/1.0\r\nA: 1\r\nA: 3\r\nB: 2\r\n\r\n") == {"A": ["1", "3"], "B": ["2"]}


GOOD: dict[str, Any] = {"sequence": 7, "time": "2026-11-21T07:41:00.5Z", "subject": "a", "data": "x"}


@pytest.mark.parametrize("name", ["header", "Headers", "haeders", "eaders", "hdrs", "message_headers", "HEADER_base64"])
def test_what_may_be_meant_as_headers_is_not_left_out(name: str) -> None:
    line = {key: value for key, value in GOOD.items() if key != "headers"} | {name: {"A": ["1"]}}
    with pytest.raises(UsageError, match=f"it has no headers, but '{name}'"):
        decode_line(json.dumps(line).encode())
    assert decode_line(json.dumps(line | {"headers": {"A": ["2"]}}).encode()).headers == b"NATS/1.0\r\nA: 2\r\n\r\n"


@pytest.mark.parametrize("name", ["head", "ahead", "head_count", "heads", "reads"])
def test_other_members_are(name: str) -> None:
    line = {key: value for key, value in GOOD.items() if key != "headers"} | {name: 5}
    assert decode_line(json.dumps(line).encode()).headers is None


def test_headers_and_stream_may_be_missing_and_more_may_be_there() -> None:
    found = decode_line(json.dumps({**GOOD, "headers": {}, "more": [1, {"a": None}]}).encode())
    assert found == JsonLine(None, 7, 1795246860500000000, b"a", None, b"x")


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        ({"sequence": None}, UsageError, "there is no sequence"),
        ({"sequence": "7"}, UsageError, "sequence is not a number"),
        ({"sequence": True}, UsageError, "sequence is not a number"),
        ({"sequence": 1 << 63}, UsageError, "sequence is not a number"),
        ({"time": None}, UsageError, "there is no time"),
        ({"time": 5}, UsageError, "time: not in RFC 3339"),
        ({"subject": None}, UsageError, "there is no subject"),
        ({"subject": 5}, UsageError, "subject is not text"),
        ({"subject": "\ud800"}, FormatError, "half a surrogate pair"),
        ({"more": "\ud800"}, FormatError, "half a surrogate pair"),
        ({"more": float("nan")}, FormatError, "NaN is not a number of JSON"),
        ({"more": float("-inf")}, FormatError, "-Infinity is not a number of JSON"),
        ({"data": None}, UsageError, "there is no data"),
        ({"data": None, "data_base64": "!"}, UsageError, "data_base64 is not base64"),
        ({"data": None, "data_base64": [1]}, UsageError, "data_base64 is not base64"),
        ({"data": "x", "data_base64": "eA=="}, UsageError, "it has both data and data_base64"),
        ({"subject": "x", "subject_base64": "eQ=="}, UsageError, "it has both subject and subject_base64"),
        ({"headers": {"A": ["1"]}, "headers_base64": "eQ=="}, UsageError, "it has both headers and headers_base64"),
        ({"headers": {"a": "b"}}, UsageError, "headers are not lists"),
        ({"headers": {"a": []}}, UsageError, "headers are not lists"),
        ({"headers": {"a": ["b\r\nc: d"]}}, UsageError, "headers have line breaks"),
        ({"headers": {"a:": ["b"]}}, UsageError, "names that no header has"),
        ({"stream": 5}, UsageError, "stream is not text"),
    ],
)
def test_what_is_no_message_is_said(change: dict[str, Any], kind: type[JsBackupError], said: str) -> None:
    with pytest.raises(kind, match=said):
        decode_line(json.dumps(GOOD | change).encode())


@pytest.mark.parametrize("line", [b"", b"{", b"\xff", b"[" * 100_000, b'{"sequence": ' + b"9" * 5000 + b"}"])
def test_what_is_no_json_is_said(line: bytes) -> None:
    with pytest.raises(FormatError, match="not JSON"):
        decode_line(line)
    with pytest.raises(UsageError, match="not a JSON object"):
        decode_line(b"[]")


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('{"data": "a", "data": "b"}', "data"),
        ('{"data": "a", "d\\u0061ta": "a"}', "data"),
        ('{"headers": {"A": ["1"], "A": ["2"]}}', "A"),
        ('{"stream": null, "stream": "S"}', "stream"),
    ],
)
def test_a_name_that_is_there_twice_is_said(line: str, name: str) -> None:
    """As with one value in two members: it cannot be known which was meant."""
    text = json.dumps({key: value for key, value in GOOD.items() if f'"{key}"' not in line})
    with pytest.raises(UsageError, match=f'^it has the name "{name}" twice in one object$'):
        decode_line((text[:-1] + ", " + line[1:]).encode())
    with pytest.raises(FormatError, match="not JSON"):  # which counts more
        decode_line((text[:-1] + ", " + line[1:-1]).encode())
