"""axe-core, which finds what keeps people from using a page. npm fetches it into `.cache`; it is not part of us.

Where there is no npm, or no network, its test is skipped, in CI too: all else about the pages is tested without it.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from functools import cache

import pytest

from tests.harness.servers import CACHE

VERSION = "4.10.3"
_SECONDS = 120


@cache
def axe_script() -> str:
    """The script. Skips the test if it cannot be had."""
    folder = CACHE.parent / "axe"
    packed = folder / f"axe-core-{VERSION}.tgz"
    if not packed.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("there is no npm to fetch axe-core with")
        folder.mkdir(parents=True, exist_ok=True)
        line = [npm, "pack", f"axe-core@{VERSION}", "--silent", "--pack-destination", str(folder)]
        try:
            done = subprocess.run(line, capture_output=True, text=True, timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            pytest.skip(f"npm did not fetch axe-core within {_SECONDS} s")
        if done.returncode or not packed.exists():
            pytest.skip(f"npm could not fetch axe-core: {done.stderr.strip()[-200:]}")
    with tarfile.open(packed) as archive:
        script = archive.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()
