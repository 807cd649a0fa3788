"""Readers of Delta tables are asked the same questions, with the truth beside: they trust the statistics in the log."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder

from jsbackup.model import S3Settings
from jsbackup.pipeline.messages.chosen import ChosenBackup
from jsbackup.pipeline.session.repository_ref import place_of
from jsbackup.pipeline.tables import export
from jsbackup.pipeline.tables.delta import LOG_KEY
from jsbackup.pipeline.tables.export import export_tables, plan_export
from jsbackup.pipeline.tables.target import new_target
from jsbackup.pipeline.tables.writing import TableFormat
from jsbackup.pipeline.tasks.runner import InProcess
from jsbackup.planning.transforming import TransformOptions, plan_streams
from jsbackup.progress import NullProgress
from tests.harness.batches import Message, some_messages
from tests.harness.servers import missing
from tests.pipeline.places import keep

pytestmark = pytest.mark.slow


Compare = Callable[[Any, Any], bool]

_COMPARE: dict[str, Compare] = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def _by_pandas(table: DeltaTable, column: str, op: str, value: Any) -> int:
    return len(table.to_pandas(filters=[(column, op, value)]))


def _by_arrow(table: DeltaTable, column: str, op: str, value: Any) -> int:
    return table.to_pyarrow_table(filters=[(column, op, value)]).num_rows


def _by_duckdb(table: DeltaTable, column: str, op: str, value: Any) -> int:
    with duckdb.connect() as connection:
        connection.register("t", table.to_pyarrow_dataset())
        found = connection.execute(f"SELECT count(*) FROM t WHERE {column} {op} ?", [value]).fetchone()
    assert found is not None
    return int(found[0])


def _by_datafusion(table: DeltaTable, column: str, op: str, value: Any) -> int:
    literal = value if isinstance(value, int) else f"'{value}'"
    if isinstance(value, datetime):
        literal = f"timestamp '{value.isoformat()}'"
    answer = QueryBuilder().register("t", table).execute(f"SELECT count(*) AS n FROM t WHERE {column} {op} {literal}")
    return int(pa.table(answer.read_all())["n"][0].as_py())


def _by_polars(table: DeltaTable, column: str, op: str, value: Any) -> int:
    import polars

    # Polars compares its expressions as Python compares values.
    condition: polars.Expr = _COMPARE[op](polars.col(column), value)  # type: ignore[assignment]
    return int(polars.scan_delta(table.table_uri).filter(condition).select(polars.len()).collect().item())


READERS = [_by_pandas, _by_arrow, _by_duckdb, _by_datafusion, _by_polars]


def _require_polars() -> None:
    if find_spec("polars") is None:
        missing("polars is not installed: pip install 'jsbackup[dev]'")


def _time(message: Message) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=message.timestamp_ns // 1000)


def _exported(folder: Path, messages: Sequence[Message]) -> DeltaTable:
    kept = keep(folder, {"S": messages})
    with new_target(place_of(str(folder / "out"), S3Settings(), {}), "00") as target:
        streams = plan_streams(kept.manifest, kept.manifest.streams, TransformOptions(), "exported")
        export_tables(
            InProcess(),
            ChosenBackup(kept.place, kept.manifest),
            target,
            plan_export(kept.manifest, target, TableFormat.DELTA, streams),
            progress=NullProgress(),
        )
    return DeltaTable(folder / "out" / "S")


def _statistics(table: DeltaTable) -> list[dict[str, Any]]:
    log = Path(table.table_uri.removeprefix("file://")) / LOG_KEY
    lines = map(json.loads, log.read_text().splitlines())
    return [json.loads(line["add"]["stats"]) for line in lines if "add" in line]


def _plain() -> list[Message]:
    """Times run in jumps, some before 1970 and between milliseconds; subjects are in ranges."""
    messages = some_messages(300, 60, seed=4)
    return [
        m._replace(timestamp_ns=-(10**9) + n * 7_000_123 + (n // 100) * 10**15, subject=f"{'abc'[n // 100]}.ü{n % 7}")
        for n, m in enumerate(messages)
    ]


def _odd() -> list[Message]:
    """Some subjects are not UTF-8."""
    return [m._replace(subject=b"\xff\xfe" if n > 250 else m.subject) for n, m in enumerate(_plain())]


def _long() -> list[Message]:
    return [m._replace(subject=f"z{'y' * 3000}" if n > 250 else m.subject) for n, m in enumerate(_plain())]


@pytest.mark.by_turns
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
@pytest.mark.parametrize("make", [_plain, _long], ids=["statistics", "none"])
def test_every_reader_finds_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: Callable[..., int], make: Callable[[], list[Message]]
) -> None:
    if reader is _by_polars:
        _require_polars()
    monkeypatch.setattr(export, "SEGMENT_BYTES", 4000)
    messages = make()
    table = _exported(tmp_path, messages)
    assert len(table.file_uris()) > 5
    wrong = []

    def ask(column: str, op: str, value: Any, values: Sequence[Any]) -> None:
        truth = sum(_COMPARE[op](one, value) for one in values)
        if (found := reader(table, column, op, value)) != truth:
            wrong.append((column, op, value, found, truth))

    for subject in {"a.ü1", "b.ü3", "c.ü6", "nothing", str(messages[-1].subject)}:
        ask("subject", "=", subject, [m.subject for m in messages])
    ask("stream", "=", "S", ["S"] * len(messages))
    ask("stream", "=", "T", ["S"] * len(messages))
    for message in messages[::75] + messages[-1:]:
        for op in _COMPARE:
            ask("time", op, _time(message), list(map(_time, messages)))
            ask("sequence", op, message.sequence, [m.sequence for m in messages])
            ask("timestamp_ns", op, message.timestamp_ns, [m.timestamp_ns for m in messages])
    assert wrong == []


def test_rows_without_headers_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "SEGMENT_BYTES", 4000)
    messages = _plain()
    table = _exported(tmp_path, messages)
    without = sum(m.headers is None for m in messages)
    with duckdb.connect() as connection:
        connection.register("t", table.to_pyarrow_dataset())
        found = connection.execute("SELECT count(*), count(headers), min(subject), max(time) FROM t").fetchone()
    assert found is not None and found[:3] == (300, 300 - without, "a.ü0")
    dataset = table.to_pyarrow_dataset()
    assert dataset.to_table(filter=pc.field("headers").is_null()).num_rows == without
    assert dataset.to_table(filter=pc.field("headers").is_valid()).num_rows == 300 - without
    assert table.to_pyarrow_table().column("data").to_pylist() == [m.data for m in messages]


def test_polars_reads_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _require_polars()
    import polars

    monkeypatch.setattr(export, "SEGMENT_BYTES", 4000)
    messages = _plain()
    frame = polars.scan_delta(_exported(tmp_path, messages).table_uri)
    rows = frame.sort("sequence").select("sequence", "timestamp_ns", "subject", "headers", "data", "time").collect()
    assert rows.rows() == [(*m, _time(m)) for m in messages]
    without = frame.filter(polars.col("headers").is_null()).select(polars.len()).collect().item()
    assert without == sum(m.headers is None for m in messages)


def test_statistics_are_complete_or_only_the_number_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "SEGMENT_BYTES", 4000)
    complete = _statistics(_exported(tmp_path / "a", _plain()))
    bounded = {"stream", "sequence", "timestamp_ns", "time", "subject", "backup"}
    for one in complete:
        assert one["minValues"].keys() == one["maxValues"].keys() == bounded
        assert one["nullCount"].keys() == bounded | {"headers", "data"}
    assert sum(one["nullCount"]["headers"] for one in complete) == sum(m.headers is None for m in _plain())
    times = [_time(m) for m in _plain()]
    for one in complete:  # bounds in milliseconds must not exclude what is between two of them
        low, high = (datetime.fromisoformat(one[end]["time"]) for end in ("minValues", "maxValues"))
        first, last = (
            datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=one[end]["timestamp_ns"] // 1000)
            for end in ("minValues", "maxValues")
        )
        assert first in times and last in times and low <= first <= last <= high
    for number, make in enumerate((_odd, _long)):
        found = _statistics(_exported(tmp_path / f"b{number}", make()))
        assert len(found) > 5 and {*map(tuple, found)} == {("numRecords",)}
        assert sum(one["numRecords"] for one in found) == 300
