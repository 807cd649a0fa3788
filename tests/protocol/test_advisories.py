"""Advisories are hints: one line each, and nothing at all where they make no sense."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.protocol.advisories import Advisory, AdvisoryKind, advisory_subjects, decode_advisory

STATE = {"messages": 5, "bytes": 500, "first_seq": 1, "last_seq": 5, "consumer_count": 0}


def advisory(kind: str, **fields: Any) -> bytes:
    document = {
        "type": f"io.nats.jetstream.advisory.v1.{kind}",
        "id": "Kq3v",
        "timestamp": "2026-11-21T07:41:01Z",
        "stream": "ORDERS",
        "start": "2026-11-21T07:41:00Z",
        "end": "2026-11-21T07:41:01.25Z",
        "client": {"user": "bob"},
        **fields,
    }
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("payload", "line"),
    [
        (advisory("snapshot_create", state=STATE), "server: snapshot of ORDERS began, 5 messages, 500 bytes"),
        (advisory("snapshot_complete"), "server: snapshot of ORDERS ended after 1.250 s"),
        (
            advisory("snapshot_complete", error="no flow response"),
            "server: snapshot of ORDERS ended after 1.250 s, error: no flow response",
        ),
        (advisory("restore_create"), "server: restore of ORDERS began"),
        (advisory("restore_complete", bytes=700), "server: restore of ORDERS ended after 1.250 s, 700 bytes taken"),
    ],
)
def test_each_kind_is_told_in_one_line(payload: bytes, line: str) -> None:
    found = decode_advisory(payload)
    assert found is not None and found.line == line


def test_what_an_advisory_says_is_typed() -> None:
    assert decode_advisory(advisory("restore_complete", bytes=700)) == Advisory(
        AdvisoryKind.RESTORE_COMPLETE,
        "ORDERS",
        bytes=700,
        start_ns=1795246860000000000,
        end_ns=1795246861250000000,
    )


def test_the_line_shows_no_user_and_no_control_character() -> None:
    found = decode_advisory(advisory("snapshot_complete", stream="A\x1b[2J", error="a\nb\x07"))
    assert found is not None and found.line.isprintable() and "bob" not in found.line


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}",
        b"[]",
        b'{"type":"io.nats.jetstream.advisory.v1.stream_action"}',
        b'{"type":"snapshot_create","stream":"ORDERS"}',
        advisory("snapshot_create"),
        advisory("snapshot_complete", start="yesterday"),
        advisory("restore_complete"),
        advisory("restore_complete", bytes="many"),
        advisory("restore_create", stream="a.b"),
        advisory("restore_create", stream=None),
        advisory("restore_create", client="x" * 100_000),
    ],
    ids=lambda payload: repr(payload[:60]),
)
def test_anything_else_is_nothing(payload: bytes) -> None:
    assert decode_advisory(payload) is None


@given(st.one_of(st.binary(), st.builds(lambda junk: advisory("snapshot_complete", error=junk, start=junk), st.text())))
def test_no_payload_raises(payload: bytes) -> None:
    found = decode_advisory(payload)
    assert found is None or found.line


def test_the_subjects_of_all_streams() -> None:
    assert advisory_subjects() == (
        "$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_CREATE.*",
        "$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_COMPLETE.*",
        "$JS.EVENT.ADVISORY.STREAM.RESTORE_CREATE.*",
        "$JS.EVENT.ADVISORY.STREAM.RESTORE_COMPLETE.*",
    )
