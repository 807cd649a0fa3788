"""Messages as rows of Spark: as plain Python has them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jsbackup.errors import JsBackupError, KeyUnavailable, RepositoryNotFound, UnsupportedError, UsageError
from jsbackup.model import S3Settings
from jsbackup.pipeline.messages.backup_frames import open_backup
from jsbackup.pipeline.session.failures import spark_errors
from jsbackup.pipeline.session.repository_ref import RepositoryRef, place_of
from tests.harness.backups import FIRST
from tests.harness.batches import Message, message_lists, some_messages
from tests.harness.s3server import BUCKET, REGION, S3Server
from tests.pipeline.places import keep, segments_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WIDE = "注文-événements"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

ODD = [
    Message(1, -1, "before.1970", b"NATS/1.0\r\nA: b\r\n\r\n", b"\x00\xff"),
    Message(5, 0, "", None, b""),
    Message(6, 999, "ünï.ços", b"", b"{}"),
    Message(1 << 40, 1_234_567_890_123_456_789, b"not.utf8.\xff", None, b"x" * 3000),
]


def row_of(stream: str, message: Message) -> tuple[object, ...]:
    """A message as a row, by plain Python."""
    subject = message.subject if isinstance(message.subject, str) else message.subject.decode(errors="replace")
    time = (_EPOCH + timedelta(microseconds=message.timestamp_ns // 1000)).replace(tzinfo=None)
    headers = message.headers
    return (stream, message.sequence, message.timestamp_ns, time, subject, headers, message.data, FIRST)


def rows_of(streams: dict[str, list[Message]]) -> list[tuple[object, ...]]:
    return [row_of(name, message) for name, messages in sorted(streams.items()) for message in messages]


def collect(frame: DataFrame) -> list[tuple[Any, ...]]:
    rows = [tuple(row) for row in frame.collect()]
    return sorted(
        [tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in rows], key=lambda r: (r[0], r[1])
    )


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark gives times in the zone of the process."""
    monkeypatch.setenv("TZ", "UTC")


@pytest.mark.by_turns
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_all_messages_of_all_streams_come(spark: SparkSession, tmp_path: Path, encrypted: bool) -> None:
    streams = {"ODD": ODD, WIDE: some_messages(300, 50), "LATER": some_messages(50, 10, first=1 << 33), "EMPTY": []}
    kept = keep(tmp_path, streams, encrypted=encrypted, opaque=True)
    backup = open_backup(spark, kept.place)
    assert collect(backup.messages()) == sorted(rows_of(streams), key=lambda row: (str(row[0]), row[1]))
    assert collect(backup.messages(["ODD"])) == rows_of({"ODD": ODD})
    assert backup.messages(["EMPTY"]).count() == 0
    assert backup.messages(["E*", "ODD"], ["subject", "time"]).columns == ["subject", "time"]
    assert backup.messages().count() == sum(map(len, streams.values()))


@pytest.mark.by_turns
@pytest.mark.s3
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_a_repository_in_s3_is_read(
    spark: SparkSession, s3_server: S3Server, tmp_path: Path, encrypted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.credentials().items():
        monkeypatch.setenv(name, value)
    streams = {"A": some_messages(100, 50), "B": ODD}
    s3 = S3Settings(endpoint=s3_server.url, region=REGION)
    kept = keep(tmp_path, streams, encrypted=encrypted, s3=s3, location=f"s3://{BUCKET}/spark-{encrypted}")
    backup = open_backup(spark, kept.place)
    assert collect(backup.messages()) == rows_of(streams)
    frame = backup.messages(["A"])
    wanted = [row for row in rows_of({"A": streams["A"]}) if row[4] == "orders.3"]
    assert collect(frame.where("subject = 'orders.3'")) == wanted


@pytest.mark.by_turns
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(message_lists(binary=True, max_size=60), min_size=1, max_size=3), st.booleans())
def test_random_streams_come_as_they_are(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    streams: list[list[Message]],
    encrypted: bool,
) -> None:
    named = {f"S{number}": messages for number, messages in enumerate(streams)}
    kept = keep(tmp_path_factory.mktemp("random"), named, encrypted=encrypted)
    backup = open_backup(spark, kept.place)
    assert collect(backup.messages()) == rows_of(named)


_CONDITIONS: Sequence[str] = (
    "sequence > 100 and sequence <= 300",
    "sequence in (7, 8, 2000)",
    "subject = 'orders.3'",
    "subject like 'orders.%' and subject != 'orders.1'",
    "subject in ('orders.2', 'nothing') and timestamp_ns < 1000000000000100000",
    "time >= timestamp'2001-09-09 01:46:40.000100Z' and time < timestamp'2001-09-09 01:46:40.000101Z'",
    "time = timestamp'2001-09-09 01:46:40.000007Z' or sequence = 5",
    "stream = 'B' and 'orders.6' <= subject",
    "headers is null and sequence between 50 and 60",
    "sequence = -1",
)


@pytest.mark.by_turns
def test_filters_find_the_same_in_many_segments(spark: SparkSession, tmp_path: Path) -> None:
    streams = {"A": some_messages(400, 100), "B": some_messages(200, 10, seed=2)}
    with segments_of(6000):  # enough to leave some out
        backup = open_backup(spark, keep(tmp_path / "parts", streams).place)
    whole = open_backup(spark, keep(tmp_path / "whole", streams).place)
    for condition in _CONDITIONS:
        found = [collect(frames.messages().where(condition)) for frames in (backup, whole)]
        assert found[0] == found[1], condition
        assert found[0] or condition == "sequence = -1"


def test_sql_finds_the_data_source_by_its_name(spark: SparkSession, tmp_path: Path) -> None:
    kept = keep(tmp_path, {"A": some_messages(20, 10)}, encrypted=True)
    open_backup(spark, kept.place)
    (identity,) = [value for _, value in kept.place.keys]
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW a USING jsbackup OPTIONS (repo '{kept.place.location}', "
        f"stream 'A', identity '{identity}')"
    )
    assert spark.sql("SELECT count(*) FROM a").first() == (20,)
    spark.catalog.dropTempView("a")


def test_what_cannot_be_read_is_said_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    kept = keep(tmp_path, {"A": ODD}, encrypted=True, opaque=True)
    backup = open_backup(spark, kept.place)
    with pytest.raises(UsageError, match="has no stream NOPE"):
        backup.messages(["NOPE"])
    with pytest.raises(UsageError, match="no column 'nope'"):
        backup.messages(columns=["nope"])
    with pytest.raises(UnsupportedError, match="VERBATIM is of an archive format"):
        backup.messages(["VERBATIM"])
    with pytest.raises(UsageError, match="no backup starts with '2031'"):
        open_backup(spark, kept.place, "2031")
    with pytest.raises(KeyUnavailable):
        open_backup(spark, RepositoryRef(kept.place.location))
    with pytest.raises(RepositoryNotFound):
        open_backup(spark, RepositoryRef(str(tmp_path / "nowhere")))
    with pytest.raises(UsageError, match="a repository in memory"):
        place_of("memory:", S3Settings(), {})


def test_damage_is_named_by_whoever_notices(spark: SparkSession, tmp_path: Path) -> None:
    kept = keep(tmp_path, {"A": some_messages(40, 100)})
    key = kept.manifest.streams[0].segments[1].key
    path = Path(kept.place.location) / key
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1])
    backup = open_backup(spark, kept.place)
    with pytest.raises(JsBackupError, match=key) as caught, spark_errors("the query"):
        backup.messages().collect()
    assert caught.value.exit_code == 14
