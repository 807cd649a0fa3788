"""Streams that are read in ranges are what a whole reading of them is, whatever becomes of a range."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.config import parse_glob
from jsbackup.config.connection import ConnectionOptions, source_connection
from jsbackup.engine.backup import worker_share
from jsbackup.engine.backup.backup import begin_backup
from jsbackup.engine.backup.run import BackupOptions, BackupRun
from jsbackup.engine.backup.worker_share import (
    RangedStream,
    StoredRange,
    complete,
    plan_ranges,
    store_on_ranges,
    store_range,
)
from jsbackup.engine.read.increment import Incremental, PresentSequences
from jsbackup.errors import TransferError
from jsbackup.failure import Failure
from jsbackup.model import StreamState
from jsbackup.protocol.info import StreamInfo
from jsbackup.repository.manifest import ReadAs
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.write.new_backup import StoredStream
from jsbackup.repository.write.segment_writer import SegmentWriter
from jsbackup.stores.memory import MemoryStore
from tests.harness.api import connected
from tests.harness.awkward import fill, keys
from tests.harness.clusters import NatsCluster
from tests.harness.held import held
from tests.harness.overwrites import Overwrites
from tests.harness.servers import NatsServer
from tests.integration.test_increment import Bench, check_equal, how, undated

SEGMENT_BYTES, RANGE_BYTES = 4000, 10_000


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few messages are many segments, and these are several ranges."""
    defaults = SegmentWriter.__init__.__kwdefaults__
    assert defaults and "segment_bytes" in defaults
    monkeypatch.setitem(defaults, "segment_bytes", SEGMENT_BYTES)
    for name in ("_LEAST_BYTES", "_MOST_BYTES"):
        monkeypatch.setattr(worker_share, name, RANGE_BYTES)
    monkeypatch.setattr(worker_share, "_LEAST_STREAM_BYTES", 1)
    monkeypatch.setattr(worker_share, "_is_faster", lambda *_: True)


class Ranges:
    """A backup in ranges, by threads instead of executors."""

    def __init__(self, bench: Bench, *names: str, options: BackupOptions | None = None) -> None:
        options = options or BackupOptions(incremental=Incremental.NEVER)
        options = replace(options, streams=tuple(map(parse_glob, names)))
        connection = source_connection(ConnectionOptions(server=bench.url), {"HOME": "/nonexistent"})
        self.run = BackupRun(connection, bench.repository, options)
        self.begun = complete(begin_backup(self.run, held(bench.repository.store)))
        self.planned = complete(plan_ranges(self.run, self.begun.chosen, 2))
        self._runs = 0

    def read(self, stream: RangedStream, lost: Sequence[int] = ()) -> list[StoredRange]:
        """All its ranges, but for those with these numbers."""
        parts = [part for number, part in enumerate(stream.ranges) if number not in lost]
        ids = [f"{self._runs + number:016x}" for number in range(len(parts))]
        self._runs += len(parts)
        source = self.begun.chosen.source
        with ThreadPoolExecutor(3) as threads:
            return list(threads.map(lambda part, name: store_range(self.run, source, part, name), parts, ids))

    def store(self, stream: RangedStream, found: Sequence[StoredRange]) -> StoredStream:
        stored = [one.stored for one in found]
        chosen = self.begun.chosen
        result = complete(store_on_ranges(self.run, chosen.source, stream, stored, receipts=self.begun.receipts))
        assert not isinstance(result, Failure), result
        return result


# --- which ranges ---


def _info(state: StreamState, deleted: Sequence[int] = ()) -> StreamInfo:
    return StreamInfo("S", {"name": "S"}, "", 0, state, tuple(deleted), None, 0, None, None, (), 0)


