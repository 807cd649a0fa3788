"""Read the results of tasks by one of our data sources."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrameReader, SparkSession

from jsbackup.pipeline.session.data_sources import register
from jsbackup.pipeline.tasks.task_source import RowSource, TaskSource, encode_tasks

__all__ = ["row_reader", "task_reader"]


def task_reader(session: SparkSession, tasks: Sequence[object]) -> DataFrameReader:
    """Return what loads a row with the result of each task (`TaskSource`)."""
    return _reader(session, TaskSource, tasks)


def row_reader(session: SparkSession, schema: str, tasks: Sequence[object]) -> DataFrameReader:
    """Return what loads the rows of tasks (`RowSource`), with this schema in DDL."""
    return _reader(session, RowSource, tasks).schema(schema)


def _reader(session: SparkSession, source: type[TaskSource | RowSource], tasks: Sequence[object]) -> DataFrameReader:
    return register(session, source).read.format(source.name()).option("tasks", encode_tasks(tasks))
