"""What removes a message by its own headers, as servers decide it."""

from __future__ import annotations

import pytest

from jsbackup.model import JsonObject
from jsbackup.transforms.removal import NEVER, Cause, removal_of, ttl_of, ttl_seconds

SECOND = 1_000_000_000


def block(*lines: bytes) -> bytes:
    return b"NATS/1.0\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", 0),
        ("never", NEVER),
        ("Never", NEVER),
        ("4", 4),
        ("4s", 4),
        ("4.9s", 4),
        ("1m0s", 60),
        ("1h30m", 5400),
        ("4000ms", 4),
        ("500ms", None),
        ("-1", None),
        ("+4", None),
        ("soon", None),
    ],
)
def test_a_time_to_live_is_read_as_the_server_reads_it(text: str, seconds: int | None) -> None:
    """As nats-server 2.11.11, 2.12.8 and 2.15.1 do."""
    assert ttl_seconds(text) == seconds
    assert ttl_of(block(b"A: b", b"Nats-TTL: " + text.encode())) == (seconds or 0)


def test_a_header_is_found_by_its_exact_name() -> None:
    assert ttl_of(block(b"nats-ttl: 4s")) == ttl_of(block(b"X-Nats-TTL: 4s")) == ttl_of(block(b"X: Nats-TTL: 4s")) == 0
    assert ttl_of(block(b"Nats-TTL:  4s ", b"Nats-TTL: 9s")) == 4


@pytest.mark.parametrize(
    ("headers", "config", "removal"),
    [
        ((), {}, None),
        ((), {"max_age": 5 * SECOND}, (15, Cause.EXPIRED)),
        ((b"Nats-TTL: 2s",), {"max_age": 5 * SECOND}, (15, Cause.EXPIRED)),
        ((b"Nats-TTL: 2s",), {"max_age": 5 * SECOND, "allow_msg_ttl": True}, (12, Cause.EXPIRED)),
        ((b"Nats-TTL: 9s",), {"max_age": 5 * SECOND, "allow_msg_ttl": True}, (15, Cause.EXPIRED)),
        ((b"Nats-TTL: never",), {"max_age": 5 * SECOND, "allow_msg_ttl": True}, None),
        ((b"Nats-TTL: never",), {"max_age": 5 * SECOND}, (15, Cause.EXPIRED)),
        ((b"nats-ttl: 2s",), {"allow_msg_ttl": True}, None),
        ((b"Nats-Schedule: @at 1970-01-01T00:00:30Z",), {}, None),
        ((b"Nats-Schedule: @at 1970-01-01T00:00:30Z",), {"allow_msg_schedules": True}, (30, Cause.FIRED)),
        ((b"Nats-Schedule: @at soon",), {"allow_msg_schedules": True}, None),
        ((b"Nats-Schedule: @every 5m",), {"allow_msg_schedules": True}, None),
    ],
)
def test_a_message_is_removed_by_its_headers_and_the_settings_of_its_stream(
    headers: tuple[bytes, ...], config: JsonObject, removal: tuple[int, Cause] | None
) -> None:
    """Of a message that was stored at 10 s."""
    wanted = removal and (removal[0] * SECOND, removal[1])
    assert removal_of(10 * SECOND, block(*headers), config) == wanted
