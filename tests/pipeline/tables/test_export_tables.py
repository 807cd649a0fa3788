"""Tables that `export` writes: options, readers, S3, Spark, what others do to them, and what is refused."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyiceberg.table
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import LessThan
from pyiceberg.table.update import update_table_metadata

from jsbackup.errors import (
    FormatError,
    IntegrityError,
    JsBackupError,
    PlanRefused,
    TargetConflict,
    UnsupportedError,
    UsageError,
)
from jsbackup.model import S3Settings
from jsbackup.pipeline.session.repository_ref import RepositoryRef, place_of
from jsbackup.pipeline.tables import delta_table, iceberg_table
from jsbackup.pipeline.tables import export as export_module
from jsbackup.pipeline.tables.export import TablesAsked, all_refused, export_target
from jsbackup.pipeline.tables.writing import TableFormat
from jsbackup.pipeline.tasks.tasks import OnSpark
from jsbackup.planning.changed_streams import ChangeOptions
from jsbackup.repository.manifest import Manifest
from jsbackup.transforms.cut import AtSequence, Cut
from jsbackup.transforms.reshape import Reshape
from tests.cli.typed import in_shell
from tests.harness import backups
from tests.harness.batches import some_messages
from tests.harness.commands import command_line, environment
from tests.harness.s3server import BUCKET, REGION, S3Server
from tests.pipeline.places import Kept, keep
from tests.pipeline.tables.growing import backed_up, export, growing, rows, rows_of, table_of

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

KINDS = [TableFormat.PARQUET, TableFormat.DELTA, TableFormat.ICEBERG]
each = pytest.mark.parametrize("kind", KINDS)
MESSAGES = some_messages(180, 60, seed=7)
STILL = some_messages(10, 60, seed=8)


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "SEGMENT_BYTES", 4000)


def _place(folder: Path) -> RepositoryRef:
    return place_of(str(folder), S3Settings(), {})


def _cut(last: int) -> ChangeOptions:
    return ChangeOptions(reshape=Reshape(cut=Cut(until=AtSequence(last))))


@each
@pytest.mark.parametrize("by_day", [False, True])
def test_each_backup_adds_what_is_new(tmp_path: Path, kind: TableFormat, by_day: bool) -> None:
    kept, manifests = growing(tmp_path / "r")
    place, out = _place(tmp_path / "out"), tmp_path / "out"
    for number, (manifest, count) in enumerate(zip(manifests, (40, 100, 180), strict=True)):
        done = export(kept, manifest, place, kind, token=f"0000000{number}", by_day=by_day)
        assert {one.name: one.messages for one in done.streams} == {
            "ORDERS": count - (0, 40, 100)[number],
            "STILL": 0 if number else 10,
        }
        assert rows_of(out, kind) == rows(MESSAGES[:count]) and rows_of(out, kind, "STILL") == rows(STILL)
    table = table_of(out, "ORDERS", kind)
    assert set(table["incarnation"].to_pylist()) == {backups.INCARNATION}
    assert set(table["backup"].to_pylist()) == {one.id for one in manifests}
    assert not list(out.rglob("*.part")) and not (out / ".incoming").exists()


@each
def test_a_plain_export_is_extended_and_deleted_messages_stay(tmp_path: Path, kind: TableFormat) -> None:
    """By the command: first of one backup, later of all, also those before it."""
    kept = keep(tmp_path / "r", {"ORDERS": MESSAGES[:40], "EARLY": STILL})
    backed_up(kept, 1, {"ORDERS": MESSAGES[20:100]})
    last = backed_up(kept, 2, {"ORDERS": MESSAGES[50:180], "EMPTY": []})
    line = ["export", *kept.line, "--format", kind, "--output", tmp_path / "out", "--json"]
    first = in_shell(*line, last.id)
    assert (first.code, first.document["rows"]) == (0, 130), first
    refused = in_shell(*line, last.id)
    assert refused.code == 2 and "is not empty" in refused.document["error"]["message"], refused
    second = in_shell(*line, "latest", "--append")
    assert (second.code, second.document["rows"]) == (0, 60), second
    assert rows_of(tmp_path / "out", kind) == rows(MESSAGES)
    assert rows_of(tmp_path / "out", kind, "EARLY") == rows(STILL)


@each
def test_other_options_are_refused(tmp_path: Path, kind: TableFormat) -> None:
    kept, manifests = growing(tmp_path / "r")
    place = _place(tmp_path / "out")
    export(kept, manifests[0], place, kind, options=_cut(50))
    for options, by_day, said in ((_cut(60), False, "--until sequence 50"), (_cut(50), True, "has no partitions")):
        with pytest.raises(JsBackupError, match="nothing was exported: streams ORDERS, STILL") as caught:
            export(kept, manifests[1], place, kind, options=options, by_day=by_day)
        assert caught.value.exit_code == UsageError.exit_code and said in caught.value.message
    export(kept, manifests[1], place, kind, options=_cut(50), token="00000001")
    assert rows_of(tmp_path / "out", kind) == rows([one for one in MESSAGES if one.sequence <= 50])


def test_wrong_options_are_one_sentence(tmp_path: Path) -> None:
    kept, _ = growing(tmp_path / "r")
    for more, said in (
        (["--format", "jsonl", "--append"], "--append is for --format parquet, delta and iceberg"),
        (["--format", "jsonl", "--partition-by", "day"], "--partition-by is for --format parquet"),
        (["--format", "delta", "--catalog", "lake"], "--catalog is for --format iceberg"),
        (["--format", "delta", "--append", "--renumber"], "--renumber and --append exclude each other"),
        (["--format", "delta", "--append", "--since", "2h"], "counts from now"),
        (["--format", "delta", "--append", "GONE"], "has no stream GONE"),
        (["--format", "delta", "--append", "--rename", "GONE=NEW"], "no backup has a stream of that name"),
        (["--format", "iceberg", "--append", "--catalog", "none"], "the catalog: "),
    ):
        done = in_shell("export", "latest", *kept.line, *more, "--output", tmp_path / "out", "--json")
        assert done.code != 0 and said in done.document["error"]["message"], (more, done)
        assert not (tmp_path / "out").exists(), more


def _through_a_pipe(key: bytes, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command with a key for masks that can be read once, as `<(…)` of a shell gives it."""
    read, write = os.pipe()
    os.write(write, key)
    os.close(write)
    try:
        line = command_line(*arguments, "--mask", ">:header(N)=hash", "--mask-key-file", f"/dev/fd/{read}")
        return subprocess.run(line, pass_fds=[read], env=environment(), capture_output=True, text=True, timeout=120)
    finally:
        os.close(read)


