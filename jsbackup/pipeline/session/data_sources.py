"""Our data sources in a session, registered when they are used.

With the first one Spark starts a Python that looks for others on its path, which takes a second. A query over Parquet
files needs none.
"""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

__all__ = ["register"]

# Spark refuses a source that another thread registers at the same time.
_lock = threading.Lock()
_registered: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()


def register(session: SparkSession, source: type[DataSource]) -> SparkSession:
    """Return the session, which can read or write by a source from now on. May be called repeatedly."""
    with _lock:
        names = _registered.setdefault(session, set())
        if source.name() not in names:
            session.dataSource.register(source)
            names.add(source.name())
    return session
