"""Ways in which a stored object can be damaged, and backups of several kinds of objects to try them on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from jsbackup.formats.archive.archive import archive_batches
from jsbackup.formats.archive.archive_v1_writer import ArchiveV1Writer
from jsbackup.model import ConsumerState, Fidelity, JsonObject, PendingAck, SequencePair, StreamState
from jsbackup.repository.manifest import (
    ArchiveFormat,
    BackupResult,
    Captured,
    ConsumerBackup,
    Manifest,
    SegmentRef,
    Source,
    StreamBackup,
    total_of,
)
from jsbackup.repository.objects import sha256_of
from jsbackup.repository.read.segments import prove_stream, state_to_restore
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.segment_writer import SegmentWriter
from jsbackup.repository.write.stream_objects import INLINE_ENTRIES, OpaqueWriter, store_consumer
from jsbackup.stores.base import Store
from tests.harness.backups import CREATED, FIRST, INCARNATION, make_manifest
from tests.harness.batches import Message, batch_of, some_messages


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]


# What is left of an object, by name; `None` if nothing.
DAMAGES: Mapping[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda data: None,
    "empty": lambda data: b"",
    "truncated": lambda data: data[:-2],  # more than the newline that ends a document
    "longer": lambda data: data + b"\0",
    "flipped": flip,
    "zeroed": lambda data: bytes(len(data)),
    "foreign": lambda data: b'{"foreign":true}\n'.ljust(len(data))[: len(data)],
}


def put_instead(store: Store, key: str, data: bytes | None) -> None:
    store.delete(key)
    if data is not None:
        store.put(key, data)


def swap(store: Store, one: str, other: str) -> None:
    """Each object under the key of the other."""
    first, second = store.get(one), store.get(other)
    put_instead(store, one, second)
    put_instead(store, other, first)


def store_undecodable(repository: Repository, backup: str = FIRST) -> tuple[Manifest, SegmentRef]:
    """A backup, and a segment of it whose object is the one that was stored, but has other messages."""
    manifest = make_manifest(repository, backup)
    stream, *others = manifest.streams
    ref, other, *rest = stream.segments
    data = repository.store.get(other.key)
    put_instead(repository.store, ref.key, data)
    ref = replace(ref, size=len(data), sha256=sha256_of(data))
    manifest = replace(manifest, streams=(replace(stream, segments=(ref, other, *rest)), *others))
    repository.commit(manifest)
    return manifest, ref


# --- a backup that a server takes ---

SEGMENT_BYTES = 50_000
MESSAGES = some_messages(2000, 100)
PENDING = INLINE_ENTRIES + 1
FLOOR = SequencePair(10, 10)


def pending_state() -> ConsumerState:
    """Ten messages acknowledged, many pending, each delivered once."""
    sequences = [message.sequence for message in MESSAGES if message.sequence > FLOOR.stream]
    assert len(MESSAGES) <= PENDING
    pending = {sequence: PendingAck(FLOOR.consumer + n, 10**18) for n, sequence in enumerate(sequences, 1)}
    # Redelivered ones count too for where a set is kept.
    redelivered = dict.fromkeys(sequences[:20], 2)
    last = SequencePair(FLOOR.consumer + len(sequences), sequences[-1])
    return ConsumerState(last, FLOOR, pending, redelivered)


def _config(name: str, retention: str = "limits") -> JsonObject:
    subjects = {"ORDERS": "orders.>"}.get(name, f"{name.lower()}.>")
    return {"name": name, "subjects": [subjects], "retention": retention, "storage": "file", "num_replicas": 1}


def _consumers(repository: Repository, folder: str, *names: str) -> tuple[ConsumerBackup, ...]:
    found = []
    states = {"idle": ConsumerState(), "busy": pending_state()}
    for name in names:
        state = states[name]
        config: JsonObject = {"durable_name": name, "name": name, "ack_policy": "explicit", "max_ack_pending": 10_000}
        backup = ConsumerBackup(name, config, CREATED, Fidelity.EXACT, state)
        found.append(store_consumer(repository.objects, folder, backup))
    return tuple(found)


def store_messages(repository: Repository, name: str, messages: list[Message] = MESSAGES) -> StreamBackup:
    """A stream of several segments, with two consumers: one has a pending set of its own."""
    folder = repository.objects.sealing.folder(name, INCARNATION)
    writer = SegmentWriter(repository.objects, folder, segment_bytes=SEGMENT_BYTES)
    writer.add(batch_of(messages))
    segments = tuple(writer.finish())
    total = total_of(segments)
    return StreamBackup(
        name=name,
        incarnation=INCARNATION,
        config=_config(name, "workqueue" if name == "QUEUE" else "limits"),
        created=CREATED,
        state=StreamState(messages=total.messages, first_seq=total.first_seq, last_seq=total.last_seq),
        captured=Captured.of(total, CREATED, CREATED),
        archive_format=ArchiveFormat.V1,
        digest=total.digest,
        segments=segments,
        consumers=_consumers(repository, folder, *(["busy"] if name == "QUEUE" else ["idle", "busy"])),
    )


def store_as_it_came(repository: Repository, name: str) -> StreamBackup:
    """A stream that is kept verbatim, in several pieces: an archive v1 of the first 300 messages."""
    like = store_messages(repository, name, MESSAGES[:300])
    archive = ArchiveV1Writer(like.config, CREATED, state_to_restore(like))
    writer = OpaqueWriter(repository.objects, repository.objects.sealing.folder(name, INCARNATION), piece_bytes=9000)
    for piece in archive_batches(prove_stream(repository.objects, like), archive, lambda moved, messages: None):
        writer.feed(piece)
    return StreamBackup(
        name=name,
        incarnation=INCARNATION,
        config=like.config,
        created=CREATED,
        state=like.state,
        captured=Captured(0, like.captured.bytes, 0, 0, CREATED, CREATED),
        archive_format=ArchiveFormat.OPAQUE,
        opaque=tuple(writer.finish()),
    )


def store_restorable(repository: Repository, backup: str) -> Manifest:
    """Commits a backup of ORDERS, OTHER and QUEUE, a work queue, and of VERBATIM and KEPT, kept as they came."""
    streams = (
        store_as_it_came(repository, "KEPT"),
        store_messages(repository, "ORDERS"),
        store_messages(repository, "OTHER", MESSAGES[:500]),
        store_messages(repository, "QUEUE", [message for message in MESSAGES if message.sequence > FLOOR.stream]),
        store_as_it_came(repository, "VERBATIM"),
    )
    manifest = Manifest(backup, CREATED, "jsbackup tests", Source("2.10.26"), BackupResult.COMPLETE, streams)
    repository.commit(manifest)
    return manifest
