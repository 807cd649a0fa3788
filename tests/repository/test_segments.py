from __future__ import annotations

import random
import threading
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import Buffer

from jsbackup.errors import DigestMismatch, FormatError, IntegrityError, ObjectExists, StoreError
from jsbackup.formats.digest import Digester
from jsbackup.formats.sequences import SequenceSet
from jsbackup.repository import layout
from jsbackup.repository.manifest import SegmentRef, total_of
from jsbackup.repository.objects import Objects
from jsbackup.repository.read import segments
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.write import segment_writer
from jsbackup.repository.write.segment_writer import SegmentWriter
from jsbackup.stores.base import Store
from jsbackup.stores.local import LocalStore
from jsbackup.stores.memory import MemoryStore
from tests.harness.batches import Message, batch_of, cut_anywhere, message_lists, messages_of, some_messages
from tests.harness.damage import flip
from tests.harness.stores import Fault, FaultStore, HeldUp

FOLDER = layout.stream_folder("orders", "1a2b3c4d")
SIZE = 2000  # raw bytes of a segment in these tests


def write(store: Store, messages: list[Message], size: int = SIZE, seed: int | None = None) -> list[SegmentRef]:
    writer = SegmentWriter(Objects(store), FOLDER, segment_bytes=size)
    batch = batch_of(messages)
    for piece in [batch] if seed is None else cut_anywhere(batch, random.Random(seed)):
        writer.add(piece)
    return writer.finish()


def read(store: Store, refs: list[SegmentRef]) -> list[Message]:
    reader = SegmentReader(Objects(store))
    return [message for ref in refs for message in messages_of(reader.read(ref))]


def replace_object(store: Store, key: str, data: bytes) -> None:
    store.delete(key)
    store.put(key, data)


# --- writing ---


@settings(max_examples=40, deadline=None)
@given(message_lists(binary=True, max_size=60), st.integers(0, 1 << 32), st.integers(1, 400))
def test_messages_come_back_and_segments_depend_on_them_alone(messages: list[Message], seed: int, size: int) -> None:
    store = MemoryStore()
    refs = write(store, messages, size)
    by_sequence = {message.sequence: message for message in messages}
    for message in read(store, refs):
        expected = by_sequence.pop(message.sequence)
        assert message._replace(subject=b"") == expected._replace(subject=b"")
    assert not by_sequence
    writer = SegmentWriter(Objects(store), FOLDER, segment_bytes=size)
    for piece in cut_anywhere(batch_of(messages), random.Random(seed)):
        writer.add(piece)
    assert writer.finish() == refs
    assert (writer.reused, writer.stored_bytes) == (len(refs), 0)


def test_a_segment_is_filled_up_to_its_size() -> None:
    store = MemoryStore()
    messages = some_messages(200, 100)
    refs = write(store, messages)
    assert len(refs) > 10
    next_sizes = [encoded_size(m) for ref in refs[1:] for m in messages if m.sequence == ref.first_seq]
    for ref, following in zip(refs, next_sizes, strict=False):
        assert ref.bytes <= SIZE < ref.bytes + following
    assert [info.key for info in store.list()] == [ref.key for ref in refs]


def encoded_size(message: Message) -> int:
    digester = Digester()
    digester.update(batch_of([message]))
    return digester.raw_bytes


def test_a_message_larger_than_a_segment_is_one_by_itself() -> None:
    messages = [Message(n, data=bytes(3 * SIZE if n in (1, 3, 4) else 10)) for n in range(1, 6)]
    store = MemoryStore()
    refs = write(store, messages)
    assert [(ref.first_seq, ref.last_seq) for ref in refs] == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]
    assert read(store, refs) == messages


