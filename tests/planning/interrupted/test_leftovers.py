"""A stream that an interrupted restore left is removed only if it has nothing that the backup lacks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jsbackup.model import StreamState
from jsbackup.planning.interrupted import grown_leftovers, has_message_at
from jsbackup.planning.model import Target
from jsbackup.repository.manifest import ArchiveFormat, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import store_stream
from tests.harness.batches import some_messages
from tests.planning.test_plan import NEW, existing

MESSAGES = some_messages(40, 100)
FIRST, LAST = MESSAGES[0], MESSAGES[-1]


@pytest.fixture
def objects() -> Objects:
    return Objects(MemoryStore())


@pytest.fixture
def entry(objects: Objects) -> StreamBackup:
    return store_stream(objects, "S", MESSAGES)


@pytest.mark.parametrize(
    ("state", "grown"),
    [
        (StreamState(messages=7, last_seq=MESSAGES[6].sequence, last_ns=MESSAGES[6].timestamp_ns), False),
        (StreamState(messages=40, last_seq=LAST.sequence, last_ns=LAST.timestamp_ns), False),
        (StreamState(messages=41, last_seq=LAST.sequence + 1, last_ns=LAST.timestamp_ns), True),
        (StreamState(messages=41, last_seq=LAST.sequence, last_ns=LAST.timestamp_ns + 1), True),
        (StreamState(last_seq=LAST.sequence + 9), False),  # purged: it has nothing
        (StreamState(consumers=3), True),  # the backup has two
    ],
)
def test_a_leftover_has_grown_if_it_has_more_than_the_backup(
    entry: StreamBackup, state: StreamState, grown: bool
) -> None:
    there = replace(existing("S"), state=state)
    target = Target(NEW, False, {"S": there}, leftovers=frozenset({"S"}))
    assert grown_leftovers({"S": entry}, target) == ({"S"} if grown else set())
    assert grown_leftovers({"S": entry}, replace(target, leftovers=frozenset())) == set()


def test_the_last_message_is_looked_up_by_its_time(objects: Objects, entry: StreamBackup) -> None:
    def found(**state: int) -> bool:
        return has_message_at(objects, entry, StreamState(messages=1, **state))

    assert found(last_seq=LAST.sequence, last_ns=LAST.timestamp_ns)
    assert found(last_seq=MESSAGES[20].sequence, last_ns=MESSAGES[20].timestamp_ns)
    assert not found(last_seq=MESSAGES[20].sequence, last_ns=MESSAGES[20].timestamp_ns + 1)
    assert not found(last_seq=LAST.sequence + 1, last_ns=LAST.timestamp_ns + 10**9)
    assert has_message_at(objects, entry, StreamState())  # there is none to lose


def test_a_stream_that_is_stored_undecoded_goes_by_its_numbers(objects: Objects, entry: StreamBackup) -> None:
    opaque = replace(
        entry,
        archive_format=ArchiveFormat.OPAQUE,
        segments=(),
        captured=replace(entry.captured, messages=0, first_seq=0, last_seq=0),
        state=StreamState(messages=9, first_seq=1, last_seq=9, last_ns=900),
    )
    assert has_message_at(objects, opaque, StreamState(messages=3, last_seq=3, last_ns=300))
    assert not has_message_at(objects, opaque, StreamState(messages=3, last_seq=3, last_ns=901))
    assert not has_message_at(objects, opaque, StreamState(messages=3, last_seq=10, last_ns=300))
