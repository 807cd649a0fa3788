"""The first rows of groups of any size, without a task that gets all rows of a group."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

__all__ = ["first_of_groups"]

# If no more rows of a group are wanted, Spark only sends the first ones of each task on to where it comes together.
# So `spark.sql.optimizer.windowGroupLimitThreshold` is by default.
_LIMITED = 1000

# Otherwise the first ones of so many parts of each group are found before.
_PARTS = 64


def first_of_groups(
    frame: DataFrame, keys: Sequence[str], order: Sequence[Column], most: int, *, spread_by: str
) -> DataFrame:
    """Return up to `most` rows of each group, the first in that order. Values of the column `spread_by` differ within a
    group: parts of it are made by them. The column `rank` is added.
    """
    groups: list[list[str | Column]] = [[*keys]]
    if most > _LIMITED:
        groups.insert(0, [*keys, F.pmod(F.xxhash64(spread_by), F.lit(_PARTS))])
    for group in groups:
        rank = F.row_number().over(Window.partitionBy(*group).orderBy(*order))
        frame = frame.withColumn("rank", rank).where(F.col("rank") <= most)
    return frame
