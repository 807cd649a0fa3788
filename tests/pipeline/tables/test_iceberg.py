"""`jsbackup iceberg`: the segments of a repository as tables, read by pyiceberg, which knows nothing of us."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.expressions import And, EqualTo, GreaterThan, LessThan
from pyiceberg.table import StaticTable
from pyiceberg.table.refs import SnapshotRefType

from jsbackup.errors import StoreError, TargetConflict
from jsbackup.pipeline.tables import iceberg_backups
from jsbackup.pipeline.tables.iceberg_backups import BackedUp, write_iceberg
from jsbackup.repository.manifest import Manifest
from jsbackup.stores.local import LocalStore
from jsbackup.stores.memory import MemoryStore
from jsbackup.times import parse_time
from tests.cli.test_json import check
from tests.cli.typed import in_shell
from tests.harness.batches import Message, some_messages
from tests.harness.s3server import BUCKET, REGION, S3Server
from tests.harness.stores import Fault, FaultStore, Killed
from tests.pipeline.places import Kept, keep
from tests.pipeline.tables.growing import backed_up, growing, ids, rows

pytestmark = pytest.mark.slow


MESSAGES = some_messages(180, 60, seed=7)
STILL = some_messages(10, 60, seed=8)


def _read(table: StaticTable, backup: str | None = None) -> list[tuple[object, ...]]:
    scan = table.scan()
    found: pa.Table = (scan if backup is None else scan.use_ref(backup)).to_arrow()
    columns = ["sequence", "timestamp_ns", "subject", "headers", "data"]
    assert found.column_names == columns
    return sorted(zip(*(found[name].to_pylist() for name in columns), strict=True), key=lambda row: int(str(row[0])))


def _backups(manifests: list[Manifest], name: str = "ORDERS") -> list[BackedUp]:
    found = []
    for manifest in manifests:
        entry = next(one for one in manifest.streams if one.name == name)
        found.append(BackedUp(manifest.id, parse_time(manifest.created) // 10**6, entry.segments))
    return found


def _files(kept: Kept) -> dict[Path, int]:
    files = [path for path in Path(kept.place.location).rglob("*") if path.is_file()]
    return {path: path.stat().st_mtime_ns for path in files}


def test_each_backup_is_a_snapshot(tmp_path: Path) -> None:
    kept, manifests = growing(tmp_path / "r")
    gone = [*MESSAGES[20:60], *MESSAGES[100:]]
    manifests.append(backed_up(kept, 3, {"ORDERS": gone, "STILL": STILL}))
    before = _files(kept)
    out = tmp_path / "with space"
    done = in_shell("iceberg", *kept.line, "--output", out, "--json")
    assert done.code == 0, done
    document = check("iceberg", done)
    assert [(one["stream"], one["backups"], one["messages"]) for one in document["tables"]] == [
        ("ORDERS", 4, 120),
        ("STILL", 4, 10),
    ]
    table = StaticTable.from_metadata(document["tables"][0]["metadata"])
    assert _read(table) == rows(gone)
    for number, messages in enumerate((MESSAGES[:40], MESSAGES[:100], MESSAGES, gone)):
        assert _read(table, ids(number)[0]) == rows(messages)
    assert [one.snapshot_ref_type for one in table.metadata.refs.values()].count(SnapshotRefType.TAG) == 4
    assert [one.timestamp_ms for one in table.snapshots()] == sorted(one.timestamp_ms for one in table.snapshots())
    assert _read(StaticTable.from_metadata(str(out / "STILL"))) == rows(STILL)  # by the version hint
    assert sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) < 100_000
    assert _files(kept) == before


def test_with_a_tag_only_backups_that_have_it(tmp_path: Path) -> None:
    kept, manifests = growing(tmp_path / "r", (40, 100))
    tagged = replace(manifests[-1], id=ids(2)[0], created=ids(2)[1], tags={"kind": "weekly"})
    kept.repository.commit(tagged)
    out = tmp_path / "out"
    done = in_shell("iceberg", "ORDERS", *kept.line, "--tag", "kind=weekly", "--output", out, "--json")
    assert done.code == 0, done
    (about,) = done.document["tables"]
    assert about["backups"] == 1
    assert StaticTable.from_metadata(about["metadata"]).metadata.refs.keys() == {"main", tagged.id}
    everything = in_shell("iceberg", "ORDERS", *kept.line, "--output", out, "--json")
    assert everything.document["tables"][0]["backups"] == 3


def test_readers_skip_files(tmp_path: Path) -> None:
    kept, manifests = growing(tmp_path / "r", (180,), size=300)
    messages = some_messages(180, 300, seed=7)
    done = in_shell("iceberg", "ORDERS", *kept.line, "--output", tmp_path / "out", "--json")
    (about,) = done.document["tables"]
    table = StaticTable.from_metadata(about["metadata"])
    assert about["files"] == len(manifests[0].streams[0].segments) > 5
    for message in messages[::23]:
        for condition in (
            EqualTo("sequence", message.sequence),
            And(
                GreaterThan("timestamp_ns", message.timestamp_ns - 1),
                LessThan("timestamp_ns", message.timestamp_ns + 1),
            ),
        ):
            scan = table.scan(row_filter=condition)
            assert len(list(scan.plan_files())) == 1
            assert scan.to_arrow()["data"].to_pylist() == [message.data]


def test_a_rerun_adds_what_is_new_and_forgets_what_is_forgotten(tmp_path: Path) -> None:
    kept, manifests = growing(tmp_path / "r")
    data, where = f"file://{kept.place.location}", f"file://{tmp_path / 'out'}"
    store = LocalStore(tmp_path / "out")
    found = [
        write_iceberg(store, where, "ORDERS", _backups(manifests[begin:end]), data=data)
        for begin, end in ((0, 1), (0, 3), (0, 3), (1, 3), (2, 3))
    ]
    assert [one.new for one in found] == [True, True, False, True, True]
    assert found[1].metadata == found[2].metadata
    for one, begin, end in zip(found, (0, 0, 0, 1, 2), (1, 3, 3, 3, 3), strict=True):
        table = StaticTable.from_metadata(one.metadata)  # older versions stay what they were
        for number in range(begin, end):
            assert _read(table, ids(number)[0]) == rows(MESSAGES[: (40, 100, 180)[number]])
        assert {ids(number)[0] for number in range(begin, end)} == table.metadata.refs.keys() - {"main"}
    assert _read(StaticTable.from_metadata(str(tmp_path / "out" / "ORDERS"))) == rows(MESSAGES)


def test_backups_that_only_add_share_lists(tmp_path: Path) -> None:
    kept, manifests = growing(tmp_path / "r", (180,), size=300)
    (whole,) = _backups(manifests)
    parts = [replace(whole, backup=f"b{end}", segments=whole.segments[:end]) for end in range(2, 7)]
    where = f"file://{tmp_path / 'out'}"
    done = write_iceberg(LocalStore(tmp_path / "out"), where, "ORDERS", parts, data=f"file://{kept.place.location}")
    table = StaticTable.from_metadata(done.metadata)
    lists = [one.manifest_path for snapshot in table.snapshots() for one in snapshot.manifests(table.io)]
    assert (len(lists), len(set(lists))) == (1 + 2 + 3 + 4 + 5, 5)
    read = [sum(segment.messages for segment in part.segments) for part in parts]
    assert [len(_read(table, part.backup)) for part in parts] == read


@pytest.mark.parametrize("seed", range(8))
def test_any_backups_after_any_others(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backups come and go, at the end and between; some are replaced, and some runs move the repository."""
    monkeypatch.setitem(iceberg_backups._PROPERTIES, "commit.manifest.min-count-to-merge", "3")
    _, manifests = growing(tmp_path / "r", (180,), size=300)
    (whole,) = _backups(manifests)
    store, where = LocalStore(tmp_path / "out"), f"file://{tmp_path / 'out'}"
    drawn, backups, data, last = random.Random(seed), dict[int, BackedUp](), "file:///data", 0
    for _ in range(30):
        begin = drawn.choice([0, 0, 0, 1, 2])
        some = whole.segments[begin : begin + drawn.randrange(12)]
        last += 10
        number = drawn.choice([last, last, last, last - 5, *backups])
        backups[number] = replace(whole, backup=f"b{number}", created_ms=number * 60_000, segments=some)
        for forgotten in drawn.sample(sorted(backups), min(drawn.choice([0, 0, 1, 2]), len(backups) - 1)):
            del backups[forgotten]
        data = drawn.choice([data, data, data, data, f"file:///data{last}"])
        if drawn.random() < 0.5:
            continue
        wanted = [one for _, one in sorted(backups.items())]
        done = write_iceberg(store, where, "ORDERS", wanted, data=data)
        table = StaticTable.from_metadata(str(tmp_path / "out" / "ORDERS"))
        assert table.metadata_location.endswith(done.metadata.removeprefix("file://"))
        assert [one.timestamp_ms for one in table.snapshots()] == [one.created_ms for one in wanted]
        assert table.metadata.refs.keys() == {"main", *(one.backup for one in wanted)}
        for one in [*wanted, replace(wanted[-1], backup="main")]:
            files = [task.file.file_path for task in table.scan().use_ref(one.backup).plan_files()]
            assert sorted(files) == [f"{data}/{ref.key}" for ref in one.segments]
        assert not write_iceberg(store, where, "ORDERS", wanted, data=data).new


