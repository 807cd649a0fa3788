"""Changed copies without Spark: the tasks run here, on random streams, and plain Python says what comes out."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jsbackup.config import parse_glob
from jsbackup.engine.backup.lease_renewal import hold_lease
from jsbackup.errors import FormatError, PlanRefused, TargetConflict, UsageError
from jsbackup.model import ConsumerState, Fidelity, PendingAck, S3Settings, SequencePair, StreamState
from jsbackup.pipeline.jobs import joining
from jsbackup.pipeline.jobs.changed_copy import (
    ChangedCopyPlan,
    make_changed_copy,
    make_changed_streams,
    plan_changed_copy,
)
from jsbackup.pipeline.jobs.job_run import JobRun
from jsbackup.pipeline.jobs.joining import grouped, merge_groups
from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened, place_of
from jsbackup.pipeline.tasks import packing
from jsbackup.pipeline.tasks.reshape_task import MaskKey
from jsbackup.planning.changed_streams import ChangeOptions, PlannedStream
from jsbackup.planning.reshaping import Reshaped
from jsbackup.planning.selection.kept_messages import survey
from jsbackup.repository.keep.leases import Mode, Terms
from jsbackup.repository.manifest import (
    BackupResult,
    ConsumerBackup,
    Manifest,
    SegmentRef,
    Selection,
    SkippedStream,
    Source,
    StreamBackup,
    total_of,
)
from jsbackup.repository.objects import SEGMENT_BYTES, Objects
from jsbackup.repository.read.segments import read_stream, state_to_restore
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.segment_writer import SegmentWriter
from jsbackup.repository.write.stream_objects import INLINE_ENTRIES, load_consumer, store_consumer
from jsbackup.stores.memory import MemoryStore
from jsbackup.times import format_time
from jsbackup.transforms.cut import AtSequence, AtTime, Cut
from jsbackup.transforms.filters.filters import Filters
from jsbackup.transforms.filters.newest import NewestRule
from jsbackup.transforms.mask import Masks
from jsbackup.transforms.rename import RenameOptions
from jsbackup.transforms.reshape import Reshape
from jsbackup.transforms.subject_map import SubjectMaps
from tests.harness.backups import CREATED, FIRST, INCARNATION, store_stream
from tests.harness.batches import some_messages
from tests.transforms.filters.judging import is_wanted
from tests.transforms.filters.test_newest import by_the_list
from tests.transforms.messages import Message, batch_of, messages_of
from tests.transforms.test_cut import is_kept
from tests.transforms.test_reshape import SECRET, one, reshapes, streams


class Pickled:
    """Runs tasks in this process, after the journey that they make to an executor."""

    session = None

    cores = 0

    def run(self, _doing: str, todo: Sequence[Callable[[], Any]], **_: object) -> Iterator[Any]:
        for task in todo:
            result = pickle.loads(pickle.dumps(task))()
            yield pickle.loads(pickle.dumps(result))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks run in this process, after the journey that they make to an executor."""

    monkeypatch.setattr(packing, "_LEAST_BYTES", 1)  # many tasks


def _states(sequences: Sequence[int], chance: Any) -> ConsumerState:
    pending = {s: PendingAck(s, 1) for s in sequences if chance.random() < 0.3}
    redelivered = {s: 2 for s in sequences if chance.random() < 0.3}
    last = max(sequences, default=0)
    return ConsumerState(SequencePair(last, last), SequencePair(), pending, redelivered)


def _stored(place: RepositoryRef, messages: Sequence[Message], chance: Any) -> StreamBackup:
    """A stream S in short segments, with consumers that wait for some of its messages."""
    objects = opened(place).objects
    folder = objects.sealing.folder("S", INCARNATION)
    writer = SegmentWriter(objects, folder, segment_bytes=chance.choice([80, 200, 1000]))
    writer.add(batch_of(messages))
    refs = tuple(writer.finish())
    total = total_of(refs)
    stream = store_stream(objects, "S", [])
    sequences = [message.sequence for message in messages]
    many = ConsumerState(pending={s: PendingAck(s, 1) for s in range(1, chance.choice([2, 2, 2, INLINE_ENTRIES + 2]))})
    consumers = [
        ConsumerBackup("c", {"durable_name": "c"}, CREATED, Fidelity.EXACT, _states(sequences, chance)),
        ConsumerBackup("many", {"durable_name": "many"}, CREATED, Fidelity.EXACT, many),
    ]
    return replace(
        stream,
        config={"name": "S", "subjects": [">"]},
        segments=refs,
        state=StreamState(last_seq=total.last_seq + chance.choice([0, 3]), last_ns=chance.choice([0, 9])),
        captured=replace(
            stream.captured,
            messages=total.messages,
            bytes=total.bytes,
            first_seq=total.first_seq,
            last_seq=total.last_seq,
        ),
        digest=total.digest,
        consumers=tuple(store_consumer(objects, folder, consumer) for consumer in consumers),
    )


