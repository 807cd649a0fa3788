"""SQL by DuckDB: by its own reader of files and by ours it finds the same, and reads what a query needs."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from jsbackup.errors import IntegrityError, JsBackupError, UsageError
from jsbackup.pipeline.queries import query
from jsbackup.pipeline.queries.duckdb_plan import needs_of
from jsbackup.pipeline.queries.query_model import names_in
from jsbackup.pipeline.queries.segment_source import SegmentSource
from jsbackup.repository.objects import AnyRef, Objects
from jsbackup.repository.pages.segment_list import SegmentList
from tests.cli.test_json import check
from tests.cli.typed import Typed, in_shell
from tests.harness import backups
from tests.harness.batches import Message
from tests.harness.commands import command_line, environment
from tests.harness.small_pages import make_pages_small
from tests.pipeline.places import Kept, keep, segments_of
from tests.pipeline.queries.test_random_queries import run

Type = Callable[..., Typed]

COUNT = 700
FIRST_NS = 1_700_000_000_000_000_123
_FULL = (-(1 << 63), (1 << 63) - 1)


def _messages(seed: int, count: int, first_ns: int = FIRST_NS) -> list[Message]:
    chance = random.Random(seed)
    found, sequence = [], 0
    for number in range(count):
        sequence += chance.choice([1, 1, 4])
        headers = chance.choice([None, b"NATS/1.0\r\nId:%d\r\n\r\n" % number])
        text = b'{"n": %d, "s": "\xc3\xa9"}' % chance.randrange(9)
        found.append(Message(sequence, first_ns + number * 10**9, f"a.{number % 7}", headers, text))
    return found


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    """Pages of pages of short segments, times before 1970, and a stream whose subjects are not UTF-8."""
    odd = [replace_subject(one) for one in _messages(3, 30)]
    streams = {"ORDERS": _messages(1, COUNT), "OLD": _messages(2, 60, -(10**12) - 1), "ODD": odd, "EMPTY": []}
    with pytest.MonkeyPatch.context() as patch:
        make_pages_small(patch)
        patch.setattr(backups, "SEGMENT_BYTES", 500)
        made = keep(tmp_path_factory.mktemp("many"), streams, opaque=True)
        yield replace(made, manifest=made.place.open().find("latest"))


def replace_subject(message: Message) -> Message:
    return message._replace(subject=b"\xff." + str(message.subject).encode())


@pytest.fixture(autouse=True)
def _short_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read as files however short they are."""
    monkeypatch.setattr(query, "_SHORT_BYTES", 0)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    streams = {"ORDERS": _messages(1, 60), "ORDERS_ARCHIVE": _messages(2, 20), 'KV_a-b"c': _messages(4, 3)}
    return keep(tmp_path_factory.mktemp("small"), streams)


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return keep(tmp_path_factory.mktemp("sealed"), {"ORDERS": _messages(1, 60)}, encrypted=True)


SEQUENCES = [message.sequence for message in _messages(1, COUNT)]
MIDDLE = SEQUENCES[COUNT // 2]
QUERIES = [
    "SELECT * FROM messages ORDER BY stream, sequence",
    "SELECT count(*) FROM orders",
    "SELECT stream, count(*) FROM messages GROUP BY 1 ORDER BY 1",
    f"SELECT text FROM orders WHERE sequence = {MIDDLE}",
    f"SELECT count(*), min(subject) FROM orders WHERE sequence BETWEEN {MIDDLE - 5} AND {MIDDLE + 9} AND sequence <> 4",
    f"SELECT count(*) FROM orders WHERE sequence IN ({MIDDLE}, {SEQUENCES[3]}, -4)",
    f"SELECT count(*) FROM orders WHERE sequence = {MIDDLE} OR subject = 'a.3'",
    f"SELECT count(*) FROM orders WHERE subject = 'x'') AND (sequence = 5' OR sequence < {SEQUENCES[9]}",
    "SELECT count(*) FROM orders WHERE subject <> '(sequence = 5) AND (sequence = 6)'",
    f"SELECT count(*) FROM orders WHERE NOT sequence > {MIDDLE} AND text LIKE '%1%'",
    "SELECT count(*) FROM orders WHERE time >= '2023-11-14 22:15:00' AND time < '2023-11-14 22:16:00.000001'",
    "SELECT count(*) FROM orders WHERE time = '2023-11-14 22:15:10'",
    "SELECT sequence FROM old WHERE time <= '1969-12-31 23:43:25.999999' ORDER BY 1",
    "SELECT sequence FROM old WHERE time BETWEEN '1969-12-31 23:43:20' AND '1969-12-31 23:43:31' ORDER BY 1",
    f"SELECT count(*) FROM orders WHERE timestamp_ns > {FIRST_NS + 3 * 10**9} AND timestamp_ns <= {FIRST_NS + 10**10}",
    "SELECT count(*) FROM orders a JOIN orders b USING (sequence) WHERE a.sequence > 20",
    f"WITH x AS (SELECT * FROM orders) SELECT (SELECT count(*) FROM x WHERE sequence = {MIDDLE}),"
    " (SELECT sum(sequence) FROM x), (SELECT max(text) FROM orders WHERE sequence < 50)",
    f"SELECT count(*) FROM (SELECT sequence - 7 AS sequence, timestamp_ns AS b FROM orders) WHERE sequence = {MIDDLE}",
    "SELECT count(*) FROM (SELECT sequence AS timestamp_ns FROM orders) WHERE timestamp_ns < 99",
    "SELECT count(*) FROM orders WHERE sequence = (SELECT max(sequence) FROM orders)",
    "SELECT count(*) FROM orders o WHERE EXISTS (SELECT 1 FROM old WHERE sequence = o.sequence AND sequence > 9)",
    "SELECT sequence FROM orders ORDER BY time DESC LIMIT 3",
    "SELECT subject, headers, data FROM odd ORDER BY sequence",
]


@pytest.mark.parametrize("sql", QUERIES)
def test_rows_are_those_of_files(kept: Kept, sql: str) -> None:
    assert run(kept, sql) == run(kept, sql, files=False) != []


def _fetched(kept: Kept, sql: str, *, files: bool) -> tuple[list[tuple[Any, ...]], list[str]]:
    fetched: list[str] = []
    fetch = Objects.fetch

    def noting(objects: Objects, ref: AnyRef) -> bytes:
        fetched.append(ref.key)
        return fetch(objects, ref)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Objects, "fetch", noting)
        return run(kept, sql, files=files), fetched


