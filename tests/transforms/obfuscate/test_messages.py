"""Batches and configurations: nothing clear comes out, and sizes, relations and values of counters stay."""

from __future__ import annotations

import hashlib
import json
from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.errors import FormatError
from jsbackup.formats.header_block import fields
from jsbackup.transforms.obfuscate.messages import (
    Obfuscation,
    obfuscate_headers,
    obfuscate_object_info,
)
from jsbackup.transforms.obfuscate.names import ObfuscatedNames, encoded_name
from jsbackup.transforms.object_meta import digest_of
from jsbackup.transforms.reshape import Reshape
from tests.transforms.messages import Message, batch_of, messages_of

SECRET = bytes(range(32))


@pytest.fixture
def names() -> ObfuscatedNames:
    return ObfuscatedNames(SECRET)


def _apply(messages: list[Message], **config: object) -> list[Message]:
    reshape = Reshape(obfuscation=Obfuscation(ObfuscatedNames(SECRET))).of_stream({"name": "S", **config}, [])
    return messages_of(reshape.apply([batch_of(messages)], stream="S"))


@given(
    subjects=st.lists(st.sampled_from(["clear.a", "clear.b", "$KV.clear.k", "clear.\udcff"]), min_size=1, max_size=30),
    data=st.data(),
)
def test_payloads_keep_their_sizes_and_nothing_else(subjects: list[str], data: st.DataObject) -> None:
    payloads = [data.draw(st.binary(max_size=40)) for _ in subjects]
    blocks = [data.draw(st.sampled_from([None, b"NATS/1.0\r\nX: clear\r\n\r\n"])) for _ in subjects]
    before = [
        Message(n + 1, n * 10, s, h, p) for n, (s, h, p) in enumerate(zip(subjects, blocks, payloads, strict=True))
    ]
    after = _apply(before)
    found = ObfuscatedNames(SECRET)
    assert [(one.sequence, one.timestamp_ns) for one in after] == [(one.sequence, one.timestamp_ns) for one in before]
    assert [one.data for one in after] == [b"0" * len(payload) for payload in payloads]
    assert [one.subject for one in after] == [found.subject(subject) for subject in subjects]
    assert [one.headers is None for one in after] == [block is None for block in blocks]
    assert not any(b"clear" in (one.headers or b"") for one in after)


def test_counters_keep_their_values_and_only_those() -> None:
    incremented = b"NATS/1.0\r\nNats-Incr: +5\r\n\r\n"
    rows = [(incremented, b'{"val":"15"}'), (incremented, b"clear"), (None, b'{"val":"15"}')]
    messages = [Message(n, n, "s", headers, data) for n, (headers, data) in enumerate(rows, 1)]
    assert [one.data for one in _apply(messages)] == [b'{"val":"15"}', b"00000", b"0" * 12]
    assert [one.data for one in _apply(messages, allow_msg_counter=True)] == [
        b'{"val":"15"}',
        b"00000",
        b'{"val":"15"}',
    ]


def test_headers_that_servers_act_on_stay_and_names_in_others_follow(names: ObfuscatedNames) -> None:
    lines = [
        b"X-Who: clear text",
        b"KV-Operation: DEL",
        b"Nats-TTL: 1h",
        b"Nats-Rollup: sub",
        b"Nats-Schedule: @every 5m",
        b"Nats-Schedule-Target: a.b",
        b"Nats-Stream-Source: ORIGIN:hash 17 a.*\fb x.{{wildcard(1)}}\f> a.1 12345678",
        b'Nats-Counter-Sources: {"ORIGIN":{"a.b":"7"}}',
        b"X-Who: second",
    ]
    block = b"NATS/1.0 503 clear\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"
    changed = obfuscate_headers(block, names)
    values: dict[bytes, list[str]] = {}
    for name, start, stop in fields(changed):
        values.setdefault(name, []).append(changed[start:stop].decode())
    token = names.token
    assert list(values) == sorted(values)
    assert values == {
        b"X-Who": [token("clear text"), token("second")],
        b"KV-Operation": ["DEL"],
        b"Nats-TTL": ["1h"],
        b"Nats-Rollup": ["sub"],
        b"Nats-Schedule": ["@every 5m"],
        b"Nats-Schedule-Target": [f"{token('a')}.{token('b')}"],
        b"Nats-Stream-Source": [
            f"{token('ORIGIN')}:{token('hash')} 17 {token('a')}.*\f{token('b')} {token('x')}.{{{{wildcard(1)}}}}\f> "
            f"{token('a')}.{token('1')} 12345678"
        ],
        b"Nats-Counter-Sources": [json.dumps({token("ORIGIN"): {f"{token('a')}.{token('b')}": "7"}}).replace(" ", "")],
    }


