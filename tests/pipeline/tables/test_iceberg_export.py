"""`export --format iceberg`, asked by pyiceberg, which knows nothing of us; and tables that others have changed."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.expressions import (
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotNull,
)
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import clear_manifest_cache
from pyiceberg.table import CommitTableResponse, StaticTable, Table
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata
from pyiceberg.transforms import BucketTransform

from jsbackup.errors import FormatError, JsBackupError, UnsupportedError, UsageError
from jsbackup.model import S3Settings
from jsbackup.pipeline.session.repository_ref import RepositoryRef, place_of
from jsbackup.pipeline.tables import export as export_module
from jsbackup.pipeline.tables.iceberg import metadata_files
from jsbackup.pipeline.tables.iceberg import table as table_module
from jsbackup.pipeline.tables.partitions import PartitionBy
from jsbackup.pipeline.tables.writing import TableFormat
from tests.cli.typed import in_shell
from tests.harness.batches import Message, some_messages
from tests.harness.commands import command_line, environment
from tests.harness.s3server import BUCKET, REGION, S3Server
from tests.pipeline.places import Kept, keep
from tests.pipeline.tables.growing import backed_up, export, growing, newest_version, rows, rows_of
from tests.pipeline.tables.test_partitions import MESSAGES as OF_DAYS

pytestmark = pytest.mark.slow

ICEBERG = TableFormat.ICEBERG
MESSAGES = some_messages(180, 60, seed=7)
ways = pytest.mark.parametrize("by", [None, *PartitionBy])


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "SEGMENT_BYTES", 4000)


def _place(folder: Path) -> RepositoryRef:
    return place_of(str(folder), S3Settings(), {})


def _sequences(table: Table, condition: BooleanExpression | str) -> list[int]:
    found = table.scan(row_filter=condition, selected_fields=("sequence",)).to_arrow()
    return sorted(found["sequence"].to_pylist())


def _time(message: Message) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=message.timestamp_ns // 1000)


def _plain() -> list[Message]:
    """Times run in jumps, some before 1970 and between microseconds; subjects are in ranges."""
    return [
        m._replace(timestamp_ns=-(10**9) + n * 7_000_123 + (n // 100) * 10**15, subject=f"{'abc'[n // 100]}.ü{n % 7}")
        for n, m in enumerate(some_messages(300, 60, seed=4))
    ]


def _long() -> list[Message]:
    return [m._replace(subject=f"z{'y' * 3000}" if n > 250 else m.subject) for n, m in enumerate(_plain())]


_ASKED: list[tuple[Any, Callable[[Any, Any], bool]]] = [
    (EqualTo, lambda a, b: a == b),
    (LessThan, lambda a, b: a < b),
    (LessThanOrEqual, lambda a, b: a <= b),
    (GreaterThan, lambda a, b: a > b),
    (GreaterThanOrEqual, lambda a, b: a >= b),
]


@pytest.mark.by_turns
@pytest.mark.parametrize("make", [_plain, _long, lambda: OF_DAYS], ids=["plain", "long", "days"])
@ways
def test_a_reader_finds_all_rows_and_skips_files(
    tmp_path: Path, make: Callable[[], list[Message]], by: PartitionBy | None
) -> None:
    """Of a table that has grown in two exports, each file is found by its ranges or its partition, and never missed."""
    messages = make()
    kept = keep(tmp_path / "r", {"S": messages[:120]})
    for number, manifest in enumerate((kept.manifest, backed_up(kept, 1, {"S": messages}))):
        export(kept, manifest, _place(tmp_path / "out"), ICEBERG, by=by, token=f"0000000{number}")
    table = StaticTable.from_metadata(str(tmp_path / "out" / "S"))
    assert rows_of(tmp_path / "out" / "S", ICEBERG) == rows(messages)
    wrong = []

    def ask(column: str, value: Any, of: Callable[[Message], Any]) -> None:
        for make_condition, holds in _ASKED:
            truth = [m.sequence for m in messages if holds(of(m), value)]
            if _sequences(table, make_condition(column, value)) != truth:
                wrong.append((make_condition, column, value))

    for subject in sorted({str(m.subject) for m in messages[::70]} | {"nothing"}):
        ask("subject", subject, lambda m: m.subject)
    for message in messages[::100] + messages[-1:]:
        ask("sequence", message.sequence, lambda m: m.sequence)
        ask("timestamp_ns", message.timestamp_ns, lambda m: m.timestamp_ns)
        ask("time", _time(message).isoformat(), lambda m: _time(m).isoformat())
    ask("stream", "S", lambda _: "S")
    ask("backup", kept.manifest.id, lambda m: kept.manifest.id if m in messages[:120] else "2027")
    assert wrong == []
    assert _sequences(table, IsNull("headers")) == [m.sequence for m in messages if m.headers is None]
    assert _sequences(table, NotNull("headers")) == [m.sequence for m in messages if m.headers is not None]
    files = len(list(table.scan().plan_files()))
    one = list(table.scan(row_filter=EqualTo("sequence", messages[0].sequence)).plan_files())
    assert files >= 5 and len(one) < files / 2


@ways
def test_the_partition_decides_which_files_are_read(tmp_path: Path, by: PartitionBy | None) -> None:
    kept = keep(tmp_path / "r", {"S": OF_DAYS})
    export(kept, kept.manifest, _place(tmp_path / "out"), ICEBERG, by=by)
    table = StaticTable.from_metadata(str(tmp_path / "out" / "S"))
    folders = {path.parent.name for path in (tmp_path / "out" / "S" / "data").rglob("*.parquet")}
    if by is None:
        assert folders == {"data"} and not table.spec().fields
        return
    assert len(folders) > 5 and all(name.startswith(f"{by}=") for name in folders)
    day, subject = date(2026, 11, 26), "$KV.B.k"
    begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
    condition: BooleanExpression = EqualTo("subject", subject)
    if by is PartitionBy.DAY:
        end = begin + timedelta(days=1)
        condition = And(GreaterThanOrEqual("time", begin.isoformat()), LessThan("time", end.isoformat()))
    wanted = [m for m in OF_DAYS if (m.subject == subject if by is PartitionBy.SUBJECT else _time(m).date() == day)]
    assert wanted and _sequences(table, condition) == [m.sequence for m in wanted]
    tasks = list(table.scan(row_filter=condition).plan_files())
    assert {Path(task.file.file_path).parent.name for task in tasks} == {
        f"day={day}" if by is PartitionBy.DAY else "subject=%24KV.B.k"
    }
    assert {tuple(task.file.partition) for task in tasks} == {
        ((day - date(1970, 1, 1)).days if by is PartitionBy.DAY else subject,)
    }
    assert [field.name for field in table.schema().fields][:5] == [
        "stream",
        "sequence",
        "timestamp_ns",
        "time",
        "subject",
    ]
    for path in (tmp_path / "out" / "S" / "data").rglob("*.parquet"):  # found by number, without a mapping of names
        fields = pq.ParquetFile(path).schema_arrow
        assert [int(field.metadata[b"PARQUET:field_id"]) for field in fields] == list(range(1, 9))


@pytest.mark.parametrize(
    ("subject", "said"),
    [("größe", ""), (f"x.{'y' * 300}", ""), (b"a.\xff", "not UTF-8"), ("", "tables do not find")],
)
def test_odd_subjects_as_partitions(tmp_path: Path, subject: str | bytes, said: str) -> None:
    messages = [*MESSAGES[:20], MESSAGES[20]._replace(subject=subject), MESSAGES[21]]
    kept = keep(tmp_path / "r", {"S": messages})
    line = ["export", "latest", *kept.line, "--format", "iceberg", "--output", tmp_path / "out", "--partition-by"]
    done = in_shell(*line, "subject")
    assert done.code == (2 if said else 0) and said in done.err, done
    if said:
        assert not (tmp_path / "out").exists() and in_shell(*line, "day").code == 0
    else:
        table = StaticTable.from_metadata(str(tmp_path / "out" / "S"))
        assert _sequences(table, EqualTo("subject", str(subject))) == [messages[20].sequence]


def test_subjects_that_are_no_text_have_no_ranges(tmp_path: Path) -> None:
    messages = [m._replace(subject=b"a.\xff") if n > 100 else m for n, m in enumerate(MESSAGES)]
    kept = keep(tmp_path / "r", {"S": messages})
    export(kept, kept.manifest, _place(tmp_path / "out"), ICEBERG)
    table = StaticTable.from_metadata(str(tmp_path / "out" / "S"))
    for message in messages[::17]:
        assert _sequences(table, EqualTo("sequence", message.sequence)) == [message.sequence]
    bounded = [5 in task.file.lower_bounds for task in table.scan().plan_files()]
    assert True in bounded and False in bounded


def test_each_export_is_a_snapshot(tmp_path: Path) -> None:
    """Made by the command, from a stream without messages on; what was read before stays as it was."""
    kept = keep(tmp_path / "r", {"ORDERS": []})
    line = ["export", "latest", *kept.line, "--format", "iceberg", "--output", tmp_path / "with space", "--json"]
    assert in_shell(*line).code == 0
    folder = tmp_path / "with space" / "ORDERS"
    assert StaticTable.from_metadata(str(folder)).current_snapshot() is None and rows_of(folder, ICEBERG) == []
    for number, count in ((1, 40), (2, 100), (3, 180)):
        backed_up(kept, number, {"ORDERS": MESSAGES[:count]})
        done = in_shell(*line, "--append")
        assert done.code == 0 and done.document["streams"][0]["archive"] == "iceberg", done
    table = StaticTable.from_metadata(str(folder))
    found = table.snapshots()
    assert [one.parent_snapshot_id for one in found] == [None, found[0].snapshot_id, found[1].snapshot_id]
    assert [one.sequence_number for one in found] == [1, 2, 3]
    for snapshot, count in zip(found, (40, 100, 180), strict=True):
        assert table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows == count
        assert snapshot.summary is not None
        assert snapshot.summary["total-records"] == str(count) and snapshot.summary["jsbackup.backup"]
    assert rows_of(folder, ICEBERG) == rows(MESSAGES)
    for number, count in ((1, 0), (2, 40), (3, 100), (4, 180)):
        old = StaticTable.from_metadata(str(folder / "metadata" / f"v{number}.metadata.json"))
        assert old.scan().to_arrow().num_rows == count
    assert (folder / "metadata" / "version-hint.text").read_text() == "4"
    assert len(table.metadata.metadata_log) == 3 and len(table.metadata.snapshot_log) == 3


def test_long_lists_are_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "_LONGEST_LIST", 2)
    kept, manifests = growing(tmp_path / "r")
    for number, manifest in enumerate(manifests):
        export(kept, manifest, _place(tmp_path / "out"), ICEBERG, token=f"0000000{number}")
    table = StaticTable.from_metadata(str(tmp_path / "out" / "ORDERS"))
    snapshot = table.current_snapshot()
    assert snapshot is not None and len(snapshot.manifests(table.io)) > 2
    assert rows_of(tmp_path / "out" / "ORDERS", ICEBERG) == rows(MESSAGES)


class _InFolder(NoopCatalog):
    """Writes versions as a catalog of type `hadoop` does."""

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        for requirement in requirements:
            requirement.validate(table.metadata)
        metadata = update_table_metadata(table.metadata, updates, metadata_location=table.metadata_location)
        path = Path(table.metadata_location.removeprefix("file://"))
        number = int(path.name[1:].split(".")[0]) + 1
        new = path.with_name(f"v{number}.metadata.json")
        new.write_text(metadata.model_dump_json())
        (path.parent / "version-hint.text").unlink()
        (path.parent / "version-hint.text").write_text(str(number))
        return CommitTableResponse(metadata=metadata, metadata_location=str(new))


def _others_table(folder: Path) -> Table:
    """The table, as another program opens it to write."""
    clear_manifest_cache()
    static = StaticTable.from_metadata(str(newest_version(folder)))
    return Table(("lake", "orders"), static.metadata, static.metadata_location, PyArrowFileIO(), _InFolder("lake"))


def _grown(folder: Path, by: PartitionBy | None = None) -> tuple[Kept, list[Any], Path]:
    kept, manifests = growing(folder / "r")
    export(kept, manifests[0], _place(folder / "out"), ICEBERG, by=by)
    return kept, manifests, folder / "out" / "ORDERS"


@pytest.mark.parametrize("by", [None, PartitionBy.SUBJECT])  # pyiceberg alone writes no days
def test_what_others_have_deleted_and_added_stays_so(tmp_path: Path, by: PartitionBy | None) -> None:
    kept, manifests, folder = _grown(tmp_path, by)
    table = _others_table(folder)
    table.delete(LessThan("sequence", MESSAGES[10].sequence))
    extra = table.scan(row_filter=EqualTo("sequence", MESSAGES[11].sequence)).to_arrow()
    table.append(extra)
    table.manage_snapshots().create_tag(table.snapshots()[0].snapshot_id, "first").commit()
    table.append(extra)
    for number, manifest in enumerate(manifests[1:], start=1):
        done = export(kept, manifest, _place(tmp_path / "out"), ICEBERG, by=by, token=f"0000000{number}")
        assert not done.refused
    twice = [*MESSAGES[10:12], MESSAGES[11], MESSAGES[11], *MESSAGES[12:]]
    assert rows_of(folder, ICEBERG) == rows(twice)
    found = StaticTable.from_metadata(str(folder))
    assert "first" in found.metadata.refs and found.scan().use_ref("first").to_arrow().num_rows == 40
    snapshot = found.current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    assert snapshot.summary["total-records"] == str(len(twice))
    table = _others_table(folder)  # goes on by itself, too
    table.append(extra)
    assert _others_table(folder).scan().to_arrow().num_rows == len(twice) + 1


def _refused(kept: Kept, manifest: Any, folder: Path, said: str) -> JsBackupError:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = export(kept, manifest, _place(folder.parent), ICEBERG, token="0000abcd")
    assert done.refused.keys() == {"ORDERS"} and [one.name for one in done.streams] == ["STILL"]
    assert said in done.refused["ORDERS"].message, done.refused["ORDERS"].message
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    return done.refused["ORDERS"]


def _set_back(table: Table) -> None:
    table.manage_snapshots().rollback_to_snapshot(table.snapshots()[0].snapshot_id).commit()


def _add_column(table: Table) -> None:
    with table.update_schema() as update:
        update.add_column("more", table.schema().find_type("subject"))


def _partition(table: Table) -> None:
    with table.update_spec() as update:
        update.add_field("subject", BucketTransform(4), "few")


def _without_snapshots(table: Table) -> None:
    document = json.loads(table.metadata.model_dump_json())
    document |= {"current-snapshot-id": -1, "snapshots": [], "snapshot-log": [], "refs": {}}
    Path(table.metadata_location).with_name("v3.metadata.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_set_back, "was set back or made again, or lost snapshots since the last export"),
        (_without_snapshots, "was set back or made again, or lost snapshots since the last export"),
        (_add_column, "has other columns or partitions by now"),
        (_partition, "has other columns or partitions by now"),
    ],
)
def test_other_changes_are_refused(tmp_path: Path, change: Callable[[Table], None], said: str) -> None:
    kept, manifests, folder = _grown(tmp_path)
    export(kept, manifests[1], _place(tmp_path / "out"), ICEBERG, token="00000001")
    change(_others_table(folder))
    error = _refused(kept, manifests[2], folder, said)
    assert isinstance(error, UnsupportedError) and error.hint == "Export to another folder."


def _rewritten(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = newest_version(folder)
    document = json.loads(path.read_text())
    change(document)
    path.chmod(0o600)
    path.write_text(json.dumps(document))


def test_damaged_metadata_are_refused(tmp_path: Path) -> None:
    kept, manifests, folder = _grown(tmp_path)
    whole = shutil.copytree(folder, tmp_path / "whole")
    what = "the metadata v1 of the table of stream ORDERS is damaged"

    def again() -> None:
        shutil.rmtree(folder)
        shutil.copytree(whole, folder)

    def properties(document: dict[str, Any], name: str, value: str) -> None:
        document["properties"][name] = value

    changes: Sequence[tuple[Callable[[dict[str, Any]], object], str]] = [
        (lambda d: d.pop("schemas"), what),
        (lambda d: d.update({"current-snapshot-id": 7}), what),
        (lambda d: d.update(snapshots=[]), what),
        (lambda d: d.update(snapshots=7), what),
        (lambda d: d.pop("location"), what),
        (lambda d: d.update({"last-sequence-number": "x"}), what),
        (lambda d: properties(d, "jsbackup.position", "{}"), what),
        (lambda d: properties(d, "jsbackup.export", "{"), "the metadata v1"),
    ]
    for change, said in changes:
        _rewritten(folder, change)
        assert isinstance(_refused(kept, manifests[1], folder, said), FormatError)
        again()
    _rewritten(folder, lambda d: d.update({"format-version": 3}))
    assert isinstance(_refused(kept, manifests[1], folder, "is of version 3 by now"), UnsupportedError)
    again()
    _rewritten(folder, lambda d: d["properties"].update({"jsbackup.export": json.dumps({"format": 9})}))
    assert isinstance(_refused(kept, manifests[1], folder, "newer jsbackup"), UnsupportedError)
    again()
    _rewritten(folder, lambda d: d["properties"].pop("jsbackup.export"))
    assert isinstance(_refused(kept, manifests[1], folder, "something else has made it"), UsageError)
    again()
    for damage in (lambda data: data[:-40], lambda data: data[:3], lambda data: b"x" * len(data), lambda _: b""):
        (path,) = (folder / "metadata").glob("snap-*.avro")
        path.chmod(0o600)
        path.write_bytes(damage(path.read_bytes()))
        assert isinstance(_refused(kept, manifests[1], folder, "of the Iceberg table of stream ORDERS is damaged"),
                          FormatError)  # fmt: skip
        again()
    next((folder / "metadata").glob("snap-*.avro")).unlink()
    assert isinstance(_refused(kept, manifests[1], folder, "ORDERS lacks file:"), FormatError)
    again()
    newest_version(folder).chmod(0o600)
    newest_version(folder).write_text("{")
    assert isinstance(_refused(kept, manifests[1], folder, "the metadata v1"), FormatError)
    again()
    export(kept, manifests[1], _place(tmp_path / "out"), ICEBERG, token="00000001")
    assert rows_of(folder, ICEBERG) == rows(MESSAGES[:100])


def test_a_list_elsewhere_and_a_catalog_are_refused(tmp_path: Path) -> None:
    kept, manifests, folder = _grown(tmp_path)
    _rewritten(folder, lambda d: d["snapshots"][0].update({"manifest-list": "s3://elsewhere/snap-1.avro"}))
    _refused(kept, manifests[1], folder, "a list of files that is not in its folder: s3://elsewhere/snap-1.avro")
    shutil.copy(newest_version(folder), folder / "metadata" / "00002-5a.metadata.json")
    _refused(kept, manifests[1], folder, "is written through a catalog, or compressed, so that readers would not learn")


def test_locations_are_compared_as_programs_spell_them(tmp_path: Path) -> None:
    """Those that write through Hadoop leave out the scheme, or write one slash."""
    kept, manifests, folder = _grown(tmp_path)

    def respell(document: dict[str, Any], new: str) -> None:
        snapshot = document["snapshots"][-1]
        snapshot["manifest-list"] = snapshot["manifest-list"].replace("file://", new)

    for number, new in enumerate(("", "file:"), start=1):
        _rewritten(folder, lambda document, new=new: respell(document, new))
        export(kept, manifests[number], _place(tmp_path / "out"), ICEBERG, token=f"0000000{number}")
    assert rows_of(folder, ICEBERG) == rows(MESSAGES)
    assert metadata_files.bare("s3a://b/x") == metadata_files.bare("s3n://b/x") == "s3://b/x"


def test_of_many_processes_at_once_each_message_comes_once(tmp_path: Path) -> None:
    """Each ends as the one that has added it, or finds it there, or is refused."""
    kept, manifests, folder = _grown(tmp_path)
    line = ["export", *kept.line, "--format", "iceberg", "--append", "--output", str(tmp_path / "out"), "--quiet"]
    for manifest, count in ((manifests[1], 100), (manifests[2], 180)):
        words = command_line(*line, manifest.id)
        processes = [subprocess.Popen(words, env=environment(), stderr=subprocess.DEVNULL) for _ in range(4)]
        codes = sorted(process.wait() for process in processes)
        assert codes[0] == 0 and set(codes) <= {0, 16}, codes
        assert rows_of(folder, ICEBERG) == rows(MESSAGES[:count])
    assert sorted(path.name for path in folder.glob("metadata/v*.json")) == [f"v{n}.metadata.json" for n in (1, 2, 3)]
    assert (folder / "metadata" / "version-hint.text").read_text() == "3"


@pytest.mark.s3
@ways
def test_in_s3_it_is_read_where_it_is(s3_server: S3Server, tmp_path: Path, by: PartitionBy | None) -> None:
    kept = keep(tmp_path / "r", {"S": OF_DAYS[:60]})
    backed_up(kept, 1, {"S": OF_DAYS})
    credentials, place = s3_server.credentials(), f"s3://{BUCKET}/bergs-{by}/"
    line = ["--format", "iceberg", "--append", "--output", place, *kept.line, "--s3-endpoint", s3_server.url]
    line += ["--s3-region", REGION, *(["--partition-by", by] if by else [])]
    properties = {
        "s3.endpoint": s3_server.url,
        "s3.region": REGION,
        "s3.access-key-id": credentials["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": credentials["AWS_SECRET_ACCESS_KEY"],
    }
    for backup, messages in ((kept.manifest.id, OF_DAYS[:60]), ("latest", OF_DAYS)):
        done = in_shell("export", backup, *line, **credentials)
        assert done.code == 0, done
        table = StaticTable.from_metadata(f"{place}S", properties)
        assert _sequences(table, GreaterThan("sequence", 0)) == [m.sequence for m in messages]
        wanted = [m.sequence for m in messages if m.subject == "$KV.B.k"]
        assert _sequences(table, EqualTo("subject", "$KV.B.k")) == wanted


def test_a_table_that_was_moved_is_refused(tmp_path: Path) -> None:
    kept, manifests, _ = _grown(tmp_path)
    (tmp_path / "out").rename(tmp_path / "moved")
    with pytest.raises(UsageError, match=r"was made at file://.*/out/\S+, and is at file://.*/moved/\S+ now"):
        export(kept, manifests[1], _place(tmp_path / "moved"), ICEBERG)
    (tmp_path / "moved").rename(tmp_path / "out")
    (tmp_path / "link").symlink_to(tmp_path / "out")
    export(kept, manifests[1], _place(tmp_path / "link"), ICEBERG, token="00000001")
    assert rows_of(tmp_path / "out" / "ORDERS", ICEBERG) == rows(MESSAGES[:100])


@pytest.mark.parametrize("hint", [None, "1", "nonsense"])
def test_a_hint_that_is_behind_is_moved_on(tmp_path: Path, hint: str | None) -> None:
    """After a kill before it was written, also if nothing is new."""
    kept, manifests, folder = _grown(tmp_path)
    export(kept, manifests[1], _place(tmp_path / "out"), ICEBERG, token="00000001")
    path = folder / "metadata" / "version-hint.text"
    path.unlink()
    if hint is not None:
        path.write_text(hint)
    assert export(kept, manifests[1], _place(tmp_path / "out"), ICEBERG, token="00000002").files == 0
    assert path.read_text() == "2" and rows_of(folder, ICEBERG) == rows(MESSAGES[:100])


@pytest.mark.parametrize("made", ["parquet", "delta", "iceberg"])
def test_folders_of_other_formats_are_refused(tmp_path: Path, made: str) -> None:
    kept, _ = growing(tmp_path / "r")
    out = tmp_path / "out"
    assert in_shell("export", "latest", *kept.line, "--format", made, "--append", "--output", out).code == 0
    before = sorted(out.rglob("*"))
    for other in {"parquet", "delta", "iceberg"} - {made}:
        done = in_shell("export", "latest", *kept.line, "--format", other, "--append", "--output", out)
        assert done.code == 2 and f"--format {made}" in done.err, done
    assert sorted(out.rglob("*")) == before
    line = ["export", "latest", "STILL", *kept.line, "--format", "iceberg", "--append", "--output"]
    assert in_shell(*line, tmp_path / "plain").code == 0
    (tmp_path / "plain" / "ORDERS").mkdir()
    (tmp_path / "plain" / "ORDERS" / "x.parquet").write_bytes(b"x")
    line = ["export", "latest", "ORDERS", *kept.line, "--format", "iceberg", "--append", "--output"]
    done = in_shell(*line, tmp_path / "plain")
    assert done.code == 2 and "has something else than an Iceberg table" in done.err
    done = in_shell(*line, tmp_path / "no#4")
    assert done.code == 2 and "find no tables below a name with #" in done.err and not (tmp_path / "no#4").exists()


def test_tables_over_segments_and_those_with_messages_are_not_mixed(tmp_path: Path) -> None:
    kept, _ = growing(tmp_path / "r")
    over, whole = tmp_path / "over", tmp_path / "whole"
    line = ["export", "latest", *kept.line, "--format", "iceberg", "--append", "--output"]
    assert in_shell("iceberg", *kept.line, "--output", over).code == 0
    done = in_shell(*line, over)
    assert done.code == 2 and "`jsbackup iceberg` has made it" in done.err, done
    assert in_shell(*line, whole).code == 0
    done = in_shell("iceberg", *kept.line, "--output", whole)
    assert done.code == 16 and "there has messages of its own: `export --format iceberg` has made it" in done.err, done
    for path in (whole, whole / "ORDERS"):
        done = in_shell("import", path, "--stream", "ORDERS", "--format", "parquet", "-r", tmp_path / "other")
        assert done.code == 2 and "is an Iceberg table" in done.err, done
    assert in_shell(*line, whole).code == 0


def test_without_pyiceberg_it_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, manifests = growing(tmp_path / "r")
    monkeypatch.setattr(metadata_files, "find_spec", lambda _name: None)
    with pytest.raises(UnsupportedError, match="take the package pyiceberg, which is not installed") as caught:
        export(kept, manifests[0], _place(tmp_path / "out"), ICEBERG)
    assert "jsbackup[iceberg]" in str(caught.value.hint) and not (tmp_path / "out").exists()