@pytest.mark.parametrize("files", [True, False])
def test_only_what_a_query_needs_is_read(kept: Kept, files: bool) -> None:
    (orders,) = [stream for stream in kept.manifest.streams if stream.name == "ORDERS"]
    assert isinstance(orders.segments, SegmentList) and len(orders.segments) > 60
    for condition, most in (
        (f"sequence = {MIDDLE}", 1),
        (f"sequence > {SEQUENCES[-3]}", 1),
        ("time BETWEEN '2023-11-14 22:15:00' AND '2023-11-14 22:15:05'", 2),
        ("time < '2023-11-14 22:13:22' AND subject = 'a.1'", 1),
    ):
        rows, fetched = _fetched(kept, f"SELECT count(*) FROM orders WHERE {condition}", files=files)
        assert rows and len(fetched) <= most, condition
    rows, fetched = _fetched(kept, "SELECT count(*), count(DISTINCT stream) FROM orders", files=files)
    assert (rows, fetched) == ([(COUNT, 1)], [])
    rows, fetched = _fetched(kept, "SELECT sum(sequence) FROM orders", files=files)
    assert len(fetched) == len(orders.segments) == len(set(fetched))
    # Names in a text, and those that only begin as it does, are not read.
    rows, fetched = _fetched(kept, "SELECT count(text) FROM old WHERE subject <> 'ORDERS'", files=files)
    assert rows == [(60,)] and not any("ORDERS" in key for key in fetched)


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_damaged_stream_fails_only_queries_that_use_it(tmp_path: Path, encrypted: bool) -> None:
    streams = {"ORDERS": _messages(5, 60), "ORDERS_ARCHIVE": _messages(6, 40)}
    kept = keep(tmp_path, streams, encrypted=encrypted)
    damaged = kept.manifest.streams[0].segments[0]
    path = Path(kept.place.location) / damaged.key
    path.chmod(0o600)
    whole = path.read_bytes()
    for content in (whole[:-1], whole[:20] + bytes([whole[20] ^ 4]) + whole[21:], None):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        assert run(kept, "SELECT count(text) FROM ORDERS_ARCHIVE WHERE text <> 'ORDERS'") == [(40,)]
        assert run(kept, "SELECT count(*) FROM orders") == [(60,)]  # by the manifest
        for sql in ("SELECT max(text) FROM orders", "SELECT max(text) FROM messages"):
            with pytest.raises(IntegrityError, match=re.escape(damaged.key)):
                run(kept, sql)
        path.write_bytes(whole)
    assert run(kept, "SELECT count(text) FROM orders") == [(60,)]


