"""What is left of a backup whose objects are damaged."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.errors import KeyUnavailable, StoreError, UnsupportedError
from jsbackup.model import ConsumerState, Fidelity
from jsbackup.repository import layout
from jsbackup.repository.checks.verify import ProblemKind, check_manifest
from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.access import GivenKeys
from jsbackup.repository.crypto.new_keys import make_new_keys
from jsbackup.repository.manifest import Manifest, StreamBackup, total_of
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.losses import Salvage, find_lost, salvage
from jsbackup.repository.read.segments import read_stream, state_to_restore
from jsbackup.repository.repository import Repository
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import CREATED, make_repository, store_backup
from tests.harness.batches import messages_of, some_messages
from tests.harness.damage import DAMAGES, put_instead, swap
from tests.harness.stores import Fault, FaultStore

ME = age.age_identity(bytes(range(32)))


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def manifest(store: MemoryStore) -> Manifest:
    return store_backup(make_repository(store))


def saved(store: MemoryStore, manifest: Manifest) -> Salvage:
    return salvage(manifest, find_lost(Objects(store), manifest))


def stream(left: Salvage, name: str = "orders") -> StreamBackup:
    return next(one for one in left.manifest.streams if one.name == name)


def test_of_a_sound_backup_everything_is_left(store: MemoryStore, manifest: Manifest) -> None:
    assert saved(store, manifest) == Salvage(manifest, {}, {})


@pytest.mark.parametrize("lost", [[0], [1], [-1], [0, 1], [0, -1], "all"])
def test_sequences_of_lost_segments_are_gaps(store: MemoryStore, manifest: Manifest, lost: Sequence[int] | str) -> None:
    whole = manifest.streams[0]
    count = len(whole.segments)
    assert count > 2
    numbers = set(range(count)) if isinstance(lost, str) else {number % count for number in lost}
    for number in numbers:
        store.delete(whole.segments[number].key)
    left = saved(store, manifest)
    rest, refs = stream(left), [ref for number, ref in enumerate(whole.segments) if number not in numbers]
    gone = [whole.segments[number] for number in sorted(numbers)]
    assert [(p.key, p.first_seq, p.last_seq, p.messages) for p in left.lost["orders"]] == [
        (ref.key, ref.first_seq, ref.last_seq, ref.messages) for ref in gone
    ]
    assert list(rest.segments) == refs and left.beyond == {}
    assert check_manifest(replace(left.manifest, streams=(rest,))) == []
    state = state_to_restore(rest)
    assert state.last_seq == whole.captured.last_seq
    assert state.first_seq == (refs[0].first_seq if refs else state.last_seq + 1)
    assert state.messages == total_of(refs).messages
    expected = [m for m in some_messages(40, 100) if any(r.first_seq <= m.sequence <= r.last_seq for r in refs)]
    assert messages_of(read_stream(Objects(store), rest)) == expected


def test_a_stream_that_was_captured_beyond_its_reported_state_keeps_its_end(
    store: MemoryStore, manifest: Manifest
) -> None:
    whole = manifest.streams[0]
    early = replace(whole, state=replace(whole.state, last_seq=whole.segments[0].last_seq))
    store.delete(whole.segments[-1].key)
    left = saved(store, replace(manifest, streams=(early, *manifest.streams[1:])))
    assert state_to_restore(stream(left)).last_seq == whole.captured.last_seq


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_consumer_whose_pending_set_is_lost_keeps_its_floor(
    store: MemoryStore, manifest: Manifest, damage: str
) -> None:
    whole = manifest.streams[0]
    (consumer,) = [one for one in whole.consumers if one.pending is not None]
    assert consumer.pending is not None and consumer.state is not None
    put_instead(store, consumer.pending.key, DAMAGES[damage](store.get(consumer.pending.key)))
    left = saved(store, manifest)
    known = next(one for one in stream(left).consumers if one.name == consumer.name)
    floor = consumer.state.ack_floor
    assert (known.state, known.fidelity, known.pending) == (ConsumerState(floor, floor), Fidelity.FLOOR, None)
    assert "lost" in known.reason
    (problem,) = left.lost["orders"]
    assert (problem.key, problem.messages) == (consumer.pending.key, 0)
    assert stream(left).segments == whole.segments and stream(left).digest == whole.digest


def test_a_stream_kept_verbatim_is_whole_or_beyond(store: MemoryStore, manifest: Manifest) -> None:
    key = manifest.streams[1].opaque[1].key
    store.delete(key)
    left = saved(store, manifest)
    assert list(left.beyond) == ["verbatim"] and left.beyond["verbatim"].key == key
    assert left.lost == {} and stream(left) == manifest.streams[0]


def test_a_stream_whose_manifest_contradicts_itself_is_beyond(store: MemoryStore, manifest: Manifest) -> None:
    whole = manifest.streams[0]
    lie = replace(whole, captured=replace(whole.captured, messages=1))
    store.delete(whole.segments[0].key)
    left = saved(store, replace(manifest, streams=(lie, *manifest.streams[1:])))
    assert left.beyond["orders"].kind is ProblemKind.INCONSISTENT and left.lost == {}


def test_a_segment_that_is_what_was_stored_and_holds_something_else_is_lost(
    store: MemoryStore, manifest: Manifest
) -> None:
    """Found before anything is sent, although size and SHA-256 are right."""
    whole = manifest.streams[0]
    first, other = whole.segments[:2]
    for data in (b"no Parquet file", store.get(other.key)):
        put_instead(store, first.key, data)
        ref = replace(first, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        lie = replace(whole, segments=(ref, *whole.segments[1:]))
        left = saved(store, replace(manifest, streams=(lie,)))
        assert [problem.key for problem in left.lost["orders"]] == [first.key]
        assert stream(left).segments == whole.segments[1:]


def test_segments_that_were_exchanged_are_lost_and_the_others_are_not(store: MemoryStore, manifest: Manifest) -> None:
    whole = manifest.streams[0]
    first, _, third = whole.segments[:3]
    swap(store, first.key, third.key)
    left = saved(store, manifest)
    assert [problem.key for problem in left.lost["orders"]] == [first.key, third.key]
    assert list(stream(left).segments) == [ref for ref in whole.segments if ref not in (first, third)]


# --- what is not lost ---


def test_what_the_store_does_not_give_for_now_is_not_lost(store: MemoryStore, manifest: Manifest) -> None:
    reads = 1 + len(manifest.streams[0].segments)
    for number in range(1, reads):
        with pytest.raises(StoreError, match="injected"):  # which that store calls temporary
            find_lost(Objects(FaultStore(store, Fault.FAIL, at=number)), manifest)


def test_what_the_store_does_not_give_for_good_is_lost(store: MemoryStore, manifest: Manifest) -> None:
    class Broken(MemoryStore):
        """A disk with a bad place."""

        def get_range(self, key: str, offset: int, length: int) -> bytes:
            if key == manifest.streams[0].segments[0].key:
                raise StoreError(f"cannot read {key}: input/output error")
            return store.get_range(key, offset, length)

    broken = Broken()
    broken.list = store.list  # type: ignore[method-assign]
    (problem,) = find_lost(Objects(broken), manifest)
    assert problem.kind is ProblemKind.UNREADABLE and "input/output error" in problem.problem


def test_what_a_newer_tool_can_read_is_not_lost(
    store: MemoryStore, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def newer(objects: object, ref: object) -> bytes:
        raise UnsupportedError("opaque piece of format 9")

    monkeypatch.setattr("jsbackup.repository.write.stream_objects.read_piece", newer)
    with pytest.raises(UnsupportedError, match="format 9"):
        find_lost(Objects(store), manifest)


def test_without_a_key_nothing_is_taken_for_lost(store: MemoryStore) -> None:
    assert ME.recipient is not None
    new_keys = make_new_keys("00ff", [ME.recipient], None, lambda count: b"s" * count)
    made = Repository.create(store, repository_id="00ff", created=CREATED, tool="t", new_keys=new_keys)
    manifest = store_backup(made)
    key = manifest.streams[0].segments[0].key
    assert layout.kind_of(key) is layout.ObjectKind.SEGMENT
    put_instead(store, key, DAMAGES["flipped"](store.get(key)))
    with pytest.raises(KeyUnavailable):
        find_lost(Repository.open(store, GivenKeys(writer=new_keys.writer_key)).objects, manifest)
    reader = Repository.open(store, GivenKeys(identities=(ME,)))
    assert [problem.key for problem in find_lost(reader.objects, manifest)] == [key]


# --- any of them ---


@given(st.data())
def test_whatever_is_lost_the_rest_adds_up(data: st.DataObject) -> None:
    store = MemoryStore()
    manifest = store_backup(make_repository(store))
    keys = sorted(info.key for info in store.list(layout.SEGMENTS))
    lost = data.draw(st.sets(st.sampled_from(keys)))
    for key in lost:
        damage = data.draw(st.sampled_from(sorted(DAMAGES)))
        put_instead(store, key, DAMAGES[damage](store.get(key)))
    left = saved(store, manifest)
    named = {p.key for problems in left.lost.values() for p in problems} | {p.key for p in left.beyond.values()}
    assert named <= lost and (named or not lost)
    sound = replace(left.manifest, streams=tuple(s for s in left.manifest.streams if s.name not in left.beyond))
    assert find_lost(Objects(store), sound) == []
