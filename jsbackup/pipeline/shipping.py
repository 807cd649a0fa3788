"""The package on its way to executors: everything of jsbackup, the compiled kernel included, as an archive.

Spark unpacks an archive beside each executor, so that a compiled module can be loaded from it (out of a zip on the path
it cannot), and `PYTHONPATH` leads there. What jsbackup depends on has to be installed on the nodes.
"""

from __future__ import annotations

import zipfile
from importlib.resources import files
from pathlib import Path

import jsbackup

__all__ = ["ARCHIVE_FOLDER", "pack"]

ARCHIVE_FOLDER = "jsbackup_archive"


def pack(folder: Path) -> str:
    """Write the archive into `folder`; what `spark.archives` takes."""
    root = Path(str(files(jsbackup)))
    archive = folder / "jsbackup.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".c", ".pyx"):
                packed.write(path, Path("jsbackup") / path.relative_to(root))
    return f"{archive}#{ARCHIVE_FOLDER}"