@pytest.mark.parametrize(
    ("condition", "sequence", "times"),
    [
        ("TRUE", _FULL, _FULL),
        ("sequence = 5", (5, 5), _FULL),
        ("5 > sequence AND sequence >= -2", (-2, 4), _FULL),
        ("sequence BETWEEN 3 AND 9 AND timestamp_ns <> 4", (3, 9), _FULL),
        ("sequence IN (7, 3, 9)", _FULL, _FULL),
        ("sequence IN (7, 3, 9) OR timestamp_ns = 1", _FULL, _FULL),
        ("sequence = 5 OR subject = 'a'", _FULL, _FULL),
        ("subject = ') AND (sequence = 5'", _FULL, _FULL),
        ("subject = 'a' AND sequence > 5 AND timestamp_ns < 3", (6, _FULL[1]), (_FULL[0], 2)),
        ("time >= '1970-01-01 00:00:00.000001'", _FULL, (1000, _FULL[1])),
        ("time = '1969-12-31 23:59:59.999999'", _FULL, (-1000, -1)),
        ("time > '1970-01-01' AND time <= '1970-01-02'", _FULL, (1000, 86_400 * 10**9 + 999)),
        ("sequence + timestamp_ns = 3", _FULL, _FULL),
        ("NOT (sequence = 5)", _FULL, _FULL),
    ],
)
def test_ranges_follow_from_conditions_that_are_understood(
    condition: str, sequence: tuple[int, int], times: tuple[int, int]
) -> None:
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("v", SegmentSource(None, lambda _bounds: ()))  # type: ignore[arg-type]
        needs = needs_of(connection, f"SELECT octet_length(data) FROM v WHERE {condition}")
    assert (needs.bounds.sequence, needs.bounds.timestamp_ns) == (sequence, times)
    assert needs.columns is not None and "data" in needs.columns and "headers" not in needs.columns


def test_duckdb_prints_no_progress_of_its_own(kept: Kept) -> None:
    """After two seconds it would, where Python has no script: on stdout."""
    sql = "SELECT current_setting('enable_progress_bar')"
    assert in_shell("query", "latest", sql, *kept.line, "--json").document["rows"] == [[False]]


def test_words_that_may_be_names() -> None:
    assert {"kv_a-b", "x`y", "orders", "odd"} <= names_in('SELECT "KV_a-b".x, `x``y` FROM Orders WHERE (FROM odd)')


@pytest.mark.parametrize(
    ("sql", "kind", "said"),
    [
        ("SELECT FROM", UsageError, "DuckDB does not understand the query: syntax error"),
        ("SELECT nothing FROM orders", UsageError, 'column "nothing" not found'),
        ("SELECT 1 FROM ORDER", UsageError, "syntax error"),
        ("SELECT 1 FROM ordrs", UsageError, "there is no stream ordrs"),
        ("SELECT no_function(1)", UsageError, "no_function does not exist"),
        ("", UsageError, "the query is empty"),
        ("SELECT error('no') FROM orders", JsBackupError, "the query failed: no"),
    ],
)
def test_errors_are_ours_and_nothing_is_read(small: Kept, sql: str, kind: type[JsBackupError], said: str) -> None:
    with pytest.raises(kind, match=re.escape(said)):
        _fetched(small, sql, files=True)


def test_statements_are_not_policed(small: Kept, tmp_path: Path) -> None:
    assert run(small, "SET memory_limit = '2GB'; CREATE TABLE t AS FROM orders; SELECT count(*) FROM t") == [(60,)]
    run(small, f"COPY (SELECT sequence FROM orders) TO '{tmp_path}/o.csv'")
    assert len((tmp_path / "o.csv").read_text().splitlines()) == 61
    assert run(small, f"SELECT count(*) FROM '{tmp_path}/o.csv' JOIN orders USING (sequence)") == [(60,)]


# --- the command ---


def test_rows_are_printed_or_written(small: Kept, sealed: Kept, typed: Type, tmp_path: Path) -> None:
    for kept in (small, sealed):
        sql = "SELECT sequence, text ->> '$.n' AS n, headers FROM orders ORDER BY sequence"
        done = typed("query", "latest", sql, *kept.line, "--limit", "2", "-q")
        assert (done.code, len(done.out.splitlines()), done.err) == (0, 3, "")
        document = check("query", typed("query", "latest", sql, *kept.line, "--limit", "2", "--json"))
        assert document["more"] and len(document["rows"]) == 2
        for name in ("o.parquet", "o.csv", "o.json"):
            file = tmp_path / name
            done = typed("query", "latest", sql, *kept.line, "--output", str(file), "--force")
            assert (done.code, done.out) == (0, f"60 rows in {file}\n")
        assert pq.read_table(tmp_path / "o.parquet").num_rows == 60
        assert len((tmp_path / "o.csv").read_text().splitlines()) == 61
        assert json.loads((tmp_path / "o.json").read_text().splitlines()[0])["sequence"] == 1
    assert typed("query", "latest", "SELECT 1", *small.line, "--output", str(tmp_path / "o.csv")).code == 2
    assert typed("query", "latest", "SELECT 1", *small.line, "--output", str(tmp_path / "o.txt")).code == 2
    assert typed("query", "latest", "SELECT x", *small.line, "--output", str(tmp_path / "new.csv")).code == 2
    assert sorted(file.name for file in tmp_path.iterdir()) == ["o.csv", "o.json", "o.parquet"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["latest"], "missing argument SQL"),
        (["--all-backups", "latest", "SELECT 1"], "--all-backups does not go with a BACKUP"),
        (["--all-backups", "SELECT 1", "--tag", "a=b"], "--all-backups does not go with --tag"),
        (["--all-backups", "SELECT 1", "--spark", "local"], "--all-backups does not go with --spark"),
        (["latest", "SELECT 1", "--force"], "--force makes sense with --output only"),
        (["latest", "SELECT 1", "--spark", "here"], "not a place of Spark"),
        (["latest", "SELECT 1", "--spark-conf", "spark.a=b"], "--spark-conf makes sense with --spark only"),
    ],
)
def test_wrong_options_are_one_sentence(small: Kept, typed: Type, words: list[str], said: str) -> None:
    done = typed("query", *words, *small.line)
    assert (done.code, done.out) == (2, "") and said in done.err


