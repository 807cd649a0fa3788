from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import KeyUnavailable
from jsbackup.formats.sequences import SequenceSet
from jsbackup.repository import layout
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.objects import Objects, PlainSealing
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.write.segment_cuts import GROWTH, Cuts, SegmentExtent
from jsbackup.repository.write.segment_writer import SegmentWriter, stored_segments, untouched
from jsbackup.stores.base import Store
from jsbackup.stores.memory import MemoryStore
from tests.harness.batches import Message, batch_of, cut_anywhere, messages_of
from tests.harness.servers import EXPLORE
from tests.harness.stores import FaultStore

FOLDER = layout.stream_folder("orders", "1a2b3c4d")
SIZE = 4000  # raw bytes of a segment in these tests


class Backups:
    """Backups of one stream, each built on the last one."""

    def __init__(self, store: Store | None = None, sealing: PlainSealing | None = None, size: int = SIZE) -> None:
        self.store = store or MemoryStore()
        self.objects = Objects(self.store, sealing or PlainSealing())
        self.size = size
        self.last: list[SegmentRef] = []
        self.reused = self.stored = 0

    def add(self, messages: Sequence[Message], chance: random.Random | None = None) -> list[SegmentRef]:
        writer = self.writer()
        batch = batch_of(messages)
        for piece in cut_anywhere(batch, chance) if chance else [batch]:
            writer.add(piece)
        known = {ref.key for ref in self.last}
        self.last = writer.finish()
        self.reused, self.stored = writer.reused, sum(ref.bytes for ref in self.last if ref.key not in known)
        return self.last

    def writer(self) -> SegmentWriter:
        stored = stored_segments(Objects(self.store), FOLDER, self.last)
        return SegmentWriter(self.objects, FOLDER, stored, segment_bytes=self.size)

    def read(self, refs: Sequence[SegmentRef]) -> list[Message]:
        reader = SegmentReader(self.objects)
        return [message for ref in refs for message in messages_of(reader.read(ref))]


def messages(first: int, last: int, size: int = 80) -> list[Message]:
    return [Message(n, 10**18 + n, "orders", None, random.Random(n).randbytes(size)) for n in range(first, last + 1)]


# --- any history ---


@st.composite
def histories(draw: st.DrawFn) -> list[list[Message]]:
    """A stream as it is at one backup after the other."""
    stream: list[Message] = []
    end = draw(st.sampled_from([0, 500]))
    states = []
    for _ in range(draw(st.integers(1, 7))):
        for _ in range(draw(st.integers(0, 3))):
            change = draw(st.sampled_from(["append", "append", "expire", "delete", "purge", "revise", "lose the end"]))
            if change == "append":
                count = draw(st.integers(1, 60))
                stream = stream + messages(end + 1, end + count, draw(st.sampled_from([0, 20, 200])))
                end += count
            elif change == "expire":
                stream = stream[draw(st.integers(0, 40)) :]
            elif change == "delete" and stream:
                gone = draw(st.sets(st.sampled_from(stream), max_size=5))
                stream = [message for message in stream if message not in gone]
            elif change == "purge":
                stream = stream[len(stream) - draw(st.integers(0, 3)) :]
            elif change == "revise":
                stream = [m for m in stream if m.sequence % 7 != draw(st.integers(0, 6))]
            elif stream and draw(st.booleans()):  # and go on under the same sequences
                at = draw(st.sampled_from(stream)).sequence
                stream = [m for m in stream if m.sequence < at]
                stream += [m._replace(data=b"other" * draw(st.integers(1, 90))) for m in messages(at, at + 4)]
                end = max(end, at + 4)
        states.append(stream)
    return states


@pytest.mark.slow
@settings(max_examples=200 if EXPLORE else 25, deadline=None)
@given(histories(), st.integers(0, 1 << 32), st.sampled_from([300, 2000, 100_000]))
def test_every_backup_is_whole_whatever_happened_between(states: list[list[Message]], seed: int, size: int) -> None:
    chance = random.Random(seed)
    backups = Backups(size=size)
    made = [(state, backups.add(state, chance)) for state in states]
    for state, refs in made:
        assert backups.read(refs) == state
        assert all(before.last_seq < after.first_seq for before, after in pairwise(refs))
        assert all(ref.bytes <= size or ref.messages == 1 for ref in refs)
    for _ in range(4):  # what was cut is perhaps joined again, but that comes to an end
        assert backups.read(backups.add(states[-1])) == states[-1]
    assert (backups.reused, backups.stored) == (len(backups.last), 0)
    survivor, refs = chance.choice(made)
    for info in list(backups.store.list()):
        if info.key not in {ref.key for ref in refs}:
            backups.store.delete(info.key)
    assert backups.read(refs) == survivor


# --- little is stored again ---


def test_what_did_not_change_is_neither_encoded_nor_put_nor_read() -> None:
    watched = FaultStore(MemoryStore())
    backups = Backups(watched)
    first = backups.add(messages(1, 400))
    assert len(first) > 5
    del watched.log[:]
    assert backups.add(messages(1, 400)) == first
    assert [operation for operation, _ in watched.log] == ["list"]
    assert (backups.reused, backups.stored) == (len(first), 0)


