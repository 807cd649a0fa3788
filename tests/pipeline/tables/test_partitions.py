"""`export --partition-by`: readers find the same rows, the partition as a column, and skip what it excludes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jsbackup.errors import StoreError, UnsupportedError, UsageError
from jsbackup.model import S3Settings
from jsbackup.pipeline.session.repository_ref import place_of
from jsbackup.pipeline.tables import export as export_module
from jsbackup.pipeline.tables import partitions as partitions_module
from jsbackup.pipeline.tables.partitions import PartitionBy, Partitions
from jsbackup.pipeline.tables.target import ignores_case, new_target
from jsbackup.pipeline.tables.writing import TableFormat
from jsbackup.pipeline.tasks.tasks import OnSpark
from jsbackup.stores.memory import MemoryStore
from jsbackup.stores.s3 import S3Store
from tests.cli.typed import Typed, in_shell
from tests.harness.batches import Message, batch_of, message_lists, messages_of, some_messages
from tests.harness.s3server import BUCKET, REGION, S3Server
from tests.harness.stores import Fault, FaultStore, Killed
from tests.pipeline.places import keep
from tests.pipeline.tables.growing import StoreAt, backed_up, copied, export, log_lines, rows, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

KINDS = [TableFormat.PARQUET, TableFormat.DELTA]
kinds = pytest.mark.parametrize("kind", KINDS)
ways = pytest.mark.parametrize("by", list(PartitionBy))

# All that has a meaning somewhere: for Hive, in a URI, in a glob, in Hadoop; and what differs in case only.
SUBJECTS = [
    "orders.new",
    "orders.NEW",
    "ORDERS.new",
    "$KV.B.k",
    "a%b=c/d",
    "a%25b",
    "x*?[a]{b}",
    "q\"'`\\",
    "~+@&;:,#|<>^!()",
]
DAY_NS = 86_400 * 10**9


def _messages(count: int = 180) -> list[Message]:
    """Over six days, two of them before 1970, with a message in the last and the first nanosecond of one."""
    found = []
    for n, m in enumerate(some_messages(count, 60, seed=7)):
        day = (-2, -1, 0, 20_000, 20_001, 20_783)[n * 6 // count]
        within = (0, DAY_NS - 1, 12 * 3600 * 10**9 + n)[n % 3]
        found.append(m._replace(timestamp_ns=day * DAY_NS + within, subject=SUBJECTS[n % len(SUBJECTS)]))
    return found


MESSAGES = _messages()


def _day(message: Message) -> date:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=message.timestamp_ns // 1000)).date()


def _value(message: Message, by: PartitionBy) -> Any:
    return _day(message) if by is PartitionBy.DAY else message.subject


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "SEGMENT_BYTES", 4000)


Asked = list[tuple[int, Any]]
Ask = Callable[[Path, PartitionBy, Any], Asked]


def _by_pyarrow(folder: Path, by: PartitionBy, value: Any) -> Asked:
    day = pa.schema([("day", pa.date32()), ("subject", pa.string())])
    partitioning = ds.partitioning(pa.schema([day.field(by)]), flavor="hive")
    table = ds.dataset(folder, partitioning=partitioning).to_table(
        columns=["sequence", by], filter=None if value is None else pc.field(by) == pa.scalar(value)
    )
    return list(zip(table["sequence"].to_pylist(), table[by].to_pylist(), strict=True))


def _by_duckdb(folder: Path, by: PartitionBy, value: Any) -> Asked:
    condition, values = ("", []) if value is None else (f"WHERE {by} = ?", [value])
    with duckdb.connect() as connection:
        return connection.execute(
            f"SELECT sequence, {by} FROM read_parquet('{folder}/*/*.parquet', hive_partitioning = true) {condition}",
            values,
        ).fetchall()


def _by_delta_rs(folder: Path, by: PartitionBy, value: Any) -> Asked:
    table = DeltaTable(folder).to_pyarrow_table(filters=None if value is None else [(by, "=", value)])
    return list(zip(table["sequence"].to_pylist(), table[by].to_pylist(), strict=True))


def _by_datafusion(folder: Path, by: PartitionBy, value: Any) -> Asked:
    literal = "'" + str(value).replace("'", "''") + "'"
    condition = "" if value is None else f"WHERE {by} = {'date ' if by is PartitionBy.DAY else ''}{literal}"
    query = QueryBuilder().register("t", DeltaTable(folder)).execute(f"SELECT sequence, {by} FROM t {condition}")
    table = pa.table(query.read_all())
    return list(zip(table["sequence"].to_pylist(), table[by].to_pylist(), strict=True))


READERS = [
    (TableFormat.PARQUET, _by_pyarrow),
    (TableFormat.PARQUET, _by_duckdb),
    (TableFormat.DELTA, _by_delta_rs),
    (TableFormat.DELTA, _by_datafusion),
]


def _exported(folder: Path, messages: Sequence[Message], kind: TableFormat, by: PartitionBy) -> Path:
    kept = keep(folder / "r", {"S": messages})
    export(kept, kept.manifest, place_of(str(folder / "out"), S3Settings(), {}), kind, by=by)
    return folder / "out" / "S"


def _damage_others(table: Path, by: PartitionBy, value: Any) -> int:
    """Make all partitions unreadable but that of `value`, and the one that some readers ask for the columns."""
    spared, damaged = {min(path.parent for path in table.glob("*=*/*.parquet"))}, 0
    for path in table.glob("*=*/*.parquet"):
        if unquote(path.parent.name) != f"{by}={value}" and path.parent not in spared:
            path.chmod(0o600)
            path.write_bytes(b"x" * path.stat().st_size)
            damaged += 1
    return damaged


@pytest.mark.by_turns
@ways
@pytest.mark.parametrize(("kind", "ask"), READERS, ids=lambda one: getattr(one, "__name__", str(one)))
def test_every_reader_finds_all_rows_and_skips_other_partitions(
    tmp_path: Path, by: PartitionBy, kind: TableFormat, ask: Ask
) -> None:
    table = _exported(tmp_path, MESSAGES, kind, by)
    assert len(list(table.glob(f"{by}=*"))) == len({_value(m, by) for m in MESSAGES})
    assert sorted(ask(table, by, None)) == [(m.sequence, _value(m, by)) for m in MESSAGES]
    for value in {_value(m, by) for m in MESSAGES}:
        assert sorted(ask(table, by, value)) == [(m.sequence, value) for m in MESSAGES if _value(m, by) == value]
    assert ask(table, by, date(2001, 1, 1) if by is PartitionBy.DAY else "none") == []
    value = _value(MESSAGES[-1], by)
    assert _damage_others(table, by, value) > 5
    assert sorted(ask(table, by, value)) == [(m.sequence, value) for m in MESSAGES if _value(m, by) == value]


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
@ways
def test_spark_reads_and_writes_the_same(spark: SparkSession, tmp_path: Path, by: PartitionBy) -> None:
    table = _exported(tmp_path, MESSAGES, TableFormat.PARQUET, by)
    kept = keep(tmp_path / "again", {"S": MESSAGES})
    for kind in KINDS:
        place = place_of(str(tmp_path / f"spark-{kind}"), S3Settings(), {})
        export(kept, kept.manifest, place, kind, by=by, runner=OnSpark(spark))
        assert rows_of(tmp_path / f"spark-{kind}" / "S", kind) == rows(MESSAGES)
    names = {str(path.relative_to(table)): path.read_bytes() for path in table.rglob("*.parquet")}
    there = tmp_path / "spark-parquet" / "S"
    assert {str(path.relative_to(there)): path.read_bytes() for path in there.rglob("*.parquet")} == names
    frame = spark.read.parquet(f"file:{table}")
    found = [(row.sequence, row[by]) for row in frame.select("sequence", by).collect()]
    assert sorted(found) == [(m.sequence, _value(m, by)) for m in MESSAGES]
    value = _value(MESSAGES[-1], by)
    assert _damage_others(table, by, value) > 5
    expected = [m.sequence for m in MESSAGES if _value(m, by) == value]
    assert sorted(row.sequence for row in frame.where(frame[by] == value).select("sequence").collect()) == expected


@ways
def test_the_log_of_delta_says_it_all(tmp_path: Path, by: PartitionBy) -> None:
    table = _exported(tmp_path, MESSAGES, TableFormat.DELTA, by)
    lines = log_lines(table / "_delta_log" / "00000000000000000000.json")
    (about,) = [line["metaData"] for line in lines if "metaData" in line]
    assert isinstance(about, dict) and about["partitionColumns"] == [by]
    added = [line["add"] for line in lines if "add" in line]
    columns = {"stream", "sequence", "timestamp_ns", "time", "subject", "backup"} - {by}
    for one in added:
        assert isinstance(one, dict) and one["partitionValues"].keys() == {by}
        file = table / unquote(one["path"])
        assert by not in pq.read_schema(file).names
        content = pq.read_table(file)
        here = [m for m in MESSAGES if m.sequence in set(content["sequence"].to_pylist())]
        assert {str(_value(m, by)) for m in here} == {one["partitionValues"][by]}
        found = json.loads(one["stats"])
        assert found["numRecords"] == content.num_rows == len(here)
        assert found["minValues"].keys() == found["maxValues"].keys() == columns
        assert found["nullCount"].keys() == columns | {"headers", "data"}
        assert found["nullCount"]["headers"] == sum(m.headers is None for m in here)
        assert (found["minValues"]["sequence"], found["maxValues"]["sequence"]) == (here[0].sequence, here[-1].sequence)
    assert DeltaTable(table).to_pyarrow_table().num_rows == len(MESSAGES)


_TEXT = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=12)
_SPELLED = st.one_of(_TEXT, st.sampled_from([*SUBJECTS, "1", "007", "1.5", "null", "NaN", "2026-11-26", ".", ".."]))


@pytest.mark.by_turns
@ways
@kinds
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_messages_come_back(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, kind: TableFormat, by: PartitionBy
) -> None:
    """As in an export without partitions, from the column of the partition as from all others."""
    drawn = data.draw(message_lists(binary=by is PartitionBy.DAY, max_size=15))
    if by is PartitionBy.SUBJECT:
        drawn = [m._replace(subject=data.draw(_SPELLED)) for m in drawn]
    folder = tmp_path_factory.mktemp("any")
    kept = keep(folder / "r", {"S": drawn})
    for name, way in (("plain", None), ("parts", by)):
        export(kept, kept.manifest, place_of(str(folder / name), S3Settings(), {}), kind, by=way)
    if not drawn:
        return
    if kind is TableFormat.DELTA:
        found, plain = (DeltaTable(folder / name / "S").to_pyarrow_table() for name in ("parts", "plain"))
    else:
        partitioning = ds.partitioning(pa.schema([(by, pa.string())]), flavor="hive")
        found = ds.dataset(folder / "parts" / "S", partitioning=partitioning).to_table()
        plain = ds.dataset(folder / "plain" / "S").to_table()
        alone = pa.concat_tables(pq.ParquetFile(path).read() for path in (folder / "parts" / "S").glob("*/*.parquet"))
        assert alone.sort_by("sequence").equals(plain.sort_by("sequence"))
    found = found.sort_by("sequence")
    if by is PartitionBy.DAY:
        days = [str((datetime(1970, 1, 1) + timedelta(days=m.timestamp_ns // DAY_NS)).date()) for m in drawn]
        assert [str(day) for day in found["day"].to_pylist()] == days
        found = found.drop_columns(["day"])
    assert found.select(plain.column_names).equals(plain.sort_by("sequence"))


@pytest.mark.by_turns
@kinds
@ways
def test_each_backup_adds_what_is_new(tmp_path: Path, kind: TableFormat, by: PartitionBy) -> None:
    kept = keep(tmp_path / "r", {"S": MESSAGES[:40]})
    manifests = [kept.manifest, *(backed_up(kept, n, {"S": MESSAGES[:c]}) for n, c in ((1, 100), (2, 180)))]
    line = ["export", *kept.line, "--format", kind, "--partition-by", by, "--output", tmp_path / "out", "--json"]
    table = tmp_path / "out" / "S"
    for number, (manifest, count) in enumerate(zip(manifests, (40, 100, 180), strict=True)):
        for again in (False, True):
            done = in_shell(*line, manifest.id, *(["--append"] if number or again else []))
            assert done.code == 0, done
            assert rows_of(table, kind) == rows(MESSAGES[:count])
            assert again is not bool(done.document["files"])
        ask: Ask = _by_duckdb if kind is TableFormat.PARQUET else _by_delta_rs
        assert sorted(ask(table, by, None)) == [(m.sequence, _value(m, by)) for m in MESSAGES[:count]]
    assert not list((tmp_path / "out").rglob("*.part")) and not list(table.glob("_jsbackup/*/*"))
    # Another division is another table.
    others: list[tuple[list[str], str]] = [
        ([], f"has partitions by {by}"),
        (["--partition-by", "day" if by is PartitionBy.SUBJECT else "subject"], f"has partitions by {by}"),
    ]
    for more, said in others:
        refused = in_shell(
            "export", "latest", *kept.line, "--format", kind, "--append", *more, "--output", tmp_path / "out"
        )
        assert refused.code == 2 and said in refused.err and f"with --partition-by {by}" in refused.err, refused
    plain = ["export", "latest", *kept.line, "--format", kind, "--append", "--output", tmp_path / "plain"]
    assert in_shell(*plain).code == 0
    refused = in_shell(*plain, "--partition-by", by)
    assert refused.code == 2 and "has no partitions" in refused.err and "without --partition-by" in refused.err


@pytest.mark.by_turns
@kinds
@ways
@pytest.mark.parametrize("fault", [Fault.KILL_AFTER, Fault.FAIL])
def test_stopped_at_every_operation(tmp_path: Path, kind: TableFormat, by: PartitionBy, fault: Fault) -> None:
    kept = keep(tmp_path / "r", {"S": MESSAGES[:20]})
    grown = backed_up(kept, 1, {"S": MESSAGES[:60]})
    before = MemoryStore()
    export(kept, kept.manifest, StoreAt("memory:", given=before), kind, by=by)
    stops = 0
    for at in range(1, 500, 3 if kind is TableFormat.PARQUET else 1):
        store = MemoryStore()
        for info in before.list():
            store.put(info.key, before.get(info.key))
        faulty = FaultStore(store, fault, at=at)
        try:
            export(kept, grown, StoreAt("memory:", given=faulty), kind, token=f"{at:08x}", by=by)
        except (Killed, StoreError):
            stops += 1
        seen = rows_of(copied(tmp_path / f"a{at}", store) / "S", kind)
        if kind is TableFormat.DELTA:
            assert seen in (rows(MESSAGES[:20]), rows(MESSAGES[:60])), at
        assert len({row[0] for row in seen}) == len(seen), at
        export(kept, grown, StoreAt("memory:", given=store), kind, token=f"{at:07x}f", by=by)
        assert rows_of(copied(tmp_path / f"b{at}", store) / "S", kind) == rows(MESSAGES[:60]), at
        assert not [info.key for info in store.list() if info.key.endswith(".part")], at
        if at > faulty.operations:
            break
    assert stops > 5


@pytest.mark.by_turns
@kinds
def test_too_many_partitions_are_refused(tmp_path: Path, kind: TableFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one file, in several, and in what is added to a table; another stream is appended to all the same."""
    monkeypatch.setattr(partitions_module, "MOST_PARTITIONS", 10)
    by, many = PartitionBy.SUBJECT, [m._replace(subject=f"s.{n // 15}") for n, m in enumerate(MESSAGES)]
    each = [m._replace(subject=f"s.{n}") for n, m in enumerate(MESSAGES)]
    kept = keep(tmp_path / "r", {"FEW": MESSAGES[:20], "S": many[:30]})
    grown = backed_up(kept, 1, {"FEW": MESSAGES, "S": many})
    for manifest in (grown, backed_up(kept, 2, {"FEW": MESSAGES, "S": each})):
        with pytest.raises(UsageError, match="stream S has more than 10 subjects") as caught:
            export(kept, manifest, place_of(str(tmp_path / "whole"), S3Settings(), {}), kind, by=by)
        assert "choose --partition-by day" in (caught.value.hint or "") and not (tmp_path / "whole").exists()
    out = tmp_path / "out"
    place = place_of(str(out), S3Settings(), {})
    export(kept, kept.manifest, place, kind, by=by)
    done = export(kept, grown, place, kind, by=by, token="0000abcd")
    assert done.refused.keys() == {"S"} and isinstance(done.refused["S"], UsageError)
    assert rows_of(out / "FEW", kind) == rows(MESSAGES) and rows_of(out / "S", kind) == rows(many[:30])
    assert not list(out.rglob("*.part")) and not list((out / "S").rglob("*0000abcd.parquet"))
    monkeypatch.setattr(partitions_module, "MOST_PARTITIONS", 12)
    assert not export(kept, grown, place, kind, by=by, token="0000abce").refused
    assert rows_of(out / "S", kind) == rows(many)
    monkeypatch.setattr(partitions_module, "MOST_FILES", 12)
    with pytest.raises(UsageError, match="would get more than 12 files"):
        export(kept, grown, place_of(str(tmp_path / "files"), S3Settings(), {}), kind, by=by)
    assert not (tmp_path / "files").exists()


