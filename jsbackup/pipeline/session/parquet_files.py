"""Parquet files as DataFrames: all of their rows or an error, whatever the session is set to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from jsbackup.errors import IntegrityError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

__all__ = ["read_segments", "whole_files"]

# Sessions of a cluster often have these: spark.sql.files.ignoreCorruptFiles and the like. Then a DataFrame would lack
# the rows of damaged and missing files, and nothing would say so. An option of the reader comes before them.
_WHOLE = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}


def whole_files(session: SparkSession) -> DataFrameReader:
    """Return a reader that fails where a file is damaged or missing."""
    return session.read.options(**_WHOLE)


def read_segments(session: SparkSession, folder: str, keys: Sequence[str], schema: str) -> DataFrame:
    """Return the rows of segments in a folder, with the columns of a schema in Spark's syntax.

    Raises:
        IntegrityError: a segment is missing. Others that cannot be read are noticed by what reads the DataFrame.
        AnalysisException: Spark cannot read the folder at all.
    """
    try:
        return whole_files(session).schema(schema).parquet(*(f"file:{folder}/{key}" for key in keys))
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        missing = next((key for key in keys if key in str(error)), "of a segment")
        raise IntegrityError(f"object {missing} is missing", hint="See 'jsbackup verify'.") from error
