"""`stats` and `export` in this process and on Spark, on random backups: the same."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jsbackup.pipeline.tables import export
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.repository import Repository
from jsbackup.times import format_time
from tests.cli.test_json import check
from tests.cli.typed import Typed, in_shell
from tests.harness import backups
from tests.harness.backups import SECOND, store_stream
from tests.harness.batches import Message, messages_of
from tests.harness.commands import environment
from tests.harness.s3server import BUCKET, REGION, S3Server
from tests.pipeline.places import Kept, keep, segments_of

Type = Callable[..., Typed]

ON_SPARK = ["--spark", "local[2]"]
_SEGMENT_BYTES = 8000  # some segments to a stream


def _random_messages(chance: random.Random, count: int) -> list[Message]:
    """Few and many subjects, some not UTF-8; headers with several values, without text, or none; times that step."""
    subjects: list[str | bytes] = [f"a.{n}" for n in range(chance.choice([1, 5, 400]))]
    subjects += chance.choice([[], [b"\xff\xfe.x", b"\xff\xfd.x"], ["ü.ö", "日本", "a b\n"]])
    ids = chance.choice([3, 10_000])
    found, sequence, now = [], 0, chance.choice([-(10**12), 10**18])
    for _ in range(count):
        sequence += chance.choice([1, 1, 1, 7])
        now += chance.choice([1, 10**3, 10**9, -(10**6)])
        name = chance.choice(["Nats-Msg-Id", "nats-msg-ID", "NATS-MSG-ID", "Other"])
        value = chance.choice(["", "  ", " x\t", "é", "a:b"]) + str(chance.randrange(ids))
        block = f"NATS/1.0\r\n{name}:{value}\r\nX: 1\r\nX: 2\r\nNats-Msg-Id: later\r\n\r\n".encode()
        headers = chance.choice(
            [None, None, b"", b"NATS/1.0\r\n\r\n", block, block, block.replace(b"X: 1", b"\xff: \xfe")]
        )
        data = chance.randbytes(chance.choice([0, 1, 20, 130, 3000]))
        found.append(Message(sequence, now, chance.choice(subjects), headers, data))
    return found


def _random_streams(seed: int) -> dict[str, list[Message]]:
    chance = random.Random(seed)
    streams = {f"S{number}": _random_messages(chance, chance.choice([1, 30, 240])) for number in range(4)}
    return streams | {"EMPTY": [], "KV_odd%x": _random_messages(chance, 9), "OBJ_x": _random_messages(chance, 60)}


def _two_backups(folder: Path, seed: int, *, encrypted: bool) -> Kept:
    """The second is an increment: of segments of the first, and new ones."""
    streams = _random_streams(seed)
    with segments_of(_SEGMENT_BYTES):
        kept = keep(folder, streams, encrypted=encrypted)
    more = _random_messages(random.Random(seed + 1), 50)
    last = max((m.sequence for m in streams["S0"]), default=0)
    added = [m._replace(sequence=m.sequence + last) for m in more]
    repository: Repository = kept.repository
    with segments_of(_SEGMENT_BYTES):
        grown = store_stream(repository.objects, "S0", [*streams["S0"], *added])
    manifest: Manifest = replace(
        kept.manifest,
        id=SECOND,
        created="2026-11-21T01:46:00Z",
        streams=tuple(grown if stream.name == "S0" else stream for stream in kept.manifest.streams),
    )
    repository.commit(manifest)
    return replace(kept, manifest=manifest)


# --- the commands ---


def _both(typed: Type, *line: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The documents of a command without Spark, and on Spark."""
    here, there = (typed(*line, "--json", *spark) for spark in ([], ON_SPARK))
    assert (here.code, there.code) == (0, 0), (here, there)
    return here.document, there.document


