"""Pack jsbackup for executors: the whole package, including the compiled kernel, as an archive.

Spark unpacks an archive beside each executor, so that a compiled module can be loaded from it (out of a zip on the path
it cannot). `PYTHONPATH` points there; on Spark Connect, which has no such setting, a tiny package does. The
dependencies of jsbackup have to be installed on the nodes.
"""

from __future__ import annotations

import zipfile
from importlib.resources import files
from pathlib import Path

import jsbackup

__all__ = ["ARCHIVE_FOLDER", "pack_package", "pack_signpost"]

ARCHIVE_FOLDER = "jsbackup_archive"


def pack_package(folder: Path) -> str:
    """Write the archive into `folder`; return the value for `spark.archives`."""
    root = Path(str(files(jsbackup)))
    archive = folder / "jsbackup.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".c", ".pyx"):
                packed.write(path, Path("jsbackup") / path.relative_to(root))
    return f"{archive}#{ARCHIVE_FOLDER}"


# Imported first, it makes Python import the package in the archive beside it.
_SIGNPOST = f"""
import os, sys
del sys.modules["jsbackup"]
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "{ARCHIVE_FOLDER}"))
import jsbackup
"""


def pack_signpost(folder: Path) -> str:
    """Write a zip for the path into `folder`, which makes Python import from the archive beside it."""
    archive = folder / "jsbackup_path.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("jsbackup/__init__.py", _SIGNPOST)
    return str(archive)