@ways
def test_a_delta_table_that_others_maintain(tmp_path: Path, by: PartitionBy) -> None:
    kept = keep(tmp_path / "r", {"S": MESSAGES[:90]})
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    export(kept, kept.manifest, place, TableFormat.DELTA, by=by)
    table = DeltaTable(tmp_path / "out" / "S")
    table.optimize.compact()
    table.create_checkpoint()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    export(kept, backed_up(kept, 1, {"S": MESSAGES}), place, TableFormat.DELTA, by=by, token="0000abcd")
    assert rows_of(tmp_path / "out" / "S", TableFormat.DELTA) == rows(MESSAGES)
    found = _by_delta_rs(tmp_path / "out" / "S", by, None)
    assert sorted(found) == [(m.sequence, _value(m, by)) for m in MESSAGES]
    # Divided in another way by someone else, it is refused.
    table = DeltaTable(tmp_path / "out" / "S")
    content = table.to_pyarrow_table()
    write_deltalake(table, content, mode="overwrite", partition_by=["stream"], schema_mode="overwrite")
    done = backed_up(kept, 2, {"S": [*MESSAGES, *some_messages(5, 10, first=MESSAGES[-1].sequence + 1)]})
    with pytest.raises((UsageError, UnsupportedError)):
        export(kept, done, place, TableFormat.DELTA, by=by, token="0000abce")


