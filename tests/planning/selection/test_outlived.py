"""Messages that have outlived their own time to live are counted as the server counts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from jsbackup.planning.model import Outlived
from jsbackup.planning.selection.outlived import find_outlived
from jsbackup.repository.manifest import StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.stores.memory import MemoryStore
from jsbackup.transforms.cut import AtSequence, Cut
from jsbackup.transforms.message_ttl import NEVER, ttl_of, ttl_seconds
from tests.harness.backups import store_stream
from tests.harness.batches import Message

SECOND = 1_000_000_000


def block(*lines: bytes) -> bytes:
    return b"NATS/1.0\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def stored(objects: Objects, headers: Sequence[bytes | None]) -> StreamBackup:
    """A message each second from 1 s on."""
    messages = [Message(number, number * SECOND, "s", one, b"x" * 50) for number, one in enumerate(headers, start=1)]
    return store_stream(objects, "S", messages)


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


def test_times_to_live_count_from_the_time_of_the_message() -> None:
    objects = Objects(MemoryStore())
    entry = stored(objects, [block(b"Nats-TTL: 10s")] * 5 + [None] * 5 + [block(b"Nats-TTL: never")] * 5)
    for now, count in ((10, 0), (11, 1), (13, 3), (15, 5), (999, 5)):
        found = find_outlived(objects, entry, Cut(), max_age_ns=0, now_ns=now * SECOND)
        assert found == Outlived(count, count, 15)
    cut = Cut(since=AtSequence(3), until=AtSequence(8))
    assert find_outlived(objects, entry, cut, max_age_ns=0, now_ns=99 * SECOND) == Outlived(3, 3, 6)


def test_what_never_expires_does_not_by_max_age_either() -> None:
    objects = Objects(MemoryStore())
    entry = stored(objects, [block(b"Nats-TTL: never"), None, block(b"Nats-TTL: 1s"), block(b"Nats-TTL: 1h"), None])
    found = find_outlived(objects, entry, Cut(), max_age_ns=4 * SECOND, now_ns=9 * SECOND)
    assert found == Outlived(1, 3, 5)


def test_markers_of_deleted_keys_are_no_loss() -> None:
    objects = Objects(MemoryStore())
    markers = [block(b"KV-Operation: DEL", b"Nats-TTL: 1s"), block(b"Nats-Marker-Reason: MaxAge", b"Nats-TTL: 1s")]
    entry = stored(objects, [*markers, block(b"KV-Operation: PURGE", b"Nats-TTL: 1s"), block(b"Nats-TTL: 1s")])
    assert find_outlived(objects, entry, Cut(), max_age_ns=0, now_ns=99 * SECOND) == Outlived(1, 1, 4)


def test_of_a_long_stream_the_first_messages_are_looked_at() -> None:
    objects = Objects(MemoryStore())
    entry = stored(objects, [block(b"Nats-TTL: 1s")] * 100)
    first = entry.segments[0]
    assert len(entry.segments) > 2
    found = find_outlived(objects, entry, Cut(), max_age_ns=0, now_ns=999 * SECOND, most_bytes=1)
    assert found == Outlived(first.messages, first.messages, first.messages)
    empty = replace(entry, segments=())
    assert find_outlived(objects, empty, Cut(), max_age_ns=0, now_ns=999 * SECOND) == Outlived()
