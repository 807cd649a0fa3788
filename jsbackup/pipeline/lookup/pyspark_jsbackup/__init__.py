"""Lets Spark find the data source `jsbackup`, so that nobody has to register it.

Spark 4.3 imports each top-level module `pyspark_…` that it sees in a folder on the path of its Python, and registers
its `DefaultSource`. So this one is installed beside `jsbackup`: `pyproject.toml` names the folder above as another one
that has packages. The packages of an editable install are in no folder on the path: there `scripts/venv` adds that one.

Executors do not need it: what is sent to them names `jsbackup.pipeline.messages.source`.
"""

from jsbackup.pipeline.messages.source import BackupSource as DefaultSource

__all__ = ["DefaultSource"]