def test_the_key_of_masks_may_be_a_pipe(tmp_path: Path) -> None:
    kept, key = keep(tmp_path / "r", {"ORDERS": some_messages(40, 60)}), b"0123456789abcdef0123"
    (tmp_path / "key").write_bytes(key)
    line = ["export", "latest", *kept.line, "--format", "jsonl", "--output"]
    named = in_shell(*line, tmp_path / "a", "--mask", ">:header(N)=hash", "--mask-key-file", tmp_path / "key")
    assert named.code == 0, named
    done = _through_a_pipe(key, *line, tmp_path / "b")
    assert done.returncode == 0, done
    files = [next(folder.rglob("*.jsonl")).read_bytes() for folder in (tmp_path / "a", tmp_path / "b")]
    assert files[0] == files[1]
    done = _through_a_pipe(key, "copy", "latest", *kept.line, "--to-repo", tmp_path / "copy")
    assert done.returncode == 0, done
    for words in ([*line, tmp_path / "c"], ["restore", "latest", *kept.line]):
        done = _through_a_pipe(key, *words, "--spark", "local")
        assert done.returncode == 2 and "a pipe can be read once" in done.stderr, done
    done = in_shell(*line, tmp_path / "d", "--mask", ">:header(N)=hash", "--mask-key-file", "x" * 300)
    assert done.code == 2 and "File name too long" in done.err, done


