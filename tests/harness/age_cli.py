"""The public `age` command line tool: `age` on PATH, or .cache/age/age, which scripts/age builds."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.harness.servers import REPOSITORY, missing

_SECONDS = 60


def age_decrypt(identity: Path, file: Path) -> bytes:
    """`age -d -i IDENTITY FILE`."""
    found = shutil.which("age", path=str(REPOSITORY / ".cache" / "age")) or shutil.which("age")
    if found is None:
        missing("no `age` command line tool on PATH or in .cache/age: run scripts/age")
    command = [found, "-d", "-i", str(identity), str(file)]
    return subprocess.run(command, capture_output=True, timeout=_SECONDS, check=True).stdout