@given(
    st.integers(1, 1 << 60),
    st.integers(1, 300),
    st.sets(st.integers(0, 299), max_size=250),
    st.integers(1, 100_000),
    st.integers(1, 5000),
)
def test_ranges_have_every_sequence_once(first: int, length: int, gone: set[int], size: int, range_bytes: int) -> None:
    last = first + length - 1
    deleted = sorted(first + one for one in gone if 0 < one < length - 1)
    state = StreamState(messages=length - len(deleted), bytes=size, first_seq=first, last_seq=last)
    info = _info(state, deleted)
    present = PresentSequences(state, deleted)
    spans = list(worker_share._split(info, range_bytes))
    assert [one for span in spans for one in present.within(span.first, span.last)] == list(present.within(first, last))
    assert sum(span.messages for span in spans) == state.messages
    wanted = max(1, size // range_bytes)
    assert len(spans) == min(wanted, state.messages)
    assert max(span.messages for span in spans) <= -(-state.messages // wanted)


def test_ranges_are_for_large_messages_or_many_cores() -> None:
    def least_cores(message_bytes: int) -> int:
        count = (100 << 30) // message_bytes
        state = StreamState(messages=count, bytes=count * message_bytes, first_seq=1, last_seq=count)
        return next(cores for cores in range(1, 100) if worker_share._is_faster(state, cores))

    assert [least_cores(size) for size in (256, 1 << 10, 16 << 10, 1 << 20)] == [14, 6, 4, 3]


# --- on servers ---


@pytest.mark.by_turns
@pytest.mark.nats
@pytest.mark.usefixtures("small_ranges")
def test_every_awkward_stream_is_what_a_whole_reading_is(
    nats_server: Callable[..., NatsServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Large streams would be read in 700 ranges each, which takes nearly all of the time of this test; so would BIG,
    # which has no more than the others: large messages, blocks without an end or a beginning, and gaps.
    monkeypatch.setattr(worker_share, "_range_bytes", lambda info, _: max(RANGE_BYTES, info.state.bytes // 40))
    bench = Bench.make(nats_server("2.15.1").url, tmp_path, store=MemoryStore())
    chosen = [key for key in keys("2.15.1") if key != "BIG" and not key.startswith("MANY_SUBJECTS")]

    async def make() -> None:
        async with connected(bench.url) as nc:
            await fill(nc, "2.15.1", only=chosen)

    asyncio.run(make())
    before = bench.states()
    whole = bench.back_up(Incremental.NEVER)
    ranges = Ranges(bench, options=BackupOptions(incremental=Incremental.NEVER, consumers=False))
    several = [stream for stream in ranges.planned.values() if len(stream.ranges) > 1]
    assert len(ranges.planned) > 20 and len(several) >= 3
    for name, stream in ranges.planned.items():
        result = ranges.store(stream, ranges.read(stream))
        check_equal(result, replace(whole[name], stream=replace(whole[name].stream, consumers=())))
        if result.stream.segments:
            assert how(result)[0] is ReadAs.MESSAGES, (name, how(result))
    assert bench.states() == before


@pytest.mark.nats
@pytest.mark.parametrize("lost", [[0], [2], [-1], [0, 1, 3], "all"])
@pytest.mark.usefixtures("small_ranges")
def test_what_a_lost_range_had_is_read_again(
    lost: Sequence[int] | str, nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    bench = Bench.make(nats_server("2.15.1").url, tmp_path, store=MemoryStore())
    bench.create("ORDERS")
    bench.publish("ORDERS", range(400))
    bench.call(*(("STREAM.MSG.DELETE.ORDERS", {"seq": sequence}) for sequence in (1, 40, 41, 42, 399)))
    whole = bench.back_up(Incremental.NEVER)["ORDERS"]
    other = Bench.make(bench.url, tmp_path / "other", store=MemoryStore())
    ranges = Ranges(other, "ORDERS")
    stream = ranges.planned["ORDERS"]
    count = len(stream.ranges)
    assert count > 5
    gone = range(count) if isinstance(lost, str) else [one % count for one in lost]
    result = ranges.store(stream, ranges.read(stream, gone))
    check_equal(result, whole)
    assert undated(result.stream) == undated(whole.stream)
    kept = total = sum(info.size for info in other.repository.store.list("segments/"))
    assert result.stored_bytes == kept == total and result.segments_reused == 0
    kind, why = how(result)
    if isinstance(lost, str):
        assert kind is ReadAs.SNAPSHOT
    else:
        assert kind is ReadAs.MESSAGES and why.startswith(f"in {count} ranges at once; ")


@pytest.mark.nats
@pytest.mark.usefixtures("small_ranges")
def test_what_happens_meanwhile_is_in_it(nats_server: Callable[..., NatsServer], tmp_path: Path) -> None:
    bench = Bench.make(nats_server("2.15.1").url, tmp_path, store=MemoryStore())
    for name in ("PURGED", "DELETED", "GROWN"):
        bench.create(name)
        bench.publish(name, range(300))
    ranges = Ranges(bench)
    stored = {name: ranges.read(stream) for name, stream in ranges.planned.items()}
    bench.call(("STREAM.PURGE.PURGED", {"seq": 150}))
    bench.call(*(("STREAM.MSG.DELETE.DELETED", {"seq": sequence}) for sequence in (2, 100, 200, 300)))
    bench.publish("GROWN", range(300, 350))
    results = {name: ranges.store(stream, stored[name]) for name, stream in ranges.planned.items()}
    whole = Bench.make(bench.url, tmp_path / "whole", store=MemoryStore()).back_up(Incremental.NEVER)
    for name, result in results.items():
        check_equal(result, whole[name])
        assert how(result)[0] is ReadAs.MESSAGES and result.stream.warnings == ()


@pytest.mark.by_turns
@pytest.mark.nats
@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("history", [1, 3])
def test_a_bucket_that_is_overwritten_meanwhile_is_one_that_there_was(
    history: int, nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    bench = Bench.make(nats_server("2.15.1").url, tmp_path, store=MemoryStore())
    with Overwrites(bench.url, keys=2000, history=history, hot=50, roll_ups=0.02) as bucket:
        ranges = Ranges(bench, bucket.stream)
        stream = ranges.planned[bucket.stream]
        found = ranges.read(stream)
        result = ranges.store(stream, found)
    assert len(stream.ranges) > 5
    stored = {sequence for sequence, _ in bench.messages(result.stream.segments)}
    assert stored == bucket.held(result.stream.state.last_seq)


@pytest.mark.by_turns
@pytest.mark.nats
@pytest.mark.usefixtures("small_ranges")
def test_ranges_of_several_replicas_are_one_stream(nats_cluster: Callable[..., NatsCluster], tmp_path: Path) -> None:
    cluster = nats_cluster("2.15.1")
    bench = Bench.make(cluster.servers[0].url, tmp_path, store=MemoryStore())
    with Overwrites(bench.url, keys=1000, history=2, replicas=3) as bucket:
        ranges = Ranges(bench, bucket.stream)
        result = ranges.store(stream := ranges.planned[bucket.stream], ranges.read(stream))
    assert len(stream.ranges) > 5
    stored = {sequence for sequence, _ in bench.messages(result.stream.segments)}
    assert stored == bucket.held(result.stream.state.last_seq)
    check_equal(Ranges(bench, bucket.stream).store(stream, []), bench.back_up(Incremental.NEVER)[bucket.stream])


@pytest.mark.nats
@pytest.mark.usefixtures("small_ranges")
def test_streams_that_only_a_snapshot_shows_are_read_as_before(
    nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    bench = Bench.make(nats_server("2.15.1").url, tmp_path, store=MemoryStore())
    configs = {"PLAIN": {}, "PENDING": {}, "QUEUE": {"retention": "workqueue"}, "LIMITED": {"max_consumers": 9}}
    for name, config in configs.items():
        bench.create(name, **config)
        create = {"stream_name": name, "config": {"durable_name": "c", "ack_policy": "explicit"}}
        bench.call((f"CONSUMER.DURABLE.CREATE.{name}.c", create))
        bench.publish(name, range(100))
    bench.consume("PENDING", "c", ack=3, leave=2)

    def planned(**options: object) -> set[str]:
        return set(Ranges(bench, options=BackupOptions(**options)).planned)  # type: ignore[arg-type]

    assert planned() == planned(incremental=Incremental.NEVER) == {"PLAIN"}
    assert planned(incremental=Incremental.ALWAYS) == planned(consumers=False) == {"PLAIN", "PENDING"}
    for option in ("config_only", "check", "salvage"):
        assert planned(**{option: True}) == set()
    bench.back_up(Incremental.NEVER)
    assert planned() == set() and planned(incremental=Incremental.NEVER) == {"PLAIN"}


@pytest.mark.nats
@pytest.mark.usefixtures("small_ranges")
def test_a_range_that_breaks_off_is_continued(
    nats_server: Callable[..., NatsServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench.make(nats_server("2.15.1").url, tmp_path, store=MemoryStore())
    bench.create("ORDERS")
    bench.publish("ORDERS", range(100))
    ranges = Ranges(bench, "ORDERS")
    stream = ranges.planned["ORDERS"]
    add, left = SegmentWriter.add, [3]

    def add_or_break(self: SegmentWriter, batch: object) -> None:
        add(self, batch)  # type: ignore[arg-type]
        left[0] -= 1
        if left[0] >= 0:
            raise TransferError("gone")

    monkeypatch.setattr(SegmentWriter, "add", add_or_break)
    found = ranges.read(stream, range(2, len(stream.ranges)))
    monkeypatch.undo()
    assert left[0] < 0 and sum(one.stored.refs[0].messages for one in found)
    reader = SegmentReader(bench.repository.objects)
    for part, one in zip(stream.ranges, found, strict=False):
        sequences = [s for ref in one.stored.refs for batch in reader.prove(ref) for s in batch.column(0).to_pylist()]
        assert sequences == list(range(part.span.first, part.span.last + 1))
