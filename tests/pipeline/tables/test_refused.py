"""`export --append` where some tables are refused: the others are brought up to date, and each refusal is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jsbackup.errors import FormatError, IncompleteError, JsBackupError, TargetConflict, UnsupportedError, UsageError
from jsbackup.model import S3Settings
from jsbackup.pipeline.session.repository_ref import place_of
from jsbackup.pipeline.tables import export as export_module
from jsbackup.pipeline.tables.refused import all_refused
from jsbackup.pipeline.tables.writing import TableFormat
from jsbackup.pipeline.tasks.runner import InProcess
from jsbackup.pipeline.tasks.tasks import OnSpark
from jsbackup.repository.manifest import Manifest
from tests.cli.typed import in_shell
from tests.harness import backups
from tests.harness.batches import some_messages
from tests.pipeline.places import Kept, keep
from tests.pipeline.tables.growing import backed_up, export, growing, rows, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

both = pytest.mark.parametrize("kind", [TableFormat.PARQUET, TableFormat.DELTA])
MESSAGES = some_messages(180, 60, seed=7)
OTHERS = [m._replace(timestamp_ns=m.timestamp_ns + 5) for m in MESSAGES]
NAMES = ("ANEW", "BACK", "GROWS", "SWAPPED")


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "SEGMENT_BYTES", 4000)


def _with_refusals(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Kept, Manifest]:
    """A backup, and the next one: a stream was created again, one set back, and one set back and filled since, of which
    only reading its messages tells. `GROWS` has grown.
    """
    kept = keep(folder, dict.fromkeys(NAMES, MESSAGES[:100]))
    streams = {"BACK": MESSAGES[:50], "GROWS": MESSAGES, "SWAPPED": [*MESSAGES[:60], *OTHERS[60:]]}
    made = backed_up(kept, 1, streams)
    with monkeypatch.context() as patch:
        patch.setattr(backups, "INCARNATION", "ffff0000")
        anew = backed_up(kept, 2, {"ANEW": MESSAGES})
    both = replace(anew, id="20261121T015500Z-00000f", streams=(*anew.streams, *made.streams))
    kept.repository.commit(both)
    return kept, both


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@both
def test_the_others_are_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: TableFormat) -> None:
    kept, manifest = _with_refusals(tmp_path / "r", monkeypatch)
    out = tmp_path / "out"
    line = ["export", *kept.line, "--format", kind, "--append", "--output", out]
    assert in_shell(*line, kept.manifest.id).code == 0
    before = {name: _files(out / name) for name in NAMES}
    done = in_shell(*line, manifest.id, "--json")
    assert done.code == 3, done
    assert [(one["name"], one["messages"]) for one in done.document["streams"]] == [("GROWS", 80)]
    failed = {one["name"]: (one["code"], one["reason"]) for one in done.document["failed"]}
    assert all("Export to another folder" in one["hint"] for one in done.document["failed"])
    assert failed.keys() == {"ANEW", "BACK", "SWAPPED"} and {code for code, _ in failed.values()} == {16}
    assert "deleted and created again" in failed["ANEW"][1]
    assert "BACK was set back" in failed["BACK"][1]
    assert "of stream SWAPPED is another one than the table" in failed["SWAPPED"][1]
    assert rows_of(out / "GROWS", kind) == rows(MESSAGES)
    for name in failed:
        assert _files(out / name) == before[name]
    # What an operator reads: one sentence each, and what to do.
    done = in_shell(*line, manifest.id)
    assert done.code == 3 and "GROWS" in done.out
    for name, hint in (
        ("ANEW", "or move the folder of ANEW away"),
        ("BACK", "older state"),
        ("SWAPPED", "older state"),
    ):
        after = done.out.partition(f"failed: {name}: ")[2].splitlines()
        assert after and after[1].startswith("hint: ") and hint in after[1], done.out
    # Once what was refused is out of the way, all is well.
    for name in failed:
        (out / name).rename(tmp_path / f"{kind}-{name}")
    done = in_shell(*line, manifest.id)
    assert done.code == 0 and "note: ANEW, BACK, SWAPPED: a new table" in done.out, done
    assert rows_of(out / "ANEW", kind) == rows(MESSAGES)


@both
def test_where_all_are_refused_one_error_names_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: TableFormat
) -> None:
    kept, manifest = _with_refusals(tmp_path / "r", monkeypatch)
    out = tmp_path / "out"
    line = ["export", *kept.line, "--format", kind, "--append", "--output", out]
    assert in_shell(*line, kept.manifest.id).code == 0
    before = _files(out)
    for names in (["ANEW", "BACK"], ["ANEW", "BACK", "SWAPPED"], ["SWAPPED"]):  # the last one only once it is read
        done = in_shell(*line, manifest.id, *names, "--json")
        assert done.code == 16, done
        error = done.document["error"]
        assert all(name in error["message"] for name in names) and "Export to another folder" in error["hint"], error
    done = in_shell(*line, manifest.id, "--subject", ">", "--json")
    assert done.code == 1 and all(name in done.document["error"]["message"] for name in NAMES), done
    done = in_shell(*line, kept.manifest.id, "--subject", ">", "--json")
    message = done.document["error"]["message"]
    assert done.code == 2 and message.count("without options") == 1 and all(name in message for name in NAMES), done
    assert _files(out) == before


@both
def test_a_damaged_log_is_no_obstacle_for_the_others(tmp_path: Path, kind: TableFormat) -> None:
    kept = keep(tmp_path / "r", {"A": MESSAGES[:40], "B": MESSAGES[:40]})
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    export(kept, kept.manifest, place, kind)
    log = next((tmp_path / "out" / "A").rglob("*.json"))
    log.chmod(0o600)
    log.write_bytes(log.read_bytes()[:-9])
    grown = backed_up(kept, 1, {"A": MESSAGES, "B": MESSAGES})
    done = export(kept, grown, place, kind, token="0000abcd")
    assert isinstance(done.refused["A"], FormatError) and done.refused.keys() == {"A"}
    assert [one.name for one in done.streams] == ["B"]
    assert rows_of(tmp_path / "out" / "B", kind) == rows(MESSAGES)
    assert rows_of(tmp_path / "out" / "B", kind) == rows(MESSAGES)


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
def test_spark_refuses_the_same(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, manifest = _with_refusals(tmp_path / "r", monkeypatch)
    found = []
    for name, runner in (("here", InProcess(2)), ("spark", OnSpark(spark))):
        place = place_of(str(tmp_path / name), S3Settings(), {})
        export(kept, kept.manifest, place, TableFormat.PARQUET, token="00000001", runner=runner)
        done = export(kept, manifest, place, TableFormat.PARQUET, token="00000002", runner=runner)
        found.append({key: (type(error), error.message, error.hint) for key, error in done.refused.items()})
        assert rows_of(tmp_path / name / "GROWS", TableFormat.PARQUET) == rows(MESSAGES)
        assert not list((tmp_path / name).rglob("*.part"))
    assert found[0] == found[1] and len(found[0]) == 3


def test_one_error_for_several() -> None:
    one, other = TargetConflict("stream A is new", hint="Move A."), TargetConflict("stream B is new", hint="Move B.")
    assert all_refused({"A": one}) is one
    both = all_refused({"A": one, "B": other})
    assert isinstance(both, TargetConflict)
    assert both.message == "nothing was exported: streams A, B: each is new"
    assert both.hint == "Move <stream>."
    gaps = {
        name: IncompleteError(f"messages 1 to 9 of stream {name} would be missing in its table: export backup X first")
        for name in ("C", "D")
    }
    assert all_refused(gaps).message == (
        "nothing was exported: streams C, D: messages 1 to 9 would be missing in their tables: export backup X first"
    )
    other = {name: TargetConflict(f"message 3 of stream {name} is not that of the table of {name}") for name in "AB"}
    assert all_refused(other).message == "nothing was exported: streams A, B: message 3 is not that of its table"
    mixed = all_refused({"A": one, "C": UsageError("no"), "D": UnsupportedError("never", hint="Go.")})
    assert type(mixed) is JsBackupError
    assert mixed.message == "nothing was exported: stream A: stream A is new; stream C: no; stream D: never"
    assert mixed.hint == "Move A. Go."


def test_tables_of_the_other_format_are_refused_by_their_names(tmp_path: Path) -> None:
    kept, manifests = growing(tmp_path / "r")
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    export(kept, manifests[0], place, TableFormat.PARQUET)
    with pytest.raises(UsageError) as caught:
        export(kept, manifests[1], place, TableFormat.DELTA)
    assert caught.value.message == (
        "nothing was exported: streams ORDERS, STILL: the table is one of plain Parquet files"
    )
