"""What a query needs of our data source: which columns, as Spark asks a source in Python for all of them; and whether
it reads one of its tables more than once.

For the columns, the query is planned over an empty table that has the same. What is directly above the table in the
optimized plan names the columns that it takes; where that is not a projection or an aggregation, it takes all.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from jsbackup.pipeline.messages.columns import COLUMNS, ddl

__all__ = ["needed_columns", "placeholder", "scans_twice"]

_LOGICAL: Final = "org.apache.spark.sql.catalyst.plans.logical."
_NARROWING: Final = {_LOGICAL + "Project", _LOGICAL + "Aggregate"}
_FILTER: Final = _LOGICAL + "Filter"
_SCAN: Final = "org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation"
_TABLE: Final = "org.apache.spark.sql.execution.datasources.LogicalRelation"


def placeholder(session: SparkSession) -> DataFrame:
    """Return an empty table of messages, of which Spark knows nothing but the columns."""
    with tempfile.TemporaryDirectory(prefix="jsbackup-columns-") as empty:
        return session.read.schema(ddl(COLUMNS)).parquet(f"file:{empty}")


def needed_columns(query: DataFrame) -> tuple[str, ...]:
    """Return the columns that a query over placeholders takes from them, in order; perhaps none, as `count(*)` does.

    Raises errors of Spark, if the query cannot be planned.
    """
    needed: set[str] = set()
    plan = query._jdf.queryExecution().optimizedPlan()
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        waiting += _items(node.subqueries())
        kind = _kind(node)
        if kind == _TABLE:
            return COLUMNS
        if kind in _NARROWING:
            taken = set(_names(node))
            (below,) = _items(node.children())
            while _kind(below) == _FILTER:
                taken.update(_names(below))
                waiting += _items(below.subqueries())
                (below,) = _items(below.children())
            if _kind(below) == _TABLE:
                needed |= taken
            else:
                waiting.append(below)
        else:
            waiting += _items(node.children())
    return _ordered(needed)


def scans_twice(query: DataFrame) -> bool:
    """Return whether a query reads one of its tables of a data source more than once: Spark 4.3 would apply the filters
    that one of these readings has to all of them. Raises errors of Spark, if the query cannot be planned.
    """
    plan = query._jdf.queryExecution().optimizedPlan()
    leaves = [leaf for part in (plan, *_items(plan.subqueriesAll())) for leaf in _items(part.collectLeaves())]
    tables = [leaf.relation().table().hashCode() for leaf in leaves if _kind(leaf) == _SCAN]
    return len(set(tables)) < len(tables)


def _ordered(names: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in COLUMNS if name in names)


def _kind(node: Any) -> str:
    return str(node.getClass().getName())


def _names(node: Any) -> list[str]:
    return [str(attribute.name()) for attribute in _items(node.references().toSeq())]


def _items(sequence: Any) -> list[Any]:
    found, iterator = [], sequence.iterator()
    while iterator.hasNext():
        found.append(iterator.next())
    return found
