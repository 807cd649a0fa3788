"""Streams of many segments on DuckDB: the same rows as by files, of which only what the query needs is read."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from jsbackup.errors import FormatError
from jsbackup.pipeline.messages import chosen
from jsbackup.pipeline.messages.chosen import ChosenBackup
from jsbackup.pipeline.queries import duckdb_query
from jsbackup.pipeline.queries.duckdb_plan import TIME, needs_of
from jsbackup.pipeline.queries.duckdb_query import run_duckdb_query
from jsbackup.repository.objects import Objects
from jsbackup.repository.pages.segment_list import SegmentList
from jsbackup.repository.refs import AnyRef
from tests.harness import backups
from tests.harness.batches import Message
from tests.harness.small_pages import make_pages_small
from tests.pipeline.places import Kept, keep
from tests.pipeline.queries.test_duckdb_query import BOTH

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


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of more than ten segments have many."""
    monkeypatch.setattr(chosen, "_MANY", 10)


def _run(kept: Kept, sql: str) -> list[tuple[Any, ...]]:
    return run_duckdb_query(ChosenBackup(kept.place, kept.manifest), sql, most_rows=10_000).rows


SEQUENCES = [message.sequence for message in _messages(1, COUNT)]
MIDDLE = SEQUENCES[COUNT // 2]
QUERIES = [
    *BOTH,
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


@pytest.mark.by_turns
@pytest.mark.parametrize("sql", QUERIES)
def test_rows_are_those_of_files(kept: Kept, sql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    by_files = _run(kept, sql)
    monkeypatch.setattr(chosen, "_MANY", 0)
    assert all(chosen.why_no_paths([one]) for one in kept.manifest.streams if one.segments)
    assert _run(kept, sql) == by_files


def _fetched(kept: Kept, sql: str) -> tuple[list[tuple[Any, ...]], list[str]]:
    fetched: list[str] = []
    fetch = Objects.fetch

    def noting(objects: Objects, ref: AnyRef) -> bytes:
        fetched.append(ref.key)
        return fetch(objects, ref)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Objects, "fetch", noting)
        return _run(kept, sql), fetched


@pytest.mark.usefixtures("many")
def test_only_what_a_query_needs_is_read(kept: Kept) -> None:
    (orders,) = [stream for stream in kept.manifest.streams if stream.name == "ORDERS"]
    assert isinstance(orders.segments, SegmentList) and len(orders.segments) > 60
    for condition, most in (
        (f"sequence = {MIDDLE}", 1),
        (f"sequence > {SEQUENCES[-3]}", 1),
        (f"sequence IN ({MIDDLE}, {MIDDLE + 1})", 2),
        ("time BETWEEN '2023-11-14 22:15:00' AND '2023-11-14 22:15:05'", 2),
        ("time < '2023-11-14 22:13:22' AND subject = 'a.1'", 1),
    ):
        rows, fetched = _fetched(kept, f"SELECT count(*) FROM orders WHERE {condition}")
        assert rows and len(fetched) <= most, condition
    rows, fetched = _fetched(kept, "SELECT count(*), count(DISTINCT stream) FROM orders")
    assert (rows, fetched) == ([(COUNT, 1)], [])
    rows, fetched = _fetched(kept, "SELECT sum(sequence) FROM orders")
    assert len(fetched) == len(orders.segments) == len(set(fetched))


@pytest.mark.usefixtures("many")
def test_a_segment_or_a_page_that_is_not_the_stored_one_gives_no_answer(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        make_pages_small(patch)
        patch.setattr(backups, "SEGMENT_BYTES", 500)
        made = keep(tmp_path, {"ORDERS": _messages(1, COUNT)})
    segments = made.place.open().find("latest").streams[0].segments
    assert isinstance(segments, SegmentList)
    for damaged in (segments[len(segments) // 2], [page for page in segments.pages() if not page.level][2]):
        kept = replace(made, manifest=made.place.open().find("latest"))
        path = Path(kept.place.location) / damaged.key
        path.chmod(0o600)
        data = path.read_bytes()
        sql = "SELECT max(text) FROM orders"
        for change in (data[:-1], data[:20] + bytes([data[20] ^ 1]) + data[21:], None):
            path.unlink()
            if change is not None:
                path.write_bytes(change)
            kept = replace(made, manifest=made.place.open().find("latest"))
            with pytest.raises(
                FormatError, match=rf"a segment cannot be read \(object {re.escape(damaged.key)}"
            ) as caught:
                _run(kept, sql)
            assert caught.value.exit_code == 14 and "verify" in str(caught.value.hint)
            assert _run(kept, f"SELECT count(*) FROM orders WHERE sequence < {damaged.first_seq}") > [(0,)]
            path.write_bytes(data)
        assert _run(kept, sql)


@pytest.mark.parametrize(
    ("condition", "sequence", "times"),
    [
        ("TRUE", _FULL, _FULL),
        ("sequence = 5", (5, 5), _FULL),
        ("5 > sequence AND sequence >= -2", (-2, 4), _FULL),
        ("sequence BETWEEN 3 AND 9 AND timestamp_ns <> 4", (3, 9), _FULL),
        ("sequence IN (7, 3, 9)", (3, 9), _FULL),
        ("sequence IN (7, 3, 9) OR timestamp_ns = 1", _FULL, _FULL),
        ("sequence = 5 OR subject = 'a'::BLOB", _FULL, _FULL),
        ("subject = ') AND (sequence = 5'::BLOB", _FULL, _FULL),
        ("subject = 'a'::BLOB AND sequence > 5 AND timestamp_ns < 3", (6, _FULL[1]), (_FULL[0], 2)),
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
        source = duckdb_query.SCHEMA.empty_table()
        connection.register("stored", source)
        connection.execute(f"CREATE VIEW v AS SELECT *, {TIME} AS time FROM stored")
        needs = needs_of(connection, f"SELECT octet_length(data) FROM v WHERE {condition}")
    assert (needs.sequence, needs.timestamp_ns) == (sequence, times)
    assert "data" in needs.columns and "headers" not in needs.columns
