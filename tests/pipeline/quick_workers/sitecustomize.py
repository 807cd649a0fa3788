"""What Python runs when it starts, for the workers of a Spark that tests start (`quick_java.py` puts it on their path).

Spark forks a worker for each task and each question about a data source, and few of them are used again. Most of what
one takes is not its work. Measured: 0.3 s of imports. And 0.3 s because each looks for new modules first
(`importlib.invalidate_caches`), which in `pyspark.zip` is done by Python code, once for each package in it. So pyspark
is read from where pip has installed it, and what workers are forked from has imported what they import: jsbackup itself
only for the one Spark of most tests.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys

_IMPORTED = ("pandas", "pyarrow.parquet", "cryptography.x509", "pyspark.worker")


def _be_quick(words: list[str]) -> None:
    """`words` are the command line behind the name of Python."""
    if words[:1] != ["-m"] or not words[1:2] or not words[1].startswith("pyspark."):
        return
    sys.path[:] = [entry for entry in sys.path if not entry.endswith(".zip")]
    sys.path_importer_cache.clear()
    if words[1] != "pyspark.daemon":
        return
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no threads before a fork
    for name in (*_IMPORTED, *words[2:3], *os.environ.get("JSBACKUP_TEST_WORKERS_IMPORT", "").split()):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # A worker collects garbage after each task, and would look through all of it.
    gc.collect()
    gc.freeze()


_be_quick(sys.orig_argv[1:])
