"""How jsbackup is built: by setuptools. An editable install also gets the folder in which Spark looks (`../lookup/`) on
its path.

Of an editable install setuptools makes the packages known by a hook of `import`. Spark looks into folders, where that
shows nothing, so a `.pth` file names the folder. All else is what PEP 517 and PEP 660 ask of a build backend.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

_PATH_FILE = "__editable__.pyspark_jsbackup.pth"
_LOOKUP = Path(__file__).resolve().parents[1] / "lookup"


def build_editable(
    wheel_directory: str,
    config_settings: dict[str, str | list[str] | None] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build the wheel of an editable install in a folder; return its name."""
    name: str = build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
    _add(Path(wheel_directory) / name, _PATH_FILE, f"{_LOOKUP}\n".encode())
    return name


def _add(wheel: Path, name: str, data: bytes) -> None:
    """Add a file to a wheel, and to the list of its files."""
    with zipfile.ZipFile(wheel) as packed:
        files = {info: packed.read(info) for info in packed.infolist()}
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(name, data)
        for info, content in files.items():
            if info.filename.endswith(".dist-info/RECORD"):
                content = f"{name},sha256={digest},{len(data)}\n".encode() + content
            packed.writestr(info, content)
