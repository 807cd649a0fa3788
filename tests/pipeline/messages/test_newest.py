"""Sequences of many subjects come to the driver packed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from jsbackup.pipeline.messages.newest import packed_sequences, unpacked_sequences

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


def test_packed_sequences_are_those_of_each_stream(spark: SparkSession) -> None:
    chance = random.Random(7)
    streams = {
        0: [*range(1, 100_001)],
        1: sorted(chance.sample(range(1, 300_000), 60_000)),
        3: sorted(chance.sample(range(1, 1 << 40), 300)),
        4: [1, (1 << 15) - 1, 1 << 15, (1 << 62) - 1],
        5: [*range(32_768, 32_768 + 2047)],  # the most that is not a map of bits
        6: [*range(32_768, 32_768 + 2048)],
    }
    given = [(number, sequence) for number, found in streams.items() for sequence in found]
    chance.shuffle(given)
    numbers, sequences = zip(*given, strict=True)
    table = pa.table({"stream": pa.array(numbers, pa.int32()), "sequence": pa.array(sequences, pa.int64())})
    packed = packed_sequences(spark.createDataFrame(table).repartition(3)).toArrow()
    found = unpacked_sequences(packed)
    assert {number: one.array().to_pylist() for number, one in found.items()} == streams
    assert packed.nbytes < 2 * len(given)
    assert unpacked_sequences(packed.slice(0, 0)) == {}