def test_all_backups_have_each_message_once(tmp_path: Path, typed: Type) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backups, "SEGMENT_BYTES", 500)
        kept = keep(tmp_path, {"ORDERS": _messages(1, 60)})
        later = replace(
            kept.manifest,
            id="20261122T014500Z-000001",
            created="2026-11-22T01:45:00Z",
            previous=kept.manifest.id,
            streams=(
                backups.store_stream(kept.repository.objects, "ORDERS", _messages(1, 90)[40:]),
                backups.store_stream(kept.repository.objects, "NEW", _messages(2, 10)),
            ),
        )
        kept.repository.commit(later)
    line = ["query", "--all-backups", *kept.line, "--json"]
    sql = (
        "SELECT stream, count(*), count(DISTINCT sequence), count(DISTINCT backup) FROM messages GROUP BY 1 ORDER BY 1"
    )
    assert check("query", typed(*line, sql))["rows"] == [["NEW", 10, 10, 1], ["ORDERS", 90, 90, 2]]
    assert check("query", typed(*line, "SELECT count(text), max(life) FROM orders"))["rows"] == [[90, ""]]


def test_without_spark_java_is_never_started(small: Kept) -> None:
    line = command_line("query", "latest", "SELECT count(text) FROM orders", *small.line, "--json")
    done = subprocess.run(
        line, capture_output=True, text=True, timeout=120, env=environment(PATH="", JAVA_HOME="/no"), check=False
    )
    assert (done.returncode, json.loads(done.stdout)["rows"]) == (0, [[60]]), done.stderr


@pytest.mark.slow
def test_a_long_query_is_interrupted_at_once(small: Kept) -> None:
    sql = "SELECT count(*) FROM range(1000000) a, range(1000000) b, range(1000) c WHERE a.range * b.range < c.range"
    line = command_line("query", "latest", sql, *small.line)
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        time.sleep(6)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted" in said


def test_large_messages_are_written_piece_by_piece(typed: Type, tmp_path: Path) -> None:
    messages = [Message(number, FIRST_NS, "a", None, b"%07d" % number * 100_000) for number in range(1, 61)]
    with segments_of(4 << 20):
        kept = keep(tmp_path / "large", {"ORDERS": messages})
    for order in ("", "ORDER BY sequence DESC"):
        line = ["query", "latest", f"SELECT sequence, text FROM orders {order}", *kept.line, "--force"]
        assert typed(*line, "--output", str(tmp_path / "o.parquet")).code == 0
        file = pq.ParquetFile(tmp_path / "o.parquet")
        assert file.num_row_groups > 1
        sequences = file.read()["sequence"].to_pylist()
        assert (sequences if order else sorted(sequences, reverse=True)) == [*range(60, 0, -1)]


def test_on_spark(small: Kept, sealed: Kept, typed: Type, tmp_path: Path) -> None:
    sql = "SELECT subject, get_json_object(text, '$.n') AS n, headers['Id'] AS id FROM orders WHERE sequence < 9"
    for kept in (small, sealed):
        line = ["query", "latest", *kept.line, "--spark", "local"]
        rows = check("query", typed(*line, sql, "--json"))["rows"]
        assert len(rows) > 3 and all(subject.startswith("a.") for subject, _, _ in rows)
        done = typed(*line, sql, "--output", str(tmp_path / "o.parquet"), "--force")
        assert (done.code, pq.read_table(tmp_path / "o.parquet").num_rows) == (0, len(rows))
        done = typed(*line, "SELECT nope FROM orders")
        assert done.code == 2 and "`nope`" in done.err
        assert check("query", typed(*line, "SELECT count(*) FROM messages", "--json"))["rows"] == [
            [sum(stream.captured.messages for stream in kept.manifest.streams)]
        ]