def test_references_say_what_is_stored() -> None:
    store = MemoryStore()
    messages = some_messages(50, 100)
    messages[3] = messages[3]._replace(timestamp_ns=-7)
    refs = write(store, messages)
    whole = Digester()
    whole.update(batch_of(messages))
    total = total_of(refs)
    assert (total.messages, total.bytes) == (50, whole.raw_bytes)
    assert (total.first_seq, total.last_seq) == (messages[0].sequence, messages[-1].sequence)
    assert total.digest == whole.stream_digest
    for ref in refs:
        inside = [m for m in messages if ref.first_seq <= m.sequence <= ref.last_seq]
        part = Digester()
        part.update(batch_of(inside))
        assert (ref.messages, ref.bytes, ref.digest) == (len(inside), part.raw_bytes, part.segment_digest)
        assert (ref.min_ns, ref.max_ns) == (min(m.timestamp_ns for m in inside), max(m.timestamp_ns for m in inside))
        assert store.head(ref.key).size == ref.size
        parsed = layout.SegmentKey(FOLDER, ref.first_seq, ref.last_seq, ref.digest, ref.sha256[:8])
        assert layout.parse_segment_key(ref.key) == parsed


def test_no_messages_make_no_segments() -> None:
    store = MemoryStore()
    assert write(store, []) == []
    assert list(store.list()) == []


@pytest.mark.parametrize("second", [[5], [4], [6, 6]])
def test_sequences_that_do_not_rise_are_refused(second: list[int]) -> None:
    writer = SegmentWriter(Objects(MemoryStore()), FOLDER)
    writer.add(batch_of([Message(5)]))
    with pytest.raises(FormatError, match="sequence"):
        writer.add(batch_of([Message(sequence) for sequence in second]))


def test_sequences_must_rise_across_segments() -> None:
    writer = SegmentWriter(Objects(MemoryStore()), FOLDER, segment_bytes=100)
    writer.add(batch_of([Message(5, data=bytes(90)), Message(6, data=bytes(90))]))
    with pytest.raises(FormatError, match="sequence 6 after 6"):
        writer.add(batch_of([Message(6)]))


def test_the_objects_are_plain_parquet(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "repo")
    messages = some_messages(50, 100)
    writer = SegmentWriter(Objects(store), FOLDER, segment_bytes=SIZE)
    writer.add(batch_of(messages))
    refs = writer.finish()
    tables = [pq.read_table(tmp_path / "repo" / ref.key) for ref in refs]
    assert messages_of(pa.concat_tables(tables).to_batches()) == messages


# --- a key that is taken ---


def test_what_an_interrupted_run_stored_is_used_again() -> None:
    store = MemoryStore()
    messages = some_messages(100, 100)
    killed = FaultStore(store, Fault.FAIL, at=4)
    with pytest.raises(StoreError, match="injected"):
        write(killed, messages)
    assert len(list(store.list())) == 3
    writer = SegmentWriter(Objects(store), FOLDER, segment_bytes=SIZE)
    writer.add(batch_of(messages))
    refs = writer.finish()
    assert writer.reused == 3
    assert writer.stored_bytes == sum(ref.size for ref in refs[3:])
    assert read(store, refs) == messages


def test_given_up_while_a_segment_is_stored_it_is_waited_for_and_counted() -> None:
    putting = threading.Event()

    class Slow(MemoryStore):
        def put(self, key: str, data: Buffer) -> None:
            putting.set()
            time.sleep(0.05)
            super().put(key, data)

    store = Slow()
    writer = SegmentWriter(Objects(store), FOLDER, segment_bytes=SIZE)
    writer.add(batch_of(some_messages(30, 100)))
    assert putting.wait(10)
    writer.settle()
    there = [info.size for info in store.list()]
    assert there and writer.stored_bytes == sum(there)


def test_the_next_segment_is_made_while_one_is_stored_and_their_order_stays() -> None:
    store, noted = HeldUp(), list[SegmentRef]()
    messages = some_messages(30, 100)
    writer = SegmentWriter(Objects(store), FOLDER, segment_bytes=SIZE, note=noted.append)
    for message in messages:
        writer.add(batch_of([message]))
    assert store.putting.wait(10) and not list(store.list())
    store.gate.set()
    refs = writer.finish()
    assert len(refs) > 1 and noted == refs
    assert read(store, refs) == messages


