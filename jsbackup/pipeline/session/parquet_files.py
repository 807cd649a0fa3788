"""Parquet files as DataFrames: all of their rows or an error, whatever the session is set to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession

__all__ = ["whole_files"]

# Sessions of a cluster often have these: spark.sql.files.ignoreCorruptFiles and the like. Then a DataFrame would lack
# the rows of damaged and missing files, and nothing would say so. An option of the reader comes before them.
_WHOLE = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}


def whole_files(session: SparkSession) -> DataFrameReader:
    """Return a reader whose DataFrames fail where a file is damaged or missing."""
    return session.read.options(**_WHOLE)