def _place(folder: Path, segment_bytes: int = SEGMENT_BYTES) -> RepositoryRef:
    place = place_of(str(folder), S3Settings(), {})
    Repository.create(
        place.store(), repository_id="00ff", created=CREATED, tool="jsbackup tests", segment_bytes=segment_bytes
    )
    return place


def _run(place: RepositoryRef) -> JobRun[Any]:
    return JobRun(Pickled(), place, opened(place), cast(Any, None))


def _planned(entry: StreamBackup, reshape: Reshape) -> ChangedCopyPlan:
    config = {**entry.config, "name": reshape.renames.name("S")}
    consumers = {consumer.name: consumer.config for consumer in entry.consumers}
    planned = PlannedStream(entry, Reshaped(config["name"], config, consumers, reshape))
    manifest = Manifest(FIRST, CREATED, "tests", Source(), BackupResult.COMPLETE, (entry,))
    return ChangedCopyPlan(manifest, ChangeOptions(reshape=reshape), (planned,))


@pytest.mark.slow
@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(reshapes(), streams, st.randoms(use_true_random=False))
def test_tasks_give_what_plain_python_gives(
    here: None,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    reshape: Reshape,
    messages: list[Message],
    chance: Any,
) -> None:
    folder = tmp_path_factory.mktemp("random")
    (folder / "key").write_bytes(SECRET)
    place = _place(folder / "repo")
    objects = opened(place).objects
    entry = _stored(place, messages, chance)
    key = MaskKey((("mask_key_file", str(folder / "key")),))
    size = chance.choice([1, 100, 1000, 1 << 20])
    with monkeypatch.context() as patch:
        patch.setattr("jsbackup.pipeline.jobs.changed_copy.grouped", lambda refs, _: grouped(refs, size))
        (done,) = make_changed_streams(_run(place), _planned(entry, reshape), place, mask_key=key)
    made = done.stored.stream

    kept = [m for m in messages if is_kept(reshape.cut, m) and is_wanted(m, reshape.filters)]
    newest = None if reshape.newest is None else by_the_list(kept, reshape.newest)
    kept = [m for m in kept if newest is None or m.sequence in newest]
    expected = [changed for m in kept if (changed := one(m, reshape)) is not None]
    numbers = range(1, len(expected) + 1) if reshape.renumber else [m.sequence for m in expected]
    expected = [m._replace(sequence=number) for m, number in zip(expected, numbers, strict=True)]
    assert messages_of(read_stream(objects, made)) == expected
    assert (made.name, made.captured.messages) == (reshape.renames.name("S"), len(expected))
    # What a restore with these options comes to.
    surveyed = survey(objects, entry, reshape, SECRET)
    restored = surveyed.entry
    assert state_to_restore(made) == state_to_restore(restored)
    assert replace(made.captured, begun="") == replace(restored.captured, begun="")
    assert (made.digest, made.created) == (restored.digest, restored.created)
    ours, theirs = ([load_consumer(objects, c) for c in stream.consumers] for stream in (made, restored))
    assert ours == theirs
    assert +(done.kept.matched or Counter()) == +(surveyed.matched or Counter())
    if made.incarnation == entry.incarnation:
        assert made.segments == entry.segments and not (reshape and messages)


def _merged(place: RepositoryRef, entry: StreamBackup) -> tuple[SegmentRef, ...]:
    """The segments of a stream after short ones were joined."""
    found = merge_groups(Pickled(), place, [("S", entry.segments)], None)
    return tuple(ref for _, _, stored in found for ref in stored.refs)


@settings(deadline=None, max_examples=20, suppress_health_check=list(HealthCheck))
@given(streams, st.randoms(use_true_random=False), st.sampled_from([100, 300, 5000]))
def test_joined_segments_hold_the_same(
    here: None,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    messages: list[Message],
    chance: Any,
    size: int,
) -> None:
    place = _place(tmp_path_factory.mktemp("joined") / "repo")
    entry = _stored(place, messages, chance)
    with monkeypatch.context() as patch:
        patch.setattr(joining, "grouped", lambda refs, _: grouped(refs, size))
        refs = _merged(place, entry)
    alone = [group[0] for group in grouped(entry.segments, size) if len(group) == 1]
    assert all(ref in refs for ref in alone)
    assert total_of(refs) == total_of(entry.segments)
    assert messages_of(read_stream(opened(place).objects, replace(entry, segments=refs))) == messages
    assert all(len(group) == 1 for group in grouped(refs, size))  # nothing is left to gain
    assert all(ref.bytes <= max(size, max(one.bytes for one in entry.segments)) for ref in refs)


