"""`spark.read.format("jsbackup")` and SQL, as users type them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import TimestampType

from jsbackup.errors import UsageError
from jsbackup.pipeline.jobs.query import run_spark_query
from jsbackup.pipeline.messages.backup_frames import open_backup
from jsbackup.pipeline.messages.source_options import SourceOptions, options_of, read_options
from jsbackup.pipeline.session.session import attach
from jsbackup.repository.repository import Repository
from tests.harness.backups import FIRST, SECOND, store_stream
from tests.harness.batches import some_messages
from tests.pipeline.places import Kept, keep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAMS = {"A": some_messages(300, 50), "B": some_messages(20, 10, seed=2)}


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return keep(tmp_path / "kept", STREAMS)


@pytest.fixture
def load(spark: SparkSession, kept: Kept) -> Callable[..., DataFrame]:
    """`load(stream="A")`: of this repository."""

    def load_it(path: str | None = kept.place.location, **options: str) -> DataFrame:
        return attach(spark).read.format("jsbackup").options(**options).load(path)

    return load_it


def _add_second(repository: Repository) -> None:
    """A minute later: the stream A with more."""
    manifest = repository.find(FIRST)
    streams = (store_stream(repository.objects, "A", some_messages(310, 50)), manifest.streams[1])
    created = "2026-11-21T01:46:00Z"
    repository.commit(replace(manifest, id=SECOND, created=created, streams=streams, previous=FIRST))


def _fails(doing: Callable[[], object], sentence: str) -> None:
    """It does so with our sentence at the end of what Spark says, and no line of Java."""
    with pytest.raises(PySparkException) as caught:
        doing()
    text = str(caught.value)
    assert re.search(rf"^jsbackup\.errors\.\w+: .*{sentence}", text, re.MULTILINE), text
    assert "\tat " not in text


def test_load_takes_the_path_of_the_repository(load: Callable[..., DataFrame], kept: Kept) -> None:
    assert load().count() == 320
    assert load(stream="A").count() == 300 == load(STREAM="A").count()
    assert load(streams="A, B").count() == 320 == load(streams='["A", "B"]').count()
    frame = load(None, repo=kept.place.location, stream="B", columns="sequence,subject")
    assert frame.columns == ["sequence", "subject"]
    assert sorted(row.sequence for row in frame.collect()) == [message.sequence for message in STREAMS["B"]]
    assert load(f"file://{kept.place.location}").count() == 320
    assert load(f"file:{kept.place.location}", repo=kept.place.location).count() == 320
    narrow = load(stream="A").sparkSession.read.format("jsbackup").schema("subject string, sequence bigint")
    assert narrow.load(kept.place.location).columns == ["subject", "sequence"]


def test_the_backup_is_chosen_when_the_frame_is_made(load: Callable[..., DataFrame], kept: Kept) -> None:
    first = load(stream="A")
    _add_second(kept.repository)
    assert (first.count(), load(stream="A").count()) == (300, 310)
    assert load(backup=FIRST, stream="A").count() == 300 == load(backup="20261121T0145").count() - 20
    for moment in ("2026-11-21T01:45:59Z", "2026-11-21 01:45", "2026-11-21T02:45:30+01:00"):
        assert load(at=moment, stream="A").count() == 300, moment
    for moment in ("2026-11-21T01:46:00Z", "2026-11-22", "0s"):
        assert load(at=moment, stream="A").count() == 310, moment
    _fails(lambda: load(at="2026-11-21T01:44:59Z"), f"no backup was made at .*The first one is {FIRST}")


def test_times_are_moments_whatever_a_session_takes_a_timestamp_for(
    spark: SparkSession, load: Callable[..., DataFrame], tmp_path: Path
) -> None:
    """With TIMESTAMP_NTZ the data source could not be read at all."""
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        assert load(stream="A").schema["time"].dataType == TimestampType()
        assert load(stream="A").select("time").distinct().count() == 300
        encrypted = open_backup(spark, keep(tmp_path / "encrypted", STREAMS, encrypted=True).place)
        assert run_spark_query(encrypted, "SELECT count(DISTINCT time) FROM A", most_rows=1).rows == [(300,)]
    finally:
        spark.conf.unset("spark.sql.timestampType")


def test_sql_reads_a_temporary_view(spark: SparkSession, kept: Kept) -> None:
    attach(spark)
    options = f"OPTIONS (path '{kept.place.location}', stream 'A')"
    try:
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING jsbackup {options}")
        rows = spark.sql("SELECT count(*), min(sequence) FROM orders WHERE subject = 'orders.3'").collect()
        wanted = [message.sequence for message in STREAMS["A"] if message.subject == "orders.3"]
        assert [tuple(row) for row in rows] == [(len(wanted), wanted[0])]
        # Spark would pass no options to it when it is read.
        for where in (options, f"LOCATION '{kept.place.location}'"):
            _fails(
                lambda where=where: spark.sql(f"CREATE TABLE t USING jsbackup {where}"), "cannot be a table.*TEMPORARY"
            )
        spark.sql(f"CREATE TABLE t (sequence bigint) USING jsbackup {options}")
        _fails(lambda: spark.sql("SELECT * FROM t").collect(), "takes the path.*Write CREATE TEMPORARY VIEW")
    finally:
        spark.catalog.dropTempView("orders")
        spark.sql("DROP TABLE IF EXISTS t")


def test_what_is_wrong_is_said_in_a_sentence(
    spark: SparkSession, load: Callable[..., DataFrame], tmp_path: Path, kept: Kept
) -> None:
    sealed = keep(tmp_path / "sealed", {"A": some_messages(3, 10)}, encrypted=True)
    (identity,) = [value for _, value in sealed.place.keys]
    assert load(sealed.place.location, identity=identity).count() == 3
    for doing, sentence in (
        (lambda: load("/nowhere"), "no repository at /nowhere"),
        (
            lambda: load(sealed.place.location),
            "no key that reads them was given. Give the identity with the option 'identity'",
        ),
        (lambda: load(sealed.place.location, identity="/nowhere"), "/nowhere"),
        (lambda: load(backup="2031"), "no backup starts with '2031'"),
        (lambda: load(stream="a").count(), f"backup {FIRST} has no stream a. Did you mean A"),
        (lambda: load(stream="a", backup="latest"), f"backup {FIRST} has no stream a. Did you mean A"),
        (lambda: load(streams="A,X*", at="2031-01-01"), f"backup {FIRST} has no stream X"),
        (lambda: load(streams="[]"), "the option 'streams' is empty. Leave it out"),
        (lambda: load(start="latest").count(), "'start' is for streaming queries, and spark.read reads one backup"),
        (lambda: load(maxMessagesPerTrigger="5").count(), "'maxMessagesPerTrigger' is for streaming queries"),
        (lambda: load(strem="A"), "has no option 'strem'. Did you mean stream"),
        (lambda: load(columns="sequenc"), "no column 'sequenc'"),
        (lambda: load(repo="/elsewhere"), "name two repositories"),
        (lambda: load(None), "takes the path of a repository"),
        (lambda: load("hdfs://x/y"), "no store for locations that start with hdfs"),
        (lambda: load(at="noon"), "'at' is not a time: 'noon'. Give a time"),
        (lambda: load(at="0s", backup="latest"), "'backup' and 'at' exclude each other. 'at' chooses"),
        (
            lambda: attach(spark).sql(
                f"CREATE TEMPORARY VIEW both USING jsbackup OPTIONS (path '{kept.place.location}', at '0s', "
                "backup 'latest')"
            ),
            "'backup' and 'at' exclude each other",
        ),
    ):
        _fails(doing, sentence)
    reader = attach(spark).read.format("jsbackup").schema("sequence string")
    _fails(lambda: reader.load(kept.place.location).count(), "the column sequence has the type bigint, not string")


def test_options_are_those_of_the_command_line(tmp_path: Path) -> None:
    here = {"path": str(tmp_path)}
    found = read_options({**here, "pass-phrase_FILE": "key", "maxbytespertrigger": "8MiB", "cores": "12"})
    assert (found.place.keys, found.most_bytes, found.cores) == (
        (("passphrase_file", str(Path("key").absolute())),),
        8 << 20,
        12,
    )
    s3 = read_options({"path": "s3a://bucket/x", "s3-endpoint": "http://h:1", "s3_path_style": "yes"}).place
    assert (s3.location, s3.s3.endpoint, s3.s3.path_style) == ("s3://bucket/x", "http://h:1", True)
    assert read_options(options_of(s3)).place == s3
    assert read_options(here) == SourceOptions(place=found.place.__class__(str(tmp_path)))
    for wrong, sentence in (
        ({"backup": FIRST, "at": "1h"}, "exclude each other"),
        ({"Backup": "latest", "AT": "1h"}, "exclude each other"),
        ({"stream": "A", "streams": "B"}, "exclude each other"),
        ({"streams": "[1]"}, "neither names"),
        ({"streams": "[]"}, "'streams' is empty"),
        ({"streams": " , "}, "'streams' is empty"),
        ({"streams": '[""]'}, "'streams' is empty"),
        ({"cores": "many"}, "'cores' is not a number"),
        ({"cores": "-1"}, "'cores' is not a number from 0 to 999999: '-1'"),
        ({"maxMessagesPerTrigger": "0"}, "is 0"),
        ({"maxBytesPerTrigger": "much"}, "'maxBytesPerTrigger': not a size"),
        ({"start": "now"}, "neither earliest nor latest"),
        ({"paths": "[]"}, "reads one repository"),
        ({"option.path": "/x", "location": "/y"}, "cannot be a table"),
        ({"owner": "root"}, "cannot be a table"),
    ):
        with pytest.raises(UsageError, match=sentence):
            read_options({**here, **wrong})
