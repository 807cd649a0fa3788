"""`export --append`: each message comes into its table once, whatever happens on the way."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from jsbackup.config import parse_glob
from jsbackup.errors import FormatError, JsBackupError, StoreError, TargetConflict, UnsupportedError, UsageError
from jsbackup.model import S3Settings
from jsbackup.pipeline.session.repository_ref import RepositoryRef, place_of
from jsbackup.pipeline.tables import export as export_module
from jsbackup.pipeline.tables.table_files import find_tables
from jsbackup.pipeline.tables.writing import TableFormat
from jsbackup.pipeline.tasks.runner import InProcess
from jsbackup.pipeline.tasks.tasks import OnSpark
from jsbackup.planning.transforming import TransformOptions
from jsbackup.repository.manifest import ArchiveFormat, Manifest
from jsbackup.stores.memory import MemoryStore
from jsbackup.stores.s3 import S3Store
from jsbackup.transforms.cut import AtSequence, AtTime, Cut
from jsbackup.transforms.filters.filters import Filters
from jsbackup.transforms.filters.newest import NewestRule
from jsbackup.transforms.reshape import Reshape
from tests.cli.typed import in_shell
from tests.harness import backups
from tests.harness.batches import some_messages
from tests.harness.commands import command_line, environment
from tests.harness.s3server import BUCKET, REGION, S3Server
from tests.harness.stores import Fault, FaultStore, Killed
from tests.pipeline.places import Kept, keep
from tests.pipeline.tables.growing import StoreAt, backed_up, copied, export, growing, rows, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


KINDS = [TableFormat.PARQUET, TableFormat.DELTA, TableFormat.ICEBERG]
each = pytest.mark.parametrize("kind", KINDS)
MESSAGES = some_messages(180, 60, seed=7)
STILL = some_messages(10, 60, seed=8)


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "SEGMENT_BYTES", 4000)


def _content(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _is_of_log(key: str) -> bool:
    return "_delta_log" in key or "/metadata/" in key


def _refused(kept: Kept, manifest: Manifest, place: RepositoryRef, kind: TableFormat) -> JsBackupError:
    """Why the table of ORDERS is refused; that of STILL is not."""
    done = export(kept, manifest, place, kind)
    assert done.refused.keys() == {"ORDERS"} and [one.name for one in done.streams] == ["STILL"]
    return done.refused["ORDERS"]


@each
def test_each_backup_adds_what_is_new(tmp_path: Path, kind: TableFormat) -> None:
    kept, manifests = growing(tmp_path / "r")
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    for manifest, count, before in zip(manifests, (40, 100, 180), (0, 40, 100), strict=True):
        done = export(kept, manifest, place, kind, token=f"0000000{count % 7}")
        assert [one.messages for one in done.streams] == [count - before, 0 if before else 10]
        assert rows_of(tmp_path / "out" / "ORDERS", kind) == rows(MESSAGES[:count])
        assert rows_of(tmp_path / "out" / "STILL", kind) == rows(STILL)
        content = _content(tmp_path / "out")
        again = export(kept, manifest, place, kind, token="0a0a0a0a")
        assert (again.files, [one.messages for one in again.streams]) == (0, [0, 0])
        last = MESSAGES[count - 1].sequence
        assert again.streams[0].notes == (f"nothing is new: the table ends at sequence {last}",)
        assert _content(tmp_path / "out") == content
    if kind is TableFormat.PARQUET:  # as `import` finds them
        tables = find_tables(tmp_path / "out", kind, None)
        assert [one.stream for one in tables] == ["ORDERS", "STILL"]
        assert not any("_jsbackup" in file for one in tables for file in one.files)
    older = export(kept, manifests[0], place, kind)
    assert older.streams[0].notes[0].endswith("from a later backup") and _content(tmp_path / "out") == content
    assert not list((tmp_path / "out").rglob("*.part")) and not list((tmp_path / "out").glob("_SUCCESS"))


@each
def test_a_plain_export_is_extended_and_deleted_messages_stay(tmp_path: Path, kind: TableFormat) -> None:
    """By the command, with a stream that is new, one without messages yet, and deleted messages in the old part."""
    kept, _ = growing(tmp_path / "r", (40,))
    backed_up(kept, 1, {"ORDERS": MESSAGES[:60], "STILL": STILL, "EMPTY": []})
    line = ["export", "latest", *kept.line, "--format", kind, "--output", tmp_path / "out", "--json"]
    assert in_shell(*line).code == 0
    gone = [*MESSAGES[5:20], *MESSAGES[50:90]]
    backed_up(kept, 2, {"ORDERS": gone, "STILL": STILL, "EMPTY": STILL, "NEW": STILL})
    done = in_shell(*line, "--append")
    assert done.code == 0, done
    found = {one["name"]: one["messages"] for one in done.document["streams"]}
    assert found == {"EMPTY": 10, "NEW": 10, "ORDERS": 30, "STILL": 0} and done.document["appended"] is True
    assert done.document["rows"] == 50
    assert rows_of(tmp_path / "out" / "ORDERS", kind) == rows(MESSAGES[:90])
    for name in ("EMPTY", "NEW", "STILL"):
        assert rows_of(tmp_path / "out" / name, kind) == rows(STILL)
    refused = in_shell(*line)
    assert refused.code == 2 and "is not empty" in refused.document["error"]["message"]
    assert f"appended to {tmp_path / 'out'}: 4 streams, 0 messages, 0 files" in in_shell(*line[:-1], "--append").out


@each
def test_other_options_are_refused(tmp_path: Path, kind: TableFormat) -> None:
    kept, manifests = growing(tmp_path / "r")
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    only = Filters.parse({"subject": ["orders.1"]})
    first = TransformOptions(reshape=Reshape(filters=only), streams=(parse_glob("*"),))
    export(kept, manifests[0], place, kind, options=first)
    content = _content(tmp_path / "out")
    for other, said in (
        (TransformOptions(), "made with --subject orders.1"),
        (TransformOptions(reshape=Reshape(filters=only, cut=Cut(since=AtSequence(3)))), "made with --subject orders.1"),
    ):
        with pytest.raises(UsageError, match=said):
            export(kept, manifests[1], place, kind, options=other)
    for unsteady, word in ((Reshape(renumber=True), "--renumber"), (Reshape(newest=NewestRule(2)), "--last-per")):
        with pytest.raises(UsageError, match=f"{word}.* and --append exclude each other"):
            export(kept, manifests[1], place, kind, options=TransformOptions(reshape=unsteady))
    assert _content(tmp_path / "out") == content
    export(kept, manifests[1], place, kind, options=replace(first, streams=(), allow_empty=True), token="0000abcd")
    found = rows_of(tmp_path / "out" / "ORDERS", kind)
    assert found == rows([m for m in MESSAGES[:100] if m.subject == "orders.1"])


@each
def test_what_does_not_match_is_no_error_and_is_read_once(tmp_path: Path, kind: TableFormat) -> None:
    kept, manifests = growing(tmp_path / "r")
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    until = TransformOptions(reshape=Reshape(cut=Cut(until=AtTime(MESSAGES[39].timestamp_ns))))
    export(kept, manifests[0], place, kind, options=until)
    done = export(kept, manifests[1], place, kind, options=until, token="0000abcd")
    assert (done.files, done.streams[0].messages) == (0, 0)
    assert "nothing is new" in export(kept, manifests[1], place, kind, options=until).streams[0].notes[0]
    assert rows_of(tmp_path / "out" / "ORDERS", kind) == rows(MESSAGES[:40])


@each
def test_another_stream_of_that_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: TableFormat
) -> None:
    kept, manifests = growing(tmp_path / "r")
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    export(kept, manifests[0], place, kind)
    content = _content(tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(backups, "INCARNATION", "ffff0000")
        anew = backed_up(kept, 3, {"ORDERS": MESSAGES, "STILL": STILL})
    with pytest.raises(TargetConflict, match="deleted and created again"):
        export(kept, anew, place, kind)
    back = backed_up(kept, 4, {"ORDERS": MESSAGES[:20], "STILL": STILL})
    error = _refused(kept, back, place, kind)
    assert isinstance(error, TargetConflict) and "ORDERS was set back since its table was extended" in error.message
    others = [m._replace(timestamp_ns=m.timestamp_ns + 5) for m in MESSAGES[30:90]]
    other = backed_up(kept, 5, {"ORDERS": [*MESSAGES[:30], *others], "STILL": STILL})
    error = _refused(kept, other, place, kind)
    assert isinstance(error, TargetConflict)
    assert f"message {MESSAGES[39].sequence} of stream ORDERS is another one" in error.message
    assert _content(tmp_path / "out") == content


@each
@pytest.mark.parametrize("gone", [range(39, 40), range(33, 60), range(31, 40)])
def test_a_stream_that_was_set_back_is_refused_whatever_was_deleted_since(
    tmp_path: Path, kind: TableFormat, gone: range
) -> None:
    kept, manifests = growing(tmp_path / "r")
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    export(kept, manifests[0], place, kind)
    export(kept, manifests[1], place, kind)
    content = _content(tmp_path / "out")
    others = [m._replace(timestamp_ns=m.timestamp_ns + 10**6) for m in MESSAGES[30:150]]
    left = [m for number, m in enumerate(others, start=30) if number - 60 not in gone]
    other = backed_up(kept, 5, {"ORDERS": [*MESSAGES[:30], *left], "STILL": STILL})
    error = _refused(kept, other, place, kind)
    assert isinstance(error, TargetConflict)
    assert "of stream ORDERS is another one than the table of ORDERS has" in error.message
    assert _content(tmp_path / "out") == content


def test_tables_are_neither_in_the_repository_nor_in_a_table(tmp_path: Path) -> None:
    kept, _ = growing(tmp_path / "r")
    repository, out = Path(kept.place.location), tmp_path / "out"
    (tmp_path / "link").symlink_to(repository)
    before = _content(repository)
    for more in (["--append"], []):
        for where in (repository, repository / "tables", tmp_path / "link" / "segments"):
            done = in_shell("export", "latest", "--format", "parquet", "--output", where, *more, *kept.line)
            assert done.code == 2 and "is in the repository" in done.err, done
    assert _content(repository) == before
    for kind in ("parquet", "delta", "iceberg"):
        line = ["export", "latest", "--format", kind, "--append", *kept.line]
        out.mkdir(exist_ok=True)
        assert in_shell(*line, "--output", out / kind).code == 0
        done = in_shell(*line, "--output", out / kind / "ORDERS")
        assert done.code == 2 and "is itself the table of a stream" in done.err, done
    done = in_shell(*line, "--output", out / "delta", "--since", "7d")
    assert done.code == 2 and "--since 7d counts from now" in done.err


@each
def test_a_stream_may_be_called_as_a_folder_of_tables_is(tmp_path: Path, kind: TableFormat) -> None:
    kept = keep(tmp_path / "r", {"metadata": STILL, "data": STILL})
    line = ["export", "latest", *kept.line, "--format", kind, "--append", "--output", tmp_path / "out"]
    for _ in range(2):
        assert in_shell(*line).code == 0
    for name in ("metadata", "data"):
        assert rows_of(tmp_path / "out" / name, kind) == rows(STILL)


@each
def test_a_backup_without_messages_changes_nothing(tmp_path: Path, kind: TableFormat) -> None:
    kept, manifests = growing(tmp_path / "r")
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    export(kept, manifests[0], place, kind)
    bare = backed_up(kept, 3, {"ORDERS": [], "STILL": []})
    bare = replace(
        bare,
        streams=tuple(
            replace(one, archive_format=ArchiveFormat.CONFIG, state=replace(one.state, last_seq=10**6))
            for one in bare.streams
        ),
    )
    done = export(kept, bare, place, kind)
    assert [one.notes for one in done.streams] == [("the backup has no messages of it",)] * 2
    export(kept, manifests[1], place, kind, token="0000abcd")
    assert rows_of(tmp_path / "out" / "ORDERS", kind) == rows(MESSAGES[:100])


@pytest.mark.parametrize("kind", [TableFormat.PARQUET, TableFormat.DELTA])
def test_tables_that_do_not_say_how_far_they_go_are_refused(tmp_path: Path, kind: TableFormat) -> None:
    kept, manifests = growing(tmp_path / "r")
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    export(kept, manifests[0], place, kind)
    table = tmp_path / "out" / "ORDERS"
    other = TableFormat.DELTA if kind is TableFormat.PARQUET else TableFormat.PARQUET
    with pytest.raises(UsageError, match="Delta table" if kind is TableFormat.DELTA else "plain Parquet files"):
        export(kept, manifests[1], place, other)
    log = next(table.rglob("*.json"))
    whole = log.read_text()
    log.chmod(0o600)
    if kind is TableFormat.PARQUET:
        broken = [whole[:-9], json.dumps(json.loads(whole) | {"token": "../x"})]
        newer = json.loads(whole)
        newer["table"]["format"] = 5
    else:
        broken = [whole[:-9], whole.replace('\\"digest\\"', '\\"dig\\"')]
        newer = None
    for text in broken:
        log.write_text(text)
        assert isinstance(_refused(kept, manifests[1], place, kind), FormatError)
    if newer is not None:
        log.write_text(json.dumps(newer))
        error = _refused(kept, manifests[1], place, kind)
        assert isinstance(error, UnsupportedError) and "newer jsbackup" in error.message
    if kind is TableFormat.PARQUET:
        log.unlink()
    else:  # as older versions wrote it
        lines = [json.loads(line) for line in whole.splitlines()]
        for one in lines:
            one.get("metaData", {}).update(configuration={})
        lines = [
            one | ({"metaData": one["metaData"] | {"configuration": {}}} if "metaData" in one else {}) for one in lines
        ]
        log.write_text("".join(json.dumps(one) + "\n" for one in lines if "txn" not in one))
    error = _refused(kept, manifests[1], place, kind)
    assert isinstance(error, UsageError) and "how far it goes: an older jsbackup" in error.message


@pytest.mark.by_turns
@each
@pytest.mark.parametrize("fault", [Fault.KILL_AFTER, Fault.KILL_BEFORE, Fault.FAIL, Fault.LOSE_ANSWER])
def test_stopped_at_every_operation(tmp_path: Path, kind: TableFormat, fault: Fault) -> None:
    """A rerun, of the same backup or of the next one, gives each message once. With a log, readers never see a part."""
    kept, manifests = growing(tmp_path / "r")
    before = MemoryStore()
    export(kept, manifests[0], StoreAt("memory:", given=before), kind)
    stops = 0
    for at in range(1, 500):
        store = MemoryStore()
        for info in before.list():
            store.put(info.key, before.get(info.key))
        faulty = FaultStore(store, fault, at=at)
        try:
            export(kept, manifests[1], StoreAt("memory:", given=faulty), kind, token=f"{at:08x}")
        except (Killed, StoreError):
            stops += 1
        seen = copied(tmp_path / f"a{at}", store) / "ORDERS"
        if kind is not TableFormat.PARQUET:
            assert rows_of(seen, kind) in (rows(MESSAGES[:40]), rows(MESSAGES[:100])), at
        else:
            sequences = [row[0] for row in rows_of(seen, kind)]
            assert len(sequences) == len(set(sequences)), at
        number = 1 + at % 2
        export(kept, manifests[number], StoreAt("memory:", given=store), kind, token=f"{at:07x}f")
        after = copied(tmp_path / f"b{at}", store)
        assert rows_of(after / "ORDERS", kind) == rows(MESSAGES[: (100, 180)[number - 1]]), at
        assert rows_of(after / "STILL", kind) == rows(STILL)
        if kind is TableFormat.PARQUET:
            assert not [info.key for info in store.list() if info.key.endswith(".part")], at
        if at > faulty.operations:
            break
    assert stops > 6


@each
def test_a_first_export_that_was_killed_is_no_obstacle_in_s3(tmp_path: Path, kind: TableFormat) -> None:
    kept, manifests = growing(tmp_path / "r", (40,))
    killed = 0
    for at in range(1, 200):
        store = MemoryStore()
        faulty = FaultStore(store, Fault.KILL_AFTER, at=at)
        try:
            export(kept, manifests[0], StoreAt("memory:", given=faulty), kind, token="0000aaaa")
        except Killed:
            killed += 1
        export(kept, manifests[0], StoreAt("memory:", given=store), kind, token="0000bbbb")
        assert rows_of(copied(tmp_path / f"b{at}", store) / "ORDERS", kind) == rows(MESSAGES[:40])
        assert "_SUCCESS" in [info.key for info in store.list()]
        if faulty.operations < at:
            break
    assert killed > 6


@each
def test_of_two_at_once_one_is_refused(tmp_path: Path, kind: TableFormat) -> None:
    """Whenever the second one comes in between."""
    kept, manifests = growing(tmp_path / "r")
    before = MemoryStore()
    export(kept, manifests[0], StoreAt("memory:", given=before), kind)
    refused = finished = 0
    for at in range(1, 500):
        store = MemoryStore()
        for info in before.list():
            store.put(info.key, before.get(info.key))
        count = 0

        def come_between(_operation: str, _key: str, at: int = at, store: MemoryStore = store) -> None:
            nonlocal count
            count += 1
            if count == at:
                export(kept, manifests[1 + at % 2], StoreAt("memory:", given=store), kind, token="0000bbbb")

        try:
            place = StoreAt("memory:", given=FaultStore(store, before=come_between))
            export(kept, manifests[1], place, kind, token="0000aaaa")
            finished += 1
        except TargetConflict as error:
            assert "something else has changed the table of stream ORDERS meanwhile" in error.message
            refused += 1
            leftover = [i.key for i in store.list() if "0000aaaa" in i.key]
            assert leftover == []
        found = rows_of(copied(tmp_path / f"c{at}", store) / "ORDERS", kind)
        assert found in (rows(MESSAGES[:100]), rows(MESSAGES)), at
        if count < at:
            break
    assert refused > 3 and finished > 3


@pytest.mark.by_turns
@each
def test_killed_by_the_system_at_any_time(tmp_path: Path, kind: TableFormat) -> None:
    kept, _ = growing(tmp_path / "r", (40, 100), size=3000)
    line = ["export", *kept.line, "--format", str(kind), "--append", "--output", str(tmp_path / "out"), "--quiet"]
    assert in_shell(*line, kept.manifest.id).code == 0
    words = command_line(*line, "latest")
    for number in range(6):
        process = subprocess.Popen(words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.25 + number * 0.12)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert in_shell(*line, "latest").code == 0
    assert rows_of(tmp_path / "out" / "ORDERS", kind) == rows(some_messages(100, 3000, seed=7))


def test_a_delta_table_that_others_maintain(tmp_path: Path) -> None:
    """Checkpoints, joined files and a vacuum, between two exports; and its log cleaned up."""
    kept, manifests = growing(tmp_path / "r")
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    export(kept, manifests[0], place, TableFormat.DELTA)
    table = DeltaTable(tmp_path / "out" / "ORDERS")
    table.optimize.compact()
    table.create_checkpoint()
    for path in (tmp_path / "out" / "ORDERS" / "_delta_log").glob("*.json"):
        if path.name < "00000000000000000001.json":
            path.unlink()
    export(kept, manifests[1], place, TableFormat.DELTA, token="0000abcd")
    table = DeltaTable(tmp_path / "out" / "ORDERS")
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    export(kept, manifests[2], place, TableFormat.DELTA, token="0000abce")
    assert rows_of(tmp_path / "out" / "ORDERS", TableFormat.DELTA) == rows(MESSAGES)
    table = DeltaTable(tmp_path / "out" / "ORDERS")
    for value in (m.sequence for m in MESSAGES[::17]):
        assert table.to_pyarrow_table(filters=[("sequence", "=", value)]).num_rows == 1


def test_subjects_that_are_no_text_after_some_that_are(tmp_path: Path) -> None:
    """Files with statistics, then one whose subjects cannot be in them."""
    kept, manifests = growing(tmp_path / "r", (40,))
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    export(kept, manifests[0], place, TableFormat.DELTA)
    odd = [m._replace(subject="z" * 2000 if n > 20 else m.subject) for n, m in enumerate(MESSAGES[40:])]
    grown = backed_up(kept, 1, {"ORDERS": [*MESSAGES[:40], *odd], "STILL": STILL})
    export(kept, grown, place, TableFormat.DELTA, token="0000abcd")
    table = DeltaTable(tmp_path / "out" / "ORDERS")
    for subject in ("orders.1", "z" * 2000):
        truth = sum(m.subject == subject for m in [*MESSAGES[:40], *odd])
        assert table.to_pyarrow_table(filters=[("subject", "=", subject)]).num_rows == truth
    more = some_messages(30, 60, seed=9, first=odd[-1].sequence + 1)
    again = backed_up(kept, 2, {"ORDERS": [*MESSAGES[:40], *odd, *more], "STILL": STILL})
    export(kept, again, place, TableFormat.DELTA, token="0000abce")
    table = DeltaTable(tmp_path / "out" / "ORDERS")
    for m in [MESSAGES[3], odd[-1], more[-1]]:
        assert table.to_pyarrow_table(filters=[("sequence", "=", m.sequence)]).num_rows == 1


def test_a_table_whose_first_files_have_no_statistics(tmp_path: Path) -> None:
    """Then those that are added have none, or readers would take the others for files without rows."""
    kept = keep(tmp_path / "r", {"ORDERS": [m._replace(subject="z" * 2000) for m in MESSAGES[:40]]})
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    export(kept, kept.manifest, place, TableFormat.DELTA)
    old = [m._replace(subject="z" * 2000) for m in MESSAGES[:40]]
    export(kept, backed_up(kept, 1, {"ORDERS": [*old, *MESSAGES[40:]]}), place, TableFormat.DELTA, token="0000abcd")
    table = DeltaTable(tmp_path / "out" / "ORDERS")
    for m in MESSAGES[::31]:
        assert table.to_pyarrow_table(filters=[("sequence", "=", m.sequence)]).num_rows == 1


def test_a_damaged_backup_adds_nothing(tmp_path: Path) -> None:
    kept, manifests = growing(tmp_path / "r")
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    export(kept, manifests[0], place, TableFormat.PARQUET)
    content = _content(tmp_path / "out")
    path = Path(kept.place.location) / manifests[1].streams[0].segments[-1].key
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(JsBackupError) as caught:
        export(kept, manifests[1], place, TableFormat.PARQUET, token="0000abcd")
    assert caught.value.exit_code == 14 and _content(tmp_path / "out") == content


def test_wrong_options_are_one_sentence(tmp_path: Path) -> None:
    kept, _ = growing(tmp_path / "r", (40,))
    line = ["export", "latest", *kept.line, "--append", "--output", tmp_path / "out", "--format"]
    for more, said in (
        (["jsonl"], "--append is for --format parquet, delta and iceberg, and this is --format jsonl"),
        (["nats-cli"], "--append is for --format parquet, delta and iceberg, and this is --format nats-cli"),
        (["parquet", "--renumber"], "--renumber and --append exclude each other"),
        (["delta", "--kv-compact"], "--kv-compact"),
    ):
        done = in_shell(*line, *more)
        assert done.code in (2, 15) and said in done.err, done
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
@each
def test_spark_adds_the_same(spark: SparkSession, tmp_path: Path, kind: TableFormat) -> None:
    kept, manifests = growing(tmp_path / "r")
    found = []
    for name, runner in (("here", InProcess(2)), ("spark", OnSpark(spark))):
        place = place_of(str(tmp_path / name), S3Settings(), {})
        for number, manifest in enumerate(manifests):
            export(kept, manifest, place, kind, token=f"0000000{number}", runner=runner)
        assert rows_of(tmp_path / name / "ORDERS", kind) == rows(MESSAGES)
        found.append({key: value for key, value in _content(tmp_path / name).items() if not _is_of_log(key)})
    assert found[0] == found[1]


@pytest.mark.by_turns
@pytest.mark.s3
@each
def test_in_s3(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: TableFormat) -> None:
    """The first export without --append, and then twice the next one."""
    for name, value in s3_server.credentials().items():
        monkeypatch.setenv(name, value)
    kept, manifests = growing(tmp_path / "r")
    place = f"s3://{BUCKET}/grown-{kind}"
    s3 = ["--s3-endpoint", s3_server.url, "--s3-region", REGION]
    line = ["--format", kind, "--output", place, *kept.line, *s3, "--json"]
    credentials = s3_server.credentials()
    assert in_shell("export", manifests[0].id, *line, **credentials).code == 0
    for count in (140, 0):
        done = in_shell("export", "latest", *line, "--append", **credentials)
        assert done.code == 0 and done.document["rows"] == count, done
    store = S3Store(BUCKET, f"grown-{kind}", S3Settings(endpoint=s3_server.url, region=REGION))
    assert rows_of(copied(tmp_path / "copy", store) / "ORDERS", kind) == rows(MESSAGES)
    assert not [key for key in s3_server.keys(f"grown-{kind}/") if key.endswith(".part")]


def test_masked_with_another_key_is_refused(tmp_path: Path) -> None:
    kept, manifests = growing(tmp_path / "r")
    line = ["export", *kept.line, "--format", "delta", "--output", tmp_path / "out", "--append", "--json"]
    line += ["--mask", ">:header(N)=hash"]
    key, other = "k" * 32, "o" * 32
    assert in_shell(*line, manifests[0].id, JSBACKUP_MASK_KEY=key).code == 0
    refused = in_shell(*line, "latest", JSBACKUP_MASK_KEY=other)
    assert refused.code == 2 and "and with another key" in refused.document["error"]["message"], refused
    assert in_shell(*line, "latest", JSBACKUP_MASK_KEY=key).document["rows"] == 140


def test_obfuscated_tables_grow_with_the_same_key_file(tmp_path: Path) -> None:
    kept, manifests = growing(tmp_path / "r")
    line = ["export", *kept.line, "--format", "parquet", "--output", tmp_path / "out", "--append", "--json"]
    line += ["--obfuscate", "--obfuscation-key", tmp_path / "keys.json"]
    assert in_shell(*line, manifests[0].id).code == 0
    assert in_shell(*line, "latest").document["rows"] == 140
    names = {path.name for path in (tmp_path / "out").iterdir() if path.name != ".incoming"}
    assert "ORDERS" not in names and len(names) == 2
    logs = b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*.json"))
    assert b"ORDERS" not in logs and backups.INCARNATION.encode() not in logs
    refused = in_shell(*line[:-1], tmp_path / "other.json", "latest")
    assert refused.code == 0 and len(list((tmp_path / "out").glob("*/_jsbackup"))) == 4  # other names


def test_what_is_new_decides_whether_spark_is_worth_starting(tmp_path: Path) -> None:
    kept, (first, last) = growing(tmp_path, (400, 410))
    line = ["--format", "parquet", "--output", tmp_path / "tables", "--append", *kept.line]
    done = in_shell("export", first.id, *line)
    assert done.code == 0 and "runs without Spark: 35.1 KiB of messages" in done.err
    done = in_shell("export", last.id, *line)
    assert done.code == 0 and "runs without Spark: 2.56 KiB of messages" in done.err
    assert rows_of(tmp_path / "tables" / "ORDERS", TableFormat.PARQUET) == rows(some_messages(410, 60, seed=7))


def test_what_a_reader_may_trip_over_is_said(tmp_path: Path) -> None:
    odd = some_messages(20, 60, seed=9)
    messages = [*odd[:10], odd[10]._replace(subject=b"a.\xff"), *odd[11:]]
    kept = keep(tmp_path, {"ODD": messages, "PLAIN": odd})
    line = ["export", "latest", "--format", "parquet", "--append", *kept.line, "--output", tmp_path / "out"]
    first = in_shell(*line, "PLAIN")
    assert first.code == 0 and "wrote " in first.out and "a new table" not in first.out and "UTF-8" not in first.out
    second = in_shell(*line)
    assert second.code == 0 and "appended to " in second.out
    assert "note: ODD: a new table" in second.out
    assert "note: ODD: has subjects that are not UTF-8, where DuckDB" in second.out
