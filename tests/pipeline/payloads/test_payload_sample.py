"""Queries and DataFrames say if a given schema is probably not that of the payloads, without reading them all."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import jsbackup
from jsbackup.pipeline.messages.source import BackupSource
from jsbackup.pipeline.payloads.parsing import PayloadParser
from tests.cli.typed import Typed
from tests.harness.batches import Message
from tests.pipeline.payloads.encoded import avro_file, avro_of, protobuf_of, record
from tests.pipeline.places import Kept, keep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

Type = Callable[..., Typed]

PAYLOADS = {
    "ORDERS": [b'{"id": %d, "amount": %d.5}' % (n, n) for n in range(250)],
    "TEXT": [b"text %d" % n for n in range(250)],
    "DELETES": [b""] * 20,
    "EMPTY": [],
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    messages = {
        name: [Message(n, 10**18 + n, "s", None, data) for n, data in enumerate(payloads, 1)]
        for name, payloads in PAYLOADS.items()
    }
    return keep(tmp_path_factory.mktemp("sample"), messages)


NONE_OF_TEXT = "none of the N sampled payloads of TEXT fits the schema"
NO_FIELD = "none of the N sampled payloads of ORDERS has a field of the schema"
# A query, its schema, whether there are payloads in the sample of which view, and whether they fit, the fields that
# none of them has, and what is said.
CASES: list[tuple[str, str | PayloadParser, dict[str, tuple[bool, bool]], tuple[str, ...], tuple[str, ...]]] = [
    ("SELECT payload FROM orders", "id BIGINT", {"ORDERS": (True, True)}, (), ()),
    ("SELECT * FROM orders", "id BIGINT, x INT", {"ORDERS": (True, True)}, ("x",), ()),
    ("SELECT payload.amont FROM orders", "amont DOUBLE", {"ORDERS": (True, True)}, ("amont",), (NO_FIELD,)),
    ("SELECT payload FROM text", "id BIGINT", {"TEXT": (True, False)}, ("id",), (NONE_OF_TEXT,)),
    ("SELECT _corrupt_record FROM text", avro_of(), {"TEXT": (True, False)}, (), (NONE_OF_TEXT,)),
    ("SELECT payload FROM text", protobuf_of(), {"TEXT": (True, False)}, (), (NONE_OF_TEXT,)),
    ("SELECT payload FROM deletes", "id BIGINT", {"DELETES": (False, True)}, ("id",), ()),
    ("SELECT payload FROM empty", "id BIGINT", {"EMPTY": (False, True)}, ("id",), ()),
    ("SELECT count(*) AS n, max(sequence) AS m FROM orders WHERE sequence > 3", "id BIGINT", {}, (), ()),
]


def _without_numbers(text: str) -> str:
    """The number of sampled messages depends on how many segments there are."""
    return re.sub(r"\d+", "N", text)


@pytest.mark.by_turns
def test_python_warns(kept: Kept, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    backup = jsbackup.open(kept.place.location)[kept.manifest.id]
    fits = avro_file(tmp_path, record(("id", "long")))
    with caplog.at_level(logging.WARNING, "jsbackup"):
        assert backup["ORDERS"].spark(spark, json="id BIGINT").where("payload.id > 240").count() == 9
        assert backup.spark(spark, json="id BIGINT").where("payload IS NOT NULL").count() == 250
        backup["DELETES"].spark(spark, json="id BIGINT")
        assert not caplog.messages
        backup["TEXT"].spark(spark, json="id BIGINT")
        backup["TEXT"].spark(spark, avro=fits)
        backup["ORDERS"].spark(spark, json="amont DOUBLE")
    assert list(map(_without_numbers, caplog.messages)) == [
        "payloads: none of the N sampled payloads fits the schema; select _corrupt_record and data to see them",
        "payloads: none of the N sampled payloads fits the schema; select _corrupt_record and data to see them",
        "payloads: none of the N sampled payloads has a field of the schema; select _corrupt_record and data to see "
        "them",
    ]


def test_the_data_source_warns(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "jsbackup"):
        for stream, schema in (("ORDERS", "id BIGINT"), ("DELETES", "id BIGINT"), ("NONE", "id BIGINT")):
            BackupSource({"path": kept.place.location, "stream": stream, "json": schema}).schema()
        assert not caplog.messages
        BackupSource({"path": kept.place.location, "stream": "TEXT", "json": "id BIGINT"}).schema()
    assert len(caplog.messages) == 1 and "sampled payloads fits the schema" in caplog.messages[0]


def test_a_sample_that_cannot_be_read_is_no_obstacle(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    messages = [Message(n, 10**18 + n, "s", None, b"text") for n in range(1, 9)]
    kept = keep(tmp_path / "r", {"TEXT": messages})
    for file in (tmp_path / "r" / "repo" / "segments").rglob("*.parquet"):
        file.write_bytes(file.read_bytes()[:-9])
    with caplog.at_level(logging.WARNING, "jsbackup"):
        BackupSource({"path": kept.place.location, "stream": "TEXT", "json": "id BIGINT"}).schema()
    assert not caplog.messages