def test_new_messages_are_stored_and_nothing_else() -> None:
    backups = Backups()
    first = backups.add(messages(1, 400))
    second = backups.add(messages(1, 404))
    assert second[: len(first)] == first
    assert [(ref.first_seq, ref.last_seq) for ref in second[len(first) :]] == [(401, 404)]


@pytest.mark.slow
@pytest.mark.parametrize("new_bytes", [100, 1_000_000])
def test_thousands_of_backups_of_a_growing_stream_make_few_short_segments_and_store_little_twice(
    new_bytes: int,
) -> None:
    cuts = Cuts(0, 64 << 20)
    chance = random.Random(new_bytes)
    extents: list[SegmentExtent] = []
    end = stored = 0
    total = 0
    most = 0
    for _ in range(3000):
        size = int(new_bytes * chance.uniform(0.2, 1.8))
        extents.append(SegmentExtent(end + 1, end + size // 100 + 1, size // 100 + 1, size, new=True))
        end = extents[-1].last_seq
        total += size
        count = cuts.joined(extents)
        whole = extents[-count]
        for extent in extents[len(extents) - count + 1 :]:
            whole += extent
        extents[-count:] = [replace(whole, new=False)]
        stored += extents[-1].bytes
        most = max(most, sum(cuts.joinable(extent) for extent in extents))
    assert most < 40
    assert stored < 9 * total
    assert len(extents) < 40 + GROWTH * total / cuts.segment_bytes


# --- what is there is looked up, not assumed ---


@pytest.mark.parametrize("damage", ["missing", "empty", "longer"])
def test_a_segment_that_is_not_there_as_it_should_be_is_stored_anew(damage: str) -> None:
    backups = Backups()
    first = backups.add(messages(1, 400))
    lost = first[3]
    data = backups.store.get(lost.key)
    backups.store.delete(lost.key)
    if damage != "missing":
        backups.store.put(lost.key, b"" if damage == "empty" else data + b"x")
    second = backups.add(messages(1, 400))
    assert backups.reused == len(first) - 1
    assert backups.read(second) == messages(1, 400)
    assert [ref for ref in second if ref not in first] != [] or damage == "missing"


def test_a_manifest_whose_segments_overlap_is_not_built_on() -> None:
    backups = Backups()
    refs = backups.add(messages(1, 400))
    assert stored_segments(Objects(backups.store), FOLDER, [*refs, refs[1]]) == []
    assert (
        stored_segments(Objects(backups.store), FOLDER, [refs[0], replace(refs[1], first_seq=refs[0].last_seq)]) == []
    )
    assert stored_segments(Objects(backups.store), FOLDER, [*refs[1:], replace(refs[0], bytes=1 << 40)]) == refs[1:]
    assert stored_segments(Objects(backups.store), FOLDER, reversed(refs)) == refs


@pytest.mark.parametrize("lie", ["digest", "messages", "bytes", "last_seq"])
def test_a_reference_that_lies_is_not_used_for_messages_it_does_not_name(lie: str) -> None:
    backups = Backups()
    refs = backups.add(messages(1, 400))
    values = {"digest": "0" * 64, "messages": 1, "bytes": 1, "last_seq": refs[2].last_seq - 1}
    backups.last = [*refs[:2], replace(refs[2], **{lie: values[lie]}), *refs[3:]]
    assert backups.read(backups.add(messages(1, 400))) == messages(1, 400)


# --- late deletions, and segments that cannot be read ---


class NightSealing(PlainSealing):
    """Like encryption on a backup host: what another run has sealed cannot be read."""

    def __init__(self) -> None:
        self.sealed: set[bytes] = set()

    def seal(self, data: object) -> bytes:
        sealed = bytes(data)  # type: ignore[call-overload]
        self.sealed.add(sealed)
        return sealed

    def unseal(self, key: str, data: bytes) -> bytes:
        if data not in self.sealed:
            raise KeyUnavailable(f"no key opens {key}")
        return data


def test_what_must_go_from_a_segment_that_cannot_be_read_is_left_out_by_not_building_on_it() -> None:
    backups = Backups(sealing=NightSealing())
    first = backups.add(messages(1, 400))
    backups.objects.sealing.sealed.clear()  # type: ignore[attr-defined]
    late = SequenceSet([first[2].first_seq + 1, 402])
    writer = backups.writer()
    writer.add(batch_of(messages(1, 410)))
    refs = writer.finish()
    with pytest.raises(KeyUnavailable):
        writer.without(refs, late)
    kept = list(untouched(first, late))
    assert [ref for ref in first if ref not in kept] == [first[2]]
    writer = SegmentWriter(backups.objects, FOLDER, kept, segment_bytes=SIZE)
    writer.add(batch_of(messages(1, 410)))
    again = writer.without(writer.finish(), late)
    assert sum(ref.messages for ref in again) == 408
    assert all(ref in again for ref in kept[:5]) and first[2] not in again