def test_masks_with_another_key_and_obfuscated_names(tmp_path: Path) -> None:
    kept, manifests = growing(tmp_path / "r")
    line = ["export", *kept.line, "--format", "delta", "--output", tmp_path / "out", "--append", "--json"]
    masked = [*line, "--mask", ">:header(N)=hash"]
    assert in_shell(*masked, manifests[0].id, JSBACKUP_MASK_KEY="k" * 32).code == 0
    refused = in_shell(*masked, "latest", JSBACKUP_MASK_KEY="o" * 32)
    assert refused.code == 2 and "and with another key" in refused.document["error"]["message"], refused
    assert in_shell(*masked, "latest", JSBACKUP_MASK_KEY="k" * 32).document["rows"] == 140
    missed = in_shell(*line[:-3], tmp_path / "none", "--append", "--json", "latest", "--mask", "none.>:$.a=redact")
    assert missed.code == PlanRefused.exit_code, missed
    for kind in KINDS:
        out = tmp_path / f"hidden-{kind}"
        hidden = ["export", *kept.line, "--format", kind, "--output", out, "--append", "--json"]
        hidden += ["--obfuscate", "--obfuscation-key", tmp_path / "keys.json"]
        assert in_shell(*hidden, manifests[0].id).code == 0
        assert in_shell(*hidden, "latest").document["rows"] == 140
        for path in (one for one in out.rglob("*") if one.is_file()):
            assert b"ORDERS" not in path.read_bytes() and backups.INCARNATION.encode() not in path.read_bytes(), path


@each
def test_a_damaged_backup_adds_nothing_and_comes_once_it_is_repaired(tmp_path: Path, kind: TableFormat) -> None:
    kept, manifests = growing(tmp_path / "r")
    place = _place(tmp_path / "out")
    export(kept, manifests[0], place, kind)
    ref = manifests[1].streams[0].segments[-1]
    path = Path(kept.place.location) / ref.key
    whole = path.read_bytes()
    path.write_bytes(bytes(len(whole)))
    with pytest.raises(IntegrityError):
        export(kept, manifests[1], place, kind, token="0000abcd")
    assert rows_of(tmp_path / "out", kind) == rows(MESSAGES[:40])
    assert not list((tmp_path / "out").rglob("*0000abcd*"))
    path.write_bytes(whole)
    key = Path(kept.place.location) / "backups" / f"{manifests[1].id}.json"
    document = key.read_bytes()
    key.write_bytes(b"{")
    done = export(kept, manifests[2], place, kind, token="00000002")
    assert list(done.refused) == [f"backup {manifests[1].id}"]
    key.write_bytes(document)
    export(kept, manifests[2], place, kind, token="00000003")
    assert rows_of(tmp_path / "out", kind) == rows(MESSAGES)


@each
def test_tables_of_others_are_refused(tmp_path: Path, kind: TableFormat) -> None:
    kept, manifests = growing(tmp_path / "r")
    for other in (one for one in KINDS if one is not kind):
        place = _place(tmp_path / f"{other}")
        export(kept, manifests[0], place, other)
        with pytest.raises(UsageError, match=r"of another format|has no record|plain Parquet"):
            export(kept, manifests[1], place, kind)
        assert rows_of(tmp_path / f"{other}", other) == rows(MESSAGES[:40])
    place, out = _place(tmp_path / "own"), tmp_path / "own"
    export(kept, manifests[0], place, kind)
    if kind is TableFormat.PARQUET:
        (record,) = (out / "_jsbackup.d" / "ORDERS").glob("*.json")
        record.write_text("{}")
    elif kind is TableFormat.DELTA:
        log = out / "ORDERS" / "_delta_log" / "00000000000000000000.json"
        log.write_text("".join(line for line in log.read_text().splitlines(True) if "commitInfo" not in line))
        log.with_name("00000000000000000001.json").unlink()
    else:
        table = SqlCatalog("jsbackup", uri=f"sqlite:///{out}/catalog.db").load_table(("jsbackup", "ORDERS"))
        table.transaction().remove_properties("jsbackup.export").commit_transaction()
    done = export(kept, manifests[1], place, kind, token="00000001")
    assert isinstance(done.refused["ORDERS"], FormatError | UsageError | UnsupportedError)
    assert [one.name for one in done.streams] == ["STILL"]


def test_a_delta_table_that_others_maintain(tmp_path: Path) -> None:
    """Checkpoints, joined files, deleted rows and a vacuum between two exports; and its log cleaned up."""
    kept, manifests = growing(tmp_path / "r")
    place, folder = _place(tmp_path / "out"), tmp_path / "out" / "ORDERS"
    export(kept, manifests[0], place, TableFormat.DELTA)
    export(kept, manifests[1], place, TableFormat.DELTA, token="00000001")
    table = DeltaTable(folder)
    table.optimize.compact()
    table.delete(f"sequence < {MESSAGES[10].sequence}")
    table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    table = DeltaTable(folder)
    table.create_checkpoint()
    for path in folder.glob("_delta_log/*[0-9].json"):
        if int(path.stem) < table.version():
            path.unlink()
    export(kept, manifests[2], place, TableFormat.DELTA, token="00000002")
    assert rows_of(tmp_path / "out", TableFormat.DELTA) == rows(MESSAGES[10:])


