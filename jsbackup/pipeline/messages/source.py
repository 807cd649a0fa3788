"""The data source `jsbackup`: messages of a backup as rows, read by the executors from our own stores.

    spark.read.format("jsbackup").option("stream", "ORDERS").load("/backups")

For the options see `source_options.py`, for what it does `backup_reader.py`.

Spark finds it by its name where jsbackup is installed (`lookup/`); elsewhere it is registered (`session.py`). Its
methods run in Python processes that Spark starts: `schema`, `reader` and `partitions` beside the driver, where there is
no session, `read` on the executors. Each session that uses any source in Python imports this module to look for it, so
what the methods need is imported by them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["BackupSource"]


class BackupSource(DataSource):
    """The data source: reads backups. Backups are written by `write.py`.

    `backup` is the chosen one. Spark calls `schema` first, unless it is given one, and keeps the object that it was
    called of.
    """

    backup = ""

    @classmethod
    def name(cls) -> str:
        return "jsbackup"

    def schema(self) -> StructType:
        from jsbackup.pipeline.messages.backup_reader import find_schema

        return find_schema(self)

    def reader(self, schema: StructType) -> DataSourceReader:
        from jsbackup.pipeline.messages.backup_reader import make_reader

        return make_reader(self, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from jsbackup.pipeline.messages.backup_reader import make_stream_reader

        return make_stream_reader(self, schema)