def _files(folder: Path) -> dict[str, bytes]:
    """What is in a folder, without names of the run in the names of files, and without logs of tables."""
    paths = {path: str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {
        re.sub(r"-[0-9a-f]{8}\.parquet$", ".parquet", name): path.read_bytes()
        for path, name in paths.items()
        if "_delta_log" not in name and "_jsbackup.d" not in name
    }


@pytest.mark.by_turns
@pytest.mark.parametrize("kind", ["parquet", "jsonl", "delta"])
def test_filtered_tables_are_those_of_spark_and_of_the_rule(
    spark: object, typed: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    kept = _two_backups(tmp_path / "kept", 8, encrypted=False)
    monkeypatch.setattr(export, "SEGMENT_BYTES", 5000)
    monkeypatch.setattr("jsbackup.pipeline.tasks.packing._LEAST_BYTES", 1)
    words = ["--header", "nats-msg-id", "--exclude-subject", "a.0", "--last-per-subject", "2", "--renumber"]
    words += ["--rename", "*=N*", "--allow-nothing"]
    found = []
    for use, spark in (("here", []), ("there", ON_SPARK)):
        line = ["export", "latest", "S*", *kept.line, *words, "--format", kind, "--output", tmp_path / use]
        found.append((check("export", typed(*line, "--json", *spark)), _files(tmp_path / use)))
    assert found[0] == found[1]
    expected = {stream.name: _kept_of(kept, stream.name) for stream in kept.manifest.streams if stream.name[0] == "S"}
    assert {one["name"]: one["messages"] for one in found[0][0]["streams"]} == {
        f"N{name}": len(messages) for name, messages in expected.items()
    }
    assert sum(map(len, expected.values())) > 20
    if kind == "jsonl":
        for name, messages in expected.items():
            files = sorted((tmp_path / "here" / f"N{name}").rglob("*.jsonl"))
            rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
            assert [row["sequence"] for row in rows] == list(range(1, len(messages) + 1))
            assert [row.get("time") for row in rows] == [format_time(one.timestamp_ns) for one in messages]


def _kept_of(kept: Kept, name: str) -> list[Message]:
    entry = next(one for one in kept.manifest.streams if one.name == name)
    reader = SegmentReader(kept.repository.objects)
    whole = messages_of(batch for ref in entry.segments for batch in reader.read(ref))
    among = [m for m in whole if b"nats-msg-id:" in (m.headers or b"").lower() and m.subject not in ("a.0", b"a.0")]
    last = {m.subject: [n for n in among if n.subject == m.subject][-2:] for m in among}
    return [m for m in among if m in last[m.subject]]


@pytest.mark.by_turns
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_commands_print_and_write_the_same(
    typed: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encrypted: bool
) -> None:
    kept = _two_backups(tmp_path / "kept", 7, encrypted=encrypted)
    monkeypatch.setattr(export, "SEGMENT_BYTES", 5000)  # in this process; Spark gets the same files to write
    # Subjects that are not UTF-8 look different in the two.
    texts = [
        name for name, found in _random_streams(7).items() if not any(isinstance(one.subject, bytes) for one in found)
    ]
    assert "EMPTY" in texts and len(texts) > 3
    for most in ("0", "4", "10000"):
        mine, theirs = _both(typed, "stats", "latest", *texts, *kept.line, "--subjects", most, "--duplicates")
        assert len(mine["streams"]) == len(theirs["streams"]) == len(texts)
        for one, other in zip(mine["streams"], theirs["streams"], strict=True):
            assert one == other
            assert len(one["subjects"]) == min(int(most), one["subject_count"])
    for kind in ("parquet", "jsonl", "delta"):
        line = ["export", "latest", *kept.line, "--format", kind, "--output"]
        found = []
        for use, spark in (("here", []), ("there", ON_SPARK)):
            done = typed(*line, tmp_path / use, "--json", *spark)
            assert done.code == 0, done
            found.append((check("export", done), _files(tmp_path / use)))
            shutil.rmtree(tmp_path / use)
        assert found[0] == found[1] and len(found[0][1]) > 8


@pytest.mark.by_turns
@pytest.mark.s3
def test_from_s3_to_s3_without_spark(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process in which Spark is not installed."""
    kept = _two_backups(tmp_path / "kept", 11, encrypted=False)
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "pyspark.py").write_text("raise ImportError('not here')")
    environ = {**s3_server.credentials(), "PYTHONPATH": str(bare)}
    s3 = ["--s3-endpoint", s3_server.url, "--s3-region", REGION]
    place = f"s3://{BUCKET}/direct"
    to = ["--to-s3-endpoint", s3_server.url, "--to-s3-region", REGION]
    done = in_shell("copy", "--to-repo", place, "-r", kept.place.location, *to, **environ)
    assert done.code == 0, done
    counted = in_shell("stats", "latest", "-r", place, *s3, "--json", cold=True, **environ)
    assert counted.code == 0, counted
    local = in_shell("stats", "latest", *kept.line, "--json", cold=True, **environ)
    assert counted.document["streams"] == local.document["streams"]
    line = ["export", "latest", "-r", place, *s3, "--format", "parquet", "--output", f"s3://{BUCKET}/tables-direct"]
    written = in_shell(*line, "--json", cold=True, **environ)
    assert written.code == 0 and written.document["rows"] == sum(s.captured.messages for s in kept.manifest.streams)
    keys = s3_server.keys("tables-direct/")
    logs = [key for key in keys if "/_jsbackup.d/" in key]
    assert len(keys) == written.document["files"] + len(logs) and logs


def test_wrong_options_are_one_sentence(tmp_path: Path) -> None:
    kept = keep(tmp_path / "kept", {"S": []})
    for line, said in (
        (["stats", "latest", "--spark", "newer"], "not a place of Spark: 'newer'"),
        (["stats", "latest", *ON_SPARK, "--spark-conf", "x"], "not a setting of Spark: 'x'"),
        (["stats", "latest", "--spark-conf", "spark.a=b"], "--spark-conf makes sense with --spark only"),
        (
            ["export", "latest", "--format", "config", "--output", str(tmp_path / "o"), *ON_SPARK],
            "options of Spark make sense for tables only",
        ),
    ):
        done = in_shell(*line, *kept.line)
        assert (done.code, done.out) == (2, "") and said in done.err, done
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "delta"])
def test_a_damaged_segment_is_named_and_nothing_is_left(tmp_path: Path, kind: str) -> None:
    kept = keep(tmp_path / "r", {"A": _random_messages(random.Random(1), 200)})
    key = kept.manifest.streams[0].segments[2].key
    path = Path(kept.place.location) / key
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[::-1])
    done = in_shell("export", "latest", *kept.line, "--format", kind, "--output", str(tmp_path / "out"))
    assert done.code == 14 and key in done.err, done
    done = in_shell("stats", "latest", *kept.line)
    assert done.code == 14 and key in done.err, done
    assert [one.name for one in tmp_path.iterdir()] == ["r"]


@pytest.mark.by_turns
@pytest.mark.slow
def test_memory_does_not_grow_with_the_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of messages that cannot be compressed, each with a subject of its own."""
    monkeypatch.setattr(backups, "SEGMENT_BYTES", 32 << 20)
    chance = random.Random(1)
    messages = [Message(n, 10**18 + n, f"s.{n}", None, chance.randbytes(1500)) for n in range(1, 130_000)]
    kept = keep(tmp_path, {"S": messages})
    assert len(kept.manifest.streams[0].segments) > 5
    code = (
        "import re, sys; from jsbackup.cli.main import main\n"
        "try: main()\n"
        "finally: print('peak', re.findall(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[0])"
    )
    for line in (
        ["stats", "latest", "--duplicates"],
        ["export", "latest", "--format", "parquet", "--output", str(tmp_path / "parquet")],
        ["export", "latest", "--format", "jsonl", "--output", str(tmp_path / "jsonl")],
    ):
        words = [sys.executable, "-c", code, *line, *kept.line]
        done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=True, env=environment())
        peak = int(done.stdout.split()[-1]) >> 10
        sys.stdout.write(f"{' '.join(line[:4])}: peak {peak} MiB\n")  # shown by -s
        assert peak < 350, line
