"""Two exports of one backup into one empty place: the first that is finished stays whole, whatever the other does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from jsbackup.errors import JsBackupError, TargetConflict
from jsbackup.formats.json_lines import decode_line
from jsbackup.model import S3Settings
from jsbackup.pipeline.session.repository_ref import RepositoryRef, place_of
from jsbackup.pipeline.tables.writing import TableFormat
from jsbackup.pipeline.tasks.runner import InProcess
from jsbackup.progress import Progress
from jsbackup.stores.memory import MemoryStore
from jsbackup.stores.s3 import S3Store
from tests.harness.batches import some_messages
from tests.harness.s3server import BUCKET, REGION, S3Server
from tests.harness.stores import FaultStore
from tests.pipeline.places import Kept
from tests.pipeline.tables.growing import StoreAt, copied, export, growing, rows, rows_of

MESSAGES = some_messages(180, 60, seed=7)
each = pytest.mark.parametrize("kind", list(TableFormat))


def s3_properties(server: S3Server) -> dict[str, str]:
    credentials = server.credentials()
    return {
        "s3.endpoint": server.url,
        "s3.region": REGION,
        "s3.access-key-id": credentials["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": credentials["AWS_SECRET_ACCESS_KEY"],
    }


class _Held(InProcess):
    """Another export comes first: before any file of this one is written."""

    def __init__(self, first: Callable[[], None]) -> None:
        super().__init__()
        self._first = first

    def run(
        self, doing: str, tasks: Sequence[Any], *, weights: Sequence[int] = (), progress: Progress | None = None
    ) -> Iterator[Any]:
        self._first()
        return super().run(doing, tasks, weights=weights, progress=progress)


def _export(kept: Kept, place: RepositoryRef, kind: TableFormat, token: str, runner: InProcess | None = None) -> None:
    catalog = f"sqlite:///{Path(kept.place.location).parent}/lake.db" if place.folder is None else None
    named = catalog if kind is TableFormat.ICEBERG else None
    export(kept, kept.manifest, place, kind, token=token, runner=runner, append=False, catalog=named)


def _check(folder: Path, kind: TableFormat) -> None:
    if kind is TableFormat.JSONL:
        lines = [line for path in (folder / "ORDERS").iterdir() for line in path.read_bytes().splitlines()]
        assert sorted(decode_line(line).sequence for line in lines) == [one.sequence for one in MESSAGES]
    else:
        assert rows_of(folder, kind) == rows(MESSAGES)


@pytest.mark.s3
@each
def test_in_s3(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: TableFormat) -> None:
    for name, value in s3_server.credentials().items():
        monkeypatch.setenv(name, value)
    kept, _ = growing(tmp_path / "r", (180,))
    settings = S3Settings(endpoint=s3_server.url, region=REGION)
    place = place_of(f"s3://{BUCKET}/twice-{kind}", settings, {})
    with pytest.raises(JsBackupError, match="meanwhile") as caught:
        _export(kept, place, kind, "0000bbbb", _Held(lambda: _export(kept, place, kind, "0000aaaa")))
    assert isinstance(caught.value, TargetConflict)
    assert not [key for key in s3_server.keys(f"twice-{kind}/") if "0000bbbb" in key]
    if kind is TableFormat.ICEBERG:
        catalog = SqlCatalog("jsbackup", uri=f"sqlite:///{tmp_path}/r/lake.db", **s3_properties(s3_server))
        found = catalog.load_table(("jsbackup", "ORDERS")).scan().to_arrow()
        assert sorted(found["sequence"].to_pylist()) == [one.sequence for one in MESSAGES]
    else:
        _check(copied(tmp_path / "copy", S3Store(BUCKET, f"twice-{kind}", settings)), kind)


@each
def test_in_a_folder(tmp_path: Path, kind: TableFormat) -> None:
    kept, _ = growing(tmp_path / "r", (180,))
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    with pytest.raises(JsBackupError, match="meanwhile"):
        _export(kept, place, kind, "0000bbbb", _Held(lambda: _export(kept, place, kind, "0000aaaa")))
    _check(tmp_path / "out", kind)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "r"]


@pytest.mark.parametrize("kind", [TableFormat.PARQUET, TableFormat.JSONL])
def test_at_any_operation(tmp_path: Path, kind: TableFormat) -> None:
    """The other one comes between any two operations of the first one, and is refused or comes first."""
    kept, _ = growing(tmp_path / "r", (180,))
    count = at = 0
    while count >= at:
        at, count, store = at + 1, 0, MemoryStore()

        def come_between(_operation: str, _key: str, at: int = at, store: MemoryStore = store) -> None:
            nonlocal count
            count += 1
            if count == at:
                _tried(store, "0000bbbb")

        def _tried(store: Any, token: str) -> bool:
            try:
                _export(kept, StoreAt("memory:", given=store), kind, token)
            except JsBackupError:
                return False
            return True

        _tried(FaultStore(store, before=come_between), "0000aaaa")
        _check(copied(tmp_path / f"c{at}", store), kind)
    assert at > 4