@pytest.mark.by_turns
@pytest.mark.parametrize(
    ("subject", "parquet", "delta"),
    [
        ("größe", "plain Parquet do not find", ""),
        ("a\tb", "plain Parquet do not find", ""),
        (f"x.{'y' * 300}", "too long", ""),
        (f"x.{'%' * 70}", "too long", ""),
        (b"a.\xff", "not UTF-8", "not UTF-8"),
        ("", "tables do not find", "tables do not find"),
        ("__HIVE_DEFAULT_PARTITION__", "tables do not find", "tables do not find"),
    ],
)
def test_subjects_that_cannot_be_a_folder(tmp_path: Path, subject: str | bytes, parquet: str, delta: str) -> None:
    messages = [*MESSAGES[:20], MESSAGES[20]._replace(subject=subject), MESSAGES[21]]
    kept = keep(tmp_path / "r", {"S": messages})
    for kind, said in ((TableFormat.PARQUET, parquet), (TableFormat.DELTA, delta)):
        out = tmp_path / kind
        line = ["export", "latest", *kept.line, "--format", kind, "--output", out, "--partition-by"]
        done = in_shell(*line, "subject")
        assert done.code == (2 if said else 0) and said in done.err, done
        if said:
            assert "--partition-by day" in done.err and not out.exists()
            assert in_shell(*line, "day").code == 0
        else:
            found = DeltaTable(out / "S").to_pyarrow_table(filters=[("subject", "=", str(subject))])
            assert found["sequence"].to_pylist() == [messages[20].sequence]
            assert found["subject"].to_pylist() == [subject]