def test_little_of_the_next_segment_is_held_while_one_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "_AHEAD_BYTES", 1000)
    monkeypatch.setattr(segment_writer, "_BESIDE_BYTES", 1000)
    store = HeldUp()
    messages = some_messages(60, 100)
    writer = SegmentWriter(Objects(store), FOLDER, segment_bytes=SIZE)
    added = list[int]()

    def add() -> None:
        for message in messages:
            writer.add(batch_of([message]))
            added.append(message.sequence)

    adding = threading.Thread(target=add)
    adding.start()
    assert store.putting.wait(10)
    deadline = time.monotonic() + 10
    while len(added) <= 20 and time.monotonic() < deadline:
        time.sleep(0.01)
    adding.join(0.3)
    # One segment of 2000 bytes, 1000 of the next, and 1000 that wait.
    assert adding.is_alive() and 20 < len(added) < 45
    store.gate.set()
    adding.join(10)
    assert read(store, writer.finish()) == messages


def test_given_up_while_the_next_segment_waits_for_the_store_no_thread_stays() -> None:
    before = set(threading.enumerate())
    store = HeldUp()
    writer = SegmentWriter(Objects(store), FOLDER, segment_bytes=SIZE)
    for message in some_messages(60, 100):
        writer.add(batch_of([message]))
    assert store.putting.wait(10)
    writer.close()
    store.gate.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()
    assert len(list(store.list())) == 1


def test_what_the_store_refuses_of_the_last_segment_is_raised_at_the_end() -> None:
    writer = SegmentWriter(Objects(FaultStore(MemoryStore(), Fault.FAIL, at=1)), FOLDER, segment_bytes=1 << 20)
    writer.add(batch_of(some_messages(15, 100)))
    with pytest.raises(StoreError, match="injected"):
        writer.finish()


def test_reuse_costs_one_small_request() -> None:
    store = MemoryStore()
    messages = some_messages(15, 100)
    (ref,) = write(store, messages)
    watched = FaultStore(store)
    assert write(watched, messages) == [ref]
    assert [operation for operation, _ in watched.log] == ["put", "get_range"]


def encoded_differently(data: bytes) -> bytes:
    """The same messages as another version of the library might store them, in a file of the same size."""
    changed = data.replace(b"parquet-cpp-arrow version", b"parquet-cpp-arrow Version")
    assert changed != data
    return changed


@pytest.mark.parametrize(
    "damage", ["empty", "truncated", "longer", "flipped", "foreign", "encoded differently", "other messages"]
)
def test_a_damaged_object_is_left_alone_and_its_messages_are_stored_beside_it(damage: str) -> None:
    store = MemoryStore()
    messages = some_messages(15, 100)
    (ref,) = write(store, messages)
    data = store.get(ref.key)
    other = MemoryStore()
    (other_ref,) = write(other, some_messages(15, 100, seed=9))
    broken = {
        "empty": b"",
        "truncated": data[:-1],
        "longer": data + b"x",
        "flipped": flip(data),
        "foreign": b"not mine",
        "encoded differently": encoded_differently(data),
        "other messages": other.get(other_ref.key),
    }[damage]
    replace_object(store, ref.key, broken)
    for reused in (0, 1):
        writer = SegmentWriter(Objects(store), FOLDER, segment_bytes=SIZE)
        writer.add(batch_of(messages))
        (again,) = writer.finish()
        assert again.key == layout.stored_keys(ref.key, ref.sha256)[1]
        assert writer.reused == reused
        assert read(store, [again]) == messages
    assert store.get(ref.key) == broken


def test_when_the_replacements_are_damaged_too_it_is_said() -> None:
    store = MemoryStore()
    messages = some_messages(15, 100)
    (ref,) = write(store, messages)
    replace_object(store, ref.key, b"x")
    keys = layout.stored_keys(ref.key, ref.sha256)
    assert len({*keys}) == 4 and keys[0] == ref.key
    for key in keys[1:]:
        (again,) = write(store, messages)
        assert again.key == key and read(store, [again]) == messages
        replace_object(store, key, b"y")
    with pytest.raises(IntegrityError, match="is damaged, and so are those that replace it"):
        write(store, messages)


def test_a_taken_key_that_cannot_be_read_is_not_taken_for_good() -> None:
    store = MemoryStore()
    messages = some_messages(15, 100)
    write(store, messages)
    with pytest.raises(StoreError, match="injected") as caught:
        write(FaultStore(store, Fault.FAIL, at=2), messages)
    assert not isinstance(caught.value, ObjectExists)


