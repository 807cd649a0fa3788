"""DataFrames become backups: the messages that went in come out, with their digests, and failures leave none."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings

from jsbackup.errors import FormatError, KeyUnavailable, UsageError
from jsbackup.model import S3Settings
from jsbackup.pipeline.jobs.write import TableStream, write_backup
from jsbackup.pipeline.messages.backup_frames import open_backup
from jsbackup.pipeline.session.repository_ref import place_of
from jsbackup.repository.checks.verify import Level, verify_backup
from jsbackup.repository.manifest import StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.segments import read_stream
from jsbackup.stores.memory import MemoryStore
from tests.cli.typed import Typed
from tests.harness.backups import store_stream
from tests.harness.batches import Message, message_lists, messages_of, sendable, some_messages
from tests.pipeline.places import Kept, keep, segments_of
from tests.pipeline.test_reading import ODD

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Type = Callable[..., Typed]


def _frame(spark: SparkSession, messages: Sequence[Message]) -> DataFrame:
    schema = "sequence bigint, timestamp_ns bigint, subject string, headers binary, data binary"
    return spark.createDataFrame([tuple(message) for message in reversed(messages)], schema)


def _check(kept: Kept, backup: str, name: str, messages: Sequence[Message]) -> StreamBackup:
    """The stream as it was stored, proved to hold these messages."""
    repository = kept.place.open()
    manifest = repository.manifest(backup)
    assert list(verify_backup(repository.objects, manifest, Level.DATA)) == []
    (stream,) = [one for one in manifest.streams if one.name == name]
    assert messages_of(read_stream(repository.objects, stream)) == list(messages)
    assert stream.digest == store_stream(Objects(MemoryStore()), name, messages).digest
    return stream


@pytest.mark.by_turns
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(message_lists())
def test_random_tables_come_back(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, messages: list[Message]
) -> None:
    kept, messages = keep(tmp_path_factory.mktemp("random"), {}), sendable(messages)
    manifest = write_backup(spark, kept.place, {"S": TableStream(_frame(spark, messages), any_headers=True)})
    _check(kept, manifest.id, "S", messages)


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_a_backup_that_is_read_and_written_again_is_the_same(
    spark: SparkSession, typed: Type, tmp_path: Path, encrypted: bool
) -> None:
    messages = some_messages(400, 2000)
    with segments_of(100_000):  # not one to each message
        kept = keep(tmp_path, {"A": messages, "ODD": sendable(ODD), "EMPTY": []}, encrypted=encrypted)
    more = {} if kept.writer_key is None else {"writer_key": kept.writer_key}
    place = place_of(kept.place.location, S3Settings(), {**dict(kept.place.keys), **more})
    backup = open_backup(spark, place)
    config = {"subjects": ["orders.>"], "name": "ignored", "max_age": 5}
    tables = {name: TableStream(backup.messages([name]), config) for name in ("A", "ODD", "EMPTY")}
    manifest = write_backup(spark, place, tables, tags={"from": "spark"}, origin="a test")
    assert list(verify_backup(place.open().objects, manifest, Level.DATA)) == []
    for name, wanted in (("A", messages), ("ODD", sendable(ODD)), ("EMPTY", [])):
        (stream,) = [one for one in manifest.streams if one.name == name]
        (before,) = [one for one in kept.manifest.streams if one.name == name]
        assert (stream.digest, stream.captured.messages) == (before.digest, len(wanted))
        assert stream.config["subjects"] == ["orders.>"] and stream.config["name"] == name
    line = ["-r", place.location, *[w for k, v in place.keys for w in (f"--{k.replace('_', '-')}", v)]]
    shown = typed("show", manifest.id, *line, "--json").document
    assert (shown["backup"], shown["tags"]) == (manifest.id, {"from": "spark"})
    assert shown["source"]["imported"] == {"from": "a test"}


def test_what_is_no_table_of_messages_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    kept = keep(tmp_path / "plain", {})
    good = _frame(spark, some_messages(50, 10))
    before = kept.repository.backups()
    for frame, kind, said in [
        (good.drop("data"), UsageError, "has no column data"),
        (good.withColumn("sequence", good["subject"]), UsageError, "sequence of stream S is string, not bigint"),
        (
            good.selectExpr("sequence", "timestamp_ns", "nullif(subject, 'orders.3') as subject", "data"),
            UsageError,
            "a message without subject",
        ),
        (good.union(good.limit(1)), FormatError, "sequence"),
        (good.withColumn("sequence", good["sequence"] - 10), FormatError, "sequence"),
    ]:
        with pytest.raises(kind, match=said) as caught:
            write_backup(spark, kept.place, {"S": TableStream(frame)})
        assert caught.value.exit_code == kind.exit_code
    with pytest.raises(UsageError, match="at least one stream"):
        write_backup(spark, kept.place, {})
    sealed = keep(tmp_path / "sealed", {}, encrypted=True)
    with pytest.raises(KeyUnavailable, match="writer key"):
        write_backup(spark, sealed.place, {"S": TableStream(good)})
    assert kept.place.open().backups() == before
    assert write_backup(spark, kept.place, {"S": TableStream(good.drop("headers"))}).streams[0].captured.messages == 50


def test_a_worker_that_dies_is_tried_again_and_stores_nothing_twice(spark: SparkSession, tmp_path: Path) -> None:
    """By its own hand, once: the first attempt of a row ends the process that computes it."""
    from pyspark.sql import functions as F

    kept = keep(tmp_path, {})
    mark = tmp_path / "died"
    messages = some_messages(100, 100)

    def die_once(sequence: int) -> int:
        if sequence == messages[60].sequence:
            try:
                mark.touch(exist_ok=False)
            except FileExistsError:
                return sequence
            os._exit(9)
        return sequence

    dying = F.udf(die_once, "bigint", useArrow=False).asNondeterministic()
    frame = _frame(spark, messages)
    manifest = write_backup(spark, kept.place, {"S": TableStream(frame.withColumn("sequence", dying("sequence")))})
    assert mark.exists()
    _check(kept, manifest.id, "S", messages)