def test_names_that_are_escaped(tmp_path: Path) -> None:
    kept = keep(tmp_path / "r", {"KV_odd%xü": STILL, "EMPTY": []})
    done = in_shell("iceberg", *kept.line, "--output", tmp_path / "out", "--json")
    tables = {one["stream"]: StaticTable.from_metadata(one["metadata"]) for one in done.document["tables"]}
    assert _read(tables["KV_odd%xü"]) == rows(STILL) and _read(tables["EMPTY"]) == []


def test_after_a_prune_old_tables_name_what_is_gone(tmp_path: Path) -> None:
    kept, _ = growing(tmp_path / "r", (40, 100))
    backed_up(kept, 2, {"ORDERS": some_messages(60, 60, seed=9, first=500), "STILL": STILL})
    line = ["iceberg", "ORDERS", *kept.line, "--output", tmp_path / "out", "--json"]
    before = in_shell(*line).document["tables"][0]["metadata"]
    forgot = in_shell("forget", "--keep-last", "1", *kept.line)
    assert forgot.code == 0, forgot
    for _ in range(2):
        assert in_shell("prune", "--grace", "0s", *kept.line).code == 0
    with pytest.raises(FileNotFoundError):
        _read(StaticTable.from_metadata(before), ids(0)[0])
    after = StaticTable.from_metadata(in_shell(*line).document["tables"][0]["metadata"])
    assert after.metadata.refs.keys() == {"main", ids(2)[0]}
    assert _read(after) == rows(some_messages(60, 60, seed=9, first=500))