@pytest.mark.slow
def test_joined_and_transformed_segments_have_the_size_of_the_repository(here: None, tmp_path: Path) -> None:
    place = _place(tmp_path / "repo", 4096)
    entry = _stored(place, some_messages(400, 30), random.Random(2))
    refs = _merged(place, entry)
    assert len(refs) < len(entry.segments) / 3
    assert all(2048 <= ref.bytes <= 4096 for ref in refs[:-1])
    reshape = Reshape(filters=Filters((">",)))
    (made,) = make_changed_streams(_run(place), _planned(entry, reshape), place, mask_key=MaskKey())
    assert total_of(made.stored.stream.segments) == total_of(entry.segments)
    assert all(2048 <= ref.bytes <= 2 * 4096 for ref in made.stored.stream.segments[:-1])


def test_only_short_neighbours_are_joined() -> None:
    ref = store_stream(Objects(MemoryStore()), "S", some_messages(3, 10)).segments[0]
    sizes = [10, 20, 60, 40, 40, 30, 99, 1, 200, 5]
    groups = list(grouped([replace(ref, bytes=size) for size in sizes], 100))
    assert [[one.bytes for one in group] for group in groups] == [
        [10, 20], [60], [40, 40], [30], [99], [1], [200], [5],
    ]  # fmt: skip


def test_another_key_than_the_one_that_was_marked_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(SECRET)
    key = pickle.loads(pickle.dumps(MaskKey((("mask_key_file", str(tmp_path / "key")),)).marked(b"salt")))
    assert key.secret() == SECRET and SECRET not in pickle.dumps(key)
    (tmp_path / "key").write_bytes(SECRET + b"!")
    with pytest.raises(UsageError, match="is another one where the work is done"):
        key.secret()


# --- the manifest ---


def _transformed(place: RepositoryRef, manifest: Manifest, *streams: str, **asked: Any) -> Manifest:
    repository = place.open()
    terms = Terms(Mode.SHARED, "copy", "tests", "here", CREATED)
    plan = plan_changed_copy(manifest, ChangeOptions(tuple(map(parse_glob, streams)), **asked))
    with hold_lease(repository.store, terms, wait_seconds=0, waiting=lambda _: None) as lease:
        run = JobRun(cast(Any, Pickled()), place, repository, lease)
        made, _ = make_changed_copy(run, plan, place)
    stored = repository.manifest(repository.backups()[-1])
    assert replace(stored, previous_sha256=None) == made
    return made


def test_a_manifest_says_what_it_was_made_of_and_what_is_missing(here: None, tmp_path: Path) -> None:
    place = _place(tmp_path / "repo")
    objects = place.open().objects
    a, b = (store_stream(objects, name, some_messages(9, 10)) for name in "AB")
    skipped = (SkippedStream("C", "was away"), SkippedStream("AX", "was away"))
    source = Source("2.15.1", "cluster", "account")
    before = Manifest(
        FIRST, CREATED, "tests", source, BackupResult.PARTIAL, (a, replace(b, warnings=("lost",))), skipped, {"x": "y"}
    )
    place.open().commit(before)
    renames = RenameOptions.parse(["*=N*"])
    whole = _transformed(place, before, renames=renames)
    assert (whole.result, whole.skipped, whole.previous, whole.tags) == (
        BackupResult.PARTIAL,
        skipped,
        FIRST,
        {"x": "y"},
    )
    assert whole.source.transformed == {"backup": FIRST, "options": ["--rename *=N*"], "cut": {}}
    assert replace(whole.source, transformed=None) == source
    (made,) = _transformed(place, before, "A", renames=renames).streams
    assert (made.name, made.created, made.captured) == ("NA", a.created, a.captured)
    some = _transformed(place, before, "A", renames=renames)
    assert (some.result, some.skipped) == (BackupResult.COMPLETE, ())
    assert some.selection == Selection(("A",))
    more = _transformed(place, before, "A*", renames=renames)
    assert (more.result, more.skipped) == (BackupResult.PARTIAL, skipped[1:])


