"""`import --format parquet` and `jsonl`: what `export` writes comes back as it was, and so do tables of others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError, UsageError
from jsbackup.pipeline.tables import line_files
from jsbackup.pipeline.tables.line_files import ReadLines
from jsbackup.pipeline.tables.table_files import find_tables
from jsbackup.pipeline.tables.writing import TableFormat
from jsbackup.repository.checks.verify import Level, verify_backup
from jsbackup.repository.layout import encode_name
from jsbackup.repository.read.segments import SegmentReader
from tests.cli.test_json import check
from tests.cli.typed import Typed, in_shell
from tests.formats.test_json_lines import GOOD
from tests.harness.api import call, connected, history_of
from tests.harness.batches import Message, batch_of, message_lists, sendable, some_messages
from tests.harness.oracle import compare, observe
from tests.harness.servers import NEWEST, NatsServer
from tests.pipeline.places import Kept, keep
from tests.pipeline.test_reading import ODD, WIDE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Type = Callable[..., Typed]

FORMATS = ("parquet", "jsonl")
LONG = "ü" * 120  # too long for a folder's name
HEADERS = [b"A: 1\r\nB: 2\r\nA: 3\r\n", b"A:1\r\n", b"A: 1\r\nA: 2\r\n", b"", b"no colon\r\n"]
HEADED = [Message(n + 1, n, "h", b"NATS/1.0\r\n" + lines + b"\r\n", b"") for n, lines in enumerate(HEADERS)]


def _round_trip(typed: Type, folder: Path, streams: dict[str, list[Message]], kind: str) -> tuple[Kept, dict[str, Any]]:
    """What is exported, imported again into the same repository; and the document of that."""
    kept = keep(folder, streams)
    table = folder / "table"
    assert typed("export", "latest", *kept.line, "--format", kind, "--output", table).code == 0
    if not any(table.iterdir()):
        return kept, {"streams": []}
    done = typed("import", table, *kept.line, "--format", kind, "--json")
    assert done.code == 0, done.err
    return kept, check("import", done)


@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_exported_comes_back(typed: Type, tmp_path: Path, kind: str) -> None:
    streams = {"ODD": sendable(ODD), WIDE: some_messages(30, 20), LONG: some_messages(5, 9), "_x": HEADED, "EMPTY": []}
    kept, document = _round_trip(typed, tmp_path, streams, kind)
    before = {stream.name: stream for stream in kept.manifest.streams}
    assert {one["name"] for one in document["streams"]} == streams.keys() - {"EMPTY"}
    manifest = kept.place.open().manifest(document["backup"])
    assert list(verify_backup(kept.repository.objects, manifest, Level.DATA)) == []
    for stream in manifest.streams:
        old = before[stream.name]
        assert (stream.digest, stream.captured.messages) == (old.digest, old.captured.messages)
        assert stream.config == {
            "name": stream.name,
            "subjects": [stream.name],
            "retention": "limits",
            "storage": "file",
        }
    assert manifest.source.imported == {"from": f"table ({kind})"}


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(message_lists(binary=True), min_size=1, max_size=2), st.sampled_from(FORMATS))
def test_random_streams_come_back(
    typed: Type,
    tmp_path_factory: pytest.TempPathFactory,
    streams: list[list[Message]],
    kind: str,
) -> None:
    named = {f"S{number}": sendable(messages) for number, messages in enumerate(streams)}
    kept, document = _round_trip(typed, tmp_path_factory.mktemp("random"), named, kind)
    digests = {stream.name: stream.digest.hex for stream in kept.manifest.streams if stream.captured.messages}
    assert {one["name"]: one["digest"] for one in document["streams"]} == digests


def _parquet(path: Path, messages: Sequence[Message], **more: Any) -> Path:
    """A table of another tool's: strings where we have bytes, other columns, rows in no order."""
    rows = [
        {"subject": m.subject, "sequence": m.sequence, "data": m.data.hex(), "timestamp_ns": m.timestamp_ns, **more}
        for m in reversed(messages)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_a_table_of_others_becomes_the_stream_that_is_named(typed: Type, tmp_path: Path) -> None:
    messages = [m._replace(headers=None) for m in some_messages(60, 10)]
    _parquet(tmp_path / "t" / "day=1" / "part-0.parquet", messages[:40], more=1.5)
    _parquet(tmp_path / "t" / "day=2" / "part-0.parquet", messages[40:], more=2.5)
    (tmp_path / "t" / "_SUCCESS").write_text("")
    (tmp_path / "told.json").write_text(json.dumps({"config": {"name": "OLD", "subjects": ["orders.*"], "max_age": 5}}))
    told = ("--stream-config", tmp_path / "told.json")
    line = ("import", tmp_path / "t", "--format", "parquet", "-r", tmp_path / "repo")
    done = typed(*line, "--stream", "NEW", *told, "--tag", "a=b")
    assert (done.code, done.out.splitlines()[-1].split(" is ")[1].split(",")[0]) == (0, "complete: 1 stream")
    assert "creating one" in done.err and "no configuration" not in done.err
    shown = typed("show", "latest", "-r", tmp_path / "repo", "--json").document
    (stream,) = shown["streams"]
    assert (stream["name"], stream["messages"], shown["tags"]) == ("NEW", 60, {"a": "b"})
    assert (stream["config"]["name"], stream["config"]["max_age"]) == ("NEW", 5)
    expected = keep(tmp_path / "same", {"NEW": [m._replace(data=m.data.hex().encode()) for m in messages]})
    assert stream["digest"] == expected.manifest.streams[0].digest.hex
    # The same once more costs nothing, and without a configuration it is said.
    again = typed(*line, "--stream", "NEW", "--json")
    assert again.document["streams"][0]["segments_reused"] == 1
    assert "stream NEW has no configuration, so a default one is used, for NEW alone, and 60 of its" in again.err
    assert "60 of its 60 messages have other subjects; see --stream-config" in again.err


@pytest.mark.parametrize("kind", ["uint64", "uint32", "uint16", "uint8", "int16"])
def test_sequences_may_be_of_any_integer_type(typed: Type, tmp_path: Path, kind: str) -> None:
    """Servers count in unsigned integers of 64 bits, and so do many tables."""
    messages = [m._replace(headers=None, sequence=number + 1) for number, m in enumerate(some_messages(60, 10))]
    path = _parquet(tmp_path / "t.parquet", messages)
    table = pq.read_table(path)
    given = table.set_column(1, "sequence", table["sequence"].cast(pa.type_for_alias(kind)))
    if kind == "uint64":
        given = given.set_column(3, "timestamp_ns", given["timestamp_ns"].cast(pa.uint64()))
    pq.write_table(given, path)
    done = typed("import", path, "--format", "parquet", "--stream", "S", "-r", tmp_path / "repo", "--json")
    assert done.code == 0, done.err
    expected = keep(tmp_path / "same", {"S": [m._replace(data=m.data.hex().encode()) for m in messages]})
    assert done.document["streams"][0]["digest"] == expected.manifest.streams[0].digest.hex


def _line(**change: Any) -> str:
    return json.dumps({**GOOD, **change}) + "\n"


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    """Tables of which none can be taken in."""
    some = some_messages(20, 10)
    rows = [{"sequence": 1, "timestamp_ns": 5, "subject": "a", "data": b"x"}]
    folder = tmp_path / "bad"
    for name, table in {
        "column": pa.Table.from_pylist([{k: v for k, v in rows[0].items() if k != "data"}]),
        "type": pa.Table.from_pylist([rows[0] | {"sequence": "x"}]),
        "null": pa.Table.from_pylist([*rows, rows[0] | {"sequence": 2, "subject": None}]),
        "twice": pa.Table.from_pylist([*rows, *rows]),
        "zero": pa.Table.from_pylist([rows[0] | {"sequence": 0}]),
        "mixed": pa.Table.from_pylist([rows[0] | {"stream": "A"}, rows[0] | {"sequence": 2, "stream": "B"}]),
        "space": pa.Table.from_pylist([*rows, rows[0] | {"sequence": 2, "subject": "a b"}]),
        "line": pa.Table.from_pylist([rows[0] | {"subject": "a\r\nb"}]),
        "none": pa.Table.from_pylist([rows[0] | {"subject": ""}]),
        "rows/X": pa.Table.from_pylist([rows[0] | {"stream": "X"}, rows[0] | {"sequence": 2, "stream": "Z"}]),
    }.items():
        (folder / name).mkdir(parents=True)
        pq.write_table(table, folder / name / "t.parquet")
    unsigned = pa.schema([("sequence", pa.uint64()), ("timestamp_ns", pa.uint64())])
    unsigned = pa.unify_schemas([unsigned, pa.schema([("subject", pa.string()), ("data", pa.binary())])])
    large = {"huge": {"sequence": 1 << 63}, "large": {"sequence": 1 << 62}}
    for name, change in {**large, "late": {"timestamp_ns": (1 << 64) - 1}}.items():
        (folder / name).mkdir()
        later = rows[0] | {"sequence": 2} | change
        pq.write_table(pa.Table.from_pylist([*rows, later], schema=unsigned), folder / name / "t.parquet")
    _parquet(folder / "cut" / "t.parquet", some)
    data = (folder / "cut" / "t.parquet").read_bytes()
    (folder / "cut" / "t.parquet").write_bytes(data[: len(data) // 2])
    (folder / "page").mkdir()
    pq.write_table(pa.Table.from_batches([batch_of(some)]), folder / "page" / "t.parquet", write_page_checksum=True)
    chunk = pq.ParquetFile(folder / "page" / "t.parquet").metadata.row_group(0).column(4)
    end = chunk.data_page_offset + chunk.total_compressed_size
    data = (folder / "page" / "t.parquet").read_bytes()
    (folder / "page" / "t.parquet").write_bytes(data[: end - 4] + b"\0\1\2\3" + data[end:])
    (folder / "notjson.jsonl").write_text(_line() + "{")
    (folder / "nodata.jsonl").write_text(_line() + _line(sequence=8, data=None))
    (folder / "twice.jsonl").write_text(_line() + _line())
    (folder / "member.jsonl").write_text(_line() + _line(sequence=8).replace("}\n", ', "data": "b"}\n'))
    bare = {name: value for name, value in GOOD.items() if name != "headers"}
    (folder / "header.jsonl").write_text(_line() + json.dumps(bare | {"sequence": 8, "header": {"A": ["1"]}}))
    (folder / "header").mkdir()
    headed = pa.Table.from_batches([batch_of(some)]).drop_columns(["headers"])
    pq.write_table(headed.append_column("Header", pa.array([b"x"] * headed.num_rows)), folder / "header" / "t.parquet")
    (folder / "some").mkdir()
    _parquet(folder / "some" / "b.parquet", some_messages(20, 10, first=100), header=b"x")
    pq.write_table(pa.Table.from_batches([batch_of(some)]), folder / "some" / "a.parquet")
    _parquet(folder / "lake" / "A" / "t.parquet", some)
    (folder / "lake" / "A" / "_delta_log").mkdir()
    (folder / "empty").mkdir()
    (folder / "mirror.json").write_text(json.dumps({"config": {"name": "OTHER"}}))
    (folder / "lines" / "X").mkdir(parents=True)
    (folder / "lines" / "X" / "t.jsonl").write_text(_line(stream="X") + _line(stream="Z", sequence=8))
    (folder / "streams" / "A").mkdir(parents=True)
    (folder / "streams" / "A" / "t.jsonl").write_text(_line())
    (folder / "streams" / "B").mkdir()
    (folder / "streams" / "B" / "t.jsonl").write_text(_line())
    return folder


@pytest.mark.by_turns
@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("type --format parquet --stream S", 2, "the column sequence is string, and cannot be an integer"),
        ("null --format parquet --stream S", 2, "stream S: a message without subject cannot be stored"),
        ("twice --format parquet --stream S", 14, "stream S: sequence 1 is there twice"),
        ("zero --format parquet --stream S", 14, "stream S: 0 is not a sequence"),
        ("large --format parquet --stream S", 14, "stream S: no server can have the sequence 4611686018427387904"),
        ("late --format parquet --stream S", 2, "the column timestamp_ns is uint64, and cannot be a time"),
        ("mixed --format parquet --stream S", 2, "messages of several streams, such as A and B"),
        ("rows --format parquet", 2, "messages of several streams, such as X and Z"),
        ("lines --format jsonl", 2, "messages of several streams, such as X and Z"),
        ("space --format parquet --stream S", 2, "stream S: message 2 has the subject 'a b', which no server takes"),
        ("line --format parquet --stream S", 2, r"stream S: message 1 has the subject 'a\r\nb', which no server takes"),
        ("cut --format parquet --stream S", 14, "cut/t.parquet"),
        ("page --format parquet --stream S", 14, "page/t.parquet"),
        ("notjson.jsonl --format jsonl --stream S", 14, "notjson.jsonl, line 2 at byte"),
        ("nodata.jsonl --format jsonl --stream S", 2, "there is no data"),
        ("twice.jsonl --format jsonl --stream S", 14, "stream S: sequence 7 is there twice"),
        ("member.jsonl --format jsonl --stream S", 2, "member.jsonl, line 2 at byte"),
        ("header.jsonl --format jsonl --stream S", 2, "it has no headers, but 'header'"),
        ("some --format parquet --stream S", 2, "some/b.parquet has no headers, but 'header'"),
        ("lake --format parquet", 2, "lake/A is a Delta table"),
        ("nowhere --format parquet --stream S", 2, "there is no table"),
        ("empty --format parquet --stream S", 2, "there is no file in"),
        ("empty --format parquet", 2, "there is no table in"),
        ("column --format parquet", 2, "does not say of which stream it is"),
        ("twice.jsonl --format jsonl --stream a.b", 2, "not a stream's name: 'a.b'"),
        ("streams --format jsonl --stream-config bad/mirror.json", 2, "no configuration of stream A"),
        ("streams --format jsonl --stream-config bad/nowhere.json", 2, "cannot be read"),
        ("streams --stream S", 2, "make sense for a table only"),
    ],
)
def test_bad_input_is_one_sentence_and_makes_no_backup(
    typed: Type, bad: Path, monkeypatch: pytest.MonkeyPatch, line: str, code: int, said: str
) -> None:
    monkeypatch.chdir(bad.parent)
    table, *options = line.split()
    repo = bad.parent / "repo"
    done = typed("import", bad / table, *options, "-r", repo)
    told = done.err.splitlines()
    assert (done.code, done.out) == (code, ""), done.err
    assert told[0].startswith("error: ") and said in told[0] and len(told) <= 2
    assert not repo.exists()


@pytest.mark.by_turns
@pytest.mark.parametrize("kind", FORMATS)
def test_spark_stores_the_same(spark: SparkSession, typed: Type, tmp_path: Path, kind: str) -> None:
    kept = keep(tmp_path / "r", {"A": some_messages(400, 100), "KV_B": some_messages(100, 10)})
    assert typed("export", "latest", *kept.line, "--format", kind, "--output", tmp_path / "table").code == 0
    found = []
    for name, more in (("here", []), ("there", ["--spark", "local[2]"])):
        done = typed("import", tmp_path / "table", "-r", tmp_path / name, "--format", kind, "--json", *more)
        assert done.code == 0, done
        found.append([(one["name"], one["messages"], one["digest"]) for one in done.document["streams"]])
    assert found[0] == found[1] and len(found[0]) == 2


@pytest.mark.parametrize("options", [[], ["--format", "parquet"], ["--server-store"]])
def test_a_url_is_not_taken_for_a_folder(tmp_path: Path, options: list[str]) -> None:
    done = in_shell("import", "s3://key:secret@bucket/tables", *options, "-r", tmp_path / "repo")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[0] == "error: import reads files of this machine, and not s3:// URLs"
    assert "secret" not in done.err and not (tmp_path / "repo").exists()


@dataclass(frozen=True, slots=True)
class CountedLines(ReadLines):
    """Adds a byte to a file each time its lines are decoded."""

    def __call__(self) -> Iterator[pa.RecordBatch]:
        with (Path(self.pieces[0].path).parent.parent / "decoded").open("ab") as file:
            file.write(b".")
        yield from ReadLines.__call__(self)


@pytest.mark.by_turns
def test_json_lines_are_decoded_once(typed: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = keep(tmp_path / "r", {"A": some_messages(400, 100), "KV_B": some_messages(100, 10)})
    table = tmp_path / "table"
    assert typed("export", "latest", *kept.line, "--format", "jsonl", "--output", table).code == 0
    monkeypatch.setattr(line_files, "ReadLines", CountedLines)
    monkeypatch.setattr(line_files, "_PIECE_BYTES", 30_000)
    pieces = sum(-(-path.stat().st_size // 30_000) for path in (table / "A").iterdir())
    assert pieces > 2
    done = typed("import", table / "A", *kept.line, "--format", "jsonl", "--stream", "OTHER", "--json")
    assert (done.code, done.document["streams"][0]["messages"]) == (0, 400), done
    assert (table / "decoded").stat().st_size <= pieces
    (table / "decoded").unlink()
    done = typed("import", table, *kept.line, "--format", "jsonl", "--json")
    assert (done.code, [one["messages"] for one in done.document["streams"]]) == (0, [400, 100]), done
    assert (table / "decoded").stat().st_size <= pieces + 1


@pytest.mark.by_turns
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(("later", "names"), [("headers", "abc"), ("headers", "cba"), ("Headers", "abc")])
def test_a_column_that_only_some_files_have_counts(
    typed: Type, tmp_path: Path, later: str, names: str, alone: bool
) -> None:
    """Whichever is read first; case does not matter, as in Spark."""
    root = tmp_path / "table" / "S"
    root.mkdir(parents=True)
    wanted: dict[int, bytes | None] = {}
    for number, name in enumerate(names):
        block = b"NATS/1.0\r\nA: 1\r\n\r\n" if number == 2 else None
        rows = some_messages(3, 1, first=1 + 100 * number)
        table = pa.Table.from_batches([batch_of(rows)]).drop_columns(["headers"])
        if block is not None:
            table = table.append_column(later, pa.array([block] * 3, pa.binary()))
        pq.write_table(table, root / f"{name}.parquet")
        wanted |= {row.sequence: block for row in rows}
    kept = keep(tmp_path / "kept", {})
    where = (root, "--stream", "S") if alone else (root.parent,)
    done = typed("import", *where, *kept.line, "--format", "parquet", "--json")
    assert done.code == 0 and done.document["streams"][0]["messages"] == 9, done
    (stream,) = kept.repository.manifest(done.document["backup"]).streams
    reader = SegmentReader(kept.repository.objects)
    stored = [row for ref in stream.segments for batch in reader.prove(ref) for row in batch.to_pylist()]
    assert {row["sequence"]: row["headers"] for row in stored} == wanted


def test_streams_are_told_apart_that_only_some_files_name(typed: Type, tmp_path: Path) -> None:
    """And headers may be texts in one file, and bytes in another one."""
    table = tmp_path / "table"
    table.mkdir()
    row = {"timestamp_ns": 5, "subject": "a", "data": b"x"}
    for number, more in enumerate([{}, {"stream": "A", "headers": "NATS/1.0\r\n\r\n"}, {"stream": "A"}], 1):
        pq.write_table(pa.Table.from_pylist([row | {"sequence": number} | more]), table / f"{number}.parquet")
    kept = keep(tmp_path / "kept", {})
    line = ["import", table, "--stream", "A", "--format", "parquet", *kept.line, "--json"]
    assert [one["messages"] for one in typed(*line).document["streams"]] == [3]
    pq.write_table(pa.Table.from_pylist([row | {"sequence": 4, "headers": b"NATS/1.0\r\n\r\n"}]), table / "4.parquet")
    assert [one["messages"] for one in typed(*line).document["streams"]] == [4]
    pq.write_table(pa.Table.from_pylist([row | {"sequence": 5, "stream": "B"}]), table / "5.parquet")
    refused = typed(*line)
    assert refused.code == 2 and "messages of several streams, such as " in refused.document["error"]["message"]


def test_which_streams_there_are_is_found_out(tmp_path: Path) -> None:
    def table(*names: str) -> Path:
        root = tmp_path / f"t{len(list(tmp_path.iterdir()))}"
        for name in names:
            (root / name).mkdir(parents=True)
            (root / name / "1.jsonl").write_text(_line(stream=LONG))
        return root

    root = table("B", "A%2EB", "_x", encode_name(LONG))
    (root / "_SUCCESS").write_text("")
    (root / ".hidden").mkdir()
    (root / "B" / "up").symlink_to(root)
    (root / "B" / ".1.jsonl.crc").write_bytes(b"crc")
    (root / "B" / "._1.jsonl").write_bytes(b"of macOS")
    with pytest.raises(UsageError, match=r"folder A%2EB does not say"):  # no stream is called A.B
        find_tables(root, TableFormat.JSONL, None)
    (root / "A%2EB").rename(root / "%C3%BC")
    with pytest.raises(UsageError, match="up is a link to a folder, which is not followed"):
        find_tables(root, TableFormat.JSONL, None)
    (root / "B" / "up").unlink()
    tables = find_tables(root, TableFormat.JSONL, None)
    assert [(one.stream, len(one.files)) for one in tables] == [("B", 1), ("_x", 1), ("ü", 1), (LONG, 1)]
    with pytest.raises(UsageError, match="folder day=1 does not have the name of"):
        find_tables(table("day=1"), TableFormat.JSONL, None)
    with pytest.raises(UsageError, match="folder %41 does not have the name of"):  # that of A, once more
        find_tables(table("A", "%41"), TableFormat.JSONL, None)
    for name in ("_2.jsonl", ".2.JSONL", "_p.parquet"):
        left = table("A")
        (left / "A" / name).write_text(_line())
        with pytest.raises(UsageError, match=rf"A/{name} would be left out, as its name begins with '{name[0]}'"):
            find_tables(left, TableFormat.JSONL, None)
        with pytest.raises(UsageError, match="would be left out"):
            find_tables(left / "A", TableFormat.JSONL, "S")
    other = table(encode_name("ö" * 120))
    with pytest.raises(UsageError, match="does not say of which stream"):
        find_tables(other, TableFormat.JSONL, None)
    with pytest.raises(FormatError, match="is not a Parquet file, or a damaged one"):
        find_tables(other, TableFormat.PARQUET, None)


@pytest.mark.nats
@pytest.mark.timeout(300)
def test_a_stream_goes_from_a_server_through_a_table_to_a_server(
    spark: SparkSession, typed: Type, tmp_path: Path
) -> None:
    async def fill(url: str) -> Any:
        async with connected(url) as nc:
            config = {"name": "ORDERS", "subjects": ["orders.*"], "storage": "file", "max_msg_size": 5000}
            await call(nc, "STREAM.CREATE.ORDERS", config)
            for number in range(300):
                block = {"Nats-Msg-Id": f"order-{number}", "a": "b"} if number % 3 else None
                await nc.publish(f"orders.{number % 4}", b"x" * (number % 50), headers=block)
            await nc.request("orders.0", b"")  # answered when it is stored, and all before it
            await call(nc, "STREAM.MSG.DELETE.ORDERS", {"seq": 7})
            return await observe(nc)

    async def look(url: str) -> Any:
        async with connected(url) as nc:
            return await observe(nc)

    repo, other, table = tmp_path / "repo", tmp_path / "other", tmp_path / "table"
    with NatsServer(NEWEST) as server, NatsServer(NEWEST) as target:
        before = asyncio.run(fill(server.url))
        assert typed("backup", "-s", server.url, "-r", repo).code == 0
        assert typed("export", "latest", "-r", repo, "--format", "jsonl", "--output", table).code == 0
        (tmp_path / "told.json").write_text(typed("show", "latest", "-r", repo, "--json").out)
        told = ("--stream-config", tmp_path / "told.json")
        assert typed("import", table, "--format", "jsonl", *told, "-r", other).code == 0
        done = typed("restore", "latest", "-s", target.url, "-r", other)
        assert done.code == 0, done.err
        assert compare(before, asyncio.run(look(target.url))) == []


@pytest.mark.nats
def test_a_bucket_that_comes_back_from_a_table_is_one(typed: Type, tmp_path: Path) -> None:
    """Without its configuration too, clients can use it, and it keeps all of its revisions."""

    async def fill(url: str) -> None:
        async with connected(url) as nc:
            bucket = await nc.jetstream().create_key_value(bucket="settings", history=5)
            for value in (b"1", b"2", b"3"):
                await bucket.put("a", value)
            await bucket.put("b", b"1")
            await (await nc.jetstream().create_object_store("files")).put("f", b"text")

    async def use(url: str) -> None:
        async with connected(url) as nc:
            bucket = await nc.jetstream().key_value("settings")
            assert [one.value for one in await history_of(bucket, "a")] == [b"1", b"2", b"3"]
            await bucket.put("a", b"4")
            await bucket.purge("b")
            assert [one.value for one in await history_of(bucket, "a")] == [b"2", b"3", b"4"]
            files = await nc.jetstream().object_store("files")
            assert (await files.get("f")).data == b"text"
            await files.put("f", b"more")

    repo, other, table = tmp_path / "repo", tmp_path / "other", tmp_path / "table"
    with NatsServer(NEWEST) as server, NatsServer(NEWEST) as target:
        asyncio.run(fill(server.url))
        assert typed("backup", "-s", server.url, "-r", repo).code == 0
        assert typed("export", "latest", "-r", repo, "--format", "jsonl", "--output", table).code == 0
        assert typed("import", table, "--format", "jsonl", "-r", other).code == 0
        document = typed("show", "latest", "-r", other, "--json").document
        config = next(one["config"] for one in document["streams"] if one["name"] == "KV_settings")
        assert (config["max_msgs_per_subject"], config["allow_rollup_hdrs"], config["subjects"]) == (
            3,
            True,
            ["$KV.settings.>"],
        )
        assert typed("restore", "latest", "-s", target.url, "-r", other).code == 0
        asyncio.run(use(target.url))


@pytest.mark.nats
@pytest.mark.parametrize("many", [False, True])
def test_messages_that_a_default_configuration_does_not_take_are_noted(typed: Type, tmp_path: Path, many: bool) -> None:
    """They are restored, as real streams have such too: of other keys in a mirror, with transformed subjects."""
    subjects = {
        "KV_b": ["$KV.b.x", "$KV.b.y", "$KV.other.x"],
        "OBJ_b": ["$O.b.C.n", "$O.b.M.eA==", "$O.b..n", "$KV.b.x"],
        "S": ["S", "S"],
        "T": ["T", "t..z", ">", "*"],
    }
    for name, of in subjects.items() if many else [("KV_b", subjects["KV_b"])]:
        (tmp_path / "table" / name).mkdir(parents=True)
        lines = [_line(sequence=number, subject=subject) for number, subject in enumerate(of, 1)]
        (tmp_path / "table" / name / "t.jsonl").write_text("".join(lines))
    line = ("import", tmp_path / "table", "--format", "jsonl", "-r", tmp_path / "repo")
    done = typed(*line)
    default = "has no configuration, so a default one is used"
    notes = [one.split("stream ", 1)[1] for one in done.err.splitlines() if "configuration" in one]
    assert (done.code, notes[0]) == (
        0,
        f"KV_b {default}, for $KV.b.> alone, and 1 of its 3 messages has another subject; see --stream-config",
    )
    assert notes[1:] == many * [
        f"OBJ_b {default}, for $O.b.C.> and $O.b.M.> alone, and 2 of its 4 messages have other subjects; "
        "see --stream-config",
        f"S {default}; see --stream-config",
        f"T {default}, for T alone, and 3 of its 4 messages have other subjects; see --stream-config",
    ]
    if many:
        with NatsServer(NEWEST) as target:
            done = typed("restore", "latest", "-s", target.url, "-r", tmp_path / "repo")
            assert done.code == 0 and done.out.count("verified") == 4, done