def test_two_at_once(tmp_path: Path) -> None:
    _, manifests = growing(tmp_path / "r")
    store, done = MemoryStore(), []

    def come_between(operation: str, key: str) -> None:
        if operation == "put" and key.endswith("v1.metadata.json") and not done:
            done.append(write_iceberg(store, "memory:", "ORDERS", _backups(manifests[:1]), data="memory:"))

    with pytest.raises(TargetConflict, match="at the same time"):
        write_iceberg(FaultStore(store, before=come_between), "memory:", "ORDERS", _backups(manifests), data="memory:")
    again = write_iceberg(store, "memory:", "ORDERS", _backups(manifests), data="memory:")
    assert again.new and json.loads(store.get("ORDERS/metadata/version-hint.text")) == 2


@pytest.mark.parametrize("fault", [Fault.KILL_AFTER, Fault.FAIL])
def test_stopped_at_every_operation(tmp_path: Path, fault: Fault) -> None:
    """The version that readers see is the old one or the new one; and a rerun makes it the new one."""
    kept, manifests = growing(tmp_path / "r")
    data, seen = f"file://{kept.place.location}", set()
    for at in range(1, 100):
        out = tmp_path / f"out{at}"
        store, where = LocalStore(out), f"file://{out}"
        write_iceberg(store, where, "ORDERS", _backups(manifests[:2]), data=data)
        faulty = FaultStore(store, fault, at=at)
        with suppress(Killed, StoreError):
            write_iceberg(faulty, where, "ORDERS", _backups(manifests), data=data)
        hint = out / "ORDERS" / "metadata" / "version-hint.text"
        seen.add(hint.read_text() if hint.exists() else "")
        if hint.exists():
            assert _read(StaticTable.from_metadata(str(out / "ORDERS"))) in (rows(MESSAGES[:100]), rows(MESSAGES))
        done = write_iceberg(store, where, "ORDERS", _backups(manifests), data=data)
        assert _read(StaticTable.from_metadata(done.metadata)) == rows(MESSAGES)
        assert hint.read_text() == "2", at
        if at > faulty.operations:
            break
    assert seen == {"", "1", "2"}


