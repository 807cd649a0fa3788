"""Backups and restores spread over executors: what comes of them is what one machine makes of the same streams.

On a cluster: `test_cluster.py`.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jsbackup import errors
from jsbackup.engine.backup import worker_share
from jsbackup.engine.read.increment import UNCHANGED
from jsbackup.errors import ApiError, JsBackupError, StoreError
from jsbackup.pipeline.session.repository_ref import opened_same
from jsbackup.pipeline.tasks.fan_out import packed
from jsbackup.pipeline.tasks.separate_jobs import run_apart
from jsbackup.repository import layout
from jsbackup.stores.local import LocalStore
from tests.cli.test_json import check
from tests.cli.typed import Typed, in_shell
from tests.harness.api import JSON, call, connected
from tests.harness.commands import jsbackup
from tests.harness.oracle import compare
from tests.harness.servers import NEWEST, NatsServer
from tests.integration.witness import seen
from tests.pipeline.places import keep
from tests.pipeline.streams import account, digests, make_streams

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Type = Callable[..., Typed]

PASSWORD = "hunter2-s3cr3t"
DENIED = "S007"


# --- without Spark ---


def test_small_streams_share_tasks_and_large_ones_come_first() -> None:
    sizes = {f"S{number}": 1000 for number in range(10_000)} | {"LARGE": 50 << 30, "MIDDLE": 200 << 20}
    parts = packed(sizes)
    assert parts[:2] == [["LARGE"], ["MIDDLE"]]
    assert sorted(name for part in parts for name in part) == sorted(sizes)
    assert len(parts) < 100
    assert len(packed({f"S{number}": 0 for number in range(200)})) > 8  # enough for some cores


@pytest.mark.parametrize("kind", [getattr(errors, name) for name in errors.__all__])
def test_errors_come_back_as_they_were(kind: type[JsBackupError]) -> None:
    made: JsBackupError
    match kind:
        case errors.ApiError:
            made = ApiError("no", code=500, err_code=10005, hint="Wait.")
        case errors.TransferError | errors.SnapshotBusy:
            made = kind("broken", retry=False)  # type: ignore[call-arg]
        case errors.NoFolder:
            made = errors.NoFolder("/srv", "not a folder")
        case errors.StoreError:
            made = StoreError("away", temporary=True, retry_after_seconds=2.5)
        case errors.ObjectNotFound | errors.ObjectExists | errors.ObjectLocked:
            made = kind("segments/x")
        case errors.UnknownArchiveFormat:
            made = errors.UnknownArchiveFormat(b"prefix")
        case _:
            made = kind("what", hint="Do this.")
    back = pickle.loads(pickle.dumps(made))
    assert (type(back), vars(back), back.args, str(back)) == (type(made), vars(made), made.args, str(made))


def test_another_repository_at_the_same_place_is_refused(tmp_path: Path) -> None:
    kept = keep(tmp_path, {})
    assert opened_same(kept.place, "00ff").descriptor.id == "00ff"
    with pytest.raises(StoreError, match="another repository"):
        opened_same(kept.place, "11ee")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["backup", "--user", "u", "--password", PASSWORD], "--password holds a secret"),
        (["backup", "-s", f"nats://u:{PASSWORD}@127.0.0.1:1"], "--server holds a secret"),
        (["restore", "latest", "--token", PASSWORD], "--token holds a secret"),
        (["restore", "--runbook", "x.toml"], "--spark makes no sense with --runbook"),
        (["backup", "-r", "memory:"], "a repository in memory would be gone"),
    ],
)
def test_what_executors_cannot_have_is_refused_in_a_sentence(tmp_path: Path, line: list[str], said: str) -> None:
    done = in_shell(*line, *([] if "-r" in line else ["-r", tmp_path / "repo"]), "--spark", "local[2]")
    assert (done.code, done.out) == (2, "") and said in done.err and PASSWORD not in done.err
    assert list(tmp_path.iterdir()) == []


# --- with Spark ---


def test_a_task_that_spark_gives_up_takes_no_other_with_it(spark: SparkSession) -> None:
    taken: dict[str, object] = {}

    def make(part: Sequence[str], _again: bool) -> Callable[[], object]:
        return partial(int, "x") if "bad" in part else partial(list, part)

    def take(part: Sequence[str], result: object) -> None:
        taken.update(dict.fromkeys(part, result))

    run_apart(spark, "the test", [["a", "bad"], ["b", "c"]], make, take=take)
    assert (taken["a"], taken["b"], taken["c"]) == (["a"], ["b", "c"], ["b", "c"])
    assert isinstance(taken["bad"], JsBackupError) and "the test failed on an executor" in taken["bad"].message


async def _make(url: str) -> None:
    await make_streams(url, 40, messages=10, size_bytes=100)
    async with connected(url) as nc:
        mirror: JSON = {"name": "AMIRROR", "mirror": {"name": "S003"}, "storage": "file", "retention": "limits"}
        await call(nc, "STREAM.CREATE.AMIRROR", mirror | {"num_replicas": 1})
        consumer = {"stream_name": "S001", "config": {"durable_name": "some", "ack_policy": "explicit"}}
        await call(nc, "CONSUMER.DURABLE.CREATE.S001.some", consumer)
        async with asyncio.timeout(60):
            while (await call(nc, "STREAM.INFO.AMIRROR"))["state"]["messages"] < 10:
                await asyncio.sleep(0.01)


async def _delete(url: str, stream: str, sequences: Sequence[int]) -> None:
    async with connected(url) as nc:
        for sequence in sequences:
            await call(nc, f"STREAM.MSG.DELETE.{stream}", {"seq": sequence})


@pytest.fixture(scope="module")
def source() -> Iterator[NatsServer]:
    with NatsServer(NEWEST, config=account(PASSWORD, denied=DENIED)) as server:
        asyncio.run(_make(server.url.replace("://", f"://all:{PASSWORD}@")))
        yield server


@pytest.mark.by_turns
@pytest.mark.nats
def test_a_spread_backup_is_what_one_machine_makes_and_is_restored(
    spark: SparkSession, source: NatsServer, nats_server: Callable[..., NatsServer], tmp_path: Path, typed: Type
) -> None:
    (tmp_path / "password").write_text(PASSWORD)
    login = ["-s", source.url, "--user", "some", "--password", f"file://{tmp_path}/password"]
    by_spark = ["--spark", "local[2]"]
    spread = check("backup", typed("backup", *login, "-r", tmp_path / "spread", *by_spark, "--json"))
    assert spread["result"] == "partial" and [one["name"] for one in spread["skipped"]] == [DENIED]
    assert "SNAPSHOT" in spread["skipped"][0]["reason"]
    alone = jsbackup("backup", *login, "-r", tmp_path / "alone")
    assert alone.code == 3 and spread["skipped"] == alone.document["skipped"]
    assert digests(spread) == digests(alone.document) and len(digests(spread)) == 40
    objects = [[info.key for info in LocalStore(tmp_path / name).list("segments/")] for name in ("spread", "alone")]
    assert objects[0] == objects[1]
    assert not list(LocalStore(tmp_path / "spread").list("receipts/"))
    jsbackup("verify", "-r", tmp_path / "spread", "--level", "data").ok()
    assert typed("backup", *login, "-r", tmp_path / "spread", *by_spark, "--quiet").code == 3

    target = nats_server(NEWEST)
    line = ["-r", tmp_path / "spread", "-s", target.url]
    assert jsbackup("plan", "latest", *line, "-o", tmp_path / "plan").code == 3  # it lacks a stream
    restored = check(
        "restore", typed("restore", "--plan", tmp_path / "plan", *line, *by_spark, "--jobs", "2", "--json")
    )
    assert restored["failed"] == [] and all(stream["verified"] for stream in restored["streams"])
    assert digests(restored) == digests(spread)
    held = seen(source.url.replace("://", f"://all:{PASSWORD}@"))
    del held[DENIED]
    assert compare(held, seen(target.url)) == []

    conflict = typed("restore", "latest", *line, *by_spark)
    assert (conflict.code, conflict.out) == (16, "") and "nothing was restored" in conflict.err
    (segment,) = (tmp_path / "spread" / "segments").glob("S005-*/*")
    segment.unlink()
    replacing = ["restore", "latest", "S005", "S006", *line, "--if-exists", "replace", *by_spark, "--json"]
    lost = typed(*replacing)
    assert lost.code == 14 and "nothing was restored: stream S005: object" in lost.document["error"]["message"]
    left = typed(*replacing, "--partial", "--replace-with-part")
    assert left.code == 3 and {one["name"]: len(one["lost"]) for one in check("restore", left)["streams"]} == {
        "S005": 1,
        "S006": 0,
    }
    now = seen(target.url)
    assert len(now["S005"].messages) == 0 and len(now["S006"].messages) == 10 and len(now) == 40


@pytest.mark.by_turns
@pytest.mark.nats
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_a_huge_stream_is_read_in_ranges_by_executors(
    encrypted: bool,
    spark: SparkSession,
    nats_server: Callable[..., NatsServer],
    tmp_path: Path,
    typed: Type,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = nats_server(NEWEST)
    asyncio.run(make_streams(server.url, 2, messages=3000, size_bytes=1000))
    asyncio.run(_delete(server.url, "S001", (1, 900, 901, 2999)))
    kept = keep(tmp_path, {}, encrypted=encrypted)
    writer = ["--writer-key", kept.writer_key] if encrypted else []
    line = ["backup", "-s", server.url, "-r", kept.place.location, *writer, "--spark", "local", "--json"]
    for name, value in (("_LEAST_STREAM_BYTES", 1), ("_LEAST_BYTES", 300_000), ("_MOST_BYTES", 300_000)):
        monkeypatch.setattr(worker_share, name, value)
    few = check("backup", typed(*line, "S000"))  # two cores are too few for it to pay
    assert [one["read"]["how"] for one in few["streams"]] == ["snapshot"]
    monkeypatch.setattr(worker_share, "_is_faster", lambda *_: True)
    done = check("backup", typed(*line, "--incremental", "never"))
    assert (done["result"], done["skipped"], done["notes"]) == ("complete", [], [])
    for stream in done["streams"]:
        assert stream["read"]["how"] == "messages" and stream["read"]["why"].startswith("in 10 ranges at once; ")
    alone = jsbackup("backup", "-s", server.url, "-r", tmp_path / "alone").ok()
    assert digests(done) == digests(alone.document) and len(digests(done)) == 2
    keys = kept.line[2:]
    jsbackup("verify", "latest", "-r", kept.place.location, *keys, "--level", "data").ok()
    again = check("backup", typed(*line))
    assert {stream["read"]["why"] for stream in again["streams"]} == {UNCHANGED}
    target = nats_server(NEWEST)
    jsbackup("restore", "latest", "-r", kept.place.location, *keys, "-s", target.url).ok()
    assert compare(seen(server.url), seen(target.url)) == []


@pytest.mark.nats
def test_executors_restore_masked_streams_and_configs_of_an_encrypted_repository(
    source: NatsServer, nats_server: Callable[..., NatsServer], tmp_path: Path, typed: Type
) -> None:
    (tmp_path / "password").write_text(PASSWORD)
    (tmp_path / "key").write_text("0123456789abcdef0123456789abcdef")
    kept = keep(tmp_path, {}, encrypted=True)
    login = ["-s", source.url, "--user", "all", "--password", f"file://{tmp_path}/password"]
    writer, by_spark = ["--writer-key", kept.writer_key], ["--spark", "local[2]"]
    stored = check("backup", typed("backup", "S00*", *login, *kept.line, *writer, *by_spark, "--json"))
    assert (stored["skipped"], len(digests(stored))) == ([], 10)
    assert not list(kept.repository.store.list(layout.LOCKS))

    spread, alone = nats_server(NEWEST), nats_server(NEWEST)
    mask = ["--mask", "S001.*:$.secret=hash", "--mask-key-file", tmp_path / "key"]
    line = ["restore", "latest", "S001", *kept.line, *mask, "--json"]
    restored = check("restore", typed(*line, "-s", spread.url, *by_spark))
    (stream,) = restored["streams"]
    assert stream["verified"] and [consumer["name"] for consumer in stream["consumers"]] == ["some"]
    assert digests(restored) == digests(jsbackup(*line, "-s", alone.url).document) != {"S001": digests(stored)["S001"]}
    configs = check(
        "backup", typed("backup", "S002", "--config-only", *login, *kept.line, *writer, *by_spark, "--json")
    )
    bare = check("restore", typed("restore", configs["backup"], *kept.line, "-s", alone.url, *by_spark, "--json"))
    assert [(empty["name"], empty["messages"]) for empty in bare["streams"]] == [("S002", 0)]
