"""Settings for each Java that tests start for a Spark of some seconds: it should take little of a processor, and so
should its Python workers.

The second compiler would take half of what a short Spark takes, and loading classes much of the rest. Where jsbackup
has made its archive of classes (`class_archive.py`), Java uses that; nothing makes one here. `./scripts/demo` does,
which CI runs before the tests. Java itself checks that the archive fits, and goes without if not.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from jsbackup.errors import UnsupportedError
from jsbackup.pipeline.session import class_archive
from jsbackup.pipeline.session.java import find_java

__all__ = ["WORKERS", "quick_java", "quick_options", "quick_workers"]

WORKERS = Path(__file__).parent / "quick_workers"

_COMPILERS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@cache
def quick_options() -> str:
    """The options, on one line."""
    archive = _archive()
    # Java would say on stdout that an archive does not fit, and scripts of Spark read the stdout of its launcher.
    return _COMPILERS if archive is None else f"{_COMPILERS} -XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:disable"


def quick_java() -> dict[str, str]:
    """The options as a variable of the environment, which each Java reads that inherits it; and `quick_workers`."""
    return {"JAVA_TOOL_OPTIONS": quick_options(), **quick_workers()}


def quick_workers(*imported: str) -> dict[str, str]:
    """Variables of the environment for Python workers that start quickly, as if they had imported these modules."""
    path = os.pathsep.join([str(WORKERS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "JSBACKUP_TEST_WORKERS_IMPORT": " ".join(imported)}


def _archive() -> Path | None:
    """The archive of classes for the Java and the Spark that tests use; None if there is none."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    try:
        java = find_java(os.environ)
        if class_archive._is_aot(java) is not False:  # one of a newer Java takes other options
            return None
        folder = Path.home() / ".cache" / "jsbackup"
        archive = folder / f"spark-{class_archive._key(java, Path(spec.origin).parent / 'jars')}.jsa"
        return archive if class_archive._is_whole(class_archive.ClassArchive(archive, False)) else None
    except (OSError, UnsupportedError):
        return None