# --- late deletions ---


@settings(max_examples=40, deadline=None)
@given(message_lists(max_size=60), st.data())
def test_messages_can_be_taken_out_again(messages: list[Message], data: st.DataObject) -> None:
    store = MemoryStore()
    refs = write(store, messages, 200)
    gone = data.draw(st.sets(st.sampled_from([m.sequence for m in messages] or [1])))
    writer = SegmentWriter(Objects(store), FOLDER, segment_bytes=200)
    kept = writer.without(refs, SequenceSet(gone))
    left = [m for m in messages if m.sequence not in gone]
    assert read(store, kept) == left
    expected = Digester()
    expected.update(batch_of(left))
    assert (total_of(kept).messages, total_of(kept).digest) == (len(left), expected.stream_digest)
    untouched = [ref for ref in refs if not any(ref.first_seq <= sequence <= ref.last_seq for sequence in gone)]
    assert [ref for ref in kept if ref in refs] == untouched
    new = [ref for ref in kept if ref not in refs]
    assert writer.stored_bytes + sum(ref.size for ref in new if ref.key in {r.key for r in refs}) <= sum(
        r.size for r in new
    )


def test_taking_nothing_out_reads_and_stores_nothing() -> None:
    store = MemoryStore()
    refs = write(store, some_messages(30, 100))
    watched = FaultStore(store)
    absent = next(n for n in range(refs[0].last_seq + 1, 10**6) if n > refs[-1].last_seq)
    assert SegmentWriter(Objects(watched), FOLDER).without(refs, SequenceSet([absent])) == refs
    assert watched.log == []


def test_old_segments_stay_when_messages_are_taken_out() -> None:
    """Another backup may name them."""
    store = MemoryStore()
    messages = some_messages(30, 100)
    refs = write(store, messages)
    SegmentWriter(Objects(store), FOLDER, segment_bytes=SIZE).without(refs, SequenceSet([messages[0].sequence]))
    assert read(store, refs) == messages


# --- reading ---


def test_an_object_is_proved_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    (ref,) = write(store, some_messages(10, 100))
    data = store.get(ref.key)

    def never(data: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(segments, "decode_segment", never)
    for broken in (data[:-1], data + b"x", bytes([data[0] ^ 1]) + data[1:], b"", bytes(len(data))):
        replace_object(store, ref.key, broken)
        with pytest.raises(DigestMismatch):
            list(SegmentReader(Objects(store)).read(ref))


def test_a_missing_object_is_an_integrity_failure_and_an_unreadable_one_is_the_stores() -> None:
    store = MemoryStore()
    (ref,) = write(store, some_messages(10, 100))
    with pytest.raises(StoreError, match="injected"):
        list(SegmentReader(Objects(FaultStore(store, Fault.FAIL, at=1))).read(ref))
    store.delete(ref.key)
    with pytest.raises(IntegrityError, match="is missing") as caught:
        list(SegmentReader(Objects(store)).read(ref))
    assert caught.value.exit_code == 14


def test_a_manifest_that_lies_about_the_messages_is_found_out() -> None:
    store = MemoryStore()
    (ref,) = write(store, some_messages(10, 100))
    lies = [
        replace(ref, first_seq=ref.first_seq + 1),
        replace(ref, last_seq=ref.last_seq + 1),
        replace(ref, messages=11),
        replace(ref, bytes=ref.bytes - 1),
        replace(ref, digest="0" * 64),
        replace(ref, fingerprint=ref.fingerprint + ref.fingerprint),
    ]
    for lie in lies:
        with pytest.raises(DigestMismatch, match="which are not"):
            list(SegmentReader(Objects(store)).prove(lie))


def test_a_size_beyond_reason_is_refused_before_anything_is_fetched() -> None:
    store = MemoryStore()
    (ref,) = write(store, some_messages(10, 100))
    watched = FaultStore(store)
    with pytest.raises(FormatError, match="more than any object has"):
        list(SegmentReader(Objects(watched)).read(replace(ref, size=1 << 40)))
    assert watched.log == []
