"""`import` of many small tables is one job of Spark, and its result is that of an import of each by itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jsbackup.pipeline.jobs.job_run import JobRun
from jsbackup.pipeline.jobs.write import SmallStream, TableStream, write_streams
from jsbackup.pipeline.session.lease import held_lease
from jsbackup.pipeline.tasks.tasks import OnSpark
from jsbackup.repository.checks.verify import Level, verify_backup
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.repository.read.archiving import read_stream
from tests.cli.typed import Typed
from tests.harness.batches import Message, batch_of, messages_of, sendable, some_messages
from tests.pipeline.places import Kept, keep
from tests.pipeline.test_reading import ODD

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Type = Callable[..., Typed]

KINDS = ("parquet", "jsonl")


def _streams() -> dict[str, list[Message]]:
    """Forty streams; buckets, subjects that are not UTF-8, and more rows than Spark has in a batch."""
    streams = {f"S{number}": some_messages(5 + number, 3 * number) for number in range(36)}
    many = [Message(n + 1, n, "a" if n != 11_000 else b"\xff", None, b"%d" % n) for n in range(12_000)]
    bucket = [Message(n + 1, n, f"$KV.B.{n % 3}", None, b"x") for n in range(10)]
    return streams | {"ODD": sendable(ODD), "MANY": many, "KV_B": bucket, "OBJ_O": some_messages(9, 9)}


def _jobs(spark: SparkSession) -> int:
    return int(spark.sparkContext._jsc.sc().dagScheduler().nextJobId())


def _bytewise(message: Message) -> Message:
    subject = message.subject
    return message._replace(subject=subject.encode() if isinstance(subject, str) else subject)


def _essence(stream: StreamBackup) -> tuple[object, ...]:
    return stream.name, stream.config, stream.state, stream.digest, stream.segments, stream.incarnation, stream.created


@pytest.mark.by_turns
@pytest.mark.parametrize("kind", KINDS)
def test_many_tables_in_one_job_become_what_each_becomes_alone(
    spark: SparkSession, typed: Type, tmp_path: Path, kind: str
) -> None:
    streams = _streams()
    kept = keep(tmp_path, streams)
    assert typed("export", "latest", *kept.line, "--format", kind, "--output", tmp_path / "t").code == 0
    if kind == "parquet":  # in no order
        for path in (tmp_path / "t").glob("S*/*.parquet"):
            table = pq.read_table(path)
            pq.write_table(table.take(list(reversed(range(table.num_rows)))), path)
    before = _jobs(spark)
    line = ("import", tmp_path / "t", "-r", tmp_path / "new", "--format", kind, "--json")
    done = typed(*line)
    assert done.code == 0, done.err
    assert _jobs(spark) - before == 2  # one before the repository is made
    done = typed(*line)
    assert (done.code, _jobs(spark) - before) == (0, 3), done.err
    place = keep(tmp_path / "other", {}).place
    repository = type(place)(str(tmp_path / "new")).open()
    manifest = repository.manifest(done.document["backup"])
    assert [stream.name for stream in manifest.streams] == sorted(streams)
    assert list(verify_backup(repository.objects, manifest, Level.DATA)) == []
    for stream in manifest.streams:
        stored = messages_of(read_stream(repository.objects, stream))
        assert [*map(_bytewise, stored)] == [*map(_bytewise, streams[stream.name])]
        assert stream.captured.begun <= stream.captured.ended <= manifest.ended and manifest.created <= manifest.ended
    for name in ("S0", "S35", "ODD", "MANY", "KV_B"):
        line = ("import", tmp_path / "t" / name, "--stream", name, "-r", tmp_path / "new", "--format", kind, "--json")
        alone = typed(*line)
        assert alone.code == 0, alone.err
        (single,) = repository.manifest(alone.document["backup"]).streams
        (one,) = [stream for stream in manifest.streams if stream.name == name]
        assert _essence(single) == _essence(one)
        assert alone.document["streams"][0]["segments_reused"] == len(one.segments)


def _tables(folder: Path, bad: dict[str, pa.Table]) -> Path:
    good = pa.Table.from_batches([batch_of(some_messages(20, 10))])
    for name, table in {**{f"G{number}": good for number in range(5)}, **bad}.items():
        (folder / name).mkdir(parents=True)
        pq.write_table(table, folder / name / "t.parquet", write_page_checksum=True)
    return folder


ROW = {"sequence": 1, "timestamp_ns": 5, "subject": "a", "data": b"x"}
TWICE = pa.Table.from_pylist([ROW, ROW])
NULL = pa.Table.from_pylist([ROW, ROW | {"sequence": 2, "subject": None}])
NO_DATA = pa.Table.from_pylist([{k: v for k, v in ROW.items() if k != "data"}])
HUGE = TWICE.set_column(0, "sequence", pa.array([1, 1 << 63], pa.uint64()))
PAGE = pa.Table.from_batches([batch_of(some_messages(30, 10))])


def _damage(path: Path) -> None:
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(4)
    end = (chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size
    data = path.read_bytes()
    path.write_bytes(data[: end - 4] + b"\0\1\2\3" + data[end:])


@pytest.mark.parametrize(
    ("bad", "code", "said"),
    [
        ({"B": TWICE}, 14, "stream B: sequence 1 is there twice"),
        ({"B": NULL}, 2, "stream B: a message without subject cannot be stored"),
        ({"B": HUGE}, 14, "stream B: 9223372036854775808 is not a sequence"),
        ({"B": PAGE}, 14, "B/t.parquet is damaged, or not a Parquet file of that kind"),
        ({"B": NO_DATA}, 2, "the table of stream B has no column data"),
        ({"A": TWICE, "B": NO_DATA}, 2, "the table of stream B has no column data"),
        ({"A": NULL, "B": TWICE}, 2, "stream A: a message without subject cannot be stored"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_a_bad_table_among_good_ones_is_named(
    typed: Type, tmp_path: Path, bad: dict[str, pa.Table], code: int, said: str
) -> None:
    folder = _tables(tmp_path / "t", bad)
    if bad.get("B") is PAGE:
        _damage(folder / "B" / "t.parquet")
    repo = tmp_path / "repo"
    done = typed("import", folder, "--format", "parquet", "-r", repo)
    told = done.err.splitlines()
    assert (done.code, done.out) == (code, ""), done.err
    assert told[0].startswith("error: ") and said in told[0] and len(told) <= 2
    assert not repo.exists()


def test_a_bad_line_among_good_tables_is_named(typed: Type, tmp_path: Path) -> None:
    line = '{"sequence": 7, "time": "2026-11-21T07:41:00.5Z", "subject": "a", "data": "x"}\n'
    for number in range(5):
        (tmp_path / "t" / f"S{number}").mkdir(parents=True)
        (tmp_path / "t" / f"S{number}" / "t.jsonl").write_text(line + "{" * (number == 3))
    done = typed("import", tmp_path / "t", "--format", "jsonl", "-r", tmp_path / "repo")
    assert (done.code, done.out) == (14, "")
    assert f"t.jsonl, line 2 at byte {len(line)}" in done.err and "S0" not in done.err


def test_a_table_that_only_spark_reads_comes_with_the_others(spark: SparkSession, typed: Type, tmp_path: Path) -> None:
    messages = [m._replace(headers=None) for m in some_messages(20, 10)]
    nested = pa.Table.from_batches([batch_of(messages)]).append_column("more", [[[n] for n in range(20)]])
    folder = _tables(tmp_path / "t", {"NESTED": nested})
    spark.createDataFrame([tuple(m) for m in messages], "sequence long, timestamp_ns long, subject string, "
        "headers binary, data binary").write.parquet(f"file:{folder}/SPARK")  # fmt: skip
    assert list((folder / "SPARK").glob(".*.crc"))
    done = typed("import", folder, "--format", "parquet", "-r", tmp_path / "repo", "--json")
    assert done.code == 0, done.err
    found = {one["name"]: one["digest"] for one in done.document["streams"]}
    expected = keep(tmp_path / "same", {"S": messages}).manifest.streams[0].digest.hex
    assert found.keys() == {"G0", "G1", "G2", "G3", "G4", "NESTED", "SPARK"}
    assert found["NESTED"] == found["SPARK"] == expected


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows for a task; with `deadly`, its process ends."""

    messages: tuple[Message, ...]
    deadly: bool = False

    def __call__(self) -> Iterator[pa.RecordBatch]:
        if self.deadly:
            os._exit(9)
        yield batch_of(self.messages)


def _write(spark: SparkSession, kept: Kept, streams: dict[str, SmallStream]) -> Manifest:
    repository = kept.place.open()
    with held_lease(repository, "import") as lease:
        run = JobRun(OnSpark(spark), kept.place, repository, lease)
        return write_streams(run, streams, tags={}, origin="a test")[0]


def test_a_table_that_ends_its_worker_does_not_stop_the_others(spark: SparkSession, tmp_path: Path) -> None:
    """Each is then tried by itself, by Spark."""
    messages = tuple(some_messages(20, 10))
    schema = "sequence bigint, timestamp_ns bigint, subject string, headers binary, data binary"
    frame = spark.createDataFrame([tuple(message) for message in messages], schema)
    later = partial(TableStream, frame, {}, 5)
    kept = keep(tmp_path, {"S": messages})
    streams = {name: SmallStream(_Rows(messages, name == "B"), 5, {}, later) for name in "ABC"}
    manifest = _write(spark, kept, streams)
    assert [one.name for one in manifest.streams] == ["A", "B", "C"]
    assert {one.digest for one in manifest.streams} == {kept.manifest.streams[0].digest}
