"""`export --append` of a backup that is older than the table: what the table lacks of it is found exactly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from jsbackup.errors import IncompleteError
from jsbackup.model import S3Settings
from jsbackup.pipeline.session.repository_ref import RepositoryRef, place_of
from jsbackup.pipeline.tables import export as export_module
from jsbackup.pipeline.tables.partitions import PartitionBy
from jsbackup.pipeline.tables.writing import TableFormat
from jsbackup.planning.transforming import TransformOptions
from jsbackup.stores.memory import MemoryStore
from jsbackup.transforms.filters.filters import Filters
from jsbackup.transforms.reshape import Reshape
from tests.pipeline.places import keep
from tests.pipeline.tables.growing import StoreAt, backed_up, export, rows, rows_of
from tests.pipeline.tables.test_table_gaps import MESSAGES, _backups, _messages

pytestmark = pytest.mark.slow

each = pytest.mark.parametrize("kind", [TableFormat.PARQUET, TableFormat.DELTA, TableFormat.ICEBERG])
ENDS = "nothing is new: the table ends at sequence 20, from a later backup"


def _at(folder: Path) -> RepositoryRef:
    return place_of(str(folder), S3Settings(), {})


def _lacks(many: str, backup: str) -> str:
    return (
        f"the table of stream ORDERS lacks {many} of backup {backup}, which can no longer be added: the table ends at "
        "sequence 20, by a later backup"
    )


@each
@pytest.mark.parametrize("options", [{}, {"by": PartitionBy.SUBJECT}])
def test_what_is_missing_within_a_file_is_found(tmp_path: Path, kind: TableFormat, options: dict[str, Any]) -> None:
    """The table's file has more rows than the older backup has messages in its range."""
    kept, found = _backups(tmp_path / "r", _messages(range(1, 11)), _messages(range(1, 4), range(7, 21)), still=False)
    place = _at(tmp_path / "out")
    export(kept, found[1], place, kind, **options)
    with pytest.raises(IncompleteError) as caught:
        export(kept, found[0], place, kind, **options)
    assert caught.value.message == _lacks("3 messages", found[0].id)
    assert caught.value.hint is not None and "--skip-gaps" in caught.value.hint
    done = export(kept, found[0], place, kind, skip_gaps=True, **options)
    assert done.streams[0].notes == (f"{ENDS}; it lacks 3 messages of this backup, which can no longer be added",)
    if not options:
        assert rows_of(tmp_path / "out" / "ORDERS", kind) == rows(_messages(range(1, 4), range(7, 21)))


@each
def test_nothing_is_new_where_the_table_has_all(tmp_path: Path, kind: TableFormat) -> None:
    """The older backup lacks messages, too: fewer of the table's, and none that it has not."""
    states = (
        _messages(range(1, 4), range(8, 11)),
        _messages(range(1, 4), range(8, 21)),
    )
    kept, found = _backups(tmp_path / "r", *states, still=False)
    export(kept, found[1], _at(tmp_path / "out"), kind)
    assert export(kept, found[0], _at(tmp_path / "out"), kind).streams[0].notes == (
        "nothing is new: the table ends at sequence 20, from a later backup",
    )


@each
def test_after_gaps_were_skipped_the_rest_is_still_compared(tmp_path: Path, kind: TableFormat) -> None:
    states = (_messages(range(1, 6)), _messages(range(3, 11)), _messages(range(5, 6), range(9, 21)))
    kept, found = _backups(tmp_path / "r", *states, still=False)
    place = _at(tmp_path / "out")
    export(kept, found[0], place, kind)
    assert export(kept, found[2], place, kind, skip_gaps=True, token="00000002").streams[0].notes == (
        f"messages 6 to 8 are left out: they are in backup {found[1].id}",
    )
    with pytest.raises(IncompleteError) as caught:
        export(kept, found[1], place, kind)
    assert caught.value.message == _lacks("3 messages", found[1].id)
    assert export(kept, found[0], place, kind).streams[0].notes == (ENDS,)


def _subjects(messages: Sequence[Any]) -> list[str]:
    return [str(one.subject) for one in messages]


@each
def test_messages_that_a_filter_drops_are_not_missing(tmp_path: Path, kind: TableFormat) -> None:
    messages = [one._replace(subject=f"orders.{number % 2}") for number, one in enumerate(MESSAGES[:20], start=1)]
    kept = keep(tmp_path / "r", {"ORDERS": messages[:10]})
    gone = [one for one in messages if one.sequence not in (4, 6)]
    last = backed_up(kept, 1, {"ORDERS": gone})
    for subject, many in (("orders.1", 0), ("orders.0", 2)):
        options = TransformOptions(reshape=Reshape(filters=Filters.parse({"subject": [subject]})))
        place = _at(tmp_path / subject)
        export(kept, last, place, kind, options=options)
        if many:
            with pytest.raises(IncompleteError) as caught:
                export(kept, kept.manifest, place, kind, options=options)
            assert caught.value.message == _lacks("2 messages", kept.manifest.id)
        else:
            assert export(kept, kept.manifest, place, kind, options=options).streams[0].notes == (ENDS,)


