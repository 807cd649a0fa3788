"""Messages that have outlived their own time to live are counted as the server counts them."""

from __future__ import annotations

from collections.abc import Sequence

from jsbackup.planning.model import Outlived
from jsbackup.planning.stored_facts import find_outlived
from jsbackup.repository.manifest import StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.stores.memory import MemoryStore
from jsbackup.transforms.cut import AtSequence, Cut
from tests.harness.backups import store_stream
from tests.harness.batches import Message

SECOND = 1_000_000_000


TTL = {"allow_msg_ttl": True}


def block(*lines: bytes) -> bytes:
    return b"NATS/1.0\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def stored(objects: Objects, headers: Sequence[bytes | None]) -> StreamBackup:
    """A message each second from 1 s on."""
    messages = [Message(number, number * SECOND, "s", one, b"x" * 50) for number, one in enumerate(headers, start=1)]
    return store_stream(objects, "S", messages)


def test_times_to_live_count_from_the_time_of_the_message() -> None:
    objects = Objects(MemoryStore())
    entry = stored(objects, [block(b"Nats-TTL: 10s")] * 5 + [None] * 5 + [block(b"Nats-TTL: never")] * 5)
    for now, count in ((10, 0), (11, 1), (13, 3), (15, 5), (999, 5)):
        found = find_outlived(objects, entry, Cut(), TTL, now_ns=now * SECOND)
        assert found == Outlived(count, count, 15)
    cut = Cut(since=AtSequence(3), until=AtSequence(8))
    assert find_outlived(objects, entry, cut, TTL, now_ns=99 * SECOND) == Outlived(3, 3, 6)


def test_what_never_expires_does_not_by_max_age_either() -> None:
    objects = Objects(MemoryStore())
    entry = stored(objects, [block(b"Nats-TTL: never"), None, block(b"Nats-TTL: 1s"), block(b"Nats-TTL: 1h"), None])
    found = find_outlived(objects, entry, Cut(), {**TTL, "max_age": 4 * SECOND}, now_ns=9 * SECOND)
    assert found == Outlived(1, 4, 5)  # the last one just now


def test_markers_of_deleted_keys_are_no_loss() -> None:
    objects = Objects(MemoryStore())
    markers = [block(b"KV-Operation: DEL", b"Nats-TTL: 1s"), block(b"Nats-Marker-Reason: MaxAge", b"Nats-TTL: 1s")]
    entry = stored(objects, [*markers, block(b"KV-Operation: PURGE", b"Nats-TTL: 1s"), block(b"Nats-TTL: 1s")])
    assert find_outlived(objects, entry, Cut(), TTL, now_ns=99 * SECOND) == Outlived(1, 1, 4)


def test_schedules_that_are_due_are_counted_apart() -> None:
    objects = Objects(MemoryStore())
    at = [block(b"Nats-Schedule: @at 1970-01-01T00:00:%02dZ" % second) for second in (20, 30, 40)]
    entry = stored(objects, [*at, block(b"Nats-Schedule: @every 5m"), None])
    config = {"allow_msg_schedules": True}
    assert find_outlived(objects, entry, Cut(), config, now_ns=30 * SECOND) == Outlived(looked=5, due=2)
    assert find_outlived(objects, entry, Cut(), {}, now_ns=30 * SECOND) == Outlived(looked=5)