@given(block=st.binary(max_size=60) | st.binary(max_size=60).map(lambda rest: b"NATS/1.0\r\nclear: clear" + rest))
def test_what_is_no_header_block_goes(block: bytes) -> None:
    changed = obfuscate_headers(block, ObfuscatedNames(SECRET))
    list(fields(changed))
    assert b": clear" not in changed


def test_a_header_that_stays_cannot_carry_a_text(names: ObfuscatedNames) -> None:
    for value in ("a" * 81, "tücke", '{"x":1}'):
        changed = obfuscate_headers(f"NATS/1.0\r\nNats-Rollup: {value}\r\n\r\n".encode(), names)
        assert value.encode() not in changed
    kept = (
        "KV-Operation Nats-Marker-Reason Nats-TTL Nats-Rollup Nats-Incr Nats-Expected-Last-Subject-Sequence "
        "Nats-Schedule Nats-Schedule-TTL Nats-Schedule-Time-Zone Nats-Schedule-Rollup Nats-Schedule-Next"
    )
    texts = (
        "joe",
        "patient 4711",
        "DEL joe",
        "1h joe",
        "@every joe",
        "@at joe",
        "clinic/joe",
        "4711-joe",
        "1" * 300 + "x",
    )
    for name in kept.split():
        for value in texts:
            assert value.encode() not in obfuscate_headers(f"NATS/1.0\r\n{name}: {value}\r\n\r\n".encode(), names), name
    for value in ("ORIGIN", "ORIGIN x", "a b c d e f g", "ORIGIN 1 a b c clear-text"):
        assert b"clear-text" not in obfuscate_headers(
            f"NATS/1.0\r\nNats-Stream-Source: {value}\r\n\r\n".encode(), names
        )


@pytest.mark.parametrize(
    "line",
    [
        *(f"KV-Operation: {word}" for word in ("PUT", "DEL", "PURGE")),
        *(f"Nats-Marker-Reason: {word}" for word in ("MaxAge", "Purge", "Remove")),
        *(f"{name}: {text}" for name in ("Nats-TTL", "Nats-Schedule-TTL") for text in ("never", "60", "1h30m", "1.5h")),
        *(f"{name}: sub" for name in ("Nats-Rollup", "Nats-Schedule-Rollup")),
        "Nats-Rollup: all",
        "Nats-Incr: -12345678901234567890",
        "Nats-Expected-Last-Subject-Sequence: 17",
        "Nats-Schedule: @at 2036-01-01T00:00:00.5+02:00",
        "Nats-Schedule: @every 1h30m",
        "Nats-Schedule: @hourly",
        "Nats-Schedule: 0 */5 8-18 ? JAN-mar MON,FRI",
        *(f"Nats-Schedule-Time-Zone: {zone}" for zone in ("Europe/Zurich", "America/Argentina/Buenos_Aires", "UTC")),
        "Nats-Schedule-Next: 2036-01-01T00:00:00Z",
        "Nats-Schedule-Next: purge",
    ],
)
def test_what_servers_act_on_stays(names: ObfuscatedNames, line: str) -> None:
    block = f"NATS/1.0\r\n{line}\r\n\r\n".encode()
    assert obfuscate_headers(block, names) == block


def test_what_cannot_be_the_name_of_a_field_is_hashed(names: ObfuscatedNames) -> None:
    changed = obfuscate_headers(b"NATS/1.0\r\nX-Who: a\r\nDear Mr Clear: b\r\nclear@example.com: c\r\n\r\n", names)
    found = {name.decode() for name, _, _ in fields(changed)}
    assert found == {"X-Who", names.token("Dear Mr Clear"), names.token("clear@example.com")}


