"""Several segments of a stream are compressed at once, and what is stored is the same."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError
from jsbackup.formats.compression import ZSTD, Compression
from jsbackup.formats.digest import MessageBatch
from jsbackup.formats.segment import SegmentEncoder
from jsbackup.repository import layout
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.objects import SEGMENT_BYTES, Objects
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.write import segment_writer
from jsbackup.repository.write.segment_writer import SegmentWriter, compressing_threads
from jsbackup.stores.base import Store
from jsbackup.stores.memory import MemoryStore
from tests.harness.api import PATIENCE_SECONDS
from tests.harness.batches import Message, batch_of, cut_anywhere, message_lists, messages_of, some_messages
from tests.harness.servers import wait_until
from tests.harness.stores import HeldUp

FOLDER = layout.stream_folder("orders", "1a2b3c4d")
MANY = some_messages(200, 100)


@pytest.fixture
def four_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "usable_cores", lambda: 6)


def write(store: Store, messages: list[Message], size: int, seed: int | None = None) -> list[SegmentRef]:
    writer = SegmentWriter(Objects(store), FOLDER, segment_bytes=size)
    try:
        batch = batch_of(messages)
        for piece in [batch] if seed is None else cut_anywhere(batch, random.Random(seed)):
            writer.add(piece)
        return writer.finish()
    finally:
        writer.settle()


@pytest.mark.parametrize(
    ("compression", "segment_bytes", "cores", "threads"),
    [
        (ZSTD, SEGMENT_BYTES, 3, 1),
        (ZSTD, SEGMENT_BYTES, 64, 2),
        (ZSTD, 4096, 64, 4),
        (ZSTD, 256 << 20, 64, 1),
        (Compression(0), SEGMENT_BYTES, 64, 1),
        (Compression(19), SEGMENT_BYTES, 2, 2),
    ],
)
def test_threads_are_as_many_as_cores_and_memory_allow(
    compression: Compression, segment_bytes: int, cores: int, threads: int
) -> None:
    assert compressing_threads(compression, segment_bytes, cores) == threads


@pytest.mark.usefixtures("four_threads")
@settings(max_examples=20, deadline=None)
@given(message_lists(max_size=60), st.integers(0, 1 << 32), st.integers(1, 400))
def test_what_is_stored_does_not_depend_on_the_threads(messages: list[Message], seed: int, size: int) -> None:
    one, several = MemoryStore(), MemoryStore()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(segment_writer, "usable_cores", lambda: 1)
        refs = write(one, messages, size)
    assert write(several, messages, size, seed) == refs
    assert {info.key: several.get(info.key) for info in several.list()} == {
        info.key: one.get(info.key) for info in one.list()
    }
    reader = SegmentReader(Objects(several))
    assert [message for ref in refs for message in messages_of(reader.prove(ref))] == messages


def at_once(monkeypatch: pytest.MonkeyPatch, wanted: int) -> Callable[[], int]:
    """Return how many segments were compressed at once, at most. Each waits a moment for others."""
    busy, most, changed = 0, 0, threading.Condition()
    write_batch = SegmentEncoder.write

    def together(self: SegmentEncoder, batch: MessageBatch) -> None:
        nonlocal busy, most
        with changed:
            busy += 1
            most = max(most, busy)
            changed.notify_all()
            changed.wait_for(lambda: most >= wanted, 0.1)
        write_batch(self, batch)
        with changed:
            busy -= 1

    monkeypatch.setattr(SegmentEncoder, "write", together)
    return lambda: most


@pytest.mark.usefixtures("four_threads")
def test_a_stream_that_is_alone_is_compressed_by_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    most = at_once(monkeypatch, 4)
    write(MemoryStore(), MANY, 1000)
    assert most() == 4


@pytest.mark.usefixtures("four_threads")
def test_beside_another_stream_it_is_compressed_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    most = at_once(monkeypatch, 1)
    objects = Objects(MemoryStore())
    writer = SegmentWriter(objects, FOLDER, segment_bytes=1000)
    with objects.room.share() as other:
        other.hold(1)
        writer.add(batch_of(MANY))
        writer.finish()
    assert most() == 1


@pytest.mark.usefixtures("four_threads")
def test_a_segment_that_cannot_be_encoded_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    write_batch = SegmentEncoder.write
    calls = iter(range(1000))

    def fail_once(self: SegmentEncoder, batch: MessageBatch) -> None:
        if next(calls) == 5:
            raise FormatError("injected")
        write_batch(self, batch)

    monkeypatch.setattr(SegmentEncoder, "write", fail_once)
    store = MemoryStore()
    with pytest.raises(FormatError, match="injected"):
        write(store, MANY, 1000)
    before = sorted(info.key for info in store.list())
    assert len(before) <= 5  # nothing after it


@pytest.mark.usefixtures("four_threads")
def test_while_the_store_hangs_as_many_segments_are_held_as_there_are_threads() -> None:
    store = HeldUp()
    writer = SegmentWriter(Objects(store), FOLDER, segment_bytes=1000)
    added = list[int]()

    def add() -> None:
        for message in MANY:
            writer.add(batch_of([message]))
            added.append(message.sequence)

    adding = threading.Thread(target=add)
    adding.start()
    assert store.putting.wait(PATIENCE_SECONDS)
    wait_until(lambda: len(added) > 30, "thirty messages")
    adding.join(1)
    # Some seven messages are a segment: four are compressed, four more have to wait for that, four more have not begun.
    assert adding.is_alive() and len(added) < 120
    store.gate.set()
    adding.join(PATIENCE_SECONDS)
    refs = writer.finish()
    assert [message for ref in refs for message in messages_of(SegmentReader(Objects(store)).prove(ref))] == MANY
