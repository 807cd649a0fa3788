"""Queries by DuckDB and from the manifest: what Spark and plain Python answer, and nothing more than queries."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jsbackup.cli.commands.spark import query as query_command
from jsbackup.errors import FormatError, JsBackupError, UsageError
from jsbackup.pipeline.jobs.query import run_query
from jsbackup.pipeline.messages.backup_frames import open_backup
from jsbackup.pipeline.messages.chosen import ChosenBackup
from jsbackup.pipeline.queries import duckdb_query
from jsbackup.pipeline.queries.duckdb_query import NotUnderstood, run_duckdb_query
from jsbackup.pipeline.queries.manifest_query import answer_by_manifest
from jsbackup.pipeline.session import embedded_java
from tests.cli.test_json import check
from tests.cli.typed import Typed
from tests.harness import backups
from tests.harness.batches import Message
from tests.harness.commands import command_line, environment
from tests.pipeline.places import Kept, keep, segments_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Type = Callable[..., Typed]

WIDE = "KV_a-b\"c'd"


def _messages(chance: random.Random, count: int) -> list[Message]:
    """Few and many subjects, times that step back and lie before 1970, JSON and what is none, headers that repeat."""
    subjects = [f"a.{n}" for n in range(chance.choice([1, 5, 200]))] + ["ü.日本"]
    found, sequence, now = [], 0, chance.choice([-(10**12), 1_700_000_000_000_000_123])
    for _ in range(count):
        sequence += chance.choice([1, 1, 7])
        now += chance.choice([1, 10**3, 10**9, -(10**6)])
        block = b"NATS/1.0\r\nId:%d\r\nX:  a:b \r\nX: second\r\nbad\r\n:none\r\nE:\r\n\r\n" % chance.randrange(40)
        headers = chance.choice([None, None, b"", b"NATS/1.0\r\n\r\n", block, block, b"NATS/1.0 503 no\r\n\r\n"])
        document = json.dumps({"n": chance.randrange(9), "s": "é", "o": {"x": [1]}})
        text = chance.choice([document, document, "{bad", "", "null", "ü"])
        found.append(Message(sequence, now, chance.choice(subjects), headers, text.encode()))
    return found


@pytest.fixture(scope="module", params=[1, 2])
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    chance = random.Random(request.param)
    streams = {"ORDERS": _messages(chance, 300), WIDE: _messages(chance, 40), "EMPTY": []}
    with segments_of(10_000):
        return keep(tmp_path_factory.mktemp("queried"), streams, opaque=True)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return keep(tmp_path_factory.mktemp("small"), {"ORDERS": _messages(random.Random(3), 60)})


def _here(kept: Kept, sql: str, most_rows: int = 10_000) -> list[tuple[Any, ...]]:
    return run_duckdb_query(ChosenBackup(kept.place, kept.manifest), sql, most_rows=most_rows).rows


BOTH = [
    "SELECT * FROM messages ORDER BY stream, sequence",
    "SELECT stream, sequence, time, subject, headers, data, text, timestamp_ns, header_block, backup FROM orders"
    " WHERE sequence BETWEEN 20 AND 300 ORDER BY sequence",
    "SELECT count(*) AS n, sum(sequence) AS s, min(time) AS t, max(timestamp_ns) AS m, avg(sequence) AS a FROM orders",
    "SELECT subject, count(*) AS n FROM messages GROUP BY subject ORDER BY n DESC, subject",
    "SELECT get_json_object(text, '$.n') AS n, get_json_object(text, '$.s') AS s, count(*) FROM orders GROUP BY 1, 2"
    " ORDER BY 1, 2",
    "SELECT headers['X'] AS x, headers['none'] AS y, headers['Id'] AS i, count(*) FROM orders GROUP BY 1, 2, 3"
    " ORDER BY 3 DESC, 1",
    "WITH t AS (SELECT sequence, octet_length(data) AS l FROM orders WHERE time < TIMESTAMP '2031-01-01')"
    " SELECT o.subject, max(t.l) AS l FROM t JOIN orders AS o USING (sequence) GROUP BY o.subject HAVING count(*) > 1"
    " ORDER BY o.subject",
    "SELECT count(*) AS n, max(sequence) AS m FROM empty",
    "SELECT count(*) AS n, min(sequence), max(sequence), min(time), max(time), max(timestamp_ns) FROM orders",
    "SELECT 1 AS a, 'x' AS b, 5 / 2 AS c, 7 % 4 AS d, NULL AS e, TRUE AS f",
]


@pytest.mark.by_turns
def test_duckdb_answers_as_spark_does(kept: Kept, spark: SparkSession) -> None:
    frames = open_backup(spark, kept.place, kept.manifest.id)
    for sql in BOTH:
        theirs = run_query(frames, sql, most_rows=10_000).rows
        mine = _here(kept, sql)
        assert [pair for pair in zip(mine, theirs, strict=True) if pair[0] != pair[1]] == [], sql


@pytest.mark.by_turns
def test_the_manifest_answers_as_duckdb_and_spark_do(kept: Kept, spark: SparkSession) -> None:
    frames = open_backup(spark, kept.place, kept.manifest.id)
    columns = "count(*), count( 1 ) n, COUNT(sequence), min(sequence) AS Least, max( sequence ), min(time), MAX(time),"
    columns += " min(timestamp_ns), max(timestamp_ns)"
    for view in ("orders", "`ORDERS`", "messages", "empty", f"`{WIDE}`"):
        sql = f"select {columns}\nFROM {view} ;"
        mine = answer_by_manifest(kept.manifest, sql)
        theirs = run_query(frames, sql, most_rows=10)
        assert mine is not None and mine.rows == theirs.rows
        assert [name.casefold() for name in mine.columns] == [name.casefold() for name in theirs.columns]
        assert _here(kept, sql.replace("`", '"').replace(f'"{WIDE}"', '"' + WIDE.replace('"', '""') + '"')) == mine.rows


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM orders WHERE sequence > 1",
        "SELECT count(*) FROM elsewhere",
        "SELECT count(*) FROM orders, empty",
        "SELECT count(*) FROM orders o",
        "SELECT count(*) FROM orders LIMIT 0",
        "SELECT count(subject) FROM orders",
        "SELECT count(DISTINCT sequence) FROM orders",
        "SELECT max(sequence) + 1 FROM orders",
        "SELECT max(text) FROM orders",
        "SELECT max(time), subject FROM orders",
        "SELECT count(*) FROM orders; SELECT 1",
        "SELECT count(*) FROM VERBATIM",
    ],
)
def test_what_the_manifest_does_not_know_is_for_others(kept: Kept, sql: str) -> None:
    assert answer_by_manifest(kept.manifest, sql) is None


def test_answers_are_those_of_plain_python(small: Kept) -> None:
    messages = _messages(random.Random(3), 60)
    rows = _here(small, "SELECT sequence, time, subject, data FROM orders ORDER BY sequence")
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert rows == [
        (m.sequence, epoch + timedelta(microseconds=m.timestamp_ns // 1000), m.subject, m.data) for m in messages
    ]
    counts = Counter(message.subject for message in messages)
    assert dict(_here(small, "SELECT subject, count(*) FROM orders GROUP BY 1")) == counts


def test_what_is_not_utf8_is_null_or_escaped(tmp_path: Path) -> None:
    odd = [Message(1, 0, b"\xff.x", b"NATS/1.0\r\nA: \xff\r\n\r\n", b"\xfe"), Message(2, 0, "ü", None, b"ok")]
    kept = keep(tmp_path, {"ODD": odd})
    found = _here(kept, "SELECT subject, headers, text, data FROM odd ORDER BY sequence")
    assert found == [("\\xFF.x", None, None, b"\xfe"), ("ü", None, "ok", b"ok")]


def test_rows_stop_at_the_limit(small: Kept) -> None:
    answer = run_duckdb_query(
        ChosenBackup(small.place, small.manifest), "SELECT o.sequence FROM orders o, orders, orders", most_rows=5
    )
    assert (len(answer.rows), answer.more) == (5, True)


REFUSED = [
    "SELECT * FROM '{file}'",
    "SELECT * FROM read_csv('{file}')",
    "SELECT * FROM read_text('{file}')",
    "SELECT * FROM read_blob('{file}')",
    "SELECT * FROM parquet_metadata('{file}')",
    "SELECT * FROM sniff_csv('{file}')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT (SELECT max(content) FROM read_text('{file}')) FROM orders",
    "SELECT * FROM query('SELECT * FROM read_text(''{file}'')')",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM arrow_scan(1::UBIGINT::POINTER, 1::UBIGINT::POINTER, 1::UBIGINT::POINTER)",
    "SELECT * FROM pandas_scan(1::UBIGINT::POINTER)",
    "SELECT * FROM kept",
    "SELECT getenv('HOME')",
    "COPY (SELECT 1) TO '{out}'",
    "COPY orders TO '{out}'",
    "EXPORT DATABASE '{out}'",
    "ATTACH '{out}'",
    "CREATE TABLE t AS SELECT 1",
    "DROP VIEW orders",
    "INSERT INTO orders SELECT * FROM orders",
    "SET enable_external_access = true",
    "PRAGMA database_list",
    "INSTALL httpfs",
    "LOAD httpfs",
    "CALL duckdb_secrets()",
    "EXPLAIN SELECT 1",
    "SELECT 1; SELECT 2",
    "SELECT 1; COPY (SELECT 1) TO '{out}'",
    "",
    "--",
    "SELECT",
    "\0",
    "SELECT '\ud800'",
]


@pytest.mark.slow
def test_what_is_more_than_a_query_is_refused(small: Kept, tmp_path: Path) -> None:
    file = tmp_path / "secret.csv"
    file.write_text("secret\n1\n")
    for sql in REFUSED:
        with pytest.raises(UsageError) as caught:
            _here(small, sql.format(file=file, out=tmp_path / "out"))
        assert "secret\n" not in caught.value.message and caught.value.hint, sql
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]


def test_errors_are_ours(kept: Kept, tmp_path: Path) -> None:
    with pytest.raises(NotUnderstood, match="nothing"):
        _here(kept, "SELECT nothing FROM orders")
    with pytest.raises(JsBackupError, match="the query failed: Could not convert"):
        _here(kept, "SELECT cast(subject AS INTEGER) FROM orders")
    with pytest.raises(JsBackupError, match="the query failed"):
        _here(kept, "SELECT error('x')")
    broken = keep(tmp_path, {"ORDERS": _messages(random.Random(5), 20)})
    for path in (tmp_path / "repo" / "segments").rglob("0*.parquet"):
        path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(JsBackupError, match="the query failed") as caught:
        _here(broken, "SELECT max(text) FROM orders")
    assert "\n" not in caught.value.message
    for path in (tmp_path / "repo" / "segments").rglob("0*.parquet"):
        path.unlink()
    with pytest.raises(FormatError, match="a segment cannot be read"):
        _here(broken, "SELECT max(text) FROM orders")


def test_a_view_that_is_not_there_is_an_error_for_every_engine(
    tmp_path: Path, kept: Kept, spark: SparkSession, typed: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    alike = keep(tmp_path / "alike", {"Orders": [], "ORDERS": [], "messages": []})
    first, second = (f"{one.name}_{one.incarnation}" for one in alike.manifest.streams if one.name != "messages")
    for of, name, said, hint in [
        (kept, "ordrs", "the backup has no stream ordrs", "Did you mean ORDERS?"),
        (kept, "nothing", "the backup has no stream nothing", f"Its views: EMPTY, {WIDE}, ORDERS."),
        (kept, "verbatim", "the messages of stream VERBATIM cannot be queried: they are stored as the", "Restore it"),
        (alike, "orders", "the names of 2 streams are orders in SQL", f"Their views: {first}, {second}."),
    ]:
        frames = open_backup(spark, of.place, of.manifest.id)
        calls: list[Callable[[str], object]] = [
            lambda sql, of=of: _here(of, sql),  # type: ignore[misc]
            lambda sql, frames=frames: run_query(frames, sql, most_rows=1),  # type: ignore[misc]
        ]
        for call in calls:
            with pytest.raises(UsageError, match=f"^{re.escape(said)}") as caught:
                call(f"SELECT subject FROM {name}")
            assert not isinstance(caught.value, NotUnderstood) and hint in (caught.value.hint or "")
    monkeypatch.setattr(embedded_java, "in_session", lambda: False)
    done = typed("query", "latest", "SELECT subject FROM ordrs", *kept.line)
    assert done.code == 2 and "Spark" not in done.err
    for engine in ("duckdb", "spark"):
        done = typed("query", "latest", "SELECT count(*) FROM messages", *alike.line, "--engine", engine)
        assert done.code == 0 and done.err.count("messages is the stream of this name: there is no view of all") == 1


def test_a_name_with_quotes_is_a_view_of_every_engine(tmp_path: Path, spark: SparkSession) -> None:
    kept = keep(tmp_path, {'x`y"z': [Message(1, 0, "s", None, b"")]})
    theirs = run_query(open_backup(spark, kept.place, kept.manifest.id), 'SELECT stream FROM `x``y"z`', most_rows=5)
    assert _here(kept, 'SELECT stream FROM "x`y""z"') == theirs.rows == [('x`y"z',)]


def test_columns_without_a_name_have_the_same_heading(small: Kept, spark: SparkSession) -> None:
    sql = "SELECT count(*), max(sequence), min(time), sum(sequence) FROM orders"
    theirs = run_query(open_backup(spark, small.place, small.manifest.id), sql, most_rows=1)
    assert run_duckdb_query(ChosenBackup(small.place, small.manifest), sql, most_rows=1).columns == theirs.columns


def test_intervals_are_printed(small: Kept, typed: Type) -> None:
    sql = "SELECT TIMESTAMP '2026-01-03 01:00:00' - TIMESTAMP '2026-01-01 00:00:00' AS age FROM orders LIMIT 1"
    for engine in ("duckdb", "spark"):
        done = typed("query", "latest", sql, *small.line, "--engine", engine, "--json")
        assert check("query", done)["rows"] == [["2 days, 1:00:00"]], engine
    done = typed("query", "latest", "SELECT INTERVAL 14 MONTH AS age", *small.line, "--engine", "duckdb", "--json")
    assert check("query", done)["rows"] == [["14 months 0:00:00"]]


@pytest.mark.slow
def test_a_segment_that_is_not_the_stored_one_gives_no_answer(tmp_path: Path) -> None:
    """Checksums of pages do not tell: another stream's segment has good ones, and the footer has none."""
    kept = keep(tmp_path, {"ORDERS": _messages(random.Random(5), 60), "OTHER": _messages(random.Random(6), 60)})
    files = sorted((tmp_path / "repo" / "segments").rglob("0*.parquet"))
    path, other = (next(file for file in files if name in str(file)) for name in ("ORDERS", "OTHER"))
    whole, sql = path.read_bytes(), "SELECT sum(sequence), max(text) FROM {}"
    before = _here(kept, sql.format("other"))
    flipped = [whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in range(0, len(whole), len(whole) // 25)]
    for content in (other.read_bytes(), *flipped):
        path.write_bytes(content)
        for view in ("orders", "messages"):
            with pytest.raises(FormatError, match="a segment cannot be read") as caught:
                _here(kept, sql.format(view))
            assert path.name in caught.value.message and "verify" in (caught.value.hint or "")
    assert _here(kept, sql.format("other")) == before  # what is not named is not compared
    path.write_bytes(whole)
    assert len(_here(kept, sql.format("orders"))) == 1


# --- the command ---


@pytest.mark.by_turns
@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_a_long_query_is_interrupted_at_once(small: Kept, number: signal.Signals, code: int) -> None:
    sql = "SELECT count(*) FROM range(1000000) a, range(1000000) b, range(1000) c WHERE a.range * b.range < c.range"
    line = command_line("query", "latest", sql, "--engine", "duckdb", *small.line)
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        time.sleep(4)
        assert process.poll() is None
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
    assert process.returncode == code and "interrupted" in said


def _query(kept: Kept, *words: str) -> subprocess.CompletedProcess[str]:
    line = command_line("query", "latest", *words, *kept.line, "--json")
    return subprocess.run(line, capture_output=True, text=True, timeout=120, env=environment(PATH="", JAVA_HOME="/no"))


def test_neither_spark_nor_java_is_needed(small: Kept) -> None:
    for sql, used in [
        ("SELECT count(*) FROM orders", "manifest"),
        ("SELECT count(*) FROM orders WHERE sequence > 0", "duckdb"),
    ]:
        done = _query(small, sql)
        document = json.loads(done.stdout)
        assert (done.returncode, document["rows"], document["engine"]["used"]) == (0, [[60]], used), done.stderr
    forced = json.loads(_query(small, "SELECT count(*) FROM orders", "--engine", "duckdb").stdout)
    assert (forced["rows"], forced["engine"]) == ([[60]], {"used": "duckdb", "why": "--engine duckdb"})
    on_spark = _query(small, "SELECT count(*) FROM orders", "--engine", "spark")
    assert on_spark.returncode == 13 and "JAVA_HOME has none" in on_spark.stdout + on_spark.stderr


@pytest.mark.by_turns
def test_the_engine_is_chosen_and_said(
    small: Kept, typed: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed = keep(tmp_path, {"ORDERS": _messages(random.Random(3), 60)}, encrypted=True)
    monkeypatch.setattr(embedded_java, "in_session", lambda: False)
    some = "SELECT count(*) AS n FROM orders WHERE sequence > 0"
    only_spark = "SELECT count(*) AS n FROM orders LATERAL VIEW explode(array(1)) t AS x"

    def used(kept: Kept, sql: str, *more: str) -> tuple[str, str]:
        document = check("query", typed("query", "latest", sql, *kept.line, "--json", *more))
        assert document["rows"] == [[60]]
        return document["engine"]["used"], document["engine"]["why"]

    engine, why = used(small, some)
    assert engine == "duckdb" and why.endswith(" of messages are less than 16.0 GiB")
    assert used(small, some, "--engine", "spark") == ("spark", "--engine spark")
    assert used(small, some, "--spark-master", "local[1]") == ("spark", "an option of Spark is given")
    assert used(sealed, some) == ("spark", "messages are encrypted")
    assert used(sealed, "SELECT count(*) AS n FROM orders")[0] == "manifest"
    engine, why = used(small, only_spark)
    assert engine == "spark" and why.startswith("DuckDB does not understand the query: ")
    monkeypatch.setattr(query_command, "LEAST_SPARK_BYTES", 1)
    assert used(small, some)[0] == "spark"
    monkeypatch.setattr(query_command, "LEAST_SPARK_BYTES", 1 << 40)
    monkeypatch.setattr(duckdb_query, "_MOST_STREAMS", 0)
    assert used(small, some) == ("spark", "there are more than 0 streams")
    monkeypatch.undo()
    assert used(small, some) == ("spark", "there is a session")
    told = typed("query", "latest", some, *small.line)
    assert "runs on Spark: there is a session\n" in told.err


def test_wrong_choices_are_refused(small: Kept, typed: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = keep(tmp_path, {"ORDERS": []}, encrypted=True)
    forced = ("--engine", "duckdb")
    done = typed("query", "latest", "SELECT 1", *small.line, *forced, "--spark-master", "local[1]")
    assert done.code == 2 and "--engine duckdb contradicts" in done.err
    done = typed("query", "latest", "SELECT 1", *sealed.line, *forced)
    assert done.code == 13 and "messages are encrypted" in done.err and "--engine spark" in done.err
    monkeypatch.setattr(duckdb_query, "find_spec", lambda _: None)
    done = typed("query", "latest", "SELECT 1", *small.line, *forced)
    assert done.code == 13 and "DuckDB is not installed" in done.err and "jsbackup[duckdb]" in done.err


def test_segments_are_many_and_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backups, "SEGMENT_BYTES", 500)
    kept = keep(tmp_path, {"ORDERS": _messages(random.Random(6), 200)})
    assert len(kept.manifest.streams[0].segments) > 20
    assert _here(kept, "SELECT count(*), count(DISTINCT sequence) FROM orders") == [(200, 200)]
