"""Schemas of payloads: what is inferred is what Spark infers."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from jsbackup.pipeline.payloads.json_schema import infer_type
from jsbackup.pipeline.payloads.json_spark import to_spark
from jsbackup.pipeline.payloads.json_types import as_ddl, parse_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NUMBERS = [0, -1, (1 << 63) - 1, -(1 << 63), 1 << 63, -(1 << 63) - 1, 10**25, 10**37, 10**38 - 1, 10**38, 10**60]
LEAVES = [*NUMBERS, None, True, False, 0.5, -1e300, "", "text", "2026-11-21T14:02:00Z", "1"]
NAMES = ["a", "b", "C", "", "a b`c", "x:y", "é", "\uffee", "😀", "select", "1"]
CHOSEN: list[list[Any]] = [
    [{}],
    [{"a": {}}],
    [{"a": [{}]}, {"b": 1}],
    [{"a": [[], [1]]}],
    [{"a": 1 << 63}, {"a": 1}],
    [{"a": 1 << 63}, {"a": 0.5}],
    [{"a": {"b": 1}}, {"a": {"b": [1]}}],
    [{"a": {"b": 1}}, {"a": 2}],
    [{"a": {"": 1}}, {"a": None}],
    [{"a": [1, "x", None]}, {"a": [0.5]}],
    [{"a": [1, ""]}, {"b": ""}],
]


def some_value(chance: random.Random, depth: int) -> Any:
    kind = chance.random()
    if depth and kind < 0.2:
        return [some_value(chance, depth - 1) for _ in range(chance.randrange(4))]
    if depth and kind < 0.4:
        return some_object(chance, depth - 1)
    return chance.choice(LEAVES)


def some_object(chance: random.Random, depth: int) -> dict[str, Any]:
    return {name: some_value(chance, depth) for name in chance.sample(NAMES, chance.randrange(5))}


def test_what_is_inferred_is_what_spark_infers(spark: SparkSession) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    samples = [*CHOSEN, *([some_object(chance, 3) for _ in range(chance.randrange(1, 4))] for _ in range(150))]
    options = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
    columns = [F.schema_of_json(F.lit(json.dumps(one, ensure_ascii=False)), options) for one in samples]
    (found,) = spark.range(1).select(*columns).collect()
    for sample, theirs in zip(samples, found, strict=True):
        ours = infer_type(sample)
        assert theirs.startswith("ARRAY<STRUCT<"), theirs
        if ours is None:
            assert theirs == "ARRAY<STRUCT<>>", sample
            continue
        wanted = DataType.fromDDL(theirs.removeprefix("ARRAY<").removesuffix(">"))
        assert to_spark(ours) == wanted, (seed, sample, theirs, ours)
        assert DataType.fromDDL(as_ddl(ours)) == wanted and parse_schema(as_ddl(ours)) == ours


def test_names_that_differ_in_case_stay_two_fields(spark: SparkSession) -> None:
    # Spark drops the second one of these, as it compares objects of as many fields without regard to case. That would
    # lose the values of a field, so it is not followed; `NAMES` has no such pair.
    sample = [{"a": 1}, {"A": 2}]
    theirs = spark.range(1).select(F.schema_of_json(F.lit(json.dumps(sample)))).collect()[0][0]
    assert theirs == "ARRAY<STRUCT<a: BIGINT>>"
    assert infer_type(sample) == pa.struct([("A", pa.int64()), ("a", pa.int64())])