@each
def test_many_files_and_holes(tmp_path: Path, kind: TableFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "SEGMENT_BYTES", 2000)
    older = _messages(range(1, 20), range(25, 120))
    newer = _messages(range(1, 10), range(15, 20), range(26, 31), range(40, 119), range(121, 201))
    kept, found = _backups(tmp_path / "r", older, newer, still=False)
    place = _at(tmp_path / "out")
    export(kept, found[1], place, kind)
    lacks = len({one.sequence for one in older} - {one.sequence for one in newer})
    with pytest.raises(IncompleteError, match=f"lacks {lacks} messages of backup"):
        export(kept, found[0], place, kind)


def test_in_s3_only_the_sequences_of_files_are_read(tmp_path: Path) -> None:
    class Counting(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.whole: list[str] = []

        def get(self, key: str) -> bytes:
            self.whole.append(key)
            return super().get(key)

    for kind in (TableFormat.PARQUET, TableFormat.DELTA, TableFormat.ICEBERG):
        kept, found = _backups(
            tmp_path / kind, _messages(range(1, 11)), _messages(range(1, 4), range(7, 21)), still=False
        )
        store = Counting()
        place = StoreAt("s3://lake/tables", S3Settings(), given=store)
        export(kept, found[1], place, kind)
        store.whole.clear()
        with pytest.raises(IncompleteError, match="lacks 3 messages"):
            export(kept, found[0], place, kind)
        assert not [key for key in store.whole if key.endswith(".parquet")]


@pytest.mark.parametrize("kind", [TableFormat.DELTA])
def test_files_that_others_have_joined_are_read(tmp_path: Path, kind: TableFormat) -> None:
    states = (_messages(range(1, 11)), _messages(range(1, 4), range(7, 16)), _messages(range(7, 9), range(12, 21)))
    kept, found = _backups(tmp_path / "r", *states, still=False)
    place = _at(tmp_path / "out")
    export(kept, found[1], place, kind)
    export(kept, found[2], place, kind, token="00000002")
    DeltaTable(tmp_path / "out" / "ORDERS").optimize.compact()
    with pytest.raises(IncompleteError, match="lacks 3 messages"):
        export(kept, found[0], place, kind)
    assert export(kept, found[1], place, kind).streams[0].notes == (ENDS,)


@each
@pytest.mark.parametrize("harm", ["gone", "damaged", "renamed"])
def test_files_that_cannot_be_read_leave_it_open(tmp_path: Path, kind: TableFormat, harm: str) -> None:
    kept, found = _backups(tmp_path / "r", _messages(range(1, 11)), _messages(range(1, 4), range(7, 21)), still=False)
    place = _at(tmp_path / "out")
    export(kept, found[1], place, kind)
    (path,) = (tmp_path / "out" / "ORDERS").rglob("*.parquet")
    table = pq.ParquetFile(path).read()
    path.chmod(0o600)
    path.unlink()
    if harm == "damaged":
        path.write_bytes(b"PAR1")
    elif harm == "renamed":
        pq.write_table(pa.table({"number": table["sequence"]}), path)
    with pytest.raises(IncompleteError) as caught:
        export(kept, found[0], place, kind)
    assert caught.value.message.startswith(
        f"whether the table of stream ORDERS has all messages of backup {found[0].id} cannot be found out: "
    )
    done = export(kept, found[0], place, kind, skip_gaps=True)
    assert done.streams[0].notes[0].startswith(f"{ENDS}; whether it has all messages of this backup cannot be found")


def test_files_of_an_interrupted_export_are_read_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed export has committed plain files, and has not moved them up."""
    states = (_messages(range(1, 11)), _messages(range(1, 4), range(7, 11)), _messages(range(1, 4), range(7, 21)))
    kept, found = _backups(tmp_path / "r", *states, still=False)
    place = _at(tmp_path / "out")
    export(kept, found[1], place, TableFormat.PARQUET)
    from jsbackup.pipeline.tables.parquet_log import ParquetLog

    with monkeypatch.context() as patch:
        patch.setattr(ParquetLog, "_move_up", lambda *_: None)
        patch.setattr(ParquetLog, "_sweep", lambda *_: None)
        patch.setattr(export_module, "_remove_staged", lambda *_: None)
        export(kept, found[2], place, TableFormat.PARQUET, token="00000002")
    assert list((tmp_path / "out").rglob("*.part"))
    with pytest.raises(IncompleteError, match="lacks 3 messages"):
        export(kept, found[0], place, TableFormat.PARQUET)
