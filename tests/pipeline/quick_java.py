"""Settings for each Java that tests start for a Spark of some seconds: it should take little of a processor, and so
should its Python workers.

The second compiler would take half of what a short Spark takes, and loading classes much of the rest, so
`./scripts/test` makes an archive of classes by running this module. Java itself checks that the archive fits, and goes
without if not.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from jsbackup.errors import UnsupportedError
from jsbackup.pipeline.session.java import find_java, java_version

__all__ = ["WORKERS", "quick_java", "quick_options", "quick_workers"]

WORKERS = Path(__file__).parent / "quick_workers"

_COMPILERS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m"
_FOLDER = Path(__file__).parents[2] / ".cache" / "classes"


@cache
def quick_options() -> str:
    """The options, on one line."""
    archive = _archive()
    # Java would say on stdout that an archive does not fit, and scripts of Spark read the stdout of its launcher.
    if archive is None or not archive.exists():
        return _COMPILERS
    return f"{_COMPILERS} -XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:disable"


def quick_java() -> dict[str, str]:
    """The options as a variable of the environment, which each Java reads that inherits it; and `quick_workers`."""
    return {"JAVA_TOOL_OPTIONS": quick_options(), **quick_workers()}


def quick_workers(*imported: str) -> dict[str, str]:
    """Variables of the environment for Python workers that start quickly, as if they had imported these modules."""
    path = os.pathsep.join([str(WORKERS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "JSBACKUP_TEST_WORKERS_IMPORT": " ".join(imported)}


def _archive() -> Path | None:
    """Where the archive of classes is for the Java and the Spark that tests use; None if this Java makes none."""
    spec = find_spec("pyspark")
    try:
        version = java_version(find_java(os.environ))
    except UnsupportedError:
        return None
    # An archive of a newer Java takes other options.
    if spec is None or spec.origin is None or version >= 24:
        return None
    import pyspark

    return _FOLDER / f"spark-{pyspark.__version__}-java-{version}.jsa"


def _make(archive: Path) -> None:
    """Run Spark for some of what tests do, and let its Java write the archive when it ends."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    shutil.rmtree(_FOLDER, ignore_errors=True)
    _FOLDER.mkdir(parents=True)
    new = archive.with_suffix(".new")
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.extraJavaOptions", f"{_COMPILERS} -XX:ArchiveClassesAtExit={new}")
    with tempfile.TemporaryDirectory() as folder:
        session = builder.config("spark.local.dir", folder).getOrCreate()
        session.range(100).selectExpr("id AS sequence", "concat('a', id % 3) AS subject").write.parquet(f"{folder}/x")
        session.read.parquet(f"{folder}/x").createOrReplaceTempView("example")
        session.sql("SELECT subject, count(*) FROM example GROUP BY subject ORDER BY 2 DESC").limit(2).collect()
        session.range(10).mapInArrow(lambda batches: batches, "id bigint").collect()
        session.stop()
        java = SparkContext._gateway.proc
        java.stdin.close()
        java.wait(120)
    new.replace(archive)


if __name__ == "__main__" and (wanted := _archive()) is not None and not wanted.exists():
    _make(wanted)