def test_what_cannot_be_a_table_is_refused(tmp_path: Path) -> None:
    messages: list[Message] = STILL
    secret = keep(tmp_path / "secret", {"ORDERS": messages}, encrypted=True)
    done = in_shell("iceberg", *secret.line, "--output", tmp_path / "out")
    assert done.code == 13 and "the repository is encrypted" in done.err, done
    kept = keep(tmp_path / "r", {"ORDERS": messages}, opaque=True)
    within = in_shell("iceberg", *kept.line, "--output", Path(kept.place.location) / "tables")
    assert within.code == 2 and "is in the repository" in within.err
    opaque = in_shell("iceberg", "VERBATIM", *kept.line, "--output", tmp_path / "out")
    assert opaque.code == 2 and "stream VERBATIM is of an archive format that is not known here" in opaque.err, opaque
    unknown = in_shell("iceberg", "NOPE", *kept.line, "--output", tmp_path / "out")
    assert unknown.code == 2, unknown
    assert not (tmp_path / "out").exists()
    some = in_shell("iceberg", *kept.line, "--output", tmp_path / "out")
    assert some.code == 0 and "VERBATIM" in some.err and "ORDERS" in some.out


def test_a_misspelt_stream_is_a_sentence_with_the_one_that_was_meant(tmp_path: Path) -> None:
    kept, manifests = growing(tmp_path / "r", (40, 100))
    line = ["iceberg", *kept.line, "--output", tmp_path / "out"]
    for names in (["ORDRES"], ["STILL", "ORDRES"]):
        done = in_shell(*line, *names, "--json")
        assert done.code == 2, done
        assert done.document["error"]["message"] == "no backup has a stream ORDRES"
        assert done.document["error"]["hint"] == "Did you mean ORDERS?"
    assert in_shell(*line, "X*").code == 2 and not (tmp_path / "out").exists()
    # A stream that only older backups have is one, and one that has only a table stays named.
    backed_up(kept, 3, {"STILL": STILL})
    assert in_shell(*line, "ORDERS", "STILL").code == 0
    for manifest in manifests:
        assert in_shell("forget", manifest.id, *kept.line).code == 0
    done = in_shell(*line, "ORDERS", "STILL")
    assert done.code == 0 and "no backup has messages of stream ORDERS any more" in done.err
    assert in_shell(*line, "ORDERS").code == 2


def test_an_output_that_cannot_be_made_is_the_error_of_export(tmp_path: Path) -> None:
    kept, _ = growing(tmp_path / "r", (40,))
    (tmp_path / "file").write_text("")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    for where, said, hint in (
        (tmp_path / "no" / "such", f"there is no folder {tmp_path / 'no'} to make it in", "Make that first."),
        (tmp_path / "file", f"{tmp_path / 'file'} is not a folder", ""),
        (tmp_path / "nowhere", f"{tmp_path / 'nowhere'} is not a folder", ""),
        (tmp_path / "file" / "within", f"{tmp_path / 'file'} is not a folder", ""),
    ):
        into = ["export", "latest", "--format", "parquet"]
        for line, own in (
            (["iceberg"], "Name a folder, or one that does not exist yet."),
            (into, "Name a folder that is empty or does not exist yet."),
            ([*into, "--append"], "Name a folder that is empty or new, or has tables of an earlier export."),
        ):
            done = in_shell(*line, *kept.line, "--output", where, "--json")
            error = done.document["error"]
            assert (done.code, error["message"], error["hint"]) == (2, said, hint or own), done
    assert in_shell("iceberg", *kept.line, "--output", tmp_path / "new").code == 0


