"""Small committed backups for tests of the repository."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from jsbackup.model import ConsumerState, Fidelity, PendingAck, SequencePair, StreamState
from jsbackup.repository.manifest import (
    ArchiveFormat,
    BackupResult,
    Captured,
    ConsumerBackup,
    Manifest,
    Source,
    StreamBackup,
    total_of,
)
from jsbackup.repository.objects import Objects
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.segment_writer import SegmentWriter
from jsbackup.repository.write.stream_objects import INLINE_ENTRIES, OpaqueWriter, store_consumer
from jsbackup.stores.base import Store
from tests.harness.batches import Message, batch_of, some_messages

CREATED = "2026-11-21T01:45:00Z"
INCARNATION = "1a2b3c4d"
SEGMENT_BYTES = 2000
FIRST = "20261121T014500Z-000001"
SECOND = "20261121T014600Z-000002"


def make_repository(store: Store, repository_id: str = "00ff") -> Repository:
    return Repository.create(store, repository_id=repository_id, created=CREATED, tool="jsbackup tests")


@cache
def large_state() -> ConsumerState:
    count = INLINE_ENTRIES + 1
    pending = {sequence: PendingAck(sequence + 7, 10**18 + sequence) for sequence in range(1, count + 1)}
    return ConsumerState(SequencePair(count + 7, count), SequencePair(), pending, {5: 2})


def store_stream(objects: Objects, name: str, messages: Sequence[Message], incarnation: str = "") -> StreamBackup:
    """A stream with two consumers, one of them with a large pending set."""
    incarnation = incarnation or INCARNATION
    folder = objects.sealing.folder(name, incarnation)
    writer = SegmentWriter(objects, folder, segment_bytes=SEGMENT_BYTES)
    writer.add(batch_of(messages))
    segments = writer.finish()
    total = total_of(segments)
    consumers = [
        ConsumerBackup("small", {"durable_name": "small"}, CREATED, Fidelity.EXACT, ConsumerState()),
        ConsumerBackup("large", {"durable_name": "large"}, CREATED, Fidelity.EXACT, large_state()),
    ]
    return StreamBackup(
        name=name,
        incarnation=incarnation,
        config={"name": name},
        created=CREATED,
        state=StreamState(messages=total.messages, first_seq=total.first_seq, last_seq=total.last_seq),
        captured=Captured.of(total, CREATED, CREATED),
        archive_format=ArchiveFormat.V2,
        digest=total.digest,
        segments=tuple(segments),
        consumers=tuple(store_consumer(objects, folder, consumer) for consumer in consumers),
    )


def store_opaque(store: Store, name: str, data: bytes) -> StreamBackup:
    """A stream kept verbatim, in pieces of 1000 bytes."""
    return _store_opaque(Objects(store), name, data)


def _store_opaque(objects: Objects, name: str, data: bytes) -> StreamBackup:
    writer = OpaqueWriter(objects, objects.sealing.folder(name, INCARNATION), piece_bytes=1000)
    writer.feed(data)
    return StreamBackup(
        name=name,
        incarnation=INCARNATION,
        config={"name": name},
        created=CREATED,
        state=StreamState(),
        captured=Captured(0, len(data), 0, 0, CREATED, CREATED),
        archive_format=ArchiveFormat.OPAQUE,
        opaque=tuple(writer.finish()),
    )


def store_backup(repository: Repository, backup: str = FIRST, *, count: int = 40) -> Manifest:
    """Two streams, one of them opaque, and the manifest."""
    manifest = make_manifest(repository, backup, count=count)
    repository.commit(manifest)
    return manifest


def make_manifest(repository: Repository, backup: str = FIRST, *, count: int = 40) -> Manifest:
    """The manifest of such a backup, whose objects are stored."""
    streams = (
        store_stream(repository.objects, "orders", some_messages(count, 100)),
        _store_opaque(repository.objects, "verbatim", bytes(range(256)) * 10),
    )
    return Manifest(backup, CREATED, "jsbackup tests", Source("2.15.1"), BackupResult.COMPLETE, streams)