@kinds
def test_where_the_file_system_ignores_case_no_two_subjects_share_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: TableFormat
) -> None:
    monkeypatch.setattr(export_module, "ignores_case", lambda _target: True)
    table = _exported(tmp_path, MESSAGES, kind, PartitionBy.SUBJECT)
    names = [path.name for path in table.glob("subject=*")]
    assert len({name.replace("%", "").casefold() for name in names}) == len(names) == len(SUBJECTS)
    assert "subject=orders.%4E%45%57" in names and "subject=orders.new" in names
    ask: Ask = _by_duckdb if kind is TableFormat.PARQUET else _by_delta_rs
    assert sorted(ask(table, PartitionBy.SUBJECT, None)) == [(m.sequence, m.subject) for m in MESSAGES]


def test_the_file_system_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with new_target(place_of(str(tmp_path / "out"), S3Settings(), {}), "00ff00ff") as target:
        assert ignores_case(target) is False
        before = set((tmp_path).rglob("*"))
        monkeypatch.setattr(
            Path, "exists", lambda self: any(p.name.lower() == self.name.lower() for p in self.parent.iterdir())
        )
        assert ignores_case(target) is True
        assert set(tmp_path.rglob("*")) == before


def test_other_formats_have_no_partitions(tmp_path: Path) -> None:
    kept = keep(tmp_path / "r", {"S": MESSAGES[:20]})
    for kind in ("jsonl", "nats-cli", "config"):
        done = in_shell(
            "export", "latest", *kept.line, "--format", kind, "--partition-by", "day", "--output", tmp_path / "o"
        )
        assert (
            done.code == 2
            and f"--partition-by is for --format parquet, delta and iceberg, and this is --format {kind}" in done.err
        )
    done = in_shell(
        "export", "latest", *kept.line, "--format", "delta", "--partition-by", "hour", "--output", tmp_path / "o"
    )
    assert done.code == 2 and "'hour' is not one of" in done.err
    assert not (tmp_path / "o").exists()


