"""Where tables are not written: folders and prefixes in which something else is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.typed import Typed
from tests.harness.batches import some_messages
from tests.harness.disks import small_disk
from tests.harness.s3server import BUCKET, S3Server
from tests.pipeline.places import keep
from tests.pipeline.tables.growing import growing
from tests.pipeline.tables.test_export_tables import STILL

Type = Callable[..., Typed]

KINDS = ["parquet", "delta", "iceberg"]
SAID = "is not empty, and has no tables"


def _lines(line: list[str]) -> list[list[str]]:
    """Commands that write tables into what is there."""
    return [*(["export", "latest", "--append", "--format", kind, *line] for kind in KINDS), ["iceberg", *line]]


def test_a_folder_of_something_else_is_left_alone(typed: Type, tmp_path: Path) -> None:
    kept, _ = growing(tmp_path / "r", (40,))
    store = tmp_path / "store"
    for name in ("jetstream/$G/streams/ORDERS/msgs/1.blk", "jetstream/$G/streams/ORDERS/meta.inf"):
        path = store / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "one").symlink_to(store)
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "notes.txt").write_text("x")
    (tmp_path / "hollow" / "within").mkdir(parents=True)
    other = keep(tmp_path / "other", {"STILL": STILL})
    for where in (store, tmp_path / "links", tmp_path / "flat", tmp_path / "hollow", Path(other.place.location)):
        before = sorted(where.rglob("*"))
        for line in _lines(kept.line):
            done = typed(*line, "--output", where)
            assert (done.code, SAID in done.err) == (2, True), done
        assert sorted(where.rglob("*")) == before


def test_an_empty_folder_and_one_of_earlier_exports_is_taken(typed: Type, tmp_path: Path) -> None:
    kept, _ = growing(tmp_path / "r", (40,))
    for line in _lines(kept.line):
        empty = tmp_path / f"{line[0]}-{line[4] if line[0] == 'export' else ''}"
        empty.mkdir()
        for name in ("lost+found", ".incoming", f".{empty.name}.jsbackup-0a1b2c3d"):
            (empty / name).mkdir()
        for _ in range(2):
            done = typed(*line, "--output", empty)
            assert done.code == 0, done
    for kind in ("parquet", "jsonl", "delta", "iceberg"):
        made = tmp_path / f"made-{kind}"
        assert typed("export", "latest", "STILL", "--format", kind, "--output", made, *kept.line).code == 0
        done = typed("export", "latest", "ORDERS", "--format", "delta", "--append", "--output", made, *kept.line)
        assert done.code == 0, done


def test_no_folder_of_temporary_files_stays(typed: Type, tmp_path: Path) -> None:
    kept, manifests = growing(tmp_path / "r", (40, 100))
    for line in _lines(kept.line):
        out = tmp_path / "-".join(line[:5]).replace("/", "_")
        if line[0] == "export":
            assert typed("export", manifests[0].id, *line[2:], "--output", out).code == 0
        assert typed(*line, "--output", out).code == 0
        assert not (out / ".incoming").exists()


def test_a_full_disk_is_named_and_nothing_is_said_to_be_kept(typed: Type, tmp_path: Path) -> None:
    kept = keep(tmp_path / "r", {"S": some_messages(200, 20_000, seed=5)})
    with small_disk(tmp_path / "disk", 1) as disk:
        for more in ([], ["--append"]):
            done = typed(
                "export", "latest", *kept.line, "--format", "parquet", *more, "--output", disk / "out", "--json"
            )
            error = done.document["error"]
            assert done.code == 21 and "no space left" in error["message"], done
            assert error["hint"] == "Free some space and run the command again."
            assert not list(disk.iterdir())


@pytest.mark.s3
def test_a_prefix_of_something_else_is_left_alone(
    typed: Type, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    kept, _ = growing(tmp_path / "r", (40,))
    s3_server.client.put_object(Bucket=BUCKET, Key="foreign/notes/a.txt", Body=b"x")
    for line in _lines(kept.line):
        done = typed(*line, "--output", f"s3://{BUCKET}/foreign")
        assert (done.code, SAID in done.err) == (2, True), done
    assert s3_server.keys("foreign/") == ["foreign/notes/a.txt"]
    for number, line in enumerate(_lines(kept.line)[:2]):
        for _ in range(2):
            done = typed(*line, "--output", f"s3://{BUCKET}/own-{number}")
            assert done.code == 0, done