@pytest.mark.parametrize("by_time", [True, False])
def test_nothing_is_known_of_a_stream_after_the_end_of_its_cut(here: None, tmp_path: Path, by_time: bool) -> None:
    place = _place(tmp_path / "repo")
    messages = some_messages(9, 10)
    stream = store_stream(place.open().objects, "A", messages)
    before = Manifest(FIRST, CREATED, "tests", Source(), BackupResult.COMPLETE, (stream,))
    place.open().commit(before)
    fifth = messages[4]
    until = AtTime(fifth.timestamp_ns) if by_time else AtSequence(fifth.sequence)
    cut = _transformed(place, before, reshape=Reshape(cut=Cut(until=until)))
    (made,) = cut.streams
    assert made.captured.messages == 5
    assert made.captured.begun == format_time(fifth.timestamp_ns) != stream.captured.begun
    later = Cut(until=AtTime(fifth.timestamp_ns + 1))
    assert plan_changed_copy(before, ChangeOptions(reshape=Reshape(cut=later)))
    with pytest.raises(PlanRefused, match="may be missing"):
        plan_changed_copy(cut, ChangeOptions(reshape=Reshape(cut=later)))


# --- plans ---


def _entry(name: str, **config: Any) -> StreamBackup:
    stored = store_stream(Objects(MemoryStore()), name, some_messages(9, 10))
    return replace(stored, config={"name": name, **config}, consumers=())


def _plan(*entries: StreamBackup, **asked: Any) -> ChangedCopyPlan:
    renames = RenameOptions.parse(asked.pop("rename", ()))
    options = ChangeOptions((), renames, Reshape(**asked))
    return plan_changed_copy(Manifest(FIRST, CREATED, "tests", Source(), BackupResult.PARTIAL, entries), options)


def test_streams_that_stay_keep_their_incarnation_and_others_get_one_of_their_own() -> None:
    a, b = _entry("A", subjects=["a.>"]), _entry("B", subjects=["b.>"])
    renamed, same = _plan(a, b, rename=["A=C"]).streams
    assert (same.incarnation, same.reads) == (b.incarnation, False)
    assert renamed.incarnation != a.incarnation and renamed.reads
    (cut,) = _plan(a, cut=Cut(until=AtSequence(3))).streams
    (again,) = _plan(a, cut=Cut(until=AtSequence(2))).streams
    assert cut.incarnation == again.incarnation not in (a.incarnation, renamed.incarnation)


def test_what_a_restore_refuses_is_refused() -> None:
    a, b = _entry("A", subjects=["a.>"]), _entry("B", subjects=["b.>"])
    with pytest.raises(PlanRefused, match="would mask nothing"):
        _plan(a, masks=Masks.parse(["other.>:$.a=redact"]))
    with pytest.raises(PlanRefused, match="would get the name B, as would B"):
        _plan(a, b, rename=["A=B"])
    with pytest.raises(TargetConflict, match=r"its subject a\.> overlaps with a\.> of stream A"):
        _plan(a, b, maps=SubjectMaps.parse(["b.>=>a.>"]))
    assert _plan(_entry("A", subjects=["a.>"]), _entry("D", subjects=["a.>"]), rename=["*=N*"]).streams
    with pytest.raises(PlanRefused, match="ends at sequence"):
        _plan(a, cut=Cut(until=AtSequence(4711)))
    with pytest.raises(FormatError, match="stream A: subjects in its stored configuration is damaged"):
        _plan(_entry("A", subjects=[7]), rename=["A=C"])
    with pytest.raises(UsageError, match="nothing to change"):
        _plan(a)


def test_a_consumer_that_cannot_follow_is_refused() -> None:
    reader = ConsumerBackup("r", {"filter_subject": "a.*"}, CREATED, Fidelity.EXACT, ConsumerState())
    entry = replace(_entry("A", subjects=["a.>"]), consumers=(reader,))
    maps = SubjectMaps.parse(["a.x=>b.x", "a.>=>c.>"])
    with pytest.raises(PlanRefused, match="consumer r cannot follow"):
        _plan(entry, maps=maps)


@pytest.mark.parametrize("entry", [_entry("OBJ_b"), _entry("COPY", mirror={"name": "OBJ_b"})], ids=lambda e: e.name)
def test_objects_are_not_cut_to_their_last_chunks(entry: StreamBackup) -> None:
    with pytest.raises(PlanRefused, match="is an object bucket"):
        _plan(entry, newest=NewestRule())


def test_options_are_told_as_they_were_typed() -> None:
    options = ChangeOptions(
        (),
        RenameOptions.parse(["A=B"]),
        Reshape(
            cut=Cut(until=AtSequence(3)),
            filters=Filters(("a.>",)),
            maps=SubjectMaps.parse(["a.>=>b.>"]),
            masks=Masks.parse(["a.>:$.b=hash"], "drop"),
            newest=NewestRule(3),
            renumber=True,
        ),
    )
    assert " ".join(options.words) == (
        "--rename A=B --map-subject a.>=>b.> --until --subject a.> --last-per-subject 3 --renumber "
        "--mask a.>:$.b=hash --unmaskable drop"
    )