def test_a_repository_that_was_moved_is_described_anew(tmp_path: Path) -> None:
    kept, _ = growing(tmp_path / "r")
    out = tmp_path / "out"
    assert in_shell("iceberg", *kept.line, "--output", out).code == 0
    Path(kept.place.location).rename(tmp_path / "moved")
    for _ in range(2):
        done = in_shell("iceberg", "-r", tmp_path / "moved", "--output", out)
        assert done.code == 0
        assert _read(StaticTable.from_metadata(str(out / "ORDERS"))) == rows(MESSAGES)
    out.rename(tmp_path / "elsewhere")
    assert in_shell("iceberg", "-r", tmp_path / "moved", "--output", tmp_path / "elsewhere").code == 0
    assert _read(StaticTable.from_metadata(str(tmp_path / "elsewhere" / "ORDERS"))) == rows(MESSAGES)


def test_what_else_is_there_is_left_alone(tmp_path: Path) -> None:
    kept, _ = growing(tmp_path / "r")
    out = tmp_path / "out"
    assert in_shell("iceberg", *kept.line, "--output", out).code == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    done = in_shell("iceberg", *kept.line, "--output", out / "ORDERS")
    assert done.code == 2 and "is itself the table of a stream" in done.err
    only = keep(tmp_path / "other", {"ORDERS": STILL})
    line = ["-r", tmp_path / "copy", "--output", out]
    assert in_shell("init", "-r", tmp_path / "copy").code == 0
    assert in_shell("copy", "--to-repo", tmp_path / "copy", *only.line).code == 0
    done = in_shell("iceberg", *line)
    assert done.code == 16 and "the Iceberg table of stream ORDERS there is of another repository" in done.err, done
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    for kind in ("parquet", "delta", "jsonl"):
        tables = tmp_path / kind
        assert in_shell("export", "latest", *kept.line, "--format", kind, "--output", tables).code == 0
        done = in_shell("iceberg", *kept.line, "--output", tables)
        assert done.code == 2 and "the table of stream ORDERS is of another format, or something else" in done.err, done
        assert not list(tables.rglob("*.avro"))


def test_a_table_of_which_no_backup_is_left_is_named(tmp_path: Path) -> None:
    kept, manifests = growing(tmp_path / "r")
    out = tmp_path / "out"
    assert in_shell("iceberg", *kept.line, "--output", out).code == 0
    backed_up(kept, 3, {"STILL": STILL})
    for manifest in manifests:
        assert in_shell("forget", manifest.id, *kept.line).code == 0
    done = in_shell("iceberg", *kept.line, "--output", out)
    assert done.code == 0 and "no backup has messages of stream ORDERS any more" in done.err
    assert "STILL any more" not in done.err


@pytest.mark.s3
def test_in_s3(s3_server: S3Server, tmp_path: Path) -> None:
    kept, _ = growing(tmp_path / "r", (40, 100))
    credentials = s3_server.credentials()
    place = f"s3://{BUCKET}/iceberg-repo"
    to = ["--to-s3-endpoint", s3_server.url, "--to-s3-region", REGION]
    s3 = ["--s3-endpoint", s3_server.url, "--s3-region", REGION]
    assert in_shell("copy", "--to-repo", place, *kept.line, *to, **credentials).code == 0
    done = in_shell("iceberg", "-r", place, *s3, "--output", f"s3://{BUCKET}/iceberg", "--json", **credentials)
    assert done.code == 0, done
    about = next(one for one in done.document["tables"] if one["stream"] == "ORDERS")
    properties = {
        "s3.endpoint": s3_server.url,
        "s3.region": REGION,
        "s3.access-key-id": credentials["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": credentials["AWS_SECRET_ACCESS_KEY"],
    }
    table = StaticTable.from_metadata(about["metadata"], properties)
    assert _read(table, ids(0)[0]) == rows(MESSAGES[:40])