def test_an_iceberg_table_that_others_maintain(tmp_path: Path) -> None:
    kept, manifests = growing(tmp_path / "r")
    place = _place(tmp_path / "out")
    export(kept, manifests[0], place, TableFormat.ICEBERG)
    table = SqlCatalog("jsbackup", uri=f"sqlite:///{tmp_path}/out/catalog.db").load_table(("jsbackup", "ORDERS"))
    table.delete(LessThan("sequence", MESSAGES[10].sequence))
    export(kept, manifests[2], place, TableFormat.ICEBERG, token="00000002")
    assert rows_of(tmp_path / "out", TableFormat.ICEBERG) == rows(MESSAGES[10:])


@each
def test_metadata_does_not_grow_with_the_square(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: TableFormat
) -> None:
    """What an export leaves is as much after many as after few; as if done for a year each hour."""
    monkeypatch.setattr(iceberg_table, "_MOST_SNAPSHOTS", 8)
    monkeypatch.setattr(iceberg_table, "_LEFT_SNAPSHOTS", 4)
    monkeypatch.setitem(iceberg_table._PROPERTIES, "write.metadata.previous-versions-max", "3")
    monkeypatch.setitem(iceberg_table._PROPERTIES, "commit.manifest.min-count-to-merge", "4")
    kept, _ = growing(tmp_path / "r", (4,))
    place, out, sizes = _place(tmp_path / "out"), tmp_path / "out", []
    for number in range(1, 40):
        kept.repository.commit(manifest := _later(kept, number))
        export(kept, manifest, place, kind, token=f"{number:08x}")
        kept_files = [path for path in out.rglob("*") if path.is_file() and "data" not in path.parts]
        sizes.append(sum(path.stat().st_size for path in kept_files if path.parent.name != "ORDERS"))
    first, last = sizes[19] - sizes[9], sizes[38] - sizes[28]
    assert last < 1.5 * first + 60_000, (first, last)