@kinds
@ways
def test_with_other_options(tmp_path: Path, kind: TableFormat, by: PartitionBy) -> None:
    """New sequences, and new subjects: the partition is that of the changed message."""
    kept = keep(tmp_path / "r", {"S": [m._replace(subject=f"a.{n % 3}") for n, m in enumerate(MESSAGES)]})
    line = ["export", "latest", *kept.line, "--format", kind, "--partition-by", by, "--output", tmp_path / "out"]
    done = in_shell(*line, "--renumber", "--map-subject", "a.*=>b.$1")
    assert done.code == 0, done
    found = rows_of(tmp_path / "out" / "S", kind)
    assert [row[0] for row in found] == list(range(1, 181)) and {row[2] for row in found} == {"b.0", "b.1", "b.2"}
    if by is PartitionBy.SUBJECT:
        assert {path.name for path in (tmp_path / "out" / "S").glob("subject=*")} == {
            f"subject=b.{n}" for n in range(3)
        }


@ways
def test_what_was_divided_is_imported(typed: Callable[..., Typed], tmp_path: Path, by: PartitionBy) -> None:
    kept = keep(tmp_path / "r", {"S": MESSAGES})
    out = tmp_path / "out"
    line = ["export", "latest", *kept.line, "--format", "parquet", "--partition-by", by, "--output", out]
    assert typed(*line).code == 0
    done = typed("import", out, "--format", "parquet", "-r", tmp_path / "other", "--json")
    assert done.code == 0, done
    shown = [
        typed("show", "latest", "-r", where, "--json").document for where in (kept.place.location, tmp_path / "other")
    ]
    assert shown[0]["streams"][0]["digest"] == shown[1]["streams"][0]["digest"]


