"""Settings of Spark for its Python workers: how Java and they are connected, and what memory they have on a cluster."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from jsbackup.errors import UsageError

__all__ = ["memory_settings", "socket_settings"]

_ENABLED, _FOLDER = "spark.python.unix.domain.socket.enabled", "spark.python.unix.domain.socket.dir"

# What the path of a Unix socket may have, without the byte that ends it; and the names that Spark makes (`daemon.py` of
# pyspark): a dot, a UUID and `.sock`.
_PATH_BYTES = 103 if sys.platform == "darwin" else 107
_NAME_BYTES = len("/.00000000-0000-0000-0000-000000000000.sock")

# Beside the heap, in MiB: what Java itself needs (Spark's own least overhead), and each Python worker, one for a core,
# which was measured to take 200 to 300.
_JAVA_MIB, _WORKER_MIB = 384, 384
_OVERHEADS = ("spark.executor.memoryOverhead", "spark.executor.memoryOverheadFactor", "spark.executor.pyspark.memory")


def socket_settings(master: str, folder: Path, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for Unix sockets, with which a Python task takes 8 ms instead of 54.

    They are only used where the path fits: in an embedded Spark, with the sockets in our own `folder`; on a cluster
    only if `conf` names a folder of the nodes for them. By default that is the folder for temporary files of Java,
    which on YARN is the one of the container, with a path that is too long.

    Raises:
        UsageError: `conf` names a folder whose path is too long.
    """
    if named := conf.get(_FOLDER):
        if not _fits(named) and conf.get(_ENABLED, "true") == "true":
            raise UsageError(
                f"{_FOLDER} is too long: {named[:200]}",
                hint=f"The folder of a Unix socket may have {_PATH_BYTES - _NAME_BYTES} bytes here.",
            )
        return {_ENABLED: "true"}
    if master.startswith("local") and _fits(str(folder)):
        return {_ENABLED: "true", _FOLDER: str(folder)}
    return {_ENABLED: "false"}


def _fits(folder: str) -> bool:
    return len(folder.encode(errors="surrogateescape")) + _NAME_BYTES <= _PATH_BYTES


def memory_settings(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the memory that YARN and Kubernetes, which end containers that take more, add to the heap of an executor.

    Spark's default is a tenth of the heap and 384 MiB at least, for Python workers too. Nothing if `conf` sets it.
    """
    if not (master == "yarn" or master.startswith("k8s://")) or any(name in conf for name in _OVERHEADS):
        return {}
    cores = conf.get("spark.executor.cores", "1").strip()
    count = int(cores) if cores.isascii() and cores.isdecimal() else 1
    return {_OVERHEADS[0]: f"{_JAVA_MIB + max(1, count) * _WORKER_MIB}m"}
