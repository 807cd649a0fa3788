"""The size of a repository's segments: recorded in its descriptor, and kept by all who write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from jsbackup.errors import FormatError
from jsbackup.formats.compression import Compression
from jsbackup.formats.segment import SegmentEncoder
from jsbackup.repository import layout
from jsbackup.repository.descriptor import Descriptor, decode_descriptor, encode_descriptor
from jsbackup.repository.document import encode_document
from jsbackup.repository.objects import MAX_OBJECT_BYTES, MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES, SEGMENT_BYTES, Objects
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.repository import Repository
from jsbackup.repository.write import segment_writer
from jsbackup.repository.write.late_repository import make_late, make_now
from jsbackup.repository.write.segment_writer import SegmentWriter
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import CREATED, INCARNATION
from tests.harness.batches import batch_of, messages_of, some_messages

FOLDER = layout.stream_folder("orders", INCARNATION)
SIZE = 4096


def _make(store: MemoryStore, size: int = SIZE) -> Repository:
    return Repository.create(store, repository_id="00ff", created=CREATED, tool="t", segment_bytes=size)


def test_the_size_is_kept() -> None:
    usual = Descriptor("00ff", CREATED, "t")
    assert decode_descriptor(encode_descriptor(usual)).segment_bytes == SEGMENT_BYTES
    for size in (MIN_SEGMENT_BYTES, 8192, MAX_SEGMENT_BYTES):
        own = replace(usual, segment_bytes=size)
        document = json.loads(encode_descriptor(own))
        assert document["segment_bytes"] == size and document["required_features"] == []
        assert decode_descriptor(encode_descriptor(own)) == own


@pytest.mark.parametrize("size", [0, -1, MIN_SEGMENT_BYTES - 1, MAX_SEGMENT_BYTES + 1, "8192", 8192.5, True])
def test_a_descriptor_with_an_impossible_size_is_refused(size: object) -> None:
    document = {"format": 1, "required_features": [], "id": "00ff", "created": CREATED, "tool": "t"}
    with pytest.raises(FormatError, match="segment_bytes is not an integer from 4096 to 268435456"):
        decode_descriptor(
            encode_document(document | {"compression": "zstd", "segment_bytes": size}, "repository descriptor")
        )


def test_another_compression_is_kept() -> None:
    usual = Descriptor("00ff", CREATED, "t")
    for text in ("none", "zstd:3", "zstd:22"):
        own = replace(usual, compression=Compression.parse(text))
        document = json.loads(encode_descriptor(own))
        assert document["compression"] == text and document["required_features"] == []
        assert decode_descriptor(encode_descriptor(own)) == own
    with pytest.raises(FormatError, match="compression is not none, zstd, or zstd with a level"):
        decode_descriptor(encode_document(document | {"compression": "lz4"}, "repository descriptor"))


def test_writers_cut_by_the_size_of_their_repository() -> None:
    store = MemoryStore()
    _make(store)
    messages = some_messages(300, 100)
    writer = SegmentWriter(Repository.open(store).objects, FOLDER)
    writer.add(batch_of(messages))
    refs = writer.finish()
    assert len(refs) > 5
    assert all(SIZE - 500 < ref.bytes <= SIZE for ref in refs[:-1])
    reader = SegmentReader(Repository.open(store).objects)
    assert [m for ref in refs for batch in reader.prove(ref) for m in messages_of([batch])] == messages


def test_a_replica_has_the_size_of_its_source() -> None:
    source = _make(MemoryStore())
    target = MemoryStore()
    Repository.create_replica(target, source, probe_id="7a", created=CREATED, tool="t")
    assert Repository.open(target).descriptor.segment_bytes == SIZE
    assert Repository.open(target).objects.segment_bytes == SIZE


@pytest.mark.parametrize("how", [make_now, lambda late: late.documents.put(layout.mark_key("00"), b"")])
def test_who_finds_a_repository_made_meanwhile_cuts_by_its_size(how: Callable[[Repository], None]) -> None:
    store = MemoryStore()

    def make() -> Repository:
        _make(store)
        return _make(store, SEGMENT_BYTES)  # somebody was faster

    late = make_late(store, Descriptor("0a", CREATED, "t"), make, clock=lambda: 0.0)
    assert late.objects.segment_bytes == SEGMENT_BYTES
    how(late)
    assert late.objects.segment_bytes == SIZE
    assert late.descriptor.segment_bytes == SIZE


def test_the_largest_segments_leave_room_for_what_format_and_encryption_add() -> None:
    objects = Objects(MemoryStore(), segment_bytes=MAX_SEGMENT_BYTES)
    assert MAX_SEGMENT_BYTES - (8 << 20) < objects.segment_bytes < MAX_OBJECT_BYTES


def test_an_object_that_could_not_be_read_back_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "MAX_OBJECT_BYTES", 1000)
    store = MemoryStore()
    writer = SegmentWriter(Objects(store), FOLDER)
    writer.add(batch_of(some_messages(300, 100)))
    with pytest.raises(FormatError, match="more than the 1000 of an object"):
        writer.finish()
    writer.close()
    assert not list(store.list())


@pytest.mark.slow
def test_a_full_row_group_adds_less_than_the_room_left_for_it() -> None:
    """The room is for 128 row groups; one with one long message and a long subject is the worst."""
    (message,) = some_messages(1, 10)
    worst = message._replace(subject="s" * 4000, data=bytes(range(256)) * 16000)
    encoder = SegmentEncoder()
    batches = [batch_of([worst._replace(sequence=number)]) for number in range(1, 5)]
    for batch in batches:
        encoder.write(batch)
    content = memoryview(encoder.finish()).cast("B")
    footer = int.from_bytes(content[-8:-4], "little")
    assert 128 * footer / len(batches) < MAX_SEGMENT_BYTES - Objects(MemoryStore(), segment_bytes=1 << 28).segment_bytes