@pytest.mark.by_turns
@pytest.mark.s3
@kinds
def test_in_s3(s3_server: S3Server, tmp_path: Path, kind: TableFormat) -> None:
    kept = keep(tmp_path / "r", {"S": MESSAGES[:60]})
    backed_up(kept, 1, {"S": MESSAGES})
    place = f"s3://{BUCKET}/divided-{kind}"
    s3 = ["--s3-endpoint", s3_server.url, "--s3-region", REGION]
    line = ["--format", kind, "--partition-by", "subject", "--output", place, *kept.line, *s3, "--json"]
    credentials = s3_server.credentials()
    assert in_shell("export", kept.manifest.id, *line, **credentials).code == 0
    done = in_shell("export", "latest", *line, "--append", **credentials)
    assert done.code == 0 and done.document["rows"] == 120, done
    keys = s3_server.keys(f"divided-{kind}/")
    assert any("/subject=%24KV.B.k/" in key for key in keys) and not [key for key in keys if key.endswith(".part")]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in credentials.items():
            patch.setenv(name, value)
        store = S3Store(BUCKET, f"divided-{kind}", S3Settings(endpoint=s3_server.url, region=REGION))
        assert rows_of(copied(tmp_path / "copy", store) / "S", kind) == rows(MESSAGES)


@given(messages=message_lists(), by=st.sampled_from(PartitionBy))
def test_dividing_loses_nothing_and_keeps_the_order(messages: list[Message], by: PartitionBy) -> None:
    messages = [m._replace(subject=f"s.{m.subject}") for m in messages]
    parts = Partitions(by, spelled=False).divide([batch_of(messages)] if messages else [], "S")
    found = [(value, m) for value, _, batches in parts for m in messages_of(batches)]
    assert sorted(m for _, m in found) == sorted(messages)
    for value, _, batches in parts:
        own = messages_of(batches)
        assert own == sorted(own, key=lambda m: m.sequence) and own
        if by is PartitionBy.SUBJECT:
            assert {m.subject for m in own} == {value}
    assert len({folder for _, folder, _ in parts}) == len(parts)
