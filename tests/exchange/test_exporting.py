"""Exported folders hold what the backup holds, in the words of the nats CLI, and are imported again without a loss."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jsbackup.errors import IntegrityError, StoreError, UnsupportedError
from jsbackup.exchange.config_files import ExportedStream
from jsbackup.exchange.exporting import export_account, export_configs, export_stream
from jsbackup.exchange.folder import NewFolder
from jsbackup.formats.archive.archive import ArchiveDecoder
from jsbackup.model import ConsumerState, Fidelity, PendingAck, SequencePair, StreamState
from jsbackup.progress import NullProgress
from jsbackup.repository import layout
from jsbackup.repository.manifest import ArchiveFormat, Captured, ConsumerBackup, StreamBackup, total_of
from jsbackup.repository.objects import Objects
from jsbackup.repository.write.segment_writer import SegmentWriter
from jsbackup.repository.write.stream_objects import INLINE_ENTRIES, load_consumer, store_consumer
from jsbackup.stores.base import Store
from jsbackup.stores.memory import MemoryStore
from jsbackup.times import ZERO_TIME
from tests.exchange.folders import V1, V2, golden_folder, imported, stored_messages, stream_folder, take_in, tree
from tests.formats.archives import Content, as_stored, read
from tests.harness.backups import CREATED, INCARNATION, make_repository, store_opaque
from tests.harness.batches import Message, batch_of, message_lists, some_messages
from tests.harness.natscli import jsm_validate
from tests.harness.servers import MINORS
from tests.harness.stores import Fault, FaultStore

MESSAGES = some_messages(300, 200, first=7)
FILE = {ArchiveFormat.V1: V1, ArchiveFormat.V2: V2}
BOTH = pytest.mark.parametrize("archive", list(FILE))


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def stored(
    store: Store,
    messages: Sequence[Message],
    *,
    name: str = "ORDERS",
    consumers: Sequence[ConsumerBackup] = (),
    last_seq: int | None = None,
    first_seq: int = 0,
    **config: Any,
) -> StreamBackup:
    """A stream in a store, in segments of 10 kB."""
    folder = layout.stream_folder(name, INCARNATION)
    writer = SegmentWriter(Objects(store), folder, segment_bytes=10_000)
    writer.add(batch_of(messages))
    segments = writer.finish()
    total = total_of(segments)
    return StreamBackup(
        name=name,
        incarnation=INCARNATION,
        config={"name": name, "storage": "file", **config},
        created=CREATED,
        state=StreamState(
            messages=total.messages,
            first_seq=total.first_seq or first_seq,
            last_seq=total.last_seq if last_seq is None else last_seq,
            last_ns=10**18,
        ),
        captured=Captured.of(total, CREATED, CREATED),
        archive_format=ArchiveFormat.V2,
        digest=total.digest,
        segments=tuple(segments),
        consumers=tuple(store_consumer(Objects(store), folder, consumer) for consumer in consumers),
    )


def export(path: Path, store: Store, stream: StreamBackup, archive: ArchiveFormat | None = None) -> ExportedStream:
    with NewFolder(path, "token", 0o700) as new:
        exported = export_stream(new, "", Objects(store), stream, archive=archive, progress=NullProgress())
        new.commit()
    return exported


def decoded(file: Path) -> Content:
    return read(ArchiveDecoder(), [file.read_bytes()])


def described(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((path / "backup.json").read_text())
    return value


@BOTH
def test_a_streams_folder_is_one_of_the_nats_cli(tmp_path: Path, store: MemoryStore, archive: ArchiveFormat) -> None:
    state = ConsumerState(SequencePair(9, 20), SequencePair(3, 8), {15: PendingAck(4, 10**18)}, {15: 2})
    consumers = [ConsumerBackup("c", {"durable_name": "c", "name": "c"}, CREATED, Fidelity.EXACT, state)]
    metadata = {"_nats.ver": "2.15.1", "own": "x"}
    stream = stored(store, MESSAGES, consumers=consumers, last_seq=5000, metadata=metadata, new_in_2_99=[1])
    exported = export(tmp_path / "out", store, stream, archive)
    assert (exported.name, exported.archive, exported.messages, exported.incomplete) == ("ORDERS", archive, 300, False)
    assert set(tree(tmp_path / "out")) == {FILE[archive], "backup.json"}
    assert described(tmp_path / "out") == {
        "config": {"name": "ORDERS", "storage": "file", "metadata": {"own": "x"}, "new_in_2_99": [1]},
        "state": {
            "messages": 300,
            "bytes": stream.captured.bytes,
            "first_seq": MESSAGES[0].sequence,
            "first_ts": "0001-01-01T00:00:00Z",
            "last_seq": 5000,
            "last_ts": "2001-09-09T01:46:40Z",
            "consumer_count": 1,
            "num_deleted": 5000 - MESSAGES[0].sequence + 1 - 300,
        },
    }
    content = decoded(tmp_path / "out" / FILE[archive])
    assert content.messages == as_stored(MESSAGES)
    assert content.end.last_seq == 5000
    (consumer,) = content.consumers
    assert (consumer.name, consumer.state) == ("c", state)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=message_lists(), tail=st.integers(0, 5), archive=st.sampled_from(list(FILE)))
def test_an_export_is_imported_without_a_loss(
    tmp_path_factory: pytest.TempPathFactory, messages: list[Message], tail: int, archive: ArchiveFormat
) -> None:
    path = tmp_path_factory.mktemp("folder") / "out"
    store = MemoryStore()
    last = (messages[-1].sequence if messages else 0) + tail
    stream = stored(store, messages, last_seq=last, first_seq=last + 1 if last and not messages else 0)
    export(path, store, stream, archive)
    again = imported(take_in(path, make_repository(MemoryStore())))["ORDERS"]
    assert (again.digest, again.captured.messages) == (stream.digest, len(messages))
    assert (again.state.first_seq, again.state.last_seq) == (stream.state.first_seq, last)
    assert again.warnings == ()


@pytest.mark.natscli
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    streams=st.lists(
        st.tuples(message_lists(), st.integers(0, 5), st.sampled_from(["file", "memory"])), min_size=1, max_size=6
    ),
)
def test_nats_backup_validate_is_content_with_any_export_as_v2(
    tmp_path_factory: pytest.TempPathFactory, streams: list[tuple[list[Message], int, str]]
) -> None:
    path, store = tmp_path_factory.mktemp("folders"), MemoryStore()
    held: dict[str, list[Message]] = {}
    for number, (messages, tail, storage) in enumerate(streams):
        last = (messages[-1].sequence if messages else 0) + tail
        first = last + 1 if last and not messages else 0
        stream = stored(store, messages, name=f"S{number}", last_seq=last, first_seq=first, storage=storage)
        export(path / stream.name, store, stream, ArchiveFormat.V2)
        held[stream.name] = messages
    found = jsm_validate(path / name for name in held)
    assert {name: (one["error"], one["messages"]) for name, one in found.items()} == {
        name: ("", len(messages)) for name, messages in held.items()
    }


@pytest.mark.parametrize("version", MINORS)
@BOTH
def test_a_real_servers_stream_goes_through_both_formats(tmp_path: Path, version: str, archive: ArchiveFormat) -> None:
    golden_folder(tmp_path / "in", version)
    repository = make_repository(MemoryStore())
    stream = imported(take_in(tmp_path / "in", repository))["GOLDEN"]
    export(tmp_path / "out", repository.store, stream, archive)
    other = make_repository(MemoryStore())
    again = imported(take_in(tmp_path / "out", other))["GOLDEN"]
    assert stored_messages(other.store, again) == stored_messages(repository.store, stream)
    assert again.digest == stream.digest
    assert {c.name: c.config for c in again.consumers}.keys() == {c.name for c in stream.consumers}
    assert again.warnings == ()


def test_an_empty_stream_keeps_the_sequence_it_goes_on_with(tmp_path: Path, store: MemoryStore) -> None:
    for number, (first, last) in enumerate([(0, 0), (1000, 999), (43, 42)]):
        stream = stored(store, [], first_seq=first, last_seq=last)
        for archive in FILE:
            path = tmp_path / f"{number}-{archive}"
            export(path, store, stream, archive)
            state = described(path)["state"]
            assert (state["messages"], state["first_seq"], state["last_seq"]) == (0, first, last)


def test_an_account_has_a_folder_for_each_stream(tmp_path: Path, store: MemoryStore) -> None:
    streams = [stored(store, MESSAGES, name="A"), stored(store, MESSAGES[:1], name="größe", storage="memory")]
    with NewFolder(tmp_path / "out", "token", 0o700) as new:
        exported = export_account(new, Objects(store), streams, None, progress=NullProgress())
        new.commit()
    assert [(one.name, one.archive) for one in exported] == [("A", "v1"), ("größe", "v2")]
    assert set(tree(tmp_path / "out")) == {f"A/{V1}", "A/backup.json", f"größe/{V2}", "größe/backup.json"}
    assert (new.files, new.bytes) == (4, sum(map(len, tree(tmp_path / "out").values())))
    report = take_in(tmp_path / "out", make_repository(MemoryStore()))
    assert list(imported(report)) == ["A", "größe"]


def test_a_large_pending_set_comes_along(tmp_path: Path, store: MemoryStore) -> None:
    messages = some_messages(INLINE_ENTRIES + 1, 1)
    pending = {m.sequence: PendingAck(n + 1, 10**18) for n, m in enumerate(messages)}
    state = ConsumerState(SequencePair(len(messages), messages[-1].sequence), SequencePair(), pending, {})
    stream = stored(store, messages, consumers=[ConsumerBackup("c", {"name": "c"}, CREATED, Fidelity.EXACT, state)])
    assert stream.consumers[0].pending is not None
    export(tmp_path / "out", store, stream)
    repository = make_repository(MemoryStore())
    (consumer,) = imported(take_in(tmp_path / "out", repository))["ORDERS"].consumers
    assert load_consumer(repository.objects, consumer).state == state


# --- what a format cannot hold ---


@pytest.mark.parametrize(
    ("created", "archive", "noted"), [(CREATED, "v1", 0), (CREATED, "v2", 1), (ZERO_TIME, "v1", 1)]
)
def test_a_stream_that_would_copy_again_is_noted(
    tmp_path: Path, store: MemoryStore, created: str, archive: str, noted: int
) -> None:
    stream = replace(stored(store, MESSAGES, sources=[{"name": "ORIGIN"}]), created=created)
    notes = export(tmp_path / "out", store, stream, ArchiveFormat(archive)).notes
    assert sum("copies from other streams" in note for note in notes) == noted


def test_a_memory_stream_is_v2_and_never_v1(tmp_path: Path, store: MemoryStore) -> None:
    stream = stored(store, MESSAGES, storage="memory")
    exported = export(tmp_path / "out", store, stream)
    assert exported.archive == "v2"
    assert any("kept in memory" in note for note in exported.notes)
    with pytest.raises(UnsupportedError, match=r"stream ORDERS is kept in memory"):
        export(tmp_path / "other", store, stream, ArchiveFormat.V1)
    assert not (tmp_path / "other").exists()


def test_a_stream_without_messages_in_the_backup_is_refused(tmp_path: Path, store: MemoryStore) -> None:
    stream = replace(stored(store, []), archive_format=ArchiveFormat.CONFIG)
    with pytest.raises(UnsupportedError, match=r"stream ORDERS was backed up without its messages") as caught:
        export(tmp_path / "out", store, stream)
    assert caught.value.hint == "Use --format config."


def test_an_opaque_stream_is_given_as_it_came(tmp_path: Path, store: MemoryStore) -> None:
    data = bytes(range(256)) * 20
    stream = store_opaque(store, "ORDERS", data)
    exported = export(tmp_path / "out", store, stream)
    assert (exported.archive, (tmp_path / "out" / V1).read_bytes()) == ("opaque", data)
    assert any("not decoded" in note for note in exported.notes)
    with pytest.raises(UnsupportedError, match=r"archive format that is not known here"):
        export(tmp_path / "other", store, stream, ArchiveFormat.V2)


def test_consumers_without_a_state_start_as_their_configs_say(tmp_path: Path, store: MemoryStore) -> None:
    consumers = [
        ConsumerBackup("all", {"name": "all", "deliver_policy": "all"}, None, Fidelity.CONFIG_ONLY),
        ConsumerBackup("new", {"name": "new", "deliver_policy": "new"}, None, Fidelity.CONFIG_ONLY),
    ]
    stream = stored(store, MESSAGES, consumers=consumers)
    first = export(tmp_path / "v1", store, stream, ArchiveFormat.V1)
    assert (first.incomplete, first.notes) == (False, ())
    assert (tmp_path / "v1" / V1).exists()
    second = export(tmp_path / "v2", store, stream, ArchiveFormat.V2)
    assert second.incomplete
    assert second.notes[0].startswith("consumer new is left out")
    assert [c.name for c in decoded(tmp_path / "v2" / V2).consumers] == ["all"]
    assert described(tmp_path / "v2")["state"]["consumer_count"] == 1


def test_what_servers_will_do_to_it_is_said(tmp_path: Path, store: MemoryStore) -> None:
    memory = ConsumerBackup("m", {"name": "m", "mem_storage": True}, None, Fidelity.EXACT, ConsumerState())
    stream = stored(store, MESSAGES, consumers=[memory], first_seq=7)
    stream = replace(stream, config={**stream.config, "first_seq": MESSAGES[0].sequence})
    notes = export(tmp_path / "out", store, stream, ArchiveFormat.V1).notes
    assert [("first_seq" in note, "consumer m" in note) for note in notes] == [(True, False), (False, True)]


# --- damage and failure ---


@BOTH
def test_a_damaged_segment_is_found_and_nothing_is_written(
    tmp_path: Path, store: MemoryStore, archive: ArchiveFormat
) -> None:
    stream = stored(store, MESSAGES)
    ref = stream.segments[-1]
    data = store.get(ref.key)
    store.delete(ref.key)
    store.put(ref.key, data[:100] + bytes([data[100] ^ 1]) + data[101:])
    with pytest.raises(IntegrityError):
        export(tmp_path / "out", store, stream, archive)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_object_is_found_and_nothing_is_written(tmp_path: Path, store: MemoryStore) -> None:
    stream = stored(store, MESSAGES)
    store.delete(stream.segments[1].key)
    with pytest.raises(IntegrityError, match=r"is missing"):
        export(tmp_path / "out", store, stream)
    assert list(tmp_path.iterdir()) == []


def test_a_failing_store_leaves_nothing_whenever_it_fails(tmp_path: Path) -> None:
    clean = FaultStore(MemoryStore())
    stream = stored(clean, MESSAGES)
    before = clean.operations
    export(tmp_path / "clean", clean, stream)
    for at in range(1, clean.operations - before + 1):
        faulty = FaultStore(clean.store, Fault.FAIL, at=at)
        with pytest.raises(StoreError, match=r"injected"):
            export(tmp_path / "out", faulty, stream)
        assert [path.name for path in tmp_path.iterdir()] == ["clean"]


def test_an_interruption_leaves_nothing(tmp_path: Path, store: MemoryStore) -> None:
    class Interrupting(NullProgress):
        def advance(self, name: str, byte_count: int, messages: int) -> None:
            raise KeyboardInterrupt

    stream = stored(store, MESSAGES)
    (tmp_path / "out").mkdir()
    with pytest.raises(KeyboardInterrupt), NewFolder(tmp_path / "out", "token", 0o700) as new:
        export_stream(new, "", Objects(store), stream, archive=None, progress=Interrupting())
    assert list((tmp_path / "out").iterdir()) == []


# --- configs ---


def test_configs_go_out_and_in_and_out_again_unchanged(tmp_path: Path, store: MemoryStore) -> None:
    repository = make_repository(store)
    stream_folder(tmp_path / "in" / "A", MESSAGES, name="A", metadata={"_nats.ver": "2.12.8"})
    stream_folder(tmp_path / "in" / "größe", MESSAGES, name="größe", form="v2", file=V2)
    first = imported(take_in(tmp_path / "in", repository))
    with NewFolder(tmp_path / "first", "token", 0o777) as new:
        exported = export_configs(new, list(first.values()), "config")
        new.commit()
    assert [(one.name, one.archive, one.messages) for one in exported] == [("A", "config", 0), ("größe", "config", 0)]
    edited = tmp_path / "first" / "streams" / "A.json"
    edited.write_bytes(edited.read_bytes().replace(b'"max_msgs": -1', b'"max_msgs": 5'))
    again = imported(take_in(tmp_path / "first", repository, seconds=2 * 10**9))
    assert again["A"].config["max_msgs"] == 5
    with NewFolder(tmp_path / "again", "token", 0o777) as new:
        export_configs(new, list(again.values()), "config")
        new.commit()
    assert tree(tmp_path / "again") == tree(tmp_path / "first")
    assert set(tree(tmp_path / "again")) == {
        "streams/A.json",
        "streams/gr%C3%B6%C3%9Fe.json",
        "consumers/A/pull.json",
        "consumers/A/gr%C3%B6%C3%9Fe.json",
        "consumers/gr%C3%B6%C3%9Fe/pull.json",
        "consumers/gr%C3%B6%C3%9Fe/gr%C3%B6%C3%9Fe.json",
    }