def test_snapshots_stay_in_a_catalog_of_the_users_and_are_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its tags. pyiceberg copies whatever an open table has, many times: with the square of the appends."""
    copied = []

    def update(metadata: TableMetadata, *arguments: Any, **named: Any) -> TableMetadata:
        copied.append(len(metadata.snapshots))
        return update_table_metadata(metadata, *arguments, **named)

    monkeypatch.setattr(pyiceberg.table, "update_table_metadata", update)
    kept, manifests = growing(tmp_path / "r", (4,))
    place, uri = _place(tmp_path / "out"), f"sqlite:///{tmp_path}/theirs.db"
    catalog = SqlCatalog("jsbackup", uri=uri)
    export(kept, manifests[0], place, TableFormat.ICEBERG, catalog=uri)
    table = catalog.load_table(("jsbackup", "ORDERS"))
    (first,) = table.snapshots()
    table.manage_snapshots().create_tag(first.snapshot_id, "first").commit()
    copied.clear()
    for number in range(1, 6):
        kept.repository.commit(manifest := _later(kept, number))
        export(kept, manifest, place, TableFormat.ICEBERG, catalog=uri, token=f"{number:08x}")
    assert set(copied) == {1}
    table.refresh()
    sizes = [table.scan(snapshot_id=one.snapshot_id).to_arrow().num_rows for one in table.snapshots()]
    assert (sizes, len(table.history())) == ([4, 5, 6, 7, 8, 9], 6)
    assert table.scan().use_ref("first").to_arrow().num_rows == 4


def _later(kept: Kept, number: int) -> Manifest:
    stored = backups.store_stream(kept.repository.objects, "ORDERS", MESSAGES[: 4 + number])
    created = f"2026-11-22T{number % 24:02}:{number:02}:00Z"
    backup = f"20261122T{number % 24:02}{number:02}00Z-{number:06x}"
    return replace(kept.manifest, id=backup, created=created, streams=(stored,))


@pytest.mark.spark
@pytest.mark.by_turns
@each
def test_spark_adds_the_same(spark: SparkSession, tmp_path: Path, kind: TableFormat) -> None:
    kept, manifests = growing(tmp_path / "r")
    for manifest in manifests:
        export(kept, manifest, _place(tmp_path / "out"), kind, runner=OnSpark(spark), token=manifest.id[-6:] + "00")
    assert rows_of(tmp_path / "out", kind) == rows(MESSAGES)


@pytest.mark.s3
@each
def test_in_s3(s3_server: S3Server, tmp_path: Path, kind: TableFormat) -> None:
    """The first export without --append, and then twice the next one."""
    kept, manifests = growing(tmp_path / "r")
    place, credentials = f"s3://{BUCKET}/grown-{kind}", s3_server.credentials()
    s3 = ["--s3-endpoint", s3_server.url, "--s3-region", REGION]
    line = ["--format", kind, "--output", place, *kept.line, *s3, "--json"]
    if kind is TableFormat.ICEBERG:
        refused = in_shell("export", manifests[0].id, *line, **credentials)
        assert refused.code == 2 and "--catalog" in refused.document["error"]["hint"], refused
        line += ["--catalog", f"sqlite:///{tmp_path}/lake.db"]
    assert in_shell("export", manifests[0].id, *line, **credentials).code == 0
    for count in (140, 0):
        done = in_shell("export", "latest", *line, "--append", **credentials)
        assert done.code == 0 and done.document["rows"] == count, done
    keys = [key for key in s3_server.keys(f"grown-{kind}/") if "/ORDERS/" in key]
    assert not [key for key in keys if key.endswith(".part")]
    options = {
        "aws_access_key_id": credentials["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": credentials["AWS_SECRET_ACCESS_KEY"],
        "aws_region": REGION,
        "aws_endpoint": s3_server.url,
        "aws_allow_http": "true",
    }
    if kind is TableFormat.DELTA:
        found = DeltaTable(f"{place}/ORDERS", storage_options=options).to_pyarrow_table()
        assert sorted(found["sequence"].to_pylist()) == [one.sequence for one in MESSAGES]


@pytest.mark.by_turns
@each
def test_killed_by_the_system_at_any_time(tmp_path: Path, kind: TableFormat) -> None:
    kept, _ = growing(tmp_path / "r", (40, 100), size=3000)
    line = ["export", *kept.line, "--format", str(kind), "--append", "--output", str(tmp_path / "out"), "--quiet"]
    assert in_shell(*line, kept.manifest.id).code == 0
    words = command_line(*line, "latest")
    for number in range(6):
        process = subprocess.Popen(words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.25 + number * 0.2)
        process.kill()
        process.wait()
    assert in_shell(*line, "latest").code == 0
    assert rows_of(tmp_path / "out", kind) == rows(some_messages(100, 3000, seed=7))


def test_what_a_reader_may_trip_over_is_said(tmp_path: Path) -> None:
    odd = some_messages(20, 60, seed=9)
    messages = [*odd[:10], odd[10]._replace(subject=b"a.\xff"), *odd[11:]]
    kept = keep(tmp_path, {"ODD": messages, "PLAIN": odd})
    line = ["export", "latest", "--format", "parquet", "--append", *kept.line, "--output", tmp_path / "out"]
    first = in_shell(*line, "PLAIN")
    assert first.code == 0 and "wrote " in first.out and "UTF-8" not in first.out
    second = in_shell(*line)
    assert second.code == 0 and "appended to " in second.out
    assert "note: ODD: has subjects that are not UTF-8, where DuckDB" in second.out


def test_missing_packages_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = _place(tmp_path / "out")
    monkeypatch.setattr(delta_table, "find_spec", lambda _name: None)
    monkeypatch.setattr(iceberg_table, "find_spec", lambda _name: None)
    for kind, name in ((TableFormat.DELTA, "deltalake"), (TableFormat.ICEBERG, "pyiceberg")):
        opening = export_target(_place(tmp_path / "r"), place, TablesAsked(kind), note=print)
        with pytest.raises(UnsupportedError, match=name) as caught, opening:
            pass
        assert caught.value.hint == f"Install it with `pip install 'jsbackup[{kind}]'`."


def test_one_error_for_several() -> None:
    one, other = TargetConflict("stream A is new", hint="Move A."), TargetConflict("stream B is new", hint="Move B.")
    assert all_refused({"A": one}) is one
    both = all_refused({"A": one, "B": other})
    assert isinstance(both, TargetConflict)