def test_a_description_of_a_file_has_the_digest_of_its_zeros(names: ObfuscatedNames) -> None:
    info = {
        "name": "clear.pdf",
        "description": "clear",
        "headers": {"X": ["clear"]},
        "metadata": {"clear": "clear"},
        "options": {"link": {"bucket": "clear", "name": "clear.pdf"}, "max_chunk_size": 131072},
        "bucket": "clear",
        "nuid": "clearnuid",
        "size": 40_000_000,
        "mtime": "2026-01-01T00:00:00Z",
        "chunks": 306,
        "digest": "SHA-256=clear",
        "more": "clear",
    }
    meta = f"$O.clear.M.{encoded_name('clear.pdf')}"
    (after,) = _apply([Message(1, 1, meta, None, json.dumps(info).encode())])
    digest = urlsafe_b64encode(hashlib.sha256(b"0" * 40_000_000).digest()).decode()
    assert json.loads(after.data) == {
        "name": names.token("clear.pdf"),
        "options": {
            "link": {"bucket": names.token("clear"), "name": names.token("clear.pdf")},
            "max_chunk_size": 131072,
        },
        "bucket": names.token("clear"),
        "nuid": names.token("clearnuid"),
        "size": 40_000_000,
        "mtime": "2026-01-01T00:00:00Z",
        "chunks": 306,
        "digest": f"SHA-256={digest}",
    }
    assert after.subject == names.subject(meta)
    assert digest_of(b"0", 0) == urlsafe_b64encode(hashlib.sha256().digest()).decode()
    (other,) = _apply([Message(1, 1, meta, None, b"clear")])
    assert other.data == b"00000"
    assert obfuscate_object_info(b'{"name": 1, "bucket": "clear"}', names) is None


CONFIG = {
    "name": "CLEAR",
    "description": "clear",
    "subjects": ["clear.>", "$KV.clear.*"],
    "retention": "limits",
    "max_msgs": 7,
    "placement": {"cluster": "clear", "tags": ["clear"]},
    "metadata": {"clear": "clear"},
    "mirror": None,
    "sources": [
        {
            "name": "KV_clear",
            "filter_subject": "clear.a",
            "opt_start_time": "2026-01-01T00:00:00Z",
            "external": {"api": "$JS.clear.API", "deliver": "clear.in"},
            "subject_transforms": [{"src": "clear.*", "dest": "clear.$1"}],
            "clear": "clear",
        }
    ],
    "subject_transform": {"src": "clear.*", "dest": "clear.{{wildcard(1)}}"},
    "republish": {"src": "clear.>", "dest": "clear.again.>", "headers_only": True},
    "consumer_limits": {"max_ack_pending": 5},
    "future_field": {"clear": "clear"},
    "future_number": 3,
}


def test_a_configuration_keeps_what_names_nothing(names: ObfuscatedNames) -> None:
    changed = Obfuscation(names).stream_config(CONFIG)
    assert "clear" not in json.dumps(changed).lower()
    assert changed["name"] == names.token("CLEAR") and changed["max_msgs"] == 7 and changed["future_number"] == 3
    assert changed["consumer_limits"] == {"max_ack_pending": 5} and changed["republish"]["headers_only"] is True
    assert changed["sources"][0]["name"] == f"KV_{names.token('clear')}"
    assert changed["sources"][0]["subject_transforms"][0]["dest"] == f"{names.token('clear')}.$1"
    consumer = Obfuscation(names).consumer_config(
        {"durable_name": "clear", "filter_subjects": ["clear.a"], "deliver_subject": "clear", "description": "clear"}
        | {
            "deliver_group": "clear",
            "priority_groups": ["clear"],
            "ack_policy": "explicit",
            "backoff": [1],
            "x": "clear",
        }
    )
    assert "clear" not in json.dumps(consumer)
    assert (consumer["ack_policy"], consumer["backoff"]) == ("explicit", [1])


@pytest.mark.parametrize("field", ["subjects", "mirror", "sources", "republish", "name"])
def test_a_damaged_configuration_is_refused(names: ObfuscatedNames, field: str) -> None:
    with pytest.raises(FormatError, match=f"{field} is damaged"):
        Obfuscation(names).stream_config({"name": "S", field: 7})
