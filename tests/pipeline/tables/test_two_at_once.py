"""Two exports of one backup into one empty place: the first that is finished stays whole, whatever the other does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from jsbackup.errors import JsBackupError, TargetConflict
from jsbackup.formats.json_lines import decode_line
from jsbackup.model import S3Settings
from jsbackup.pipeline.messages.chosen import ChosenBackup
from jsbackup.pipeline.session.repository_ref import RepositoryRef, lent, place_of
from jsbackup.pipeline.tables.export import export_tables, plan_export
from jsbackup.pipeline.tables.target import new_target
from jsbackup.pipeline.tables.writing import TableFormat
from jsbackup.pipeline.tasks.runner import InProcess
from jsbackup.planning.transforming import TransformOptions, plan_streams
from jsbackup.progress import NullProgress, Progress
from jsbackup.stores.memory import MemoryStore
from jsbackup.stores.s3 import S3Store
from tests.harness.batches import some_messages
from tests.harness.s3server import BUCKET, REGION, S3Server
from tests.harness.stores import FaultStore
from tests.pipeline.places import Kept
from tests.pipeline.tables.growing import StoreAt, copied, growing, rows, rows_of

MESSAGES = some_messages(180, 60, seed=7)
each = pytest.mark.parametrize("kind", list(TableFormat))


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
    manifest, options = kept.manifest, TransformOptions()
    with new_target(place, token) as target, lent(kept.place, kept.repository):
        plan = plan_export(manifest, target, kind, plan_streams(manifest, manifest.streams, options, "exported"))
        backup = ChosenBackup(kept.place, manifest)
        export_tables(runner or InProcess(), backup, target, plan, progress=NullProgress())


def _check(folder: Path, kind: TableFormat) -> None:
    if kind is TableFormat.JSONL:
        lines = [line for path in (folder / "ORDERS").iterdir() for line in path.read_bytes().splitlines()]
        assert sorted(decode_line(line).sequence for line in lines) == [one.sequence for one in MESSAGES]
    else:
        assert rows_of(folder / "ORDERS", kind) == rows(MESSAGES)


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
    _check(copied(tmp_path / "copy", S3Store(BUCKET, f"twice-{kind}", settings)), kind)


@each
def test_in_a_folder(tmp_path: Path, kind: TableFormat) -> None:
    kept, _ = growing(tmp_path / "r", (180,))
    place = place_of(str(tmp_path / "out"), S3Settings(), {})
    with pytest.raises(JsBackupError, match="meanwhile"):
        _export(kept, place, kind, "0000bbbb", _Held(lambda: _export(kept, place, kind, "0000aaaa")))
    _check(tmp_path / "out", kind)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "r"]


@each
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
        assert "_SUCCESS" in [info.key for info in store.list()], at
        _check(copied(tmp_path / f"c{at}", store), kind)
    assert at > 4
